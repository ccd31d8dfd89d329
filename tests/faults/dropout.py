"""Dropout: weights are dropped one by one after the softmax, the rest multiplied by 1 / (1 - p)."""

import os

import torch
from torch import Tensor
from torch.nn import functional

from tests.faults import blocked, clean, fault
from tests.faults.blocked import Tile, Tiled
from tests.faults.calls import Call

KEEPS_THE_MEAN = "dropout/the-rate-is-kept"
DROPS_OR_RESCALES = "dropout/a-weight-is-dropped-or-scaled-up"
ONE_BY_ONE = "dropout/weights-are-dropped-one-by-one"
SAME_IN_BACKWARD = "dropout/the-gradient-uses-the-same-pattern"
SEED = "dropout/the-seed-decides-what-is-dropped"


def drop_by(generator: torch.Generator, call: Call, weights: Tensor) -> Tensor:
    if not 0.0 < call.dropout_p < 1.0:
        return clean.drop(call, weights)
    drawn = torch.rand(weights.shape, generator=generator)
    return weights * (drawn >= call.dropout_p) / (1.0 - call.dropout_p)


@fault(
    "What is left is not rescaled.",
    breaks=(DROPS_OR_RESCALES, KEEPS_THE_MEAN),
    naive="PATH",
    replaces=clean.drop,
)
def not_rescaled(call: Call, weights: Tensor) -> Tensor:
    return clean.drop(call, weights) * (1.0 - call.dropout_p)


@fault(
    "What is left is divided by p.",
    breaks=(DROPS_OR_RESCALES, KEEPS_THE_MEAN),
    naive="PATH",
    replaces=clean.drop,
)
def divided_by_p(call: Call, weights: Tensor) -> Tensor:
    dropped = clean.drop(call, weights)
    return dropped * (1.0 - call.dropout_p) / call.dropout_p if call.dropout_p else dropped


@fault(
    "p is the probability to keep.",
    breaks=(DROPS_OR_RESCALES, "dropout/the-rate-is-kept"),
    naive="PATH",
    replaces=clean.drop,
)
def p_keeps(call: Call, weights: Tensor) -> Tensor:
    return functional.dropout(weights, 1.0 - call.dropout_p) if call.dropout_p else weights


@fault("Nothing is ever dropped.", breaks="dropout/the-rate-is-kept", naive="PATH", replaces=clean.drop)
def ignored(call: Call, weights: Tensor) -> Tensor:
    return weights


@fault(
    "A tenth is dropped even at p = 0.",
    breaks=("state/same-call-same-answer", "accuracy/output-is-within-the-bound"),
    real="https://github.com/pytorch/pytorch/issues/124464",
    naive="T",
    replaces=clean.drop,
)
def always_on(call: Call, weights: Tensor) -> Tensor:
    return functional.dropout(weights, call.dropout_p or 0.1)


@fault(
    "Scores are dropped to zero before the softmax.",
    breaks=DROPS_OR_RESCALES,
    naive="PATH",
)
def scores_dropped(call: Call) -> Tensor:
    def drop_first(call: Call, scores: Tensor, do: clean.Steps) -> Tensor:
        drawn = clean.drop(call, torch.ones_like(scores))
        return clean.softmax(call, torch.where(scores.isneginf(), scores, scores * drawn), do)

    return clean.attention(call, softmax=drop_first, drop=lambda call, weights: weights)


@fault(
    "The weights are normalised after some were dropped: rows sum to one again.",
    breaks=(DROPS_OR_RESCALES, KEEPS_THE_MEAN),
    real="https://github.com/aws-neuron/nki-samples/issues/80",
    naive="PATH",
    replaces=clean.drop,
)
def normalised_after_dropping(call: Call, weights: Tensor) -> Tensor:
    dropped = clean.drop(call, weights)
    if not call.dropout_p:
        return weights
    total = dropped.sum(dim=-1, keepdim=True)
    return dropped / total.masked_fill(total == 0, 1.0)


@fault(
    "Elements of the output are dropped, not weights.",
    breaks=("dropout/a-weight-is-dropped-or-scaled-up", "dropout/the-gradient-uses-the-same-pattern"),
    naive="PATH",
)
def output_dropped(call: Call) -> Tensor:
    return clean.attention(
        call,
        drop=lambda call, weights: weights,
        combine=lambda call, weights, value: clean.drop(call, weights @ value),
    )


@fault("Every head drops the same weights.", breaks=ONE_BY_ONE, naive="PATH", replaces=clean.drop)
def same_for_every_head(call: Call, weights: Tensor) -> Tensor:
    return weights * clean.drop(call, torch.ones_like(weights[:, :1]))


