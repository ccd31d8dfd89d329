"""Arrays of hypothesis against a reference in numpy, as somebody writes it in an afternoon.

Drawn: sizes of every axis up to 5, numbers from -10 to 10 in float32
(https://hypothesis.readthedocs.io/en/latest/reference/strategies.html, numpy), and is_causal. Compared with a
reference in float64 by numpy.testing.assert_allclose, rtol = atol = 1e-5, 1e-2 in 16 bits: the smallest
powers of ten that torch's own attention passes. A hundred examples, hypothesis' default; they are drawn alike in
every run, and a counterexample is not made small.
"""

from typing import Any

import numpy as np
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from benchmarks.peers.rules import Peer, Trial
from benchmarks.peers.subjects import Subject

Array = NDArray[np.float32]
SIZES = st.integers(1, 5)
NUMBERS = st.floats(-10, 10, width=32)


@st.composite
def inputs(draw: st.DrawFn) -> tuple[Array, Array, Array]:
    """Query, key and value."""
    batch, heads, q_len, kv_len, head_dim = (draw(SIZES) for _ in range(5))
    lengths = (q_len, kv_len, kv_len)
    query, key, value = (
        draw(arrays(np.float32, (batch, heads, length, head_dim), elements=NUMBERS)) for length in lengths
    )
    return query, key, value


def reference(query: Array, key: Array, value: Array, *, is_causal: bool) -> NDArray[np.float64]:
    """Attention in float64."""
    wide = query.astype(np.float64)
    scores = wide @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1])
    if is_causal:
        scores = np.where(np.tri(*scores.shape[-2:]) > 0, scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    result: NDArray[np.float64] = weights / weights.sum(axis=-1, keepdims=True) @ value
    return result


def agrees_on_whatever_is_drawn(subject: Subject) -> None:
    """A hundred examples."""
    dtype = subject.dtype(torch.float32)
    allowed = 1e-2 if dtype.itemsize == 2 else 1e-5

    @settings(
        max_examples=100,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
    )
    @given(drawn=inputs(), is_causal=st.booleans())
    def agrees(drawn: tuple[Array, Array, Array], is_causal: bool) -> None:
        tensors = tuple(torch.from_numpy(each).to(dtype) for each in drawn)
        read = tuple(each.to(torch.float32).numpy() for each in tensors)
        output: Any = subject(*(each.clone() for each in tensors), is_causal=is_causal)
        expected = reference(*read, is_causal=is_causal)
        np.testing.assert_allclose(output.to(torch.float64).numpy(), expected, rtol=allowed, atol=allowed)

    agrees()


def trials() -> list[Trial]:
    return [agrees_on_whatever_is_drawn]


PEER = Peer(
    name="hypothesis",
    title="`hypothesis.extra.numpy` and `assert_allclose`",
    rule=(
        "A hundred drawn examples, every size up to 5, numbers from -10 to 10, float32, `is_causal` drawn, against "
        "a reference in numpy; rtol = atol = 1e-5 (1e-2 in 16 bits)."
    ),
    source="https://hypothesis.readthedocs.io/en/latest/reference/strategies.html",
    trials=trials,
)
