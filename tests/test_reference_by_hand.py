"""The reference is held to answers found by hand, and its masks to their predicates."""

import math
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from headcheck.arithmetic import Arithmetic
from headcheck.attention.bounds import forward_bounds
from headcheck.attention.problem import Problem
from headcheck.comparison import within
from headcheck.reference import attention, attention_gradients, group_heads, log_sum_exp, masks
from headcheck.reference.canonical import canonical_attention
from headcheck.reference.positions import alibi_bias, alibi_slopes
from tests import exact

# Answers that can be checked by hand

E = math.e
ROOT_2 = math.sqrt(2)


def by_hand(
    query: list[list[float]], key: list[list[float]], value: list[list[float]], **features: Any
) -> Any:
    """`attention` of one head on numbers written as rows."""
    tensors = [torch.tensor(x, dtype=torch.float64)[None, None] for x in (query, key, value)]
    return attention(*tensors, **features)


def test_the_known_answer() -> None:
    """q = [[0, sqrt 2]] against K = V = I gives [1, e] / (1 + e), to the last bit but one."""
    identity = [[1.0, 0.0], [0.0, 1.0]]
    found = by_hand([[0.0, ROOT_2]], identity, identity).output[0, 0, 0]
    want = [1 / (1 + E), E / (1 + E)]
    problem = Problem(
        *(torch.tensor(x, dtype=torch.float64)[None, None] for x in ([[0.0, ROOT_2]], identity, identity)),
        scale=2**-0.5,
    )
    bound = forward_bounds(problem, Arithmetic(), torch.float64).output
    assert not within(
        found[None, None, None], torch.tensor(want, dtype=torch.float64)[None, None, None], bound
    ).broken


def test_a_query_of_zeros_takes_the_mean() -> None:
    """Four equal scores give the mean of four values, exactly."""
    found = by_hand([[0.0]], [[1.0], [2.0], [3.0], [4.0]], [[1.0], [2.0], [3.0], [10.0]])
    assert found.output.item() == 4.0
    assert found.weights.flatten().tolist() == [0.25] * 4


def test_the_log_sum_exp_of_zeros_is_the_log_of_their_number() -> None:
    """n scores of zero have the log-sum-exp log n."""
    for n in (1, 2, 3, 7):
        assert log_sum_exp(torch.zeros(n, dtype=torch.float64)).item() == math.log(n)


def test_a_sink_of_zero_beside_a_score_of_zero_takes_half() -> None:
    """One key of score 0 and a sink of 0: the key has a weight of 1/2, and the log-sum-exp is log 2."""
    found = by_hand([[0.0]], [[1.0]], [[6.0]], sinks=torch.zeros(1, dtype=torch.float64))
    assert (found.output.item(), found.weights.item(), found.log_sum_exp.item()) == (3.0, 0.5, math.log(2))


def test_a_softcap_acts_after_the_scale_and_before_the_bias() -> None:
    """score = c tanh(scale q.k / c) + bias: 2 tanh(3 * 4 / 2) + 5."""
    bias = torch.full((1, 1, 1, 1), 5.0, dtype=torch.float64)
    found = by_hand([[3.0]], [[8.0]], [[1.0]], scale=0.5, softcap=2.0, bias=bias)
    assert found.scores.item() == 2.0 * math.tanh(6.0) + 5.0


def test_a_query_that_sees_nothing_gives_zeros() -> None:
    """A dead row has output 0, weights 0, log-sum-exp -inf and gradients 0; a sink changes only its lse."""
    nothing = torch.zeros((1, 2), dtype=torch.bool)
    numbers: tuple[Any, ...] = ([[1.0]], [[1.0], [2.0]], [[3.0], [4.0]])
    dead = by_hand(*numbers, may_attend=nothing)
    assert (dead.output.item(), dead.weights.flatten().tolist(), dead.log_sum_exp.item()) == (
        0,
        [0, 0],
        -math.inf,
    )
    with_sink = by_hand(*numbers, may_attend=nothing, sinks=torch.tensor([0.5], dtype=torch.float64))
    assert (with_sink.output.item(), with_sink.log_sum_exp.item()) == (0.0, 0.5)
    tensors = [torch.tensor(x, dtype=torch.float64)[None, None] for x in numbers]
    gradients = attention_gradients(*tensors, torch.ones(1, 1, 1, 1).double(), may_attend=nothing)
    assert all(not each.any() for each in gradients if each is not None)