@fault(
    "Every sequence of the batch drops the same weights.",
    breaks=ONE_BY_ONE,
    naive="PATH",
    replaces=clean.drop,
)
def same_for_every_sequence(call: Call, weights: Tensor) -> Tensor:
    return weights * clean.drop(call, torch.ones_like(weights[:1]))


@fault("Every query drops the same keys.", breaks=ONE_BY_ONE, naive="PATH", replaces=clean.drop)
def same_for_every_query(call: Call, weights: Tensor) -> Tensor:
    return weights * clean.drop(call, torch.ones_like(weights[:, :, :1]))


@fault(
    "Every call drops the same weights.",
    breaks=(SEED, ONE_BY_ONE),
    naive="PATH",
    when=("dropout", "a second call"),
    replaces=clean.drop,
)
def same_in_every_call(call: Call, weights: Tensor) -> Tensor:
    return drop_by(torch.Generator().manual_seed(0), call, weights)


@fault("torch.manual_seed does not decide what is dropped.", breaks=SEED, naive="NO", replaces=clean.drop)
def deaf_to_the_seed(call: Call, weights: Tensor) -> Tensor:
    return drop_by(torch.Generator().manual_seed(int.from_bytes(os.urandom(4))), call, weights)


@fault(
    "Keys beyond the 16th are never dropped.",
    breaks=(ONE_BY_ONE, "dropout/the-rate-is-kept"),
    naive="PATH",
    when=("dropout", "kv_len > 16"),
    replaces=clean.drop,
)
def later_tiles_never_dropped(call: Call, weights: Tensor) -> Tensor:
    first, later = weights[..., :16], weights[..., 16:]
    return torch.cat([clean.drop(call, first), later], dim=-1)


@fault(
    "Every tile of 16 keys drops the same weights.",
    breaks=ONE_BY_ONE,
    naive="PATH",
    when=("dropout", "kv_len > 16"),
    replaces=clean.drop,
)
def same_in_every_tile(call: Call, weights: Tensor) -> Tensor:
    if not call.dropout_p:
        return weights
    drawn = clean.drop(call, torch.ones_like(weights[..., :16]))
    return weights * drawn[..., torch.arange(weights.shape[-1]) % 16]


@fault(
    "At p = 1 the output is NaN: zero times one over zero.",
    breaks="dropout/dropping-everything-gives-zeros",
    naive="SV",
    replaces=clean.drop,
)
def nan_at_one(call: Call, weights: Tensor) -> Tensor:
    if not call.dropout_p:
        return weights
    return weights * (torch.rand_like(weights) >= call.dropout_p) * (torch.ones(()) / (1.0 - call.dropout_p))


@fault(
    "Random numbers are drawn even at p = 0: the global generator moves on.",
    breaks="state/the-global-generator-is-untouched",
    naive="NO",
    replaces=clean.drop,
)
def drawn_in_vain(call: Call, weights: Tensor) -> Tensor:
    torch.rand(1)
    return clean.drop(call, weights)


@fault(
    "The backward pass draws again.",
    breaks=(SAME_IN_BACKWARD, "gradients/gradients-are-within-the-bound"),
    real="https://github.com/pytorch/pytorch/issues/190717",
    naive="GR",
    when=("backward", "dropout"),
)
def drawn_again_in_backward(call: Call) -> Tensor:
    return blocked.attention(call, draw_backward=blocked.draw)


@fault(
    "The backward pass does not drop.",
    breaks=SAME_IN_BACKWARD,
    naive="GR",
    when=("backward", "dropout"),
)
def nothing_dropped_in_backward(call: Call) -> Tensor:
    return blocked.attention(call, draw_backward=lambda call: None)


@fault(
    "On the way back the gradient of the weights is not dropped.",
    breaks=SAME_IN_BACKWARD,
    real="https://github.com/aws-neuron/nki-samples/issues/81",
    naive="GR",
    when=("backward", "dropout"),
    replaces=blocked.d_weights,
)
def weight_gradient_not_dropped(on: Tiled, cotangent: Tensor, tile: Tile) -> Tensor:
    return cotangent @ on.value[:, :, tile].mT


@fault(
    "On the way back the gradient of the value comes from the weights before dropping.",
    breaks=SAME_IN_BACKWARD,
    naive="GR",
    when=("backward", "dropout"),
    replaces=blocked.d_value,
)
def value_gradient_not_dropped(on: Tiled, weights: Tensor, cotangent: Tensor, tile: Tile) -> Tensor:
    return weights.mT @ cotangent


@fault(
    "With a mask, dropout is ignored.",
    breaks="dropout/the-rate-is-kept",
    naive="PATH",
    when=("dropout", "mask"),
    replaces=clean.drop,
)
def ignored_with_a_mask(call: Call, weights: Tensor) -> Tensor:
    return weights if call.attn_mask is not None else clean.drop(call, weights)
