"""Right functions on the very cases at which a law once failed them: rare ones, which no seed of the gate may draw."""

import pytest
import torch
from torch import Tensor, nn

from headcheck.declarations import Attention
from headcheck.python_front import replay, verify
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
    "merged/shares-by-a-softmax": (
        "attention/gradients/the-bias-gets-its-gradient",
        "batch=3 q_len=31 kv_len=15 value_dim=5 values=ladder mask=random mask_form=bias",
    ),
    "seq2seq/all-masks-of-the-tutorial": (
        "seq2seq/target/no-gradient-comes-from-later-targets",
        "dtype=float64 batch=2 source_len=1 split=3 seed=295944",
    ),
}


@pytest.mark.parametrize("name", list(ONCE_FAILED))
def test_a_right_function_is_not_failed_again(name: str) -> None:
    """The law holds there: the bound, or the law, was wrong, and the function was not."""
    law, case = ONCE_FAILED[name]
    assert replay(RIGHT[name].declaration(), law, case).outcome == "holds"


class Padded(nn.Module):
    """An encoder's layer whose mask has a short name, and is True at padding."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)

    def forward(self, x: Tensor, pad_mask: Tensor | None = None) -> Tensor:
        out: Tensor = self.layer(x, src_key_padding_mask=pad_mask)
        return out


def test_a_pad_mask_is_a_padding_mask() -> None:
    """By either name what True says is found out."""
    verdict = verify(Padded, role="encoder", profile="quick", laws=("padding",))
    assert verdict.conforms, repr(verdict)
    assert "pad_mask is given as boolean (batch, length), True at what is padding" in verdict.notes


def test_an_array_that_wants_a_gradient_names_the_declaration() -> None:
    """A function of NumPy that reads a mask raises where that wants a gradient, and has none."""

    def attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        query, key, value = (each.detach() for each in (query, key, value))
        mask = None if attn_mask is None else torch.from_numpy(attn_mask.numpy())
        return nn.functional.scaled_dot_product_attention(query, key, value, mask)

    law = "attention/gradients/no-gradient-through-masked-slots"
    failed = verify(attention, profile="quick", laws=(law,), dtype="float32")
    (row,) = failed.laws
    assert row.counterexample is not None
    assert row.counterexample.message.endswith("(where it has no gradients, declare gradients=False)")
    held = verify(Attention(attention, gradients=False), profile="quick", laws=(law,), dtype="float32")
    assert held.laws[0].outcome == "not-applicable"