def test_no_keys_give_zeros() -> None:
    """kv_len = 0: the output is 0 and the log-sum-exp is -inf."""
    query, none = torch.ones(1, 2, 3, 4).double(), torch.ones(1, 2, 0, 4).double()
    found = attention(query, none, none)
    assert found.output.shape == (1, 2, 3, 4)
    assert not found.output.any()
    assert bool(found.log_sum_exp.isneginf().all())


@pytest.mark.parametrize("poisoned", ["query", "key", "value"])
def test_nan_that_is_seen_is_shown(poisoned: str) -> None:
    """NaN in a query, a visible key or a visible value gives NaN, not a row of zeros."""
    tensors = {name: torch.ones(1, 1, 2, 1).double() for name in ("query", "key", "value")}
    tensors[poisoned][0, 0, 0] = math.nan
    output = attention(**tensors).output[0, 0, :, 0]
    assert output.isnan().tolist() == ([True, False] if poisoned == "query" else [True, True])


def test_grouped_heads_interleave() -> None:
    """Of six query heads on two key heads, the first three read key head 0 and the last three key head 1."""
    key = torch.tensor([10.0, 20.0]).reshape(1, 2, 1, 1)
    assert group_heads(key, 6).flatten().tolist() == [10, 10, 10, 20, 20, 20]


@pytest.mark.parametrize(
    ("heads", "slopes"),
    [
        (8, [2**-1, 2**-2, 2**-3, 2**-4, 2**-5, 2**-6, 2**-7, 2**-8]),
        (4, [2**-2, 2**-4, 2**-6, 2**-8]),
        (1, [2**-8]),
        (6, [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3]),
        (3, [2**-4, 2**-8, 2**-2]),
    ],
)
def test_alibi_slopes_of_the_paper(heads: int, slopes: list[float]) -> None:
    """Eight heads have the slopes 1/2 to 1/256; other counts borrow every second slope of the power above."""
    assert alibi_slopes(heads).tolist() == slopes


def test_canonical_attention_refuses_fewer_key_heads_without_being_told() -> None:
    """Grouped heads need enable_gqa=True."""
    query, key = torch.ones(1, 2, 1, 1), torch.ones(1, 1, 1, 1)
    with pytest.raises(ValueError, match="enable_gqa=True"):
        canonical_attention(query, key, key)
    output = canonical_attention(query, key, key, enable_gqa=True)
    assert isinstance(output, Tensor)
    assert output.flatten().tolist() == [1, 1]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_canonical_attention_rounds_half_precision_once(dtype: torch.dtype) -> None:
    """bfloat16 and float16 are the float32 answer, rounded once."""
    tensors = [
        torch.randn(1, 2, 5, 4, generator=torch.Generator().manual_seed(0)).to(dtype) for _ in range(3)
    ]
    wide = canonical_attention(*(x.float() for x in tensors))
    assert isinstance(wide, Tensor)
    assert torch.equal(canonical_attention(*tensors), wide.to(dtype))  # type: ignore[arg-type]


# Masks, each by its predicate

LENGTHS = [(1, 1), (1, 4), (4, 1), (3, 3), (2, 5), (5, 2), (3, 0), (0, 3)]
ALIGNMENTS: tuple[masks.Alignment, ...] = ("top-left", "bottom-right")


