"""Right functions on the very cases at which a law once failed them: rare ones, which no seed of the gate may draw."""

import pytest

from headcheck.judging import replay
from tests.corpus import RIGHT

ONCE_FAILED = {
    "softmax/by-the-book": (
        "softmax/gradients/each-gradient-can-be-asked-for-alone",
        "dtype=float16 values=negative length=8139 seed=779543",
    ),
    "natural_right/a-mean-that-moves": (
        "attention/distribution/weights-are-not-negative",
        "dtype=float64 q_len=20 kv_len=33 head_dim=4 values=rising is_causal=true seed=441586",
    ),
    "multi_head_attention/InsideBfloat16": (
        "multi-head-attention/accuracy/output-is-the-references",
        "dtype=float64 batch=3 heads=3 head_dim=2 q_len=2 kv_len=2 mode=separate mask=random values=large seed=656745",
    ),
    "variants/library": (
        "attention/gradients/what-all-keys-share-pulls-at-no-query",
        "dtype=float16 heads=32 kv_heads=2 q_len=33 kv_len=65 head_dim=2 value_dim=2 seed=286178",
    ),
}


@pytest.mark.parametrize("name", list(ONCE_FAILED))
def test_a_right_function_is_not_failed_again(name: str) -> None:
    """The law holds there: the bound, or the law, was wrong, and the function was not."""
    law, case = ONCE_FAILED[name]
    assert replay(RIGHT[name].declaration(), law, case).outcome == "holds"
