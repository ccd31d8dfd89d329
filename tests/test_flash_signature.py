"""The signature of flash-attention's own functions: judged as it is written, with two conventions declared."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import dropout

import headcheck
from headcheck.attention.accepting import accepted_arguments
from headcheck.reference.attention import attention
from headcheck.signatures import no_limit

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


def _taking(parameters: str) -> Callable[..., Any]:
    """A function of query, key, value and these parameters."""
    made: Callable[..., Any] = eval(f"lambda q, k, v, {parameters}: q")
    return made


@pytest.mark.parametrize(
    ("parameters", "taken"),
    [
        ("p=0.0", {"dropout_p"}),
        ("p=1.0", set()),
        ("p=None", set()),
        ("p", set()),
        ("window_size=None", {"window"}),
        ("window_size=(None, None)", {"window"}),
        ("window_size=(7, 7)", set()),
        ("window_size=7", set()),
        ("s_aux=None", {"sinks"}),
        ("learnable_sink=False", set()),
        ("softmax_scale=None, return_attn_probs=False", {"scale", "return_lse"}),
        ("return_attn_probs=False", set()),
        ("is_causal=False, **others", {"is_causal"}),
        (
            "window_size=(-1, -1), **others",
            {"window", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa"},
        ),
    ],
)
def test_a_name_with_other_meanings_is_told_by_its_default(parameters: str, taken: set[str]) -> None:
    """A power, a patch size or a flag is not taken for what another function calls so."""
    assert accepted_arguments(_taking(parameters), {}).keys() == taken


@pytest.mark.parametrize(
    ("parameter", "stands"),
    [
        ("window=None", None),
        ("window=(-1, -1)", -1),
        ("window_size=None", -1),
        ("window_size=(-1, -1)", -1),
        ("window_size=(None, None)", None),
    ],
)
def test_what_stands_for_no_limit(parameter: str, stands: int | None) -> None:
    """The default says it, or else the name."""
    function = _taking(parameter)
    (name,) = set(inspect.signature(function).parameters) - {"q", "k", "v"}
    assert no_limit(function, name) == stands
