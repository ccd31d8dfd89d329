"""Functions that refuse the plain call, as they are declared to do: what they are asked for all the same."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import headcheck
from headcheck.attention.role import role
from headcheck.attention.subject import AttentionSubject
from headcheck.attention.trying import willing
from headcheck.reference.canonical import canonical_attention
from tests.roles.causal_lm import Torch

LAWS = ("masked-keys", "explicit-scale", "the-future", "gradients-are")


def of_whole_blocks(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
) -> Any:
    """A kernel of a few dims."""
    if query.shape[-1] not in (16, 32, 64, 128) or value.shape[-1] != query.shape[-1]:
        raise ValueError(f"head_dim {query.shape[-1]} is not supported")
    return canonical_attention(query, key, value, attn_mask=attn_mask, is_causal=is_causal, scale=scale)


def of_whole_blocks_and_no_options(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
) -> Any:
    """The same, and all that is optional is ignored."""
    return of_whole_blocks(query, key, value)


def decoding(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, scale: float | None = None
) -> Any:
    """One query in each call."""
    assert query.shape[2] == 1, "takes one query"
    return canonical_attention(query, key, value, attn_mask=attn_mask, scale=scale)


def decoding_without_options(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, scale: float | None = None
) -> Any:
    """The same, its mask and its scale ignored."""
    return decoding(query, key, value)


class OfFloat32(Torch):
    """A language model that refuses float64 by its own words."""

    def forward(self, tokens: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        if self.head.weight.dtype == torch.float64:
            raise ValueError("float64 is not supported")
        return super().forward(tokens, key_padding_mask)


def test_a_model_that_may_refuse_a_dtype_is_judged_in_the_next() -> None:
    """As an encoder is: a refusal says that the dtype is not taken, not that headcheck fails."""
    subject = headcheck.CausalLM(lambda: OfFloat32(norm_first=True), padding=("right",), may_refuse=True)
    verdict = headcheck.verify(subject, profile="quick", laws="finite")
    assert verdict.verdict == "conforms"
    assert "judged in float32" in verdict.notes


def verdict_of(function: Any) -> headcheck.Verdict:
    subject = headcheck.Attention(function, may_refuse=True)
    return headcheck.verify(subject, profile="quick", dtype="float32", laws=LAWS)


def prepared(function: Any) -> tuple[AttentionSubject, list[str]]:
    subject = headcheck.Attention(function, may_refuse=True)
    return role.prepare(subject, dtypes=("float32",), device="cpu", seed=0)


@pytest.mark.parametrize("wrong", [of_whole_blocks_and_no_options, decoding_without_options])
def test_options_of_what_refuses_the_plain_call_are_asked_for(wrong: Any) -> None:
    """That the plain call is refused says nothing of a mask."""
    assert prepared(wrong)[0].has("boolean")
    assert verdict_of(wrong).verdict == "breaks"


@pytest.mark.parametrize("right", [of_whole_blocks, decoding])
def test_their_right_twins_conform(right: Any) -> None:
    """What is refused is not applicable, and the rest holds."""
    verdict = verdict_of(right)
    assert verdict.conforms, repr(verdict)
    holding = {row.name_in_role for row in verdict.laws if row.outcome == "holds"}
    assert "accuracy/explicit-scale-is-used" in holding


@pytest.mark.parametrize("right", [of_whole_blocks, decoding])
def test_a_size_that_is_taken_shows_gradients_and_autocast(right: Any) -> None:
    """In one query of dim 16; nor is the dtype that is judged said to be not supported."""
    subject, notes = prepared(right)
    assert {"gradients", "autocast"} <= subject.found
    assert not [note for note in notes if note.startswith("float32: not supported")]


def refusing(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Any:
    """No call is taken."""
    raise NotImplementedError("never")


def test_what_refuses_all_calls_lacks_no_feature() -> None:
    """Nothing is known of it; it carries no gradients that were seen."""
    subject, _ = prepared(refusing)
    assert willing(subject, "float32") is None
    assert subject.has("boolean")
    assert "gradients" not in subject.found


BESIDE_CAUSAL = ("mask-and-causal-compose", "masked-keys-do-not-matter", "an-all-true-mask")


def test_a_mask_beside_is_causal_that_one_kernel_refuses_is_avoided() -> None:
    """Torch's attention composes them, but not where values have another width than keys: that is its own affair."""
    subject = headcheck.Attention(scaled_dot_product_attention, masks=("boolean",), nan_scores="may-vanish")
    assert headcheck.verify(subject, profile="quick", laws=BESIDE_CAUSAL).conforms


def test_a_mask_beside_is_causal_that_crashes_for_other_values_is_no_refusal() -> None:
    """What raises, and does not say that it is because of is_causal, is broken."""

    def attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        output = canonical_attention(query, key, value, attn_mask=attn_mask, is_causal=is_causal)
        return output.view(*query.shape) if is_causal and attn_mask is not None else output

    verdict = headcheck.verify(headcheck.Attention(attention), profile="quick", laws=BESIDE_CAUSAL)
    assert "mask-and-causal-compose" in {row.id.rpartition("/")[2] for row in verdict.broken}