def table(q_len: int, kv_len: int, predicate: exact.Predicate) -> Tensor:
    rows = [[predicate(i, j) for j in range(kv_len)] for i in range(q_len)]
    return torch.tensor(rows, dtype=torch.bool).reshape(q_len, kv_len)


@pytest.mark.parametrize("alignment", ALIGNMENTS)
@pytest.mark.parametrize(("q_len", "kv_len"), LENGTHS)
def test_the_causal_mask(q_len: int, kv_len: int, alignment: masks.Alignment) -> None:
    """(i, j) is kept if j <= i, or, bottom-right, if j <= i + kv_len - q_len."""
    offset = {"top-left": 0, "bottom-right": kv_len - q_len}[alignment]
    assert torch.equal(masks.causal(q_len, kv_len, alignment), table(q_len, kv_len, exact.causal(offset)))


@pytest.mark.parametrize("alignment", ALIGNMENTS)
@pytest.mark.parametrize(("q_len", "kv_len"), LENGTHS)
def test_the_window_mask(q_len: int, kv_len: int, alignment: masks.Alignment) -> None:
    """(i, j) is kept if j is at most `left` before and `right` after the query; None is unbounded."""
    offset = {"top-left": 0, "bottom-right": kv_len - q_len}[alignment]
    for left, right in product((None, 0, 1, 3), (None, 0, 1)):
        found = masks.sliding_window(q_len, kv_len, left, right, alignment)
        assert torch.equal(found, table(q_len, kv_len, exact.window(left, right, offset))), (left, right)


@pytest.mark.parametrize("alignment", ALIGNMENTS)
@pytest.mark.parametrize(("q_len", "kv_len"), LENGTHS)
def test_the_prefix_mask(q_len: int, kv_len: int, alignment: masks.Alignment) -> None:
    """(i, j) is kept if j is in the prefix or not in the future."""
    offset = {"top-left": 0, "bottom-right": kv_len - q_len}[alignment]
    for length in range(kv_len + 2):
        found = masks.prefix(q_len, kv_len, length, alignment)
        assert torch.equal(found, table(q_len, kv_len, exact.prefix(length, offset))), length


def test_the_padding_mask() -> None:
    """(b, j) is kept if j < lengths[b], for every query and head."""
    lengths = [0, 1, 3, 4]
    found = masks.padding(torch.tensor(lengths), 4)
    assert found.shape == (4, 1, 1, 4)
    assert found[:, 0, 0].tolist() == [[j < n for j in range(4)] for n in lengths]


def test_the_document_mask() -> None:
    """(b, i, j) is kept if query i and key j of sequence b bear the same id."""
    query_ids, key_ids = [[0, 0, 1], [2, 1, 2]], [[0, 1], [2, 2]]
    found = masks.document(torch.tensor(query_ids), torch.tensor(key_ids))
    want = [
        [[a == b for b in keys] for a in queries] for queries, keys in zip(query_ids, key_ids, strict=True)
    ]
    assert found.shape == (2, 1, 3, 2)
    assert found[:, 0].tolist() == want


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_the_additive_form_of_a_mask(dtype: torch.dtype) -> None:
    """0 where a query may attend, -inf where it may not."""
    found = masks.additive(torch.tensor([True, False]), dtype)
    assert found.dtype == dtype
    assert found.tolist() == [0.0, -math.inf]


@pytest.mark.parametrize("alignment", ALIGNMENTS)
def test_the_alibi_bias(alignment: masks.Alignment) -> None:
    """Entry (h, i, j) is -slope_h |position(i) - j|, exactly."""
    slopes, q_len, kv_len = [0.5, 0.25, 3.0], 3, 5
    offset = {"top-left": 0, "bottom-right": 2}[alignment]
    found = alibi_bias(torch.tensor(slopes, dtype=torch.float64), q_len, kv_len, alignment)
    want = [[[-s * abs(i + offset - j) for j in range(kv_len)] for i in range(q_len)] for s in slopes]
    assert found.tolist() == want
