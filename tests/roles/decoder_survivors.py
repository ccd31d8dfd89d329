"""Wrong decoders on paths that were not asked for."""

import torch
from torch import Tensor, nn

from tests import lost, redrawn
from tests.kept import ANSWERS, CHANGED, FAULT, REAL, with_kept_answers, with_kept_gain
from tests.roles import wrong
from tests.roles.decoder import Layer


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
