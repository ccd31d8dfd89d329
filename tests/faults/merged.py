"""Right attention over parts of the keys, each softmaxed by itself: split-K kernels that autograd goes back through."""

import torch
from torch import Tensor

from tests.faults import clean, variant
from tests.faults.calls import Call


@variant(
    "Three parts of the keys and a rest, whose shares are a softmax over their log-sum-exps; autograd goes back.",
    without=("dropout_p",),
)
def shares_by_a_softmax(call: Call) -> Tensor:
    wide = clean.read(call)
    if not call.kv_len:
        return call.query.new_zeros(*call.query.shape[:-1], call.value.shape[-1])
    key, value = clean.group(wide, wide.key), clean.group(wide, wide.value)
    scores, size = clean.bias(wide, clean.score(wide, key, clean.scale(call))), max(1, call.kv_len // 3)
    seen = clean.compose(call, clean.mask(call), clean.causal(call))
    scores = scores if seen is None else scores.masked_fill(~seen, -torch.inf)
    parts = map(_part, scores.split(size, dim=-1), value.split(size, dim=-2))
    outputs, sums = zip(*parts, strict=True)
    shares = _softmax(torch.cat(sums, dim=-1))
    mixed = [shares[..., n : n + 1] * output for n, output in enumerate(outputs)]
    return torch.stack(mixed).sum(dim=0).to(call.dtype)


def _part(scores: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """The output and the log-sum-exp, -inf where nothing is seen."""
    dead = scores.isneginf().all(dim=-1, keepdim=True)
    alive = scores.masked_fill(dead, 0.0)
    return _softmax(scores) @ value, alive.logsumexp(dim=-1, keepdim=True).masked_fill(dead, -torch.inf)


def _softmax(scores: Tensor) -> Tensor:
    dead = scores.isneginf().all(dim=-1, keepdim=True)
    return torch.softmax(scores.masked_fill(dead, 0.0), dim=-1).masked_fill(dead, 0.0)
