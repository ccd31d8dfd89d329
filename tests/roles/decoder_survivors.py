"""Decoders on paths that were not asked for, and such as are given their causal mask."""

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
from tests.roles.decoder import Layer, PostNorm
from tests.roles.encoder_survivors import softmax_from_zero


@wrong(
    "Weights are made small before they are normalised, so small that float32 has zeros: NaN there, and there alone.",
    breaks="paths/single-precision-is-finite-too",
)
def weights_below_float32() -> nn.Module:
    class Wrong(Layer):
        def weigh(self, scores: Tensor) -> Tensor:
            small = scores.softmax(dim=-1) * 1e-60
            return small / small.sum(dim=-1, keepdim=True)

    return Wrong()


@wrong(FAULT, breaks="state/inference-mode-leaves-nothing-behind", real=REAL)
def factor_of_inference_kept() -> nn.Module:
    return with_kept_gain(Layer(), "c_o")


@wrong(lost.FAULT, breaks=lost.LAYERS)
def last_layer_lost() -> nn.Module:
    class Two(nn.Module):
        norm_first = True

        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([Layer(), Layer()])

        def forward(
            self,
            x: Tensor,
            memory: Tensor,
            is_real: Tensor | None = None,
            memory_is_real: Tensor | None = None,
        ) -> Tensor:
            for layer in self.layers:
                x = layer(x, memory, is_real, memory_is_real)
            return x

    return lost.losing_the_last(Two())


@wrong(redrawn.FAULT, breaks=redrawn.LAW, real=redrawn.REAL)
def drawn_again_on_the_way_back() -> nn.Module:
    return redrawn.with_another_draw(Layer(), "c_o")


@wrong(ANSWERS, breaks=CHANGED)
def answers_kept_by_tensor() -> nn.Module:
    return with_kept_answers(Layer())


@wrong(
    "Rows without keys are NaN, which is replaced by zeros on the way forward alone.",
    breaks="padding/gradients-are-finite-beside-a-sequence-of-padding",
)
def replaced_after_the_softmax() -> nn.Module:
    class Wrong(Layer):
        def hide(self, scores: Tensor, is_real: Tensor | None) -> Tensor:
            hidden = super().hide(scores, is_real)
            return scores + torch.where(hidden == torch.finfo(hidden.dtype).min, -torch.inf, 0.0)

        def weigh(self, scores: Tensor) -> Tensor:
            return scores.softmax(dim=-1).nan_to_num(0.0)

    return Wrong()


@wrong(
    "Weights of a memory of nothing but padding are NaN, which is replaced by zeros on the way forward alone.",
    breaks="memory/gradients-are-finite-beside-a-memory-of-padding",
)
def replaced_behind_the_memory() -> nn.Module:
    class Wrong(Layer):
        def hide_memory(self, scores: Tensor, is_real: Tensor | None) -> Tensor:
            # Added: masked_fill would stop the NaN on the way back.
            return scores if is_real is None else scores + is_real[:, None, None].to(scores).log()

        def weigh(self, scores: Tensor) -> Tensor:
            return scores.softmax(dim=-1).nan_to_num(0.0)

    return Wrong()


@right("A memory of nothing but padding weighs nothing.")
def no_memory_weighs_nothing() -> nn.Module:
    class Zeroed(Layer):
        def hide_memory(self, scores: Tensor, is_real: Tensor | None) -> Tensor:
            return scores if is_real is None else scores.masked_fill(~is_real[:, None, None], -torch.inf)

        def weigh(self, scores: Tensor) -> Tensor:
            empty = (scores == -torch.inf).all(dim=-1, keepdim=True)
            return scores.masked_fill(empty, 0.0).softmax(dim=-1).masked_fill(empty, 0.0)

    return Zeroed()


class Told(Layer):
    """The caller says which states each may attend to."""

    def hide(self, scores: Tensor, tgt_mask: Tensor | None) -> Tensor:
        assert tgt_mask is not None
        return scores.masked_fill(~tgt_mask[:, None], torch.finfo(scores.dtype).min)

    def forward(  # type: ignore[override]
        self, x: Tensor, memory: Tensor, src_mask: Tensor | None, tgt_mask: Tensor
    ) -> Tensor:
        return super().forward(x, memory, tgt_mask, src_mask)


@right("The caller gives the causal mask, with that of what is padding (The Annotated Transformer).")
def causal_mask_of_the_caller() -> nn.Module:
    return Told()


@wrong(
    "Of the causal mask that the caller gives the last row counts for all: it says what is padding, no more.",
    breaks="causality/later-states-do-not-matter",
)
def last_row_of_the_callers_mask() -> nn.Module:
    class Wrong(Told):
        def hide(self, scores: Tensor, tgt_mask: Tensor | None) -> Tensor:
            assert tgt_mask is not None
            return super().hide(scores, tgt_mask[:, -1:].expand_as(tgt_mask))

    return Wrong()


@right("The memory is cut to the longest that is real, and of one of padding only the first state is read.")
def memory_cut_to_the_longest() -> nn.Module:
    class Right(Layer):
        def read(self, x: Tensor, memory: Tensor, is_real: Tensor | None) -> Tensor:
            if is_real is None:
                return super().read(x, memory, None)
            longest = max(1, int((is_real * torch.arange(1, memory.shape[1] + 1)).max()))
            return super().read(x, memory[:, :longest], is_real[:, :longest])

    return Right()


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
    return redrawn.with_an_undropped_gradient(Layer(), "c_o")


@wrong(COARSE, breaks=(OF_AUTOCAST, OF_FLOAT32))
def factor_of_autocast_kept() -> nn.Module:
    return with_kept_third(Layer(), "c_o")


@wrong(dropped.FAULT, breaks=(dropped.IN_PADDING, dropped.LATER), real=dropped.REAL)
def scores_dropped_once_masked() -> nn.Module:
    return dropped.with_dropped_scores(Layer)


@right(dropped.FIRST)
def scores_dropped_before_they_are_masked() -> nn.Module:
    return dropped.with_dropped_scores(Layer, first=True)
