"""What is told of a subject and not judged: second derivatives, and masks of three axes."""

import math
import re
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import headcheck
from headcheck.attention.hints import KEYS_TURNED
from headcheck.roles import role
from tests import kernels


def notes_of(function: Any, *dtypes: str) -> str:
    """All notes on a function, undeclared or declared, in float32 and float64 unless others are named."""
    declaration = function if isinstance(function, headcheck.Attention) else headcheck.Attention(function)
    dtypes = dtypes or ("float32", "float64")
    _, notes = role("attention").prepare(declaration, dtypes=dtypes, device="cpu", seed=0)
    return "\n".join(notes)


class OfScores(torch.autograd.Function):
    """Softmax times values, whose backward takes the weights that it kept for constants."""

    @staticmethod
    def forward(context: Any, scores: Tensor, value: Tensor) -> Tensor:
        context.weights = weights = torch.softmax(scores, dim=-1)
        context.save_for_backward(value)
        return weights @ value

    @staticmethod
    def backward(context: Any, *cotangents: Tensor) -> tuple[Tensor, Tensor]:
        (cotangent,), weights, (value,) = cotangents, context.weights, context.saved_tensors
        of_weights = cotangent @ value.mT
        total = (weights * of_weights).sum(dim=-1, keepdim=True)
        return weights * (of_weights - total), weights.mT @ cotangent


def made_of(scores_and_values: Any) -> Any:
    """Attention without options, its last steps in one function of autograd."""

    def attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        output: Tensor = scores_and_values(query @ key.mT * query.shape[-1] ** -0.5, value)
        return output

    return attention


def test_wrong_second_derivatives_are_told() -> None:
    """Of a backward that keeps what it should compute again, and not of one that autograd made."""
    told = "second derivatives are given and are wrong"
    assert told in notes_of(made_of(OfScores.apply))
    assert told not in notes_of(made_of(lambda scores, value: torch.softmax(scores, dim=-1) @ value))


