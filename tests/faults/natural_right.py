"""Right attention as others write it: functions of a blind sample that were failed wrongly, in a few lines each."""

import math
from functools import reduce
from random import Random
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from tests.faults import clean, variant
from tests.faults.calls import NEVER, Call

PLAIN = ("attn_mask", "dropout_p", "enable_gqa")
"""What most of these functions leave out."""


def _scores(call: Call) -> Tensor:
    """Scaled, in float32 at least, causal where it is asked for."""
    seen = clean.causal(call)
    scores = clean.score(call, call.key, clean.scale(call))
    return scores if seen is None else scores.masked_fill(~seen, NEVER)


def _part(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp of some of the keys."""
    scores = query @ key.mT
    log_sum_exp = torch.logsumexp(scores, dim=-1, keepdim=True)
    return torch.exp(scores - log_sum_exp) @ value, log_sum_exp


def _joined(one: tuple[Tensor, ...], other: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The maximum, the sum and the undivided output of two parts together."""
    top = torch.maximum(one[0], other[0])
    factors = [torch.exp(part[0] - top) for part in (one, other)]
    return top, *(factors[0] * a + factors[1] * b for a, b in zip(one[1:], other[1:], strict=True))


@variant(
    "The weights are exp(score - log-sum-exp), and the log-sum-exp is returned.",
    without=PLAIN,
    features=("return_lse",),
)
def weights_by_log_sum_exp(call: Call) -> Any:
    wide = clean.read(call)
    scores = _scores(wide)
    log_sum_exp = scores.logsumexp(dim=-1)
    weights = torch.exp(scores - log_sum_exp.masked_fill(log_sum_exp == NEVER, 0.0)[..., None])
    output = (weights @ wide.value).to(call.dtype)
    return (output, log_sum_exp) if call.return_lse else output


@variant(
    "The keys in four parts, each with its log-sum-exp, merged at the end.",
    gradients=False,
    without=(*PLAIN, "is_causal"),
)
def four_parts_merged(call: Call) -> Tensor:
    if not call.kv_len:
        raise ValueError("no keys to split")
    wide = clean.read(call)
    size, query = max(1, -(-call.kv_len // 4)), wide.query * clean.scale(call)
    parts = [
        _part(query, key, value)
        for key, value in zip(wide.key.split(size, dim=2), wide.value.split(size, dim=2), strict=True)
    ]
    outputs, sums = (torch.stack(each) for each in zip(*parts, strict=True))
    return (torch.exp(sums - torch.logsumexp(sums, dim=0)) * outputs).sum(dim=0).to(call.dtype)


@variant(
    "Flash-Decoding: from 17 keys on they are read in at most eight parts, merged by their log-sum-exps.",
    gradients=False,
    dtypes=("float32", "float64"),
    without=(*PLAIN, "is_causal"),
)
def parts_of_many_keys_merged(call: Call) -> Tensor:
    wide = clean.read(call)
    scores, size = _scores(call), max(16, -(-call.kv_len // 8))
    parts = [
        (torch.softmax(part, dim=-1) @ value, part.logsumexp(dim=-1, keepdim=True))
        for part, value in zip(scores.split(size, dim=-1), wide.value.split(size, dim=2), strict=True)
    ]
    outputs, sums = (torch.stack(each) for each in zip(*parts, strict=True))
    total = torch.logsumexp(sums, dim=0)
    return (torch.exp(sums - total.nan_to_num(neginf=0.0)) * outputs).sum(dim=0).to(call.dtype)


@variant(
    "Four parts of the keys, each read by the query itself, merged in pairs before they are divided: a tree.",
    without=(*PLAIN, "is_causal"),
)
def parts_merged_as_a_tree(call: Call) -> Tensor:
    wide = clean.read(call)
    size = max(1, -(-call.kv_len // 4))
    parts = []
    for key, value in zip(wide.key.split(size, dim=2), wide.value.split(size, dim=2), strict=True):
        scores = wide.query @ key.mT * clean.scale(call)
        top = scores.detach().amax(dim=-1, keepdim=True) if key.shape[2] else scores.new_zeros(())
        raised = torch.exp(scores - top)
        parts.append((top, raised.sum(dim=-1, keepdim=True), raised @ value))
    while len(parts) > 1:
        odd = parts[-1:] if len(parts) % 2 else []
        parts = [_joined(*pair) for pair in zip(parts[::2], parts[1::2], strict=False)] + odd
    _, total, output = parts[0]
    return (output / total.masked_fill(total == 0, 1.0)).to(call.dtype)


@variant(
    "Parts meet as in ring attention: out - share (out - part), the share by a sigmoid.",
    without=PLAIN,
    dtypes=("float32", "float64"),
    declares={"autocast": False},
)
def merged_by_differences(call: Call) -> Tensor:
    scores, size = _scores(call), -(-call.kv_len // 3) or 1
    output, log_sum_exp = call.value.new_zeros(()), scores.new_full((*scores.shape[:-1], 1), NEVER)
    output = output.expand(*scores.shape[:-1], call.value.shape[-1])
    for part, value in zip(scores.split(size, dim=-1), call.value.split(size, dim=-2), strict=True):
        own = part.logsumexp(dim=-1, keepdim=True)
        unseen, first = own == NEVER, log_sum_exp == NEVER
        mean = part.masked_fill(unseen, 0.0).softmax(dim=-1) @ value
        gap = own.masked_fill(unseen | first, 0.0) - log_sum_exp.masked_fill(unseen | first, 0.0)
        merged = output - torch.sigmoid(gap) * (output - mean)
        output = torch.where(unseen, output, torch.where(first, mean, merged))
        sum_of_both = log_sum_exp - torch.nn.functional.logsigmoid(-gap)
        log_sum_exp = torch.where(unseen, log_sum_exp, torch.where(first, own, sum_of_both))
    return output


@variant(
    "Pieces of ten keys meet by two sigmoids, one for each share: exact on the way forward, not so on the way back.",
    without=PLAIN,
    declares={"autocast": False},
)
def merged_by_two_sigmoids(call: Call) -> Tensor:
    wide = clean.read(call)
    scores, value = _scores(wide), wide.value
    unseen = scores.new_full((*scores.shape[:-1], 1), NEVER)
    output, log_sum_exp = scores[..., :0] @ value[..., :0, :], unseen
    for part, own_value in zip(scores.split(10, dim=-1), value.split(10, dim=-2), strict=True):
        dead, own = (part == NEVER).all(dim=-1, keepdim=True), part.masked_fill(part == NEVER, -1e30)
        mean, own_sum = (
            (own.softmax(dim=-1) @ own_value).masked_fill(dead, 0.0),
            own.logsumexp(-1, keepdim=True),
        )
        first = log_sum_exp == NEVER
        gap = (own_sum - log_sum_exp.masked_fill(first, 0.0)).masked_fill(first | dead, 0.0)
        merged = torch.sigmoid(-gap) * output + torch.sigmoid(gap) * mean
        grown = log_sum_exp.masked_fill(first, 0.0) - torch.nn.functional.logsigmoid(-gap)
        output = torch.where(dead, output, torch.where(first, mean, merged))
        log_sum_exp = torch.where(dead, log_sum_exp, torch.where(first, own_sum, grown))
    return output.to(call.dtype)


@variant(
    "Pieces of four keys are exp(score - log-sum-exp), and meet as out + sigmoid (piece - out), as in ring attention.",
    without=PLAIN,
    declares={"autocast": False},
)
def ring_by_log_sum_exps(call: Call) -> Tensor:
    wide = clean.read(call)
    scores, value = _scores(wide), wide.value
    unseen = scores.new_full((*scores.shape[:-1], 1), NEVER)
    output, log_sum_exp = scores[..., :0] @ value[..., :0, :], unseen
    for part, own_value in zip(scores.split(4, dim=-1), value.split(4, dim=-2), strict=True):
        dead, own = (part == NEVER).all(dim=-1, keepdim=True), part.masked_fill(part == NEVER, -1e30)
        own_sum = own.logsumexp(-1, keepdim=True)
        piece = ((own - own_sum).exp() @ own_value).masked_fill(dead, 0.0)
        first = log_sum_exp == NEVER
        before = log_sum_exp.masked_fill(first, 0.0)
        gap = (own_sum - before).masked_fill(first | dead, 0.0)
        merged = output + torch.sigmoid(gap) * (piece - output)
        grown = torch.logaddexp(before, own_sum)
        output = torch.where(dead, output, torch.where(first, piece, merged))
        log_sum_exp = torch.where(dead, log_sum_exp, torch.where(first, own_sum, grown))
    return output.to(call.dtype)


@variant(
    "A sink joins at the end, as a sigmoid of how far the log-sum-exp stands above it.",
    dtypes=("float32", "float64"),
    without=(*PLAIN, "scale"),
    features=("sinks",),
)
def sinks_by_a_sigmoid(call: Call) -> Tensor:
    scores = _scores(call)
    weights = torch.log_softmax(scores, dim=-1).exp()
    if call.sinks is not None:
        above = torch.logsumexp(scores, dim=-1, keepdim=True) - call.sinks[:, None, None]
        weights = weights * torch.sigmoid(above)
    return weights @ call.value


@variant(
    "Keys and values are unfolded into one window for each query.",
    declares={"rectangular": False},
    without=(*PLAIN, "is_causal", "scale"),
    features=("window",),
)
def windows_unfolded(call: Call) -> Tensor:
    n, widest = call.q_len, max(call.q_len - 1, 0)
    if call.kv_len != n:
        raise NotImplementedError("as many queries as keys")
    if not n:
        return call.value.clone()
    left, right = (widest if side is None else min(side, widest) for side in call.window or (None, None))
    key, value = (pad(x, (0, 0, left, right)).unfold(2, left + right + 1, 1) for x in (call.key, call.value))
    at = torch.arange(n)[:, None] + torch.arange(-left, right + 1)
    scores = torch.einsum("bhnd,bhndw->bhnw", call.query, key) * clean.scale(call)
    weights = scores.masked_fill((at < 0) | (at >= n), NEVER).softmax(dim=-1)
    return torch.einsum("bhnw,bhnew->bhne", weights, value)


@variant("Keys stand in rows and queries in columns: the softmax goes down.", without=(*PLAIN, "is_causal"))
def queries_in_columns(call: Call) -> Tensor:
    return (call.value.mT @ torch.softmax(call.key @ (call.query * clean.scale(call)).mT, dim=-2)).mT


@variant("Masks that are numbers are refused by a TypeError, dropout by a ValueError, undeclared.")
def refuses_in_so_many_words(call: Call) -> Any:
    if call.bias is not None:
        raise TypeError("attn_mask must be boolean")
    if call.dropout_p:
        raise ValueError("dropout is not supported")
    return clean.attention(call)


class _Saved(torch.autograd.Function):
    """A backward of its own that autocast does not know."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        weights = torch.softmax(query @ key.mT * scale, dim=-1)
        ctx.save_for_backward(query, key, value, weights)
        ctx.scale = scale
        return weights @ value

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        query, key, value, weights = ctx.saved_tensors
        d_weights = cotangents[0] @ value.mT
        d_scores = weights * (d_weights - (weights * d_weights).sum(dim=-1, keepdim=True)) * ctx.scale
        return d_scores @ key, d_scores.mT @ query, weights.mT @ cotangents[0], None


@variant("A backward of its own, which raises under autocast.", without=(*PLAIN, "is_causal"))
def own_backward_without_autocast(call: Call) -> Any:
    return _Saved.apply(call.query, call.key, call.value, clean.scale(call))  # type: ignore[no-untyped-call]


@variant(
    "The weights are exp(score - log-sum-exp), with masks and biases.",
    without=("dropout_p",),
    replaces=clean.softmax,
)
def masked_weights_by_log_sum_exp(call: Call, scores: Tensor, do: clean.Steps) -> Tensor:
    log_sum_exp = clean.lse(call, scores)[..., None]
    return torch.exp(scores - log_sum_exp.masked_fill(log_sum_exp == NEVER, 0.0))


@variant("A rate of one is refused, and so is a last axis whose stride is not 1, as by flash-attention.")
def below_one_and_dense(call: Call) -> Tensor:
    if call.dropout_p >= 1:
        raise ValueError("the rate is to be below one")
    if any(each.shape[-1] > 1 != each.stride(-1) for each in (call.query, call.key, call.value)):
        raise RuntimeError("Input tensor must have contiguous last dimension")
    return clean.attention(call)


# Of the eighth sample

_ARRIVALS = Random()


@variant(
    "Three parts of the keys are added in the order in which they come.", declares={"deterministic": False}
)
def parts_in_any_order(call: Call) -> Tensor:
    def combine(call: Call, weights: Tensor, value: Tensor) -> Tensor:
        size = max(1, -(-value.shape[2] // 3))
        pairs = zip(weights.split(size, dim=-1), value.split(size, dim=2), strict=True)
        parts = [some @ of_them for some, of_them in pairs]
        _ARRIVALS.shuffle(parts)
        return reduce(torch.add, parts)

    return clean.attention(call, combine=combine)


@variant(
    "The scores are made twice, for the sum of a row and for its output, in parts: autograd meets a bias in each.",
    without=("dropout_p",),
)
def scores_made_twice_in_parts(call: Call) -> Tensor:
    wide = clean.read(call)
    query, key, value = (
        wide.query * clean.scale(call),
        clean.group(call, wide.key),
        clean.group(call, wide.value),
    )
    kept = clean.compose(call, clean.mask(call), clean.causal(call))

    def cut(x: Tensor, keys: slice) -> Tensor:
        return x if x.shape[-1] == 1 else x[..., keys]

    def scores(keys: slice) -> Tensor:
        made = query @ key[:, :, keys].mT
        made = made if call.bias is None else made + cut(call.bias, keys).to(made)
        return made if kept is None else made.masked_fill(~cut(kept, keys), NEVER)

    parts = [slice(begin, begin + 24) for begin in range(0, call.kv_len, 24)]
    with torch.no_grad():
        top = clean.top(call, torch.cat([query.new_zeros(*query.shape[:3], 0), *map(scores, parts)], dim=-1))
    sums = [torch.exp(scores(keys) - top).sum(dim=-1, keepdim=True) for keys in parts]
    total = reduce(torch.add, sums, torch.zeros_like(top))
    inverse = 1 / total.masked_fill(total == 0, 1.0)
    outputs = [torch.exp(scores(keys) - top) * inverse @ value[:, :, keys] for keys in parts]
    nothing = query.new_zeros(*query.shape[:3], value.shape[3])
    return clean.write(call, reduce(torch.add, outputs, nothing))


@variant(
    "A mean that each block of keys moves, by its share of all weights so far.",
    without=PLAIN,
    dtypes=("float32", "float64"),
    declares={"autocast": False},
)
def a_mean_that_moves(call: Call) -> Tensor:
    scores = _scores(call)
    mean = call.value.new_zeros(*scores.shape[:-1], call.value.shape[-1])
    total, top = scores.new_zeros(*scores.shape[:-1], 1), scores.new_full((*scores.shape[:-1], 1), NEVER)
    for part, value in zip(scores.split(16, dim=-1), call.value.split(16, dim=-2), strict=True):
        before, top = top, torch.maximum(top, part.detach().amax(dim=-1, keepdim=True))
        shift = top.masked_fill(top == NEVER, 0.0)
        raised = torch.exp(part - shift)
        own = raised.sum(dim=-1, keepdim=True)
        total = total * torch.exp(before - shift) + own
        mean = mean + (raised @ value - own * mean) / total.masked_fill(total == 0, 1.0)
    return mean


@variant("Values of keys that no query of the call gives any weight are not read.", replaces=clean.combine)
def weightless_keys_not_read(call: Call, weights: Tensor, value: Tensor) -> Tensor:
    """NaN there does not show, which no law asks for."""
    read = (weights != 0).any(dim=-2, keepdim=True).mT
    return weights @ value.masked_fill(~read, 0.0)


@variant("A row of scores has room for 100 keys, and more are refused.")
def room_for_a_hundred(call: Call) -> Tensor:
    if call.kv_len > 100:
        raise ValueError(f"{call.kv_len} keys are more than the 100 that there is room for")
    return clean.attention(call)


@variant("Tensors that are not contiguous are refused.")
def contiguous_or_refused(call: Call) -> Tensor:
    for name in ("query", "key", "value"):
        if not getattr(call, name).is_contiguous():
            raise ValueError(f"{name} must be contiguous")
    return clean.attention(call)


@variant("Weights are dropped in training alone.", features=("training",))
def dropped_in_training(call: Call) -> Tensor:
    return clean.attention(call if call.training else call.but(dropout_p=0.0))


@variant(
    "The log-sum-exp is (batch, length, heads).",
    declares={"log_sum_exp_layout": "bsh"},
    replaces=clean.lse,
    features=("return_lse",),
)
def log_sum_exp_by_rows(call: Call, scores: Tensor) -> Tensor:
    return clean.lse(call, scores).transpose(1, 2)


@variant(
    "The largest score, of a sink as well, is taken off before the softmax, all in the dtype of the inputs (gpt-oss).",
    features=("sinks",),
    without=PLAIN,
)
def sink_taken_off(call: Call) -> Tensor:
    scores = call.query @ call.key.mT * clean.scale(call)
    if (seen := clean.causal(call)) is not None:
        scores = scores.masked_fill(~seen, NEVER)
    sinks = clean.sink_column(call, scores)
    scores = scores if sinks is None else torch.cat([scores, sinks], dim=-1)
    weights = torch.softmax(scores - scores.amax(dim=-1, keepdim=True), dim=-1)
    return weights[..., : call.kv_len].to(call.dtype) @ call.value


@variant(
    "Split-KV: parts of eight keys, each divided by its sum, merged by log-sum-exps in base 2, by autograd too.",
    without=("dropout_p", "enable_gqa", "is_causal"),
)
def parts_of_eight_keys(call: Call) -> Tensor:
    wide = clean.read(call)
    scores = clean.bias(wide, _scores(wide)) / math.log(2)
    scores = scores if wide.mask is None else scores.masked_fill(~wide.mask, NEVER)
    outputs, sums = [], []
    for part, value in zip(scores.split(8, dim=-1), wide.value.split(8, dim=2), strict=True):
        top = clean.top(wide, part)
        raised = torch.exp2(part - top)
        total = raised.sum(dim=-1, keepdim=True)
        outputs.append(raised @ value / total.masked_fill(total == 0, 1.0))
        sums.append(torch.where(total == 0, NEVER, top + torch.log2(total.masked_fill(total == 0, 1.0))))
    shares = torch.stack(sums)
    top = shares.detach().amax(dim=0)
    shares = torch.exp2(shares - top.masked_fill(top == NEVER, 0.0))
    total = shares.sum(dim=0)
    output = (shares * torch.stack(outputs)).sum(dim=0) / total.masked_fill(total == 0, 1.0)
    return output.to(call.dtype)


@variant(
    "Each sequence is cut to its keys, and computed alone.", features=("key_lengths",), without=("attn_mask",)
)
def each_cut_to_its_length(call: Call) -> Any:
    if call.key_lengths is None:
        return clean.attention(call)
    parts = [
        clean.attention(
            call.but(
                query=call.query[b : b + 1],
                key=call.key[b : b + 1, :, :length],
                value=call.value[b : b + 1, :, :length],
                key_lengths=None,
            )
        )
        for b, length in enumerate(call.key_lengths.tolist())
    ]
    return torch.cat(parts)


@variant("Lengths and a mask at once are refused.", features=("key_lengths",))
def lengths_beside_a_mask_refused(call: Call) -> Any:
    if call.key_lengths is not None and call.attn_mask is not None:
        raise ValueError("key_lengths and attn_mask cannot be given together")
    return clean.attention(call)


@variant(
    "Queries behind the length of a self-attention give zeros, as they are padding.",
    features=("key_lengths",),
)
def queries_behind_the_length_are_zero(call: Call) -> Any:
    output = clean.attention(call)
    if call.key_lengths is None or call.q_len != call.kv_len:
        return output
    padding = torch.arange(call.q_len) >= call.key_lengths[:, None]
    return output.masked_fill(padding[:, None, :, None], 0.0)


@variant(
    "What is behind a length has the lowest score that the dtype holds.",
    features=("key_lengths",),
    without=("attn_mask",),
)
def behind_the_length_the_lowest(call: Call) -> Any:
    def hide(call: Call, scores: Tensor, kept: Tensor) -> Tensor:
        if call.key_lengths is None:
            return clean.hide(call, scores, kept)
        lowest = scores.masked_fill(~kept, torch.finfo(scores.dtype).min)
        return torch.where(kept.any(dim=-1, keepdim=True), lowest, NEVER)

    return clean.attention(call, hide=hide)


@variant(
    "The weights that are returned are those that met the values: after dropout.",
    features=("return_weights",),
)
def returned_after_dropout(call: Call) -> Any:
    met: list[Tensor] = []

    def combine(call: Call, weights: Tensor, value: Tensor) -> Tensor:
        met.append(weights)
        return clean.combine(call, weights, value)

    output = clean.attention(call, combine=combine)
    return (output, met[0].to(call.dtype)) if call.return_weights else output


@variant("The weights that are returned are those before dropout.", features=("return_weights",))
def returned_before_dropout(call: Call) -> Any:
    met: list[Tensor] = []

    def drop(call: Call, weights: Tensor) -> Tensor:
        met.append(weights)
        return clean.drop(call, weights)

    output = clean.attention(call, drop=drop)
    return (output, met[0].to(call.dtype)) if call.return_weights else output
