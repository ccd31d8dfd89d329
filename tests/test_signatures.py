"""What a signature of attention says plainly is called as it says, whatever its defaults and its names."""

from typing import Any

import pytest
import torch
from torch import Tensor

import headcheck
from headcheck.attention.accepting import accepted_arguments
from headcheck.reference.canonical import canonical_attention
from headcheck.signatures import tensors_by_name

LAWS = ("output-is", "masked-keys", "the-future", "explicit-scale", "the-rate")


def verdict_of(subject: Any, laws: tuple[str, ...] = LAWS) -> headcheck.Verdict:
    return headcheck.verify(subject, profile="quick", dtype="float32", laws=laws)


def broken_by(subject: Any, laws: tuple[str, ...] = LAWS) -> list[str]:
    """The names of the laws that break."""
    return [row.name_in_role for row in verdict_of(subject, laws).broken]


# Defaults that do something


def causal_without_a_mask(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    is_causal: bool | None = None,
) -> Any:
    """As in transformers: causal unless there is a mask, or is_causal says so."""
    if is_causal is None:
        is_causal = attention_mask is None
    return canonical_attention(query, key, value, attn_mask=attention_mask, is_causal=is_causal)


def never_causal(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    is_causal: bool | None = None,
) -> Any:
    """The same, and what is_causal says is ignored."""
    return canonical_attention(query, key, value, attn_mask=attention_mask)


def dropping(query: Tensor, key: Tensor, value: Tensor, dropout_p: float = 0.1, training: bool = True) -> Any:
    """A tenth is dropped unless another rate is given."""
    weights = (query @ key.mT * query.shape[-1] ** -0.5).softmax(-1)
    return torch.nn.functional.dropout(weights, dropout_p, training) @ value


def dropping_twice(
    query: Tensor, key: Tensor, value: Tensor, dropout_p: float = 0.1, training: bool = True
) -> Any:
    """The same, at twice the rate."""
    return dropping(query, key, value, 2 * dropout_p, training)


@pytest.mark.parametrize(
    ("function", "broken"),
    [
        (causal_without_a_mask, ""),
        (never_causal, "masks/the-future-does-not-matter"),
        (dropping, ""),
        (dropping_twice, "dropout/the-rate-is-kept"),
    ],
)
def test_a_default_that_does_something_is_passed_over(function: Any, broken: str) -> None:
    """It is causal, or drops, where it is asked to and nowhere else."""
    found = broken_by(function)
    assert broken in found if broken else not found


# Arguments that go by place only


def masked_by_place(
    query: Tensor, key: Tensor, value: Tensor, block: int = 64, attn_mask: Tensor | None = None, /
) -> Any:
    """A mask behind something that is not recognised."""
    assert block == 64
    return canonical_attention(query, key, value, attn_mask=attn_mask)


def unmasked_by_place(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, /) -> Any:
    """The mask is ignored."""
    return canonical_attention(query, key, value)


def test_an_argument_that_goes_by_place_only_is_asked_for() -> None:
    """A call that names it says nothing of the function."""
    verdict = verdict_of(masked_by_place)
    assert verdict.conforms, repr(verdict)
    assert "masks/masked-keys-do-not-matter" in {r.name_in_role for r in verdict.laws if r.outcome == "holds"}
    assert "masks/masked-keys-do-not-matter" in broken_by(unmasked_by_place)


# Names that mean something else, as their defaults say


def scaled_by_a_flag(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, scale: bool = True
) -> Any:
    """Whether to scale."""
    return canonical_attention(query, key, value, attn_mask=attn_mask, scale=None if scale else 1.0)


def causal_by_a_flag(query: Tensor, key: Tensor, value: Tensor, mask: bool = False) -> Any:
    """Whether to mask the future."""
    return canonical_attention(query, key, value, is_causal=mask)


def keeping_sinks(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False, sinks: int = 4) -> Any:
    """So many of the first tokens are kept by a cache."""
    assert sinks == 4
    return canonical_attention(query, key, value, is_causal=is_causal)


