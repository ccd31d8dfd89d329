"""Functions that return more than the output in every call, and hints at conventions that were not declared."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import headcheck
from headcheck.errors import SubjectError
from headcheck.reference.attention import attention
from headcheck.verdict import Hint


def weighted(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Any:
    """As much teaching code has it: the weights come with the output, and a mask is boolean."""
    scores = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5
    if mask is not None:
        scores = scores.masked_fill(mask == 0, -1e9)
    weights = scores.softmax(-1)
    return weights @ value, weights


def squared(query: Tensor, key: Tensor, value: Tensor) -> Any:
    """The weights that it returns are others than those that it uses."""
    output, weights = weighted(query, key, value)
    return output, weights**2


def with_log_sum_exp(query: Tensor, key: Tensor, value: Tensor) -> Any:
    """A list, the output in the middle."""
    scores = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5
    return [None, scores.softmax(-1) @ value, scores.logsumexp(-1)]


def verdict_of(subject: Any, laws: str | tuple[str, ...] = "accuracy/output-is") -> headcheck.Verdict:
    return headcheck.verify(subject, profile="quick", dtype="float32", laws=laws)


def test_weights_beside_the_output_are_judged() -> None:
    """A tuple is read as a plain call shows it, and what is recognised is held to the laws about it."""
    verdict = verdict_of(headcheck.Attention(weighted, masks=("boolean",), empty_rows="mean"), "features")
    assert (
        "every call returns (output, weights): as if declared, returns=('output', 'weights')" in verdict.notes
    )
    rows = {row.name_in_role: row.outcome for row in verdict.laws}
    assert rows["features/returned-weights-are-within-the-bound"] == "holds", repr(verdict)


def test_what_is_not_recognised_is_not_judged_but_said() -> None:
    """Other numbers than the weights are no weights, unless they are declared to be."""
    verdict = verdict_of(squared)
    assert verdict.conforms
    assert any("(output, other), of which the others are not judged" in note for note in verdict.notes)
    declared = headcheck.Attention(squared, returns=("output", "weights"))
    assert verdict_of(declared, "features/returned-weights-are").verdict == "breaks"


def test_the_output_may_stand_anywhere() -> None:
    """Each thing is known by what it is."""
    verdict = verdict_of(with_log_sum_exp, "features/log-sum-exp-is")
    assert verdict.conforms
    assert any("(other, output, log_sum_exp)" in note for note in verdict.notes)


def test_what_is_declared_is_held_to() -> None:
    """A call that returns less than declared breaks the law at hand, and an output is named once."""
    declared = headcheck.Attention(lambda q, k, v: weighted(q, k, v)[0], returns=("output", "weights"))
    (row,) = verdict_of(declared).laws
    assert "where every call returns output, weights" in row.reason
    with pytest.raises(SubjectError, match="names the output not once"):
        headcheck.Attention(weighted, returns=("weights",))


def blocking(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Tensor:
    """True blocks."""
    return torch.nn.functional.scaled_dot_product_attention(
        query, key, value, None if attn_mask is None else ~attn_mask
    )


def bottom_right(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> Tensor:
    """The last query sees the last key."""
    below = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool).tril(key.shape[-2] - query.shape[-2])
    return torch.nn.functional.scaled_dot_product_attention(query, key, value, below if is_causal else None)


def unscaled(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The scale is forgotten."""
    return torch.nn.functional.scaled_dot_product_attention(query, key, value, scale=1.0)


