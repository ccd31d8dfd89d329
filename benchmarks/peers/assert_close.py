"""torch.testing.assert_close against torch's own attention.

What most people write first: normal inputs, as many keys as queries, float32, the default tolerances of
assert_close (https://docs.pytorch.org/docs/stable/testing.html: for float32 rtol 1.3e-6 and atol 1e-5).
Three calls: plain, causal, with a boolean mask.
"""

from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.peers.rules import Peer, Trial
from benchmarks.peers.subjects import Subject, Triple, three

SHAPE = (2, 4, 64, 32)
"""batch, heads, length, head_dim."""


@cache
def inputs() -> tuple[Triple, Tensor]:
    """Query, key and value; a boolean mask."""
    source = torch.Generator().manual_seed(0)
    tensors = three(torch.randn(SHAPE, generator=source) for _ in range(3))
    return tensors, torch.rand(64, 64, generator=source) > 0.5


def agrees(subject: Subject, kind: str) -> None:
    """The subject's output is that of torch."""
    tensors, mask = inputs()
    query, key, value = (each.to(subject.dtype(torch.float32)) for each in tensors)
    attn_mask, is_causal = mask if kind == "masked" else None, kind == "causal"
    expected = scaled_dot_product_attention(query, key, value, attn_mask, is_causal=is_causal)
    options: dict[str, dict[str, Any]] = {
        "plain": {},
        "causal": {"is_causal": True},
        "masked": {"attn_mask": mask.clone()},
    }
    output = subject(query.clone(), key.clone(), value.clone(), **options[kind])
    torch.testing.assert_close(output, expected)


def trials() -> list[Trial]:
    return [partial(agrees, kind=kind) for kind in ("plain", "causal", "masked")]


PEER = Peer(
    name="assert_close",
    title="`torch.testing.assert_close` against torch",
    rule=(
        "Normal inputs, 64 queries and keys, float32, default tolerances (in float16 rtol = 1e-3, a unit in the last "
        "place, and atol = 1e-5), against `scaled_dot_product_attention`: plain, causal, with a boolean mask."
    ),
    source="https://docs.pytorch.org/docs/stable/testing.html",
    trials=trials,
)
