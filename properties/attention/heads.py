"""Grouped heads: several query heads read one key head."""

from collections.abc import Iterator

from headcheck.attention.given import grouped
from headcheck.attention.inputs import Inputs
from headcheck.attention.subject import AttentionSubject
from headcheck.comparison import Comparison, compared_gradients
from headcheck.laws import law

AINSLIE = "Ainslie et al. 2023 (GQA), section 2.2"


@law(
    source=AINSLIE,
    formula="O(K, V grouped) = O(each key head repeated group times, interleaved)",
    guards="Tiled heads, the last group cut off, a group size taken for a head count (onnx 7274, flashinfer 1148).",
    needs=("grouped_heads",),
    given=(grouped,),
)
def grouped_heads_equal_repeated_heads(attention: AttentionSubject, x: Inputs) -> Comparison:
    """Fewer key heads do what the same key heads do when each is repeated for its group."""
    key, value = (tensor.repeat_interleave(x.group, dim=1) for tensor in (x.key, x.value))
    return attention.agree(x, x.but(key=key, value=value))


@law(
    source=AINSLIE,
    formula="dK_h = sum of the gradients of its group's copies",
    guards="A backward that keeps one head of the group, or the mean (native-sparse-attention-triton 27).",
    needs=("grouped_heads",),
    given=(grouped,),
)
def a_key_head_hears_its_whole_group(attention: AttentionSubject, x: Inputs) -> Iterator[Comparison]:
    """The gradient of a key head is the sum over all the query heads that read it."""
    attention.require_specified_gradients(x)
    found, exact = attention.gradients(x), x.problem.gradients(x.cotangent.double())
    bounds = attention.gradient_bounds(x).of("key", "value")
    yield from compared_gradients(found._asdict(), exact._asdict(), bounds)
