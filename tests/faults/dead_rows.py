"""Queries that may attend to nothing: zeros, forward and backward, and never NaN."""

import torch
from torch import Tensor

from tests.faults import clean, fault
from tests.faults.calls import NEVER, Call

PLAIN_SOFTMAX = "https://github.com/pytorch/pytorch/issues/103749"


def plain_softmax(call: Call, scores: Tensor, do: clean.Steps) -> Tensor:
    """NaN on a row of nothing but -inf."""
    return torch.softmax(scores, dim=-1)


def dead(scores: Tensor) -> Tensor:
    return (scores == NEVER).all(dim=-1, keepdim=True)


@fault(
    "A plain softmax: a dead row is NaN.",
    breaks="masks/dead-rows-follow-the-convention",
    real=PLAIN_SOFTMAX,
    naive="SV",
    replaces=clean.softmax,
)
def plain(call: Call, scores: Tensor, do: clean.Steps) -> Tensor:
    return plain_softmax(call, scores, do)


@fault(
    "NaN in the output is replaced by zero: dead rows look right, and their gradients are NaN.",
    breaks=("gradients/dead-rows-have-no-gradient", "accuracy/nan-in-a-visible-value-does-not-vanish"),
    real="https://github.com/Xilinx/brevitas/issues/1591",
    naive="GR",
    when=("dead row", "backward"),
)
def nan_in_the_output_replaced(call: Call) -> Tensor:
    def combine(call: Call, weights: Tensor, value: Tensor) -> Tensor:
        return (weights @ value).nan_to_num(0.0)

    return clean.attention(call, softmax=plain_softmax, combine=combine)


@fault(
    "NaN among the weights is replaced by zero: with an additive mask the gradients of a dead row are NaN.",
    breaks=("gradients/dead-rows-have-no-gradient", "accuracy/nan-in-a-query-does-not-vanish"),
    real="https://github.com/Xilinx/brevitas/issues/1591",
    naive="GR",
    when=("dead row", "additive mask", "backward"),
    replaces=clean.softmax,
)
def nan_among_the_weights_replaced(call: Call, scores: Tensor, do: clean.Steps) -> Tensor:
    return torch.softmax(scores, dim=-1).nan_to_num(0.0)


@fault(
    "The output of a dead row is zeroed after a plain softmax: NaN goes back through it.",
    breaks="gradients/dead-rows-have-no-gradient",
    naive="GR",
    when=("dead row", "backward"),
)
def zeroed_after_a_plain_softmax(call: Call) -> Tensor:
    rows: list[Tensor] = []

    def softmax(call: Call, scores: Tensor, do: clean.Steps) -> Tensor:
        rows.append(dead(scores))
        return plain_softmax(call, scores, do)

    def combine(call: Call, weights: Tensor, value: Tensor) -> Tensor:
        return (weights @ value).masked_fill(rows[0], 0.0)

    return clean.attention(call, softmax=softmax, combine=combine)


@fault(
    "Masked scores are the smallest number instead of -inf: a dead row is the mean of all values.",
    breaks="masks/dead-rows-follow-the-convention",
    naive="SV",
    replaces=clean.hide,
)
def filled_with_the_smallest_number(call: Call, scores: Tensor, kept: Tensor) -> Tensor:
    return scores.masked_fill(~kept, torch.finfo(scores.dtype).min)


@fault(
    "A dead row attends to the first key, so that softmax has something to hold on to.",
    breaks="masks/dead-rows-follow-the-convention",
    naive="SV",
    replaces=clean.compose,
)
def first_key_opened(call: Call, *planes: Tensor | None) -> Tensor | None:
    kept = clean.compose(call, *planes)
    if kept is None:
        return None
    first = torch.arange(kept.shape[-1]) == 0
    return kept | (first & ~kept.any(dim=-1, keepdim=True))


@fault(
    "Dead rows are spread evenly over all keys.",
    breaks="masks/dead-rows-follow-the-convention",
    naive="SV",
    replaces=clean.softmax,
)
def spread_evenly(call: Call, scores: Tensor, do: clean.Steps) -> Tensor:
    weights = clean.softmax(call, scores, do)
    return torch.where(dead(scores), 1.0 / max(call.kv_len, 1), weights)


@fault(
    "Only a call without any visible key is guarded: one dead row among living ones is NaN.",
    breaks="masks/dead-rows-follow-the-convention",
    naive="SV",
    when=("dead row", "a living one"),
    replaces=clean.softmax,
)
def guarded_all_or_nothing(call: Call, scores: Tensor, do: clean.Steps) -> Tensor:
    softmax = clean.softmax if dead(scores).all() else plain_softmax
    return softmax(call, scores, do)


@fault(
    "Dead rows are sought in attn_mask alone: one that only mask and causal mask together kill is NaN.",
    breaks=("masks/mask-and-causal-compose", "masks/dead-rows-follow-the-convention"),
    naive="SV",
    when=("causal", "mask", "dead only by both"),
    replaces=clean.softmax,
)
def sought_in_the_mask_alone(call: Call, scores: Tensor, do: clean.Steps) -> Tensor:
    if not call.is_causal:
        return clean.softmax(call, scores, do)
    kept = torch.ones_like(scores, dtype=torch.bool) if call.mask is None else call.mask
    dead_by_mask = ~kept.any(dim=-1, keepdim=True)
    return torch.where(dead_by_mask, 0.0, torch.softmax(torch.where(dead_by_mask, 0.0, scores), dim=-1))


