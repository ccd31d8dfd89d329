"""Wrong decoders, the later ones by somebody who did not know the laws."""

from typing import Any

import torch
from torch import Tensor, nn

from tests.roles import wrong
from tests.roles.decoder import Layer
from tests.roles.encoder import WIDTH, Block
from tests.roles.encoder_later import HalfAGradient, PackedAtTheFirstCall, ScaledByTheLargest
from tests.sub_layers import BY_ITSELF, EACH_PART, ONE_NORM, STALE, STANDS_IN


@wrong(
    "Keys are cut to the length of the queries: a longer memory is read in part.",
    breaks="memory/every-state-depends-on-all-of-the-memory",
)
def memory_cut_to_the_queries() -> nn.Module:
    class Wrong(Layer):
        def read(self, x: Tensor, memory: Tensor, is_real: Tensor | None) -> Tensor:
            length = x.shape[1]
            return super().read(x, memory[:, :length], None if is_real is None else is_real[:, :length])

    return Wrong()


@wrong(
    "Without gradients the memory is put behind that of the call before, if the batch is as large.",
    breaks="state/another-call-between-changes-nothing",
)
def memory_appended() -> nn.Module:
    class Wrong(Layer):
        last: Tensor | None = None

        def read(self, x: Tensor, memory: Tensor, is_real: Tensor | None) -> Tensor:
            before, self.last = self.last, memory.detach()
            fits = before is not None and len(before) == len(memory) and before.dtype == memory.dtype
            if before is None or not fits or torch.is_grad_enabled():
                return super().read(x, memory, is_real)
            kept = None if is_real is None else nn.functional.pad(is_real, (before.shape[1], 0), value=True)
            return super().read(x, torch.cat([before, memory], dim=1), kept)

    return Wrong()


@wrong(
    "The causal mask of the longest call is kept and cut from its last rows: a shorter call sees its future.",
    breaks="state/another-call-between-changes-nothing",
)
def last_rows_of_the_longest() -> nn.Module:
    class Wrong(Layer):
        longest = 0

        def hide(self, scores: Tensor, is_real: Tensor | None) -> Tensor:
            length = scores.shape[-1]
            self.longest = max(self.longest, length)
            kept = torch.ones(self.longest, self.longest, dtype=torch.bool).tril()[-length:, :length]
            return Block.hide(self, scores, is_real).masked_fill(~kept, torch.finfo(scores.dtype).min)

    return Wrong()


@wrong(
    "In training the masks are handed on in another order: where they are as long, each is taken for the other.",
    breaks="paths/training-without-dropout-gives-evaluation",
    real="https://github.com/huggingface/transformers/issues/23366",
)
def masks_exchanged_in_training() -> nn.Module:
    class Wrong(Layer):
        def forward(
            self,
            x: Tensor,
            memory: Tensor,
            is_real: Tensor | None = None,
            memory_is_real: Tensor | None = None,
        ) -> Tensor:
            if self.training and x.shape[1] == memory.shape[1]:
                is_real, memory_is_real = memory_is_real, is_real
            return super().forward(x, memory, is_real, memory_is_real)

    return Wrong()


@wrong(
    "The weights of the last projection are packed at the first call, and read from there.",
    breaks="state/weights-changed-in-place-are-read-again",
)
def packed_at_the_first_call() -> nn.Module:
    class Wrong(PackedAtTheFirstCall, Layer):
        pass

    return Wrong()


@wrong(
    "Beyond the range of a format of eight bits the states of the whole batch are scaled down.",
    breaks="batch/an-outlier-stays-in-its-own-sequence",
)
def scaled_by_the_largest_of_the_batch() -> nn.Module:
    class Wrong(ScaledByTheLargest, Layer):
        pass

    return Wrong()


@wrong(
    "Half of the gradient into the feed-forward layer is lost on its way back.",
    breaks="gradients/gradients-of-the-input-are-slopes",
)
def half_a_gradient_of_the_input() -> nn.Module:
    class Wrong(HalfAGradient, Layer):
        pass

    return Wrong()


@wrong(STALE, breaks=BY_ITSELF)
def residual_not_updated() -> nn.Module:
    class Wrong(Layer):
        def forward(
            self, x: Tensor, memory: Tensor, is_real: Any = None, memory_is_real: Any = None
        ) -> Tensor:
            read = x + self.attend(self.norm1(x), is_real)
            read = read + self.read(self.norm3(read), memory, memory_is_real)
            return x + self.feed(self.norm2(read))

    return Wrong()


@wrong(ONE_NORM, breaks=STANDS_IN)
def one_norm_for_both() -> nn.Module:
    class Wrong(Layer):
        def forward(
            self, x: Tensor, memory: Tensor, is_real: Any = None, memory_is_real: Any = None
        ) -> Tensor:
            x = x + self.attend(self.norm1(x), is_real)
            x = x + self.read(self.norm3(x), memory, memory_is_real)
            return x + self.feed(self.norm1(x))

    return Wrong()


@wrong(
    "Keys and values of the memory are one projection for both layers, each a part further: the last is read by nobody.",
    breaks=EACH_PART,
)
def parts_one_further() -> nn.Module:
    class Wrong(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(Layer() for _ in range(2))
            self.memory_kv = nn.Linear(WIDTH, 4 * WIDTH)
            for layer in self.layers:
                layer.c_k = layer.c_v = nn.Identity()

        def forward(
            self, x: Tensor, memory: Tensor, is_real: Any = None, memory_is_real: Any = None
        ) -> Tensor:
            parts = self.memory_kv(memory).chunk(4, dim=-1)
            for number, layer in enumerate(self.layers):
                x = x + layer.attend(layer.norm1(x), is_real)
                q, k, v = (
                    layer.split(each)
                    for each in (layer.c_q(layer.norm3(x)), parts[number], parts[number + 1])
                )
                weights = layer.weigh(layer.hide_memory(layer.scores(q, k), memory_is_real))
                x = x + layer.c_o(layer.merge(weights @ v))
                x = x + layer.feed(layer.norm2(x))
            return x

    return Wrong()


@wrong(
    "A graph is made only where the states or a weight want a gradient: frozen, it passes none on to its memory.",
    breaks="gradients/a-frozen-module-passes-gradients-on",
)
def no_graph_for_the_memory_alone() -> nn.Module:
    class Wrong(Layer):
        def forward(
            self, x: Tensor, memory: Tensor, is_real: Any = None, memory_is_real: Any = None
        ) -> Tensor:
            wanted = any(each.requires_grad for each in (x, *self.parameters()))
            with torch.set_grad_enabled(torch.is_grad_enabled() and wanted):
                return super().forward(x, memory, is_real, memory_is_real)

    return Wrong()