@pytest.mark.parametrize("scale", [0.125, 10.0, 512**-0.5, 1 / 0.07])
def test_a_scale_of_every_call_is_told(scale: float) -> None:
    """Measured, written as its author would, and not told of the default scale."""

    def tempered(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> Tensor:
        return torch.nn.functional.scaled_dot_product_attention(
            query, key, value, is_causal=is_causal, scale=scale
        )

    declared = re.search(r"--declare always.scale=(\S+) if that is what you mean", notes_of(tempered))
    assert declared
    assert float(declared[1]) == pytest.approx(scale, rel=1e-15)
    assert "scale" not in notes_of(torch.nn.functional.scaled_dot_product_attention)


def test_a_mask_of_three_axes_by_sequence_is_told() -> None:
    """Where batch and heads are equal no call would show it."""

    def by_sequence(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        if attn_mask is not None and attn_mask.ndim == 3:
            attn_mask = attn_mask[:, None]
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask)

    told = "takes an attn_mask of three axes as (batch, q_len, kv_len)"
    assert told in notes_of(by_sequence)
    assert told not in notes_of(torch.nn.functional.scaled_dot_product_attention)


def test_products_beyond_float16_are_told() -> None:
    """Of what scales them afterwards, and not of what scales the query before; of no float32."""

    def scaled_late(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return torch.softmax(query @ key.mT * query.shape[-1] ** -0.5, dim=-1) @ value

    def scaled_first(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return torch.softmax((query * query.shape[-1] ** -0.5) @ key.mT, dim=-1) @ value

    told = "products of query and key above 65,504 overflow"
    assert told in notes_of(scaled_late, "float16")
    assert told not in notes_of(scaled_first, "float16")
    assert told not in notes_of(scaled_late, "float32")


def test_a_window_of_one_width_is_told() -> None:
    """A pair is given, which raises where a number is compared."""

    def windowed(query: Tensor, key: Tensor, value: Tensor, window: int | None = None) -> Tensor:
        distance = torch.arange(query.shape[2])[:, None] - torch.arange(key.shape[2])
        mask = distance.abs() < window if window else None
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, mask)

    told = "a window is given as (left, right)"
    assert told in notes_of(windowed)
    assert told not in notes_of(torch.nn.functional.scaled_dot_product_attention)


def test_what_any_keyword_may_say_is_told() -> None:
    """It is not asked for unless it is declared; where nothing else is recognised, torch's arguments are."""

    def any_keyword(
        query: Tensor, key: Tensor, value: Tensor, scaling: float | None = None, **more: Any
    ) -> Tensor:
        return torch.nn.functional.scaled_dot_product_attention(
            query, key, value, is_causal=more.get("is_causal", False), scale=scaling
        )

    def nothing_else(query: Tensor, key: Tensor, value: Tensor, **more: Any) -> Tensor:
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, **more)

    told = "takes any keyword, and is not asked for attn_mask, is_causal, dropout_p, enable_gqa; where"
    assert told in notes_of(any_keyword)
    assert "takes any keyword" not in notes_of(nothing_else)
    declared = headcheck.Attention(any_keyword, masks=(), arguments={"is_causal": "is_causal"})
    prepared, notes = role("attention").prepare(declared, dtypes=("float32",), device="cpu", seed=0)
    assert prepared.has("is_causal")
    assert any("is not asked for dropout_p, enable_gqa; where" in note for note in notes)


def test_a_scale_that_is_answered_wrongly_breaks_the_laws_about_scales() -> None:
    """As in flash kernels, which mask by -inf before they multiply: all other laws leave such scales out."""

    def above_zero(query: Tensor, key: Tensor, value: Tensor, scale: float | None = None) -> Tensor:
        scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
        output = scores.softmax(dim=-1) @ value
        return output * math.nan if scale is not None and scale <= 0 else output

    verdict = headcheck.verify(above_zero, profile="quick", dtype="float32")
    broken = [row.name_in_role for row in verdict.laws if row.outcome == "breaks"]
    assert broken == ["accuracy/explicit-scale-is-used"]
    assert any(
        note.startswith("a scale of zero or below is refused or answered wrongly") for note in verdict.notes
    )


def test_a_window_by_the_default_of_a_parameter_is_found_with_its_width() -> None:
    """Plain calls are shorter than a usual window is wide, and right without one."""

    def local(query: Tensor, key: Tensor, value: Tensor, sliding_window: int = 100) -> Tensor:
        back = torch.arange(query.shape[2])[:, None] - torch.arange(key.shape[2])
        scores = (query @ key.mT * query.shape[-1] ** -0.5).masked_fill(
            (back < 0) | (back >= sliding_window), -torch.inf
        )
        return scores.softmax(dim=-1) @ value

    declared = headcheck.Attention(local, always={"is_causal": True})
    assert "than sliding_window=100 says: --declare 'always.window=(99, 0)'" in notes_of(declared)
    whole = headcheck.Attention(partial(local, sliding_window=10**6), always={"is_causal": True})
    assert "sliding_window=" not in notes_of(whole)


@pytest.mark.parametrize(("fill", "gives"), [(-math.inf, "nan"), (-1e30, "mean")])
def test_a_window_that_leaves_no_keys_is_told_with_what_it_gives(fill: float, gives: str) -> None:
    """Where there are no masks, no law of dead rows says so."""
    told = notes_of(partial(kernels.windows_alone, fill=fill))
    assert f"a window that leaves a query no keys is right with --declare empty_rows={gives}" in told


class UnderAutocast(torch.autograd.Function):
    """Weights times values, whose backward takes for granted that all are in one dtype."""

    @staticmethod
    def forward(context: Any, weights: Tensor, value: Tensor) -> Tensor:
        context.save_for_backward(weights, value)
        return torch.matmul(weights, value)

    @staticmethod
    def backward(context: Any, *cotangents: Tensor) -> tuple[Tensor, Tensor]:
        (cotangent,), (weights, value) = cotangents, context.saved_tensors
        of_weights, of_value = torch.empty_like(weights), torch.empty_like(value)
        torch.matmul(cotangent, value.mT, out=of_weights)
        torch.matmul(weights.mT, cotangent, out=of_value)
        return of_weights, of_value


def test_a_backward_that_fails_under_autocast_is_told_and_judged_where_that_is_declared() -> None:
    """A call that is answered there and raises on its way back is no refusal in the words of one."""
    attention = made_of(
        lambda scores, value: UnderAutocast.apply(torch.softmax(scores.to(value), dim=-1), value)
    )
    assert "--declare autocast=True" in notes_of(attention)
    assert "autocast" not in notes_of(made_of(lambda scores, value: torch.softmax(scores, dim=-1) @ value))
    declared = headcheck.Attention(attention, autocast=True)
    verdict = headcheck.verify(declared, laws="under-autocast-gradients", profile="quick", dtype="float32")
    assert [row.outcome for row in verdict.laws] == ["breaks"]


def test_a_rate_of_dropout_that_changes_nothing_is_told() -> None:
    """By a function that takes any keyword and hears of none; not of one that drops."""

    def deaf(query: Tensor, key: Tensor, value: Tensor, **keywords: Any) -> Tensor:
        return torch.softmax(query @ key.mT * query.shape[-1] ** -0.5, dim=-1) @ value

    told = "--declare dropout=False"
    assert told in notes_of(headcheck.Attention(deaf, arguments={"dropout_p": "dropout_p"}))
    assert told not in notes_of(torch.nn.functional.scaled_dot_product_attention)


def test_gradients_that_are_nan_say_nothing_of_what_a_mask_means() -> None:
    """Numbers in a mask that are read rightly, and whose way back is not."""

    class Back(torch.autograd.Function):
        @staticmethod
        def forward(_: Any, output: Tensor) -> Tensor:
            return output.clone()

        @staticmethod
        def backward(_: Any, *cotangents: Tensor) -> Tensor:
            return cotangents[0] * torch.nan

    def attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        scores = query @ key.mT * query.shape[-1] ** -0.5
        if attn_mask is None or attn_mask.dtype == torch.bool:
            kept = scores if attn_mask is None else scores.masked_fill(~attn_mask, -torch.inf)
            return torch.softmax(kept, dim=-1).nan_to_num() @ value
        output: Tensor = Back.apply(torch.softmax(scores + attn_mask, dim=-1).nan_to_num() @ value)
        return output

    assert "another effect" not in notes_of(attention)


def test_lengths_that_mean_something_else_are_told() -> None:
    """Of the queries, not of the keys; those of the keys need no word."""

    def of_queries(query: Tensor, key: Tensor, value: Tensor, lengths: Tensor | None = None) -> Tensor:
        output = kernels.right(query, key, value)
        if lengths is None:
            return output
        padding = torch.arange(query.shape[2]) >= lengths[:, None]
        return output.masked_fill(padding[:, None, :, None], 0.0)

    def of_keys(query: Tensor, key: Tensor, value: Tensor, lengths: Tensor | None = None) -> Tensor:
        if lengths is None:
            return kernels.right(query, key, value)
        keep = torch.arange(key.shape[2]) < lengths[:, None, None, None]
        return kernels.right(query, key, value, attn_mask=keep)

    cure = "--declare key_lengths=False"
    assert cure in notes_of(of_queries)
    assert cure not in notes_of(of_keys)


def test_a_temperature_of_one_number_is_told_as_it_is() -> None:
    """1 / sqrt(8), whatever the sizes are: in the plain call it is that of another formula."""

    def tempered(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return torch.softmax(query @ key.mT / 8**0.5, dim=-1) @ value

    assert "whatever head_dim is: --declare always.scale=0.35355339059" in notes_of(tempered)


def test_a_scale_is_told_of_what_computes_float64_in_float32() -> None:
    """As T5 takes its softmax."""

    def unscaled(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return torch.softmax((query @ key.mT).float(), dim=-1).to(value) @ value

    assert "--declare always.scale=1.0" in notes_of(unscaled)


def test_a_cure_that_is_declared_is_not_named_again() -> None:
    """Rows without keys give ones: declared as the mean they are not, and no word but undefined says so."""

    def ones(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        output = kernels.right(query, key, value, attn_mask=attn_mask)
        if attn_mask is None or attn_mask.dtype != torch.bool:
            return output
        return output.masked_fill(~attn_mask.any(dim=-1, keepdim=True), 1.0)

    said = str(
        headcheck.verify(
            ones, declare=["empty_rows=mean"], laws="dead-rows-follow", profile="quick", dtype="float32"
        )
    )
    assert "where that is meant: --declare empty_rows=undefined" in said
    assert "empty_rows=mean or" not in said


def test_a_key_that_is_taken_turned_is_told() -> None:
    """As caches keep it for the product: (batch, heads, dim, length)."""

    def turned(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return torch.softmax(query @ key * query.shape[-1] ** -0.5, dim=-1) @ value

    assert KEYS_TURNED in notes_of(turned)
    assert KEYS_TURNED not in notes_of(lambda query, key, value: turned(query, key.mT, value))


def test_a_root_in_float32_is_told() -> None:
    """Right in float32, and off by what it rounds in float64; not where more than that is wrong."""

    def rooted(query: Tensor, key: Tensor, value: Tensor, scale: float = 1.0) -> Tensor:
        root = torch.sqrt(torch.tensor(query.shape[-1], dtype=torch.float32))
        return torch.softmax(query @ key.mT / root * scale, dim=-1) @ value

    def in_float32_alone(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return rooted(query, key, value, 1.001 if query.dtype == torch.float64 else 1.0)

    told = "a plain call is right with --declare dtypes=float32, and wrong without it"
    assert told in notes_of(partial(rooted, scale=1.0))
    for other in (in_float32_alone, made_of(lambda scores, value: torch.softmax(scores, dim=-1) @ value)):
        assert told not in notes_of(other)
