"""The signature of flash-attention's own functions: judged as it is written, with two conventions declared."""

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import dropout

import headcheck
from headcheck.reference.attention import attention

LAWS = ("windows", "alibi", "log-sum-exp", "softcap")


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    *,
    no_limit: int = -1,
) -> Any:
    """(batch, length, heads, dim) -> the same, or with its log-sum-exp and None. no_limit: of the right side."""
    work = torch.promote_types(q.dtype, torch.float32)
    distance = torch.arange(k.shape[1]) - torch.arange(q.shape[1])[:, None] - (k.shape[1] - q.shape[1])
    left, right = window_size[0], 0 if causal else window_size[1]
    seen = torch.ones_like(distance, dtype=torch.bool)
    if left != -1:
        seen &= distance >= -left
    if right != no_limit:
        seen &= distance <= right
    bias = None if alibi_slopes is None else -alibi_slopes[:, None, None] * distance.abs()
    query, key, value = (x.to(work).transpose(1, 2) for x in (q, k, v))
    found = attention(
        query, key, value, may_attend=seen, bias=bias, scale=softmax_scale, softcap=softcap or None
    )
    output = found.output
    if dropout_p:
        output = dropout(found.weights, dropout_p) @ value.repeat_interleave(q.shape[2] // k.shape[2], dim=1)
    output = output.transpose(1, 2).to(q.dtype)
    return (output, found.log_sum_exp, None) if return_attn_probs else output


def verdict_of(function: Any) -> headcheck.Verdict:
    subject = headcheck.Attention(function, name="flash", layout="bshd", causal="bottom-right")
    return headcheck.verify(subject, profile="quick", laws=LAWS)


def test_every_argument_is_known_by_its_name() -> None:
    """Windows, ALiBi in float32, softcap and the log-sum-exp are asked for, in every dtype, and hold."""
    verdict = verdict_of(flash_attn_func)
    assert verdict.conforms, repr(verdict)
    assert [note for note in verdict.notes if "not recognised" in note] == [
        "parameters not recognised, left at their defaults: deterministic, no_limit"
    ]
    judged = {row.name_in_role.partition("/")[0] for row in verdict.laws if row.outcome == "holds"}
    assert judged >= {"windows", "features"}


def test_no_limit_on_the_right_is_minus_one() -> None:
    """Whoever takes -1 for a distance hides the key of the query itself."""
    verdict = verdict_of(partial(flash_attn_func, no_limit=-2))
    broken = {row.name_in_role for row in verdict.laws if row.outcome == "breaks"}
    assert any("windows" in name for name in broken), repr(verdict)
