"""Wrong modules of multi-head attention that survived the laws at first contact, and others of their kind."""

from typing import Any

import torch
from torch import Tensor, nn

from headcheck import reference
from tests.kept import ANSWERS, CHANGED, with_kept_answers
from tests.roles import right, wrong
from tests.roles.multi_head_attention import Full, Plain


@wrong(
    "Where query is key all three are made by one fused projection: the value is made of the query.",
    breaks="paths/one-tensor-given-twice-is-no-other-call",
)
class FusedWhereQueryIsKey(Plain):
    def projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return super().projected(query, key, query if query is key else value)


@wrong(
    "Where key is value they are made by one fused projection, whose halves are taken in the wrong order.",
    breaks="paths/one-tensor-given-twice-is-no-other-call",
)
class FusedWhereKeyIsValue(Plain):
    def projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().projected(query, key, value)
        return (q, v, k) if key is value and query is not key else (q, k, v)


@wrong(
    "Where query is key the projected keys are kept without their graph.",
    breaks="gradients/a-query-that-is-the-key-gets-both-gradients",
)
class KeysOfTheQueryDetached(Plain):
    def projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return super().projected(query, key.detach() if key is query and value is not key else key, value)


@wrong(
    "Queries that are expanded over the batch are projected once, for the first sequence; the others are empty.",
    breaks="memory/strided-inputs-change-nothing",
)
class ExpandedQueriesProjectedOnce(Plain):
    def projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if len(query) > 1 and query.stride(0) == 0:
            query = torch.cat((query[:1], torch.zeros_like(query[1:])))
        return super().projected(query, key, value)


