"""Encoders in 16 bits, where an influence may be smaller than what rounding leaves of it."""

import torch
from torch import Tensor, nn

from tests import dropped, lost, redrawn
from tests.kept import (
    ANSWERS,
    CHANGED,
    COARSE,
    FAULT,
    OF_AUTOCAST,
    OF_FLOAT32,
    REAL,
    with_kept_answers,
    with_kept_gain,
    with_kept_third,
)
from tests.roles import right, wrong
from tests.roles.encoder import WIDTH, Block, PostNorm


@right("In bfloat16, where one token among many may move no bit of a state.", dtypes=("bfloat16",))
def in_bfloat16() -> nn.Module:
    return Block()


@right("In float16, which a padding of ten thousand would overflow.", dtypes=("float16",))
def in_float16() -> nn.Module:
    return Block()


@wrong(
    "In bfloat16, and the attention is never called.",
    breaks="symmetry/every-state-depends-on-every-token",
    dtypes=("bfloat16",),
)
def attention_never_called_in_bfloat16() -> nn.Module:
    class Wrong(Block):
        def attend(self, x: Tensor, is_real: Tensor | None) -> Tensor:
            return 0.0 * x

    return Wrong()


@wrong(
    "In float16, padding is a key.",
    breaks="padding/what-stands-in-padding-does-not-matter",
    dtypes=("float16",),
)
def padding_seen_in_float16() -> nn.Module:
    class Wrong(Block):
        def hide(self, scores: Tensor, is_real: Tensor | None) -> Tensor:
            return scores

    return Wrong()


@wrong(
    "Weights are made small before they are normalised, so small that float32 has zeros: NaN there, and there alone.",
    breaks="paths/single-precision-is-finite-too",
)
def weights_below_float32() -> nn.Module:
    class Wrong(Block):
        def weigh(self, scores: Tensor) -> Tensor:
            small = scores.softmax(dim=-1) * 1e-60
            return small / small.sum(dim=-1, keepdim=True)

    return Wrong()


@wrong(
    "Attention that is computed again on the way back is computed without its mask, in training alone.",
    breaks="paths/training-without-dropout-gives-evaluation",
)
def checkpointed_without_the_mask() -> nn.Module:
    class Wrong(Block):
        def hide(self, scores: Tensor, is_real: Tensor | None) -> Tensor:
            return super().hide(scores, None if self.training and torch.is_grad_enabled() else is_real)

    return Wrong()


@wrong(
    FAULT,
    breaks="state/inference-mode-leaves-nothing-behind",
    real=REAL,
)
def table_of_inference_kept() -> nn.Module:
    return with_kept_gain(Block(), "w_o")


class TokenByToken(nn.Module):
    """A norm that is given one token after the other."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([self.inner(token) for token in x.unbind(dim=1)], dim=1)


@right("Its norms are given one token at a time.")
def normed_token_by_token() -> nn.Module:
    module = PostNorm()
    module.norm1, module.norm2 = TokenByToken(module.norm1), TokenByToken(module.norm2)
    return module


@wrong(lost.FAULT, breaks=lost.LAYERS)
def last_layer_lost() -> nn.Module:
    class Two(nn.Module):
        norm_first = True

        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([Block(), Block()])

        def forward(self, x: Tensor, is_real: Tensor | None = None) -> Tensor:
            for layer in self.layers:
                x = layer(x, is_real)
            return x

    return lost.losing_the_last(Two())


@wrong(redrawn.FAULT, breaks=redrawn.LAW, real=redrawn.REAL)
def drawn_again_on_the_way_back() -> nn.Module:
    return redrawn.with_another_draw(Block(), "w_o")


@right("A layer with dropout is computed again on the way back, with the draw that it had.")
def drawn_once() -> nn.Module:
    return redrawn.with_another_draw(Block(), "w_o", same=True)


@wrong(ANSWERS, breaks=CHANGED)
def answers_kept_by_tensor() -> nn.Module:
    return with_kept_answers(Block())


@wrong(
    "Rows without keys are NaN, which is replaced by zeros on the way forward alone.",
    breaks="padding/gradients-are-finite-beside-a-sequence-of-padding",
)
def replaced_after_the_softmax() -> nn.Module:
    class Wrong(Block):
        def hide(self, scores: Tensor, is_real: Tensor | None) -> Tensor:
            hidden = super().hide(scores, is_real)
            return scores + torch.where(hidden == torch.finfo(hidden.dtype).min, -torch.inf, 0.0)

        def weigh(self, scores: Tensor) -> Tensor:
            return scores.softmax(dim=-1).nan_to_num(0.0)

    return Wrong()


@right("Positions from a table of sixteen; longer sequences are refused.", positions=True, padding=("right",))
def sixteen_positions() -> nn.Module:
    class Right(Block):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(16, WIDTH)

        def forward(self, x: Tensor, is_real: Tensor | None = None) -> Tensor:
            assert x.shape[1] <= 16, "the sequence is too long"
            return super().forward(x + self.table(torch.arange(x.shape[1], device=x.device)), is_real)

    return Right()


@wrong(
    "The additive mask is made in place: of numbers in the dtype of the states, it is the caller's own.",
    breaks="state/inputs-are-not-changed",
    mask_kind="number",
)
def mask_made_in_place() -> nn.Module:
    class Wrong(Block):
        def hide(self, scores: Tensor, is_real: Tensor | None) -> Tensor:
            if is_real is None:
                return scores
            least = torch.finfo(scores.dtype).min
            return scores + is_real[:, None, None, :].to(scores.dtype).sub_(1.0).mul_(-least)

    return Wrong()


def softmax_from_zero(scores: Tensor) -> Tensor:
    """A softmax whose maximum begins at zero."""
    weights = torch.exp(scores - scores.amax(dim=-1, keepdim=True).clamp(min=0.0))
    return weights / weights.sum(dim=-1, keepdim=True)


@wrong(
    "The maximum that is taken off begins at zero: where every score is far below, all weights are zero.",
    breaks="paths/scores-far-below-zero-give-finite-states",
)
def maximum_begins_at_zero() -> nn.Module:
    class Wrong(PostNorm):
        def weigh(self, scores: Tensor) -> Tensor:
            return softmax_from_zero(scores)

    return Wrong()


@wrong(redrawn.UNDROPPED, breaks=redrawn.OF_A_DRAW)
def undropped_on_the_way_back() -> nn.Module:
    return redrawn.with_an_undropped_gradient(Block(), "w_o")


@wrong(COARSE, breaks=(OF_AUTOCAST, OF_FLOAT32))
def factor_of_autocast_kept() -> nn.Module:
    return with_kept_third(Block(), "w_o")


@wrong(dropped.FAULT, breaks=dropped.IN_PADDING, real=dropped.REAL)
def scores_dropped_once_masked() -> nn.Module:
    return dropped.with_dropped_scores(Block)


@right(dropped.FIRST)
def scores_dropped_before_they_are_masked() -> nn.Module:
    return dropped.with_dropped_scores(Block, first=True)
