"""Wrong functions that conformed once, for how they are called or what they refuse; beside them right ones."""

from typing import Any

import pytest
import torch
from torch import Tensor

import headcheck
from headcheck.reference.canonical import canonical_attention

Window = tuple[int | None, int | None] | None


def one_ahead(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False
) -> Tensor:
    """Its causal mask shows one key too many."""
    scores = torch.matmul(query, key.transpose(-1, -2)) * (float(query.size(-1)) ** -0.5)
    if is_causal:
        keep = torch.ones(scores.size(-2), scores.size(-1), dtype=torch.bool).tril(1)
        scores = scores.masked_fill(~keep, float("-inf"))
    if attn_mask is not None:
        scores = scores.masked_fill(~attn_mask, float("-inf"))
    return torch.matmul(torch.softmax(scores, -1).nan_to_num(0.0), value)


class OneAhead(torch.nn.Module):
    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        return one_ahead(query, key, value, attn_mask, is_causal)


def window_of_keys_before(
    query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False, window: Window = None
) -> Any:
    """Takes no keys to the right, and sees one too few to the left."""
    if window is not None:
        if window[1] != 0:
            raise ValueError("the right side of a window has to be 0")
        window = (None if window[0] is None else max(window[0] - 1, 0), 0)
    return canonical_attention(query, key, value, is_causal=is_causal, window=window)


def window_ignored(
    query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False, window: Window = None
) -> Any:
    """Takes one beside is_causal only, and does not look at it."""
    if window is not None and not is_causal:
        raise ValueError("window needs is_causal=True")
    return canonical_attention(query, key, value, is_causal=is_causal)


def alibi_halved(
    query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False, alibi_slopes: Tensor | None = None
) -> Any:
    """Takes slopes beside is_causal only, and halves them."""
    if alibi_slopes is None:
        return canonical_attention(query, key, value, is_causal=is_causal)
    if not is_causal:
        raise ValueError("alibi_slopes need is_causal=True")
    return canonical_attention(query, key, value, is_causal=True, alibi_slopes=alibi_slopes / 2)


def tiled_but_for_one(query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool = False) -> Any:
    """Refuses one key head, and tiles several."""
    if enable_gqa:
        if key.shape[1] == 1:
            raise ValueError("one key head is not supported")
        key, value = (each.repeat(1, query.shape[1] // key.shape[1], 1, 1) for each in (key, value))
    return canonical_attention(query, key, value)


def square_bias(query: Tensor, key: Tensor, value: Tensor) -> Any:
    """A slip that NumPy raises where there are other keys than queries: no refusal."""
    q, k = (each.detach().numpy() for each in (query, key))
    nothing = torch.zeros(q.shape[2], q.shape[2], dtype=query.dtype).numpy()
    return (
        torch.softmax(torch.from_numpy(q @ k.swapaxes(-1, -2) * q.shape[-1] ** -0.5 + nothing), -1)
        @ value.detach()
    )


def both_doubled(
    query: Tensor, key: Tensor, value: Tensor, return_lse: bool = False, return_weights: bool = False
) -> Any:
    """Wrong where log-sum-exp and weights are asked for together."""
    found = canonical_attention(query, key, value, return_lse=return_lse, return_weights=return_weights)
    return (2 * found[0], *found[1:]) if return_lse and return_weights else found


def no_gradient_without_a_mask(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None
) -> Any:
    """A plain call runs without gradients."""
    output: Any = canonical_attention(query, key, value, attn_mask)
    return output.detach() if attn_mask is None else output


@pytest.mark.parametrize(
    ("wrong", "law"),
    [
        (torch.jit.script(one_ahead), "the-future-does-not-matter"),
        (torch.jit.script(OneAhead()), "the-future-does-not-matter"),
        (window_of_keys_before, "a-window-of-several-blocks-sees-its-keys"),
        (window_ignored, "a-window-sees-exactly-its-keys"),
        (alibi_halved, "alibi-lowers-scores-by-distance"),
        (tiled_but_for_one, "grouped-heads-equal-repeated-heads"),
        (square_bias, "output-is-within-the-bound"),
        (both_doubled, "asking-for-more-changes-nothing"),
        (no_gradient_without_a_mask, "every-call-carries-gradients-or-none-does"),
    ],
    ids=lambda each: getattr(each, "__name__", type(each).__name__) if callable(each) else "",
)
def test_it_breaks_the_law_that_one_would_name(wrong: Any, law: str) -> None:
    """In quick, and in float32 alone."""
    verdict = headcheck.verify(wrong, profile="quick", dtype="float32", laws=law)
    assert [row.name for row in verdict.broken] == [law], repr(verdict)


def causal_windows(
    query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False, window: Window = None
) -> Any:
    """Right: it takes a window beside is_causal only, and no keys to the right."""
    if window is not None and not (is_causal and window[1] in (0, None)):
        raise ValueError("window needs is_causal=True")
    return canonical_attention(query, key, value, is_causal=is_causal, window=window)


def right_in_script(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False
) -> Tensor:
    """Right, of boolean masks."""
    scores = torch.matmul(query, key.transpose(-1, -2)) * (float(query.size(-1)) ** -0.5)
    keep = torch.ones(scores.size(-2), scores.size(-1), dtype=torch.bool)
    if is_causal:
        keep = keep.tril()
    if attn_mask is not None:
        keep = keep & attn_mask
    dead = (~keep).all(-1, keepdim=True)
    weights = torch.softmax(scores.masked_fill(~keep, float("-inf")).masked_fill(dead, 0.0), -1)
    return torch.matmul(weights.masked_fill(dead, 0.0), value)


@pytest.mark.parametrize(
    "right", [causal_windows, torch.jit.script(right_in_script)], ids=["windows", "script"]
)
def test_a_right_one_of_the_kind_conforms(right: Any) -> None:
    """And the windows that it takes are asked for."""
    verdict = headcheck.verify(right, profile="quick", dtype="float32")
    assert verdict.conforms, repr(verdict)
    held = {row.name for row in verdict.laws if row.outcome == "holds"}
    assert {"a-window-sees-exactly-its-keys"} <= held or right is not causal_windows