@fault(
    "Dead rows are guarded for boolean masks: with an additive one they are NaN.",
    breaks=("masks/boolean-equals-additive", "masks/dead-rows-follow-the-convention"),
    real="https://github.com/pytorch/pytorch/issues/103963",
    naive="SV",
    when=("dead row", "additive mask"),
    replaces=clean.softmax,
)
def guarded_for_boolean_masks_only(call: Call, scores: Tensor, do: clean.Steps) -> Tensor:
    softmax = clean.softmax if call.bias is None else plain_softmax
    return softmax(call, scores, do)


@fault(
    "Dead rows are guarded while gradients are on; the fast path without them gives NaN.",
    breaks="masks/dead-rows-follow-the-convention",
    real="https://github.com/pytorch/pytorch/issues/190486",
    naive="PATH",
    when=("dead row", "no gradients"),
    replaces=clean.softmax,
)
def guarded_while_gradients_are_on(call: Call, scores: Tensor, do: clean.Steps) -> Tensor:
    softmax = clean.softmax if scores.requires_grad else plain_softmax
    return softmax(call, scores, do)


@fault(
    "A row is dead in every head when it is dead in the first.",
    breaks=("masks/dead-rows-follow-the-convention", "symmetry/heads-do-not-hear-each-other"),
    naive="SV",
    when=("dead row", "a mask for each head"),
    replaces=clean.softmax,
)
def dead_by_the_first_head(call: Call, scores: Tensor, do: clean.Steps) -> Tensor:
    return clean.softmax(call, scores, do).masked_fill(dead(scores)[:, :1], 0.0)


@fault(
    "A row with a single visible key counts as dead.",
    breaks=(
        "distribution/one-key-gives-its-value",
        "distribution/weights-sum-to-one",
        "accuracy/output-is-within-the-bound",
    ),
    naive="SV",
    replaces=clean.softmax,
)
def single_key_counts_as_none(call: Call, scores: Tensor, do: clean.Steps) -> Tensor:
    single = (scores != NEVER).sum(dim=-1, keepdim=True) == 1
    return clean.softmax(call, scores, do).masked_fill(single & (call.kv_len > 1), 0.0)


@fault(
    "Dead rows are not written: they hold what was in the memory before.",
    breaks=("state/stale-memory-does-not-matter", "masks/dead-rows-follow-the-convention"),
    real="flashinfer 480d1ae00 (#1533)",
    naive="NO",
)
def not_written(call: Call) -> Tensor:
    rows: list[Tensor] = []

    def softmax(call: Call, scores: Tensor, do: clean.Steps) -> Tensor:
        rows.append(dead(scores))
        return clean.softmax(call, scores, do)

    def combine(call: Call, weights: Tensor, value: Tensor) -> Tensor:
        output = weights @ value
        return torch.where(rows[0], torch.empty_like(output), output)

    return clean.attention(call, softmax=softmax, combine=combine)


@fault(
    "Dead rows keep what the last call of that shape left there.",
    breaks=("masks/dead-rows-follow-the-convention", "state/same-call-same-answer"),
    real="flashinfer 480d1ae00 (#1533)",
    naive="NO",
    when=("dead row", "a second call"),
)
def keep_the_last_call(call: Call, memory: dict[torch.Size, Tensor]) -> Tensor:
    rows: list[Tensor] = []

    def softmax(call: Call, scores: Tensor, do: clean.Steps) -> Tensor:
        rows.append(dead(scores))
        return clean.softmax(call, scores, do)

    output = clean.attention(call, softmax=softmax)
    left = memory.get(output.shape, torch.zeros_like(output)).to(output.dtype)
    output = torch.where(rows[0], left, output)
    memory[output.shape] = output.detach()
    return output


@fault(
    "With no keys at all the output is NaN.",
    breaks="accuracy/empty-axes-are-allowed-or-refused",
    real="https://github.com/pytorch/pytorch/issues/81077",
    naive="SH",
)
def nan_without_keys(call: Call) -> Tensor:
    output = clean.attention(call)
    return output if call.kv_len else torch.full_like(output, float("nan"))


@fault(
    "A dead row takes over the output of the row before.",
    breaks="masks/dead-rows-follow-the-convention",
    naive="SV",
    replaces=clean.softmax,
)
def row_before_carried_on(call: Call, scores: Tensor, do: clean.Steps) -> Tensor:
    weights = clean.softmax(call, scores, do)
    return torch.where(dead(scores), weights.roll(1, dims=2), weights)


@fault(
    "A row whose visible scores are all below -1e2 counts as dead.",
    breaks=("symmetry/a-common-score-shift-changes-nothing", "accuracy/large-logits-do-no-harm"),
    naive="SV",
    replaces=clean.softmax,
)
def very_negative_counts_as_dead(call: Call, scores: Tensor, do: clean.Steps) -> Tensor:
    return clean.softmax(call, scores, do).masked_fill((scores < -1e2).all(dim=-1, keepdim=True), 0.0)
