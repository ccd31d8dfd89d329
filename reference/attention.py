"""Scaled dot-product attention, in the order of the paper; in float64 on a CPU it is the oracle.

Vaswani et al. 2017, "Attention Is All You Need", section 3.2.1, equation (1):

    Attention(Q, K, V) = softmax(Q K^T / sqrt(d_k)) V

Axes: batch, heads, kv_heads (heads = kv_heads x group), q_len, kv_len, head_dim, value_dim.
A query that may attend to no key gives a row of zeros and a log-sum-exp of -inf.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

MayAttend = (
    Bool[Tensor, "#batch #heads #q_len #kv_len"]
    | Bool[Tensor, "#heads #q_len #kv_len"]
    | Bool[Tensor, "#q_len #kv_len"]
    | Bool[Tensor, "#kv_len"]
    | None
)
"""True keeps; None is every key for every query."""
Bias = (
    Float[Tensor, "#batch #heads #q_len #kv_len"]
    | Float[Tensor, "#heads #q_len #kv_len"]
    | Float[Tensor, "#q_len #kv_len"]
    | Float[Tensor, "#kv_len"]
    | None
)
"""What is added to the scores."""


class Attended(NamedTuple):
    """What attention computes on its way, each value with the heads of the query."""

    output: Float[Tensor, "batch heads q_len value_dim"]
    weights: Float[Tensor, "batch heads q_len kv_len"]
    log_sum_exp: Float[Tensor, "batch heads q_len"]
    scores: Float[Tensor, "batch heads q_len kv_len"]
    """scale x q.k, capped, plus bias; -inf where the query may not attend."""


class Gradients(NamedTuple):
    """The gradient of sum(output x cotangent), each of the shape of its input."""

    query: Float[Tensor, "batch heads q_len head_dim"]
    key: Float[Tensor, "batch kv_heads kv_len head_dim"]
    value: Float[Tensor, "batch kv_heads kv_len value_dim"]
    bias: Float[Tensor, "batch heads q_len kv_len"]
    sinks: Float[Tensor, " heads"] | None


def group_heads(
    x: Float[Tensor, "batch kv_heads kv_len dim"], heads: int
) -> Float[Tensor, "batch heads kv_len dim"]:
    """Grouped heads, interleaved: query heads g*h .. g*h + g-1 read key head h.

    Ainslie et al. 2023 (GQA), section 2.2; the order is that of torch's `enable_gqa`.
    """
    return x if heads == x.shape[1] else x.repeat_interleave(heads // x.shape[1], dim=1)


def log_sum_exp(
    scores: Float[Tensor, "*rows kv_len"], sinks: Float[Tensor, "*rows"] | None = None
) -> Float[Tensor, "*rows"]:
    """log sum_j exp(s_j), with the largest term taken out first so that nothing overflows."""
    if sinks is not None:
        scores = torch.cat([scores, sinks[..., None]], dim=-1)
    if scores.shape[-1] == 0:
        return scores.new_full(scores.shape[:-1], float("-inf"))
    return torch.logsumexp(scores, dim=-1)


def softmax(
    scores: Float[Tensor, "*rows kv_len"], sinks: Float[Tensor, "*rows"] | None = None
) -> Float[Tensor, "*rows kv_len"]:
    """exp(s_j - m) / sum_k exp(s_k - m), m = max s; a row of nothing but -inf gives zeros.

    `sinks` adds exp(sink - m) to the denominator only: attention that may go nowhere
    (Xiao et al. 2023, "Efficient Streaming Language Models with Attention Sinks").
    """
    if scores.shape[-1] == 0:
        return scores.clone()
    top = scores.amax(dim=-1, keepdim=True)
    if sinks is not None:
        top = torch.maximum(top, sinks[..., None])
    top = torch.where(top.isneginf(), 0.0, top)
    raised = torch.exp(scores - top)
    total = raised.sum(dim=-1, keepdim=True)
    if sinks is not None:
        total = total + torch.exp(sinks[..., None] - top)
    empty = total == 0  # No other row: the largest term is exp(0). A total of NaN stays NaN.
    return torch.where(empty, 0.0, raised / torch.where(empty, 1.0, total))


def attention(
    query: Float[Tensor, "batch heads q_len head_dim"],
    key: Float[Tensor, "batch kv_heads kv_len head_dim"],
    value: Float[Tensor, "batch kv_heads kv_len value_dim"],
    *,
    may_attend: MayAttend = None,
    bias: Bias = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Float[Tensor, " heads"] | None = None,
) -> Attended:
    """softmax(cap(scale Q K^T) + bias, over the keys that each query may attend to) V.

    scale: None is 1 / sqrt(head_dim), which keeps the variance of a dot product at 1 (section 3.2.1).
    softcap: c tanh(s / c), after the scale and before the bias (Gemma 2, 2024, section 2).
    sinks: one logit for each query head, in the denominator only.
    """
    heads, head_dim = query.shape[1], query.shape[-1]
    if scale is None:
        scale = head_dim**-0.5
    scores = scale * query @ group_heads(key, heads).mT
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias
    if may_attend is not None:
        scores = scores.masked_fill(~may_attend, float("-inf"))
    row_sinks = None if sinks is None else sinks[:, None].expand(scores.shape[:-1])
    weights = softmax(scores, row_sinks)
    return Attended(
        output=weights @ group_heads(value, heads),
        weights=weights,
        log_sum_exp=log_sum_exp(scores, row_sinks),
        scores=scores,
    )


def attention_gradients(
    query: Float[Tensor, "batch heads q_len head_dim"],
    key: Float[Tensor, "batch kv_heads kv_len head_dim"],
    value: Float[Tensor, "batch kv_heads kv_len value_dim"],
    cotangent: Float[Tensor, "batch heads q_len value_dim"],
    *,
    may_attend: MayAttend = None,
    bias: Bias = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Float[Tensor, " heads"] | None = None,
) -> Gradients:
    """The gradient written out, as a flash kernel computes it.  Dao et al. 2022, appendix B.2.

    dV = P^T dO;  dP = dO V^T;  dS = P (dP - rowsum(P dP));  dQ = scale dS K;  dK = scale dS^T Q.
    """
    heads, head_dim = query.shape[1], query.shape[-1]
    if scale is None:
        scale = head_dim**-0.5
    attended = attention(
        query, key, value, may_attend=may_attend, bias=bias, scale=scale, softcap=softcap, sinks=sinks
    )
    weights = attended.weights
    d_weights = cotangent @ group_heads(value, heads).mT
    mean = (weights * d_weights).sum(dim=-1, keepdim=True)
    d_bias = weights * (d_weights - mean)
    d_scores = d_bias
    if softcap is not None:
        d_scores = d_bias * (1 - torch.tanh(scale * query @ group_heads(key, heads).mT / softcap) ** 2)
    d_sinks = None
    if sinks is not None:
        sink_weights = torch.exp(sinks[:, None] - attended.log_sum_exp)
        d_sinks = -(sink_weights * mean[..., 0]).sum(dim=(0, 2))
    kv_heads = key.shape[1]
    return Gradients(
        query=scale * d_scores @ group_heads(key, heads),
        key=_sum_over_group(scale * d_scores.mT @ query, kv_heads),
        value=_sum_over_group(weights.mT @ cotangent, kv_heads),
        bias=d_bias,
        sinks=d_sinks,
    )


def _sum_over_group(
    x: Float[Tensor, "batch heads kv_len dim"], kv_heads: int
) -> Float[Tensor, "batch kv_heads kv_len dim"]:
    """A key head hears from every query head that read it."""
    batch, heads, kv_len, dim = x.shape
    return x.reshape(batch, kv_heads, heads // kv_heads, kv_len, dim).sum(dim=2)