def of_one_width(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False, window: int = 0) -> Any:
    """A window of so many keys, or of all."""
    sides = (window - 1, window - 1) if window > 0 else None
    return canonical_attention(query, key, value, is_causal=is_causal, window=sides)


@pytest.mark.parametrize(
    ("function", "left_alone"),
    [
        (scaled_by_a_flag, "scale"),
        (causal_by_a_flag, "mask"),
        (keeping_sinks, "sinks"),
        (of_one_width, "window"),
    ],
)
def test_a_flag_or_a_count_is_no_tensor_and_no_number(function: Any, left_alone: str) -> None:
    """It is left at its default, and a note says so."""
    verdict = verdict_of(function, ("output-is", "masked-keys", "the-future", "features", "windows"))
    assert verdict.conforms, repr(verdict)
    said = f"parameters not recognised, left at their defaults: {left_alone}"
    assert any(note.startswith(said) for note in verdict.notes)


def test_the_same_names_are_ours_with_other_defaults() -> None:
    """None, a number and nothing at all."""

    def ours(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor,
        scale: float = 1.0,
        sinks: Any = None,
        window: Any = None,
    ) -> None:
        """Never called."""

    assert {"attn_mask", "scale", "sinks", "window"} == accepted_arguments(ours, {}).keys()


# Names in another order


def values_first(values: Tensor, keys: Tensor, queries: Tensor, mask: Tensor | None = None) -> Any:
    """As in a tutorial of transformers."""
    return canonical_attention(queries, keys, values, attn_mask=mask)


def keys_first(k: Tensor, v: Tensor, q: Tensor, mask: Tensor | None = None, /) -> Any:
    """By place only."""
    return canonical_attention(q, k, v, attn_mask=mask)


def misnamed(value: Tensor, key: Tensor, query: Tensor, mask: Tensor | None = None) -> Any:
    """The names are in another order, and the code is not."""
    return canonical_attention(value, key, query, attn_mask=mask)


def test_query_key_and_value_go_by_their_names_where_these_are_in_another_order() -> None:
    """Where they are in ours, by place."""
    for right in (values_first, keys_first):
        verdict = verdict_of(right)
        assert verdict.conforms, repr(verdict)
    assert verdict_of(misnamed).verdict == "breaks"
    assert tensors_by_name(values_first) == ("queries", "keys", "values")
    assert tensors_by_name(masked_by_place) == ()
    assert tensors_by_name(lambda x, query, key: None) == ()


# Arguments that no call does without


def of_many_words(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float,
    softmax_scale: float,
    causal: bool,
    window_size: tuple[int, int],
    softcap: float,
    alibi_slopes: Tensor | None,
    sinks: Tensor | None,
    enable_gqa: bool,
    return_lse: bool,
    return_weights: bool,
) -> Any:
    """As the inner functions of flash-attention have it."""
    sides = tuple(None if side < 0 else side for side in window_size)
    options = {"is_causal": causal, "scale": softmax_scale, "window": sides, "softcap": softcap or None}
    options |= {
        "alibi_slopes": alibi_slopes,
        "sinks": sinks,
        "enable_gqa": enable_gqa,
        "dropout_p": dropout_p,
    }
    return canonical_attention(q, k, v, **options, return_lse=return_lse, return_weights=return_weights)


def test_what_no_call_does_without_is_passed() -> None:
    """Each as a call says it that asks for nothing; what is asked for is passed instead."""
    verdict = verdict_of(of_many_words, ("output-is", "features", "windows", "the-rate", "heads"))
    assert verdict.conforms, repr(verdict)
    held = {row.name_in_role for row in verdict.laws if row.outcome == "holds"}
    asked = {
        "log-sum-exp-is-within-the-bound",
        "returned-weights-are-within-the-bound",
        "a-sink-takes-its-share",
    }
    assert {f"features/{each}" for each in asked} <= held