def of_directions(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Query and key are normalised first."""
    query, key = (torch.nn.functional.rms_norm(each, each.shape[-1:], eps=1e-6) for each in (query, key))
    return torch.nn.functional.scaled_dot_product_attention(query, key, value)


def square(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """As many keys as queries are read."""
    length = query.shape[-2]
    return torch.nn.functional.scaled_dot_product_attention(query, key[:, :, :length], value[:, :, :length])


def as_wide_as_the_query(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The output has the shape of the query."""
    output = torch.zeros_like(query)
    output += torch.nn.functional.scaled_dot_product_attention(query, key, value)
    return output


def boolean_by_the_name_of_torch(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None
) -> Any:
    """A mask that torch's name says may be added, and is not."""
    return weighted(query, key, value, attn_mask)


@pytest.mark.parametrize(
    ("function", "hint"),
    [
        (
            unscaled,
            "a plain call is right for a scale of 1, whatever head_dim is: --declare always.scale=1.0",
        ),
        (of_directions, "a plain call is right for query and key that are normalised first (QK-norm)"),
        (boolean_by_the_name_of_torch, "--declare masks=boolean"),
        (blocking, "a plain call is right with --declare true_means=block"),
        (bottom_right, "a plain call is right with --declare causal=bottom-right"),
        (square, "a plain call is right with --declare rectangular=False"),
        (as_wide_as_the_query, "a plain call is right with --declare value_dim=False"),
    ],
)
def test_a_note_hints_at_a_convention(function: Any, hint: str) -> None:
    """What would make a plain call right is said; nothing is judged otherwise for it."""
    assert any(hint in note for note in verdict_of(function).notes if isinstance(note, Hint))


@pytest.mark.parametrize(
    ("function", "declared"), [(square, "rectangular=False"), (as_wide_as_the_query, "value_dim=False")]
)
def test_what_is_for_sizes_that_are_alike_conforms_once_it_is_declared(function: Any, declared: str) -> None:
    """And nothing more is hinted at."""
    laws = ("accuracy/output-is", "gradients-are", "memory")
    verdict = headcheck.verify(function, profile="quick", dtype="float32", laws=laws, declare=declared)
    assert verdict.conforms, repr(verdict)
    assert not [note for note in verdict.notes if isinstance(note, Hint)]


def test_nothing_is_hinted_at_where_plain_calls_are_right() -> None:
    """Of torch's own function there is nothing to say."""
    notes = verdict_of(torch.nn.functional.scaled_dot_product_attention).notes
    assert not any("declare" in note for note in notes)


def in_base_two(query: Tensor, key: Tensor, value: Tensor, return_lse: bool = False) -> Any:
    """As flashinfer has it: the logarithm of the sum is taken to base 2."""
    scores = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5
    output = scores.softmax(-1) @ value
    return (output, scores.float().logsumexp(-1) / math.log(2)) if return_lse else output


def test_a_log_sum_exp_of_base_two_is_hinted_at_and_declared() -> None:
    """Undeclared it breaks a law, with a hint at the declaration; declared, its value and its gradient hold."""
    undeclared = verdict_of(in_base_two, "log-sum-exp")
    assert undeclared.verdict == "breaks"
    assert any("log_sum_exp=base-2" in note for note in undeclared.notes if isinstance(note, Hint))
    verdict = verdict_of(headcheck.Attention(in_base_two, log_sum_exp="base-2"), "log-sum-exp")
    assert verdict.conforms, repr(verdict)
    assert sum(row.outcome == "holds" for row in verdict.laws) > 1
    natural = headcheck.Attention(in_base_two, log_sum_exp=True)
    assert verdict_of(natural, "log-sum-exp-is").verdict == "breaks"


def test_a_log_sum_exp_in_every_call_is_told_by_its_shape_where_it_is_declared() -> None:
    """However wrong its numbers are."""

    def shifted(query: Tensor, key: Tensor, value: Tensor, by: float = 1.0) -> Any:
        output, found = in_base_two(query, key, value, return_lse=True)
        return output, found + by

    declared = headcheck.Attention(shifted, log_sum_exp="base-2")
    assert verdict_of(declared, "log-sum-exp-is").verdict == "breaks"
    right = headcheck.Attention(lambda q, k, v: shifted(q, k, v, by=0.0), log_sum_exp="base-2")
    assert verdict_of(right, "log-sum-exp-is").conforms
    undeclared = verdict_of(shifted)
    assert any("(output, other)" in note for note in undeclared.notes)


def refusing(query: Tensor, key: Tensor, value: Tensor, return_lse: bool = False) -> Tensor:
    """It takes the argument and refuses what it asks for."""
    if return_lse:
        raise ValueError("use the other kernel")
    return torch.nn.functional.scaled_dot_product_attention(query, key, value)


def test_a_log_sum_exp_that_a_plain_call_refuses_is_not_asked_for() -> None:
    """As with any argument; where it is declared, it is."""
    verdict = verdict_of(refusing, "log-sum-exp")
    assert verdict.verdict == "untested"
    assert any("use the other kernel" in note for note in verdict.notes)
    assert verdict_of(headcheck.Attention(refusing, log_sum_exp=True), "log-sum-exp").verdict == "breaks"


def beside_none(
    query: Tensor, key: Tensor, value: Tensor, return_weights: bool = False, return_lse: bool = False
) -> Any:
    """None stands for what was not asked for."""
    scores = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5
    weights = scores.softmax(-1)
    more = weights if return_weights else None, scores.float().logsumexp(-1) if return_lse else None
    return weights @ value, *more


def alike_in_all_heads(query: Tensor, key: Tensor, value: Tensor, return_weights: bool = False) -> Any:
    """The weights are averaged over the heads."""
    output, weights, _ = beside_none(query, key, value, return_weights)
    return output, weights.mean(1, keepdim=True).expand_as(weights) if return_weights else None


def off_by_one(query: Tensor, key: Tensor, value: Tensor, return_lse: bool = False) -> Any:
    """The log-sum-exp is another, in a list."""
    output, _, found = beside_none(query, key, value, return_lse=return_lse)
    return [output, found + 1 if return_lse else None]


def listing(query: Tensor, key: Tensor, value: Tensor, return_lse: bool = False) -> Any:
    """A list where more than the output is asked for."""
    output, _, found = beside_none(query, key, value, return_lse=return_lse)
    return [output, found] if return_lse else output


def without_what_is_asked(query: Tensor, key: Tensor, value: Tensor, return_lse: bool = False) -> Any:
    """None comes in any case."""
    return beside_none(query, key, value)[:2]


@pytest.mark.parametrize(
    ("function", "broken"),
    [
        (beside_none, []),
        (listing, []),
        (alike_in_all_heads, ["features/returned-weights-are-within-the-bound"]),
        (off_by_one, ["features/log-sum-exp-is-within-the-bound"]),
        (without_what_is_asked, ["features/log-sum-exp-is-within-the-bound"]),
    ],
)
def test_what_is_none_unless_it_is_asked_for_is_judged(function: Any, broken: list[str]) -> None:
    """A plain call that returns (output, None) does not hide what the argument asks for."""
    verdict = verdict_of(function, ("returned-weights-are", "log-sum-exp-is"))
    assert [row.name_in_role for row in verdict.broken] == broken, repr(verdict)
    assert "holds" in {row.outcome for row in verdict.laws} or broken


def as_flash_attention(
    query: Tensor, key: Tensor, value: Tensor, causal: bool = False, return_lse: bool = False
) -> Any:
    """The log-sum-exp is +inf before the first key, of which there may be none."""
    seen = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool).tril(key.shape[2] - query.shape[2])
    given = attention(query, key, value, may_attend=seen if causal else None)
    found = given.log_sum_exp.masked_fill(given.log_sum_exp == -math.inf, math.inf)
    return (given.output, found) if return_lse else given.output


def test_a_log_sum_exp_of_no_keys_that_is_inf_is_hinted_at_and_declared() -> None:
    """A short run reaches a row without keys; what is declared is held to."""
    laws = ("log-sum-exp", "empty-axes", "recording-gradients")
    undeclared = verdict_of(headcheck.Attention(as_flash_attention, causal="bottom-right"), laws)
    assert [row.name_in_role for row in undeclared.broken] == [
        "accuracy/empty-axes-are-allowed-or-refused",
        "features/log-sum-exp-is-within-the-bound",
    ], repr(undeclared)
    hint = "the log-sum-exp of no keys is inf: --declare empty_log_sum_exp=inf if that is what you mean"
    assert [note for note in undeclared.notes if isinstance(note, Hint)] == [hint]
    declared = headcheck.Attention(as_flash_attention, causal="bottom-right", empty_log_sum_exp="inf")
    assert (verdict := verdict_of(declared, laws)).conforms, repr(verdict)
    with_minus_inf = headcheck.Attention(in_base_two, log_sum_exp="base-2", empty_log_sum_exp="inf")
    assert verdict_of(with_minus_inf, "empty-axes").verdict == "breaks"
