"""A function whose mask cannot be None is given one in every call, and judged like any other."""

import math
from collections.abc import Callable
from inspect import signature

import pytest
import torch
from torch import Tensor

import headcheck
from headcheck.attention.mask_needed import as_given_a_mask
from headcheck.declarations import Attention


def scores_of(query: Tensor, key: Tensor) -> Tensor:
    return query @ key.mT / math.sqrt(query.shape[-1])


def kept_where_one(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    return torch.softmax(scores_of(query, key).masked_fill(mask == 0, -math.inf), -1) @ value


def kept_by_script(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    return torch.softmax((query @ key.mT).masked_fill(mask == 0, -1e9), -1) @ value


def hidden_where_true(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    return torch.softmax(scores_of(query, key).masked_fill(mask, -math.inf), -1) @ value


def added(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    return torch.softmax(scores_of(query, key) + mask, -1) @ value


def by_sequence(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    weights = torch.softmax(scores_of(query, key).masked_fill(mask.unsqueeze(1) == 0, -math.inf), -1)
    return weights @ value, weights


def of_keys(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    return torch.softmax(scores_of(query, key).masked_fill(~mask[:, None, None], -math.inf), -1) @ value


def length_before_heads(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    query, key, value = (each.transpose(1, 2) for each in (query, key, value))
    return kept_where_one(query, key, value, mask.unsqueeze(1)).transpose(1, 2)


def unscaled(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    return torch.softmax((query @ key.mT).masked_fill(mask == 0, -math.inf), -1) @ value


def by_keyword(*, mask: Tensor, k: Tensor, q: Tensor, v: Tensor) -> Tensor:
    return kept_where_one(q, k, v, mask)


def by_place(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, /) -> Tensor:
    return kept_where_one(query, key, value, mask)


def of_numbers(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    return torch.softmax(scores_of(query, key) + (1.0 - mask) * -10000.0, -1) @ value


def before_a_scale(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float) -> Tensor:
    return torch.softmax((query @ key.mT * scale).masked_fill(mask == 0, -math.inf), -1) @ value


def of_each_head(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    assert mask.shape == (*query.shape[:3], key.shape[2])
    return kept_where_one(query, key, value, mask)


def without_heads(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    scores = torch.bmm(query, key.transpose(1, 2)) / math.sqrt(query.shape[-1])
    return torch.bmm(torch.softmax(scores.masked_fill(mask == 0, -math.inf), -1), value)


def of_one_sequence(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    scores = torch.mm(query, key.T) / math.sqrt(query.shape[-1])
    return torch.mm(torch.softmax(scores.masked_fill(mask, -math.inf), -1), value)


WHOLE = "b1qk"


@pytest.mark.parametrize(
    ("function", "given"),
    [
        (kept_where_one, f"True, of shape {WHOLE}"),
        (hidden_where_true, f"False, of shape {WHOLE}"),
        (added, f"zeros in the dtype of query, of shape {WHOLE}"),
        (by_sequence, "True, of shape bqk"),
        (of_keys, "True, of shape bk"),
        (unscaled, f"True, of shape {WHOLE}"),
        (by_keyword, f"True, of shape {WHOLE}"),
        (by_place, f"True, of shape {WHOLE}"),
        (of_numbers, f"ones in the dtype of query, of shape {WHOLE}"),
        (before_a_scale, f"True, of shape {WHOLE}"),
        (of_each_head, "True, of shape bhqk"),
        (without_heads, "True, of shape bqk"),
        (of_one_sequence, "False, of shape qk"),
    ],
)
def test_a_mask_that_hides_nothing_is_found(function: Callable[..., Tensor], given: str) -> None:
    """Its form is the one in which a plain call is nearest to right; a wrong function is given one, too."""
    declaration, notes = as_given_a_mask(Attention(function), ("float32",))
    assert notes == [f"mask is given in every call: where none is asked for, {given}"]
    assert signature(declaration.function) == signature(function)


def test_what_takes_none_is_left_alone() -> None:
    """A mask that may be None, or has a default, needs no stand-in; nor does what fails with any mask."""

    def may_be_none(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        return kept_where_one(query, key, value, torch.ones(()) if mask is None else mask)

    def never(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        raise TypeError(f"no mask of {type(mask)}")

    def wide_heads(
        query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float | None
    ) -> Tensor:
        if query.shape[-1] < 16:
            raise ValueError("head_dim must be at least 16")
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, mask, scale=scale)

    for function in (may_be_none, never, wide_heads, torch.jit.script(kept_by_script)):
        declaration = Attention(function)
        assert as_given_a_mask(declaration, ("float32",)) == (declaration, [])


@pytest.mark.parametrize(
    ("function", "declared"),
    [
        (kept_where_one, {}),
        (hidden_where_true, {"true_means": "block"}),
        (added, {"masks": ("additive",)}),
        (by_sequence, {}),
        (of_keys, {}),
        (length_before_heads, {"layout": "bshd"}),
        (by_keyword, {}),
        (by_place, {}),
        (before_a_scale, {}),
        (without_heads, {}),
        (of_one_sequence, {"true_means": "block"}),
    ],
)
def test_right_ones_conform(function: Callable[..., Tensor], declared: dict[str, str]) -> None:
    """Once what a query without keys gives is declared."""
    subject = Attention(function, empty_rows="nan", **declared)  # type: ignore[arg-type]
    verdict = headcheck.verify(subject, profile="quick", dtype="float32", laws=("masks", "gradients"))
    assert verdict.conforms, repr(verdict)
    assert sum(row.outcome == "holds" for row in verdict.laws) > 20


def test_a_wrong_one_is_told() -> None:
    """A scale that is missing breaks the law of the scale, as without a mask."""
    verdict = headcheck.verify(unscaled, profile="quick", dtype="float32", laws="default-scale")
    assert [row.outcome for row in verdict.laws] == ["breaks"]