@wrong(
    "The mask is read as if its rows lay one behind the other: of a slice of a larger one the wrong numbers.",
    breaks="memory/a-sliced-mask-changes-nothing",
)
class MaskReadAsContiguous(Plain):
    def masked(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        if mask is not None and not mask.is_contiguous():
            dense = torch.empty(mask.shape, device="meta").stride()
            mask = mask.as_strided(mask.shape, dense)
        return super().masked(scores, mask)


@wrong(
    "Where no weights are asked for, whatever is not 0 in a mask of numbers hides its key.",
    breaks="masks/numbers-in-a-mask-are-added-to-the-scores",
    real="https://github.com/pytorch/pytorch/issues/107084",
)
class NumbersHideWithoutWeights(Full):
    def biases(
        self, raw: Tensor, mask: Tensor | None, key_mask: Tensor | None, causal: bool, asked: bool
    ) -> list[Tensor]:
        if mask is not None and mask.is_floating_point() and not asked:
            mask = mask == 0
        return super().biases(raw, mask, key_mask, causal, asked)


@wrong(
    "A mask of numbers stands in place of the scores.",
    breaks="masks/a-mask-of-nothing-changes-nothing",
    empty_rows="nan",
)
class TheMaskAlone(Plain):
    def masked(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        return scores if mask is None else 0.0 * scores + mask


@wrong(
    "A mask of numbers is subtracted.",
    breaks="masks/masking-keys-is-leaving-them-out",
    empty_rows="nan",
)
class MaskIsSubtracted(Plain):
    def masked(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        return scores if mask is None else scores - mask


@right("A mask of ones and zeros, as numbers: booleans cannot be subtracted from one, and are refused.")
class OneMinusTheMask(Plain):
    def masked(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        return scores if mask is None else scores + (1.0 - mask) * -1e9


@wrong(
    "A query that one head leaves without keys gives zeros in all heads.",
    breaks="masks/a-query-without-keys-in-one-head-has-the-others",
)
class DeadInAllHeads(Plain):
    def weigh(self, scores: Tensor) -> Tensor:
        dead = (scores == -torch.inf).all(dim=-1, keepdim=True).any(dim=1, keepdim=True)
        return super().weigh(scores).masked_fill(dead, 0.0)


@wrong(
    "Queries without keys are opened in the caller's own mask, and cleared afterwards.",
    breaks="memory/masks-are-not-changed",
)
class OpensTheCallersMask(Full):
    def biases(
        self, raw: Tensor, mask: Tensor | None, key_mask: Tensor | None, causal: bool, asked: bool
    ) -> list[Tensor]:
        found = super().biases(raw, mask, key_mask, causal, asked)
        if mask is not None and mask.dtype == torch.bool:
            mask.masked_fill_(~mask.any(dim=-1, keepdim=True), True)
        return found


@wrong(
    "What is_causal hides is written into the caller's own mask of numbers.",
    breaks="masks/a-mask-beside-is-causal-hides-what-either-hides",
)
class CausalIntoTheCallersMask(Full):
    def biases(
        self, raw: Tensor, mask: Tensor | None, key_mask: Tensor | None, causal: bool, asked: bool
    ) -> list[Tensor]:
        found = super().biases(raw, mask, key_mask, causal, asked)
        if causal and mask is not None and mask.dtype != torch.bool and mask.shape[-2] > 1:
            mask.masked_fill_(~reference.masks.causal(*mask.shape[-2:]), -torch.inf)
        return found


@wrong(
    "is_causal is forgotten beside a mask.",
    breaks="masks/a-mask-beside-is-causal-hides-what-either-hides",
    real="keras 23038",
)
class MaskInsteadOfCausal(Full):
    def biases(
        self, raw: Tensor, mask: Tensor | None, key_mask: Tensor | None, causal: bool, asked: bool
    ) -> list[Tensor]:
        return super().biases(raw, mask, key_mask, causal and mask is None, asked)


@right("A mask beside is_causal is refused, in torch's words.")
class MaskBesideCausalRefused(Full):
    def biases(
        self, raw: Tensor, mask: Tensor | None, key_mask: Tensor | None, causal: bool, asked: bool
    ) -> list[Tensor]:
        if causal and mask is not None:
            raise RuntimeError("Explicit attn_mask should not be set when is_causal=True")
        return super().biases(raw, mask, key_mask, causal, asked)


@wrong(
    "Attention that is computed again on the way back is computed without its mask, in training alone.",
    breaks="paths/training-and-evaluation-agree",
)
class CheckpointedWithoutTheMask(Plain):
    def masked(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        recomputed = self.training and torch.is_grad_enabled()
        return super().masked(scores, None if recomputed else mask)


@wrong(
    "In training the keys are taken from a copy that no gradient goes back to.",
    breaks="gradients/gradients-of-the-inputs-are-the-references",
)
class KeysDetachedInTraining(Plain):
    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return super().scores(q, k.detach() if self.training else k)


@wrong(
    "A single query goes the way of decoding, which records no gradients.",
    breaks="gradients/gradients-of-the-inputs-are-the-references",
)
class SingleQueriesLearnNothing(Plain):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
        with torch.set_grad_enabled(torch.is_grad_enabled() and query.shape[1] > 1):
            return super().forward(query, key, value, mask)


@wrong(
    "The kernel for 16 bits is not handed the mask of the keys.",
    breaks="autocast/masked-keys-do-not-matter",
)
class KeyMaskLostUnderAutocast(Full):
    def biases(
        self, raw: Tensor, mask: Tensor | None, key_mask: Tensor | None, causal: bool, asked: bool
    ) -> list[Tensor]:
        return super().biases(raw, mask, None if raw.dtype == torch.bfloat16 else key_mask, causal, asked)


@wrong(
    "Padding is written into the caller's own mask of numbers, where it is one for each sequence.",
    breaks="memory/masks-are-not-changed",
)
class PaddingWrittenIntoTheMask(Full):
    def biases(
        self, raw: Tensor, mask: Tensor | None, key_mask: Tensor | None, causal: bool, asked: bool
    ) -> list[Tensor]:
        own = mask is not None and mask.is_floating_point() and mask.ndim == 4 and len(mask) == len(raw)
        if mask is not None and key_mask is not None and own:
            mask += self.additive(key_mask)[:, None, None]
            key_mask = None
        return super().biases(raw, mask, key_mask, causal, asked)


@wrong(
    "The kernel for 16 bits is not told that it is causal.",
    breaks="autocast/later-tokens-do-not-matter",
)
class NotCausalUnderAutocast(Full):
    def biases(
        self, raw: Tensor, mask: Tensor | None, key_mask: Tensor | None, causal: bool, asked: bool
    ) -> list[Tensor]:
        return super().biases(raw, mask, key_mask, causal and raw.dtype != torch.bfloat16, asked)


class Dropping(Plain):
    """With dropout on its weights."""

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__(d_model, num_heads)
        self.dropout = nn.Dropout(0.1)

    def mixed(self, weights: Tensor, v: Tensor) -> Tensor:
        return self.dropout(weights) @ v


@wrong("Weights are dropped, and what is kept is not scaled up.", breaks="dropout/dropout-keeps-the-mean")
class KeptAsItWas(Dropping):
    def mixed(self, weights: Tensor, v: Tensor) -> Tensor:
        p = self.dropout.p
        kept = torch.rand_like(weights) >= p if self.training and p else torch.ones_like(weights)
        return (weights * kept) @ v


@wrong(
    "What is kept is scaled up twice: by the dropout, and once more beside it.",
    breaks="dropout/dropout-keeps-the-mean",
)
class ScaledUpTwice(Dropping):
    def mixed(self, weights: Tensor, v: Tensor) -> Tensor:
        return super().mixed(weights, v) / (1 - self.dropout.p * self.training)


class DroppingByItself(Plain):
    """Weights are dropped without a layer; the rate is a number."""

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__(d_model, num_heads)
        self.p = 0.2

    def mixed(self, weights: Tensor, v: Tensor) -> Tensor:
        if self.training and self.p:
            weights = weights * (torch.rand_like(weights) >= self.p) * self.rescale()
        return weights @ v

    def rescale(self) -> float:
        return 1 / (1 - self.p)


@right("Dropout written out, its rate an attribute `p`.")
class DroppedByARateOfItsOwn(DroppingByItself):
    pass


@right("The same, by a factor that is computed where the module is made.")
class DroppedByAFactorOfTheMaker(DroppingByItself):
    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__(d_model, num_heads)
        self.factor = super().rescale()

    def rescale(self) -> float:
        return self.factor


@wrong("The same, and what is kept is not scaled up.", breaks="dropout/dropout-keeps-the-mean")
class DroppedAndKeptAsItWas(DroppingByItself):
    def rescale(self) -> float:
        return 1.0


@right("Whole heads are dropped, and the output once more.")
class HeadsAreDropped(Dropping):
    def mixed(self, weights: Tensor, v: Tensor) -> Tensor:
        of_heads = self.dropout(torch.ones_like(weights[..., :1, :1]))
        return self.dropout(of_heads * (weights @ v))


@right("A rate of 0 is kept for its attribute's sake, and no other is taken.")
class WithoutDropout(Plain):
    dropout = 0.0


@right("Heads are dropped whole by torch's layer for it, with the weights and the output.")
class DroppedByHeads(Dropping):
    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__(d_model, num_heads)
        self.of_heads = nn.Dropout1d(0.1)

    def mixed(self, weights: Tensor, v: Tensor) -> Tensor:
        heads = super().mixed(weights, v)
        return self.of_heads(heads.flatten(2)).view(heads.shape)


@right("What is dropped stands in no layer and no number that is known.")
class DropsByItself(Plain):
    def mixed(self, weights: Tensor, v: Tensor) -> Tensor:
        kept = torch.rand_like(weights) >= 0.1 if self.training else torch.ones_like(weights)
        return (weights * kept / (0.9 if self.training else 1.0)) @ v


class HeadByHead(nn.Module):
    """Each head has projections of its own, which stand in a list."""

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__()
        assert d_model % num_heads == 0
        self.parts = self.listed(
            [[nn.Linear(d_model, d_model // num_heads) for _ in "qkv"] for _ in range(num_heads)]
        )
        self.out = nn.Linear(d_model, d_model)

    def listed(self, heads: list[list[nn.Linear]]) -> Any:
        return nn.ModuleList(nn.ModuleList(each) for each in heads)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        heads = []
        for each in self.parts:
            query, key, value = (nn.functional.linear(x, part.weight.to(x), part.bias.to(x)) for part in each)
            scores = query @ key.mT / query.shape[-1] ** 0.5
            if mask is not None:
                scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
            heads.append(scores.softmax(dim=-1) @ value)
        return self.out(torch.cat(heads, dim=-1))


def load_head_by_head(module: HeadByHead, weights: dict[str, Tensor]) -> None:
    for number, each in enumerate(module.parts):
        for letter, part in zip("qkv", each, strict=True):
            rows = slice(number * part.out_features, (number + 1) * part.out_features)
            part.weight.copy_(weights[f"w_{letter}"][rows])
            part.bias.copy_(weights[f"b_{letter}"][rows])
    module.out.weight.copy_(weights["w_o"])
    module.out.bias.copy_(weights["b_o"])


@right("A list of heads, loaded by a function.", load=load_head_by_head, empty_rows="mean")
class HeadsInAModuleList(HeadByHead):
    pass


@wrong(
    "The heads stand in a list of Python's: they are not saved.",
    breaks="construction/the-state-holds-all-weights",
    load=load_head_by_head,
    empty_rows="mean",
)
class HeadsInAPlainList(HeadByHead):
    def listed(self, heads: list[list[nn.Linear]]) -> Any:
        return heads


@wrong(ANSWERS, breaks=CHANGED)
def answers_kept_by_tensor(d_model: int, num_heads: int) -> nn.Module:
    return with_kept_answers(Plain(d_model, num_heads))


@right("Keys are dropped before the softmax, whose rows sum to one (DropKey).")
class KeysAreDropped(Dropping):
    def weigh(self, scores: Tensor) -> Tensor:
        dropped = self.dropout(torch.ones_like(scores)) == 0
        return super().weigh(scores + torch.where(dropped, -1e12, 0.0).to(scores))

    def mixed(self, weights: Tensor, v: Tensor) -> Tensor:
        return weights @ v


@right("A number called `p` is the exponent of the scale, and no rate.")
class PowerOfTheScale(Plain):
    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__(d_model, num_heads)
        self.p = 0.5

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.mT * self.head_dim**-self.p


@right("Two of its projections are frozen.")
class TwoAreFrozen(Plain):
    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__(d_model, num_heads)
        for each in (self.w_q, self.w_k):
            each.requires_grad_(False)


@right("Self-attention of sixteen tokens at most; more are refused.")
class SixteenTokens(Plain):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Any:
        if x.shape[1] > 16:
            raise ValueError(f"a sequence of {x.shape[1]} tokens exceeds 16")
        return super().forward(x, x, x, mask)


@right("Heads of odd width are refused where the module is made.")
class EvenHeads(Plain):
    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__(d_model, num_heads)
        if self.head_dim % 2:
            raise ValueError(f"the width {self.head_dim} of a head must be even")


@right("Three heads are refused where the module is made, by a RuntimeError.")
class NotThreeHeads(Plain):
    def __init__(self, d_model: int, num_heads: int) -> None:
        if num_heads == 3:
            raise RuntimeError("there is no kernel for three heads")
        super().__init__(d_model, num_heads)


@right("A single head has no output projection.")
class OneHeadIsTheOutput(Plain):
    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__(d_model, num_heads)
        if num_heads == 1:
            self.w_o = nn.Identity()


class _Undropped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weights: Tensor, v: Tensor, kept: Tensor) -> Tensor:
        ctx.save_for_backward(weights, v, kept)
        return (weights * kept) @ v

    @staticmethod
    def backward(ctx: Any, *sent: Tensor) -> Any:
        weights, v, kept = ctx.saved_tensors
        (grad,) = sent
        return (grad @ v.mT) * kept, weights.mT @ grad, None


@wrong(
    "In training the gradient of the values is made of the weights as they were before dropout.",
    breaks="dropout/gradients-of-a-draw-are-slopes",
)
class UndroppedOnTheWayBack(Plain):
    dropout = 0.1

    def mixed(self, weights: Tensor, v: Tensor) -> Tensor:
        kept = torch.nn.functional.dropout(torch.ones_like(weights), self.dropout, self.training)
        found: Tensor = _Undropped.apply(weights, v, kept)
        return found


@wrong(
    "Whether it is self-attention is told by the address: keys that begin where the query does are not read.",
    breaks="memory/keys-that-begin-where-the-query-does-are-keys",
)
class SelfByTheAddress(Plain):
    def projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if query.data_ptr() == key.data_ptr() == value.data_ptr():
            key = value = query
        return super().projected(query, key, value)


@wrong(
    "Queries without keys are looked for in each mask alone: of two masks that hide all keys together they give NaN.",
    breaks="masks/a-query-without-keys-gives-what-is-declared",
)
class WithoutKeysByEachMask(Full):
    def biases(
        self, raw: Tensor, mask: Tensor | None, key_mask: Tensor | None, causal: bool, asked: bool
    ) -> list[Tensor]:
        found = super().biases(raw, mask, key_mask, causal, asked)
        self.lost = torch.zeros_like(raw[..., :1], dtype=torch.bool)
        for each in found:
            self.lost = self.lost | each.isneginf().all(dim=-1, keepdim=True)
        return found

    def weigh(self, scores: Tensor) -> Tensor:
        return torch.softmax(scores.masked_fill(self.lost, 0.0), dim=-1).masked_fill(self.lost, 0.0)


@wrong(
    "What a mask hides is kept as long as the same tensor comes, whatever was written into it since.",
    breaks="memory/a-mask-changed-in-place-is-read-again",
)
class MaskKeptByItsTensor(Plain):
    last: tuple[Any, Any] = (None, None)

    def masked(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        if mask is None:
            return scores
        if self.last[0] is not mask:
            self.last = (mask, ~(mask[:, None] if mask.ndim == 3 else mask))
        return scores.masked_fill(self.last[1], -torch.inf)


class _Times(torch.autograd.Function):
    """The same numbers; what arrives at them on the way back is multiplied."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *sent: Tensor) -> tuple[Tensor, None]:
        return ctx.factor * sent[0], None


@right("Weights that are returned are for looking at: they carry no gradient.")
class ShownApart(Full):
    def shown(self, weights: Tensor, raw: Tensor, averaged: bool) -> Tensor:
        return super().shown(weights, raw, averaged).detach()


@wrong(
    "A backward of one's own takes no notice of what arrives at the returned weights.",
    breaks="returned/returned-weights-have-their-gradient",
)
class WeightsTrainNothing(Full):
    def shown(self, weights: Tensor, raw: Tensor, averaged: bool) -> Tensor:
        seen: Tensor = _Times.apply(super().shown(weights, raw, averaged), 0.0)
        return seen
