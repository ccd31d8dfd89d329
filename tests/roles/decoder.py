"""Wrong and right decoders, most of them one block with one part replaced."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, layer_norm

from headcheck.reference.masks import causal
from tests.roles import right, wrong
from tests.roles.encoder import HEADS, WIDTH, Block

ALONE = "batch/a-sequence-in-a-batch-is-itself-alone"
LEFT_PADDING = "padding/padding-on-the-left-changes-nothing"
RIGHT_PADDING = "padding/padding-on-the-right-changes-nothing"
RAGGED = "padding/a-padded-batch-gives-what-each-sequence-gives-alone"
IN_PADDING = "padding/what-stands-in-padding-does-not-matter"
GRADIENT = "padding/no-gradient-goes-to-padding"
LATER = "causality/later-states-do-not-matter"
LATER_GRADIENT = "causality/no-gradient-comes-from-later-states"
EARLIER = "causality/every-earlier-state-counts"
PREFIX = "causality/a-prefix-gives-the-same-states"
ALL_MEMORY = "memory/every-state-depends-on-all-of-the-memory"
PERMUTED = "memory/permuting-the-memory-changes-nothing"
MEMORY_ALONE = "memory/a-padded-memory-gives-what-it-gives-alone"
IN_MEMORY = "memory/what-stands-in-padding-of-the-memory-does-not-matter"
MEMORY_GRADIENT = "memory/no-gradient-goes-to-padding-of-the-memory"
PRE = "residual/zero-sub-layers-leave-a-pre-norm-block-the-identity"
POST = "residual/zero-sub-layers-leave-a-post-norm-block-its-norms"
SKIP = "residual/the-gradient-passes-through-the-skip-path"
FAST = "paths/the-fast-path-gives-what-the-slow-path-gives"
TRAINING = "paths/training-without-dropout-gives-evaluation"
FINITE = "state/output-is-finite"


class Layer(Block):
    """A pre-norm block, right as it stands: `hide` is of self-attention, `hide_memory` of the other."""

    def __init__(self) -> None:
        super().__init__()
        self.norm3 = nn.LayerNorm(WIDTH)
        self.c_q, self.c_k, self.c_v, self.c_o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def hide(self, scores: Tensor, is_real: Tensor | None) -> Tensor:
        future = ~causal(scores.shape[-2], scores.shape[-1]).to(scores.device)
        return super().hide(scores, is_real).masked_fill(future, torch.finfo(scores.dtype).min)

    def hide_memory(self, scores: Tensor, is_real: Tensor | None) -> Tensor:
        return Block.hide(self, scores, is_real)

    def read(self, x: Tensor, memory: Tensor, is_real: Tensor | None) -> Tensor:
        q, k, v = (
            self.split(project(given))
            for project, given in ((self.c_q, x), (self.c_k, memory), (self.c_v, memory))
        )
        return self.c_o(self.merge(self.weigh(self.hide_memory(self.scores(q, k), is_real)) @ v))

    def forward(
        self,
        x: Tensor,
        memory: Tensor,
        is_real: Tensor | None = None,
        memory_is_real: Tensor | None = None,
    ) -> Tensor:
        x = x + self.attend(self.norm1(x), is_real)
        x = x + self.read(self.norm3(x), memory, memory_is_real)
        return x + self.feed(self.norm2(x))


class PostNorm(Layer):
    """The same parts, post-norm."""

    norm_first = False

    def forward(
        self,
        x: Tensor,
        memory: Tensor,
        is_real: Tensor | None = None,
        memory_is_real: Tensor | None = None,
    ) -> Tensor:
        x = self.norm1(x + self.attend(x, is_real))
        x = self.norm3(x + self.read(x, memory, memory_is_real))
        return self.norm2(x + self.feed(x))


# Right


@right("Pre-norm, the lowest finite number as a mask.")
def by_the_book() -> nn.Module:
    return Layer()


@right("Post-norm, as in the paper.")
def post_norm() -> nn.Module:
    return PostNorm()


@right("torch's layer with dropout, which evaluation leaves out.")
def torch_layer() -> nn.Module:
    return nn.TransformerDecoderLayer(4, 2, 8, dropout=0.5, batch_first=True)


@right("torch's stack, three heads, length first, without biases, padded on the right.", padding=("right",))
def torch_stack() -> nn.Module:
    layer = nn.TransformerDecoderLayer(9, 3, 5, norm_first=True, bias=False)
    return nn.TransformerDecoder(layer, 2, nn.LayerNorm(9))


@right("The mask of the memory is True at what is real, under a name that says padding.")
def padding_in_the_name() -> nn.Module:
    class Right(Layer):
        def forward(  # type: ignore[override]
            self, x: Tensor, memory: Tensor, encoder_padding_mask: Tensor | None = None
        ) -> Tensor:
            return super().forward(x, memory, None, encoder_padding_mask)

    return Right()


@right("A table of 24 positions, of which the first are added.", positions=True, max_length=24)
def table_of_positions() -> nn.Module:
    class Right(Layer):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.randn(24, WIDTH))

        def forward(self, x: Tensor, memory: Tensor) -> Tensor:  # type: ignore[override]
            return super().forward(x + self.table[: x.shape[1]], memory)

    return Right()


@right("Masks of numbers, the memory's first by name, asked for.")
def masks_of_numbers() -> nn.Module:
    class Right(Layer):
        def hide_memory(self, scores: Tensor, is_real: Tensor | None) -> Tensor:
            return scores if is_real is None else scores + (1.0 - is_real)[:, None, None, :] * -1e30

        def hide(self, scores: Tensor, is_real: Tensor | None) -> Tensor:
            return super().hide(self.hide_memory(scores, is_real), None)

        def forward(  # type: ignore[override]
            self, hidden: Tensor, states: Tensor, src_mask: Tensor | None, attention_mask: Tensor | None
        ) -> Tensor:
            return super().forward(hidden, states, attention_mask, src_mask)

    return Right()


@right("Minus infinity as a mask; rows without keys give zeros.")
def safe_infinity() -> nn.Module:
    class Right(Layer):
        def hide(self, scores: Tensor, is_real: Tensor | None) -> Tensor:
            kept = causal(scores.shape[-2], scores.shape[-1]).to(scores.device)
            kept = kept if is_real is None else kept & is_real[:, None, None, :]
            return scores.masked_fill(~kept, -torch.inf)

        def weigh(self, scores: Tensor) -> Tensor:
            dead = scores.isneginf().all(dim=-1, keepdim=True)
            return scores.masked_fill(dead, 0.0).softmax(dim=-1).masked_fill(dead, 0.0)

    return Right()


@right("Softmax in float32, large weights.")
def narrow_inside() -> nn.Module:
    class Right(Layer):
        def weigh(self, scores: Tensor) -> Tensor:
            return scores.float().softmax(dim=-1).to(scores.dtype)

        def hide(self, scores: Tensor, is_real: Tensor | None) -> Tensor:
            return super().hide(scores.float(), is_real).to(scores.dtype)

    made = Right()
    with torch.no_grad():
        made.w_q.weight.mul_(10)
        made.c_q.weight.mul_(10)
    return made


@right("A window of two, so that not all of the past counts.", full_context=False)
def windowed() -> nn.Module:
    class Right(Layer):
        def hide(self, scores: Tensor, is_real: Tensor | None) -> Tensor:
            far = ~torch.ones_like(scores[0, 0], dtype=torch.bool).triu(-1)
            return super().hide(scores, is_real).masked_fill(far, torch.finfo(scores.dtype).min)

    return Right()


# Faults of state


@wrong("Dropout is left on in evaluation.", breaks="state/same-call-same-answer")
def dropout_in_evaluation() -> nn.Module:
    class Wrong(Layer):
        def weigh(self, scores: Tensor) -> Tensor:
            return dropout(super().weigh(scores), 0.1, training=True)

    return Wrong()


@wrong(
    "Keys of the memory are kept from the first call on.", breaks="state/another-call-between-changes-nothing"
)
def memory_of_the_last_call() -> nn.Module:
    class Wrong(Layer):
        last: Any = None

        def read(self, x: Tensor, memory: Tensor, is_real: Tensor | None) -> Tensor:
            kept = memory.mean() if self.last is None else self.last
            self.last = memory.mean().detach()
            return super().read(x, memory, is_real) * kept

    return Wrong()


@wrong("A running mean is updated in evaluation.", breaks="state/a-call-changes-no-weight")
def running_mean() -> nn.Module:
    class Wrong(Layer):
        def feed(self, x: Tensor) -> Tensor:
            self.down.bias.data.lerp_(x.mean(dim=(0, 1)), 0.1)
            return super().feed(x)

    return Wrong()


@wrong("The memory is normed in place.", breaks="state/inputs-are-not-changed")
def in_place() -> nn.Module:
    class Wrong(Layer):
        def read(self, x: Tensor, memory: Tensor, is_real: Tensor | None) -> Tensor:
            memory.data.sub_(memory.data.mean(dim=-1, keepdim=True))
            return super().read(x, memory, is_real)

    return Wrong()


@wrong("The mask of the memory is multiplied with minus infinity.", breaks=FINITE, real="onnx 2816da65b")
def zero_times_infinity() -> nn.Module:
    class Wrong(Layer):
        def hide_memory(self, scores: Tensor, is_real: Tensor | None) -> Tensor:
            if is_real is None:
                return scores
            return scores + (~is_real)[:, None, None, :].to(scores.dtype) * -torch.inf

    return Wrong()


@wrong("The generator is seeded.", breaks="state/nothing-global-is-touched")
def seeds() -> nn.Module:
    class Wrong(Layer):
        def feed(self, x: Tensor) -> Tensor:
            torch.manual_seed(0)
            return super().feed(x)

    return Wrong()


# Faults of batches


@wrong("A norm over the batch.", breaks=ALONE)
def norm_over_the_batch() -> nn.Module:
    class Wrong(Layer):
        def feed(self, x: Tensor) -> Tensor:
            return super().feed(x - x.mean(dim=0, keepdim=True))

    return Wrong()


@wrong(
    "The memory of the first sequence is read by all.",
    breaks=(ALONE, "batch/permuting-the-batch-permutes-the-output"),
)
def first_memory() -> nn.Module:
    class Wrong(Layer):
        def read(self, x: Tensor, memory: Tensor, is_real: Tensor | None) -> Tensor:
            return super().read(x, memory[:1].expand_as(memory), is_real)

    return Wrong()


# Faults of padding


@wrong("True hides.", breaks=(RIGHT_PADDING, RAGGED))
def inverted_mask() -> nn.Module:
    class Wrong(Layer):
        def hide(self, scores: Tensor, is_real: Tensor | None) -> Tensor:
            return super().hide(scores, None if is_real is None else ~is_real)

    return Wrong()


@wrong(
    "Two layers with minus infinity as a mask: rows without a key are NaN, and the second layer spreads it.",
    breaks=(LEFT_PADDING, FINITE),
    real="pytorch 103749",
)
def dead_rows() -> nn.Module:
    class Inner(Layer):
        def hide(self, scores: Tensor, is_real: Tensor | None) -> Tensor:
            kept = causal(scores.shape[-2], scores.shape[-1]).to(scores.device)
            kept = kept if is_real is None else kept & is_real[:, None, None, :]
            return scores.masked_fill(~kept, -torch.inf)

    class Wrong(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([Inner(), Inner()])

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

    return Wrong()


@wrong(
    "Under the causal mask the other is dropped.",
    breaks=(LEFT_PADDING, IN_PADDING),
    real="x-transformers 187",
)
def causal_instead_of_padding() -> nn.Module:
    class Wrong(Layer):
        def hide(self, scores: Tensor, is_real: Tensor | None) -> Tensor:
            return super().hide(scores, None)

    return Wrong()


@wrong(
    "The mask of x is used for the memory, cut to its length.",
    breaks=(RAGGED, MEMORY_ALONE),
    real="x-transformers 174",
)
def mask_of_the_other() -> nn.Module:
    class Wrong(Layer):
        mask: Any = None

        def hide(self, scores: Tensor, is_real: Tensor | None) -> Tensor:
            self.mask = is_real
            return super().hide(scores, is_real)

        def hide_memory(self, scores: Tensor, is_real: Tensor | None) -> Tensor:
            if self.mask is None:
                return scores
            missing = max(0, scores.shape[-1] - self.mask.shape[1])
            mask = nn.functional.pad(self.mask, (0, missing), value=True)[:, : scores.shape[-1]]
            return Block.hide(self, scores, mask)

    return Wrong()


@wrong(
    "NaN in padding is said to be stopped.",
    breaks="padding/nan-in-padding-does-not-matter",
    nan_in_padding=True,
)
def nan_leaks() -> nn.Module:
    return Layer()


@wrong(
    "Values are right; the gradient of a mean goes everywhere.",
    breaks=(GRADIENT, LATER_GRADIENT, MEMORY_GRADIENT),
)
def gradient_of_a_mean() -> nn.Module:
    class Wrong(Layer):
        def forward(
            self,
            x: Tensor,
            memory: Tensor,
            is_real: Tensor | None = None,
            memory_is_real: Tensor | None = None,
        ) -> Tensor:
            mean = x.mean(dim=1, keepdim=True) + memory.mean(dim=1, keepdim=True)
            return super().forward(x, memory, is_real, memory_is_real) + (mean - mean.detach())

    return Wrong()


@wrong(
    "Without a mask the scores are not scaled.",
    breaks=("padding/a-mask-of-nothing-changes-nothing", RIGHT_PADDING),
)
def scaled_with_a_mask_only() -> nn.Module:
    class Wrong(Layer):
        def hide(self, scores: Tensor, is_real: Tensor | None) -> Tensor:
            factor = math.sqrt(WIDTH // HEADS) if is_real is None else 1.0
            return super().hide(scores * factor, is_real)

    return Wrong()


@wrong(
    "A sequence of length zero is refused.",
    breaks="padding/a-sequence-of-padding-only-spoils-no-other",
)
def empty_refused() -> nn.Module:
    class Wrong(Layer):
        def hide(self, scores: Tensor, is_real: Tensor | None) -> Tensor:
            if is_real is not None and not is_real.any(dim=1).all():
                raise RuntimeError("Length of all samples has to be greater than 0")
            return super().hide(scores, is_real)

    return Wrong()


# Faults of paths and residuals


@wrong("Without gradients the mask of the memory is dropped.", breaks=(FAST, IN_MEMORY))
def fused_without_a_mask() -> nn.Module:
    class Wrong(Layer):
        def hide_memory(self, scores: Tensor, is_real: Tensor | None) -> Tensor:
            return super().hide_memory(scores, is_real if torch.is_grad_enabled() else None)

    return Wrong()


@wrong("In training alone the future is hidden.", breaks=(TRAINING, LATER), real="keras 23038")
def causal_in_training() -> nn.Module:
    class Wrong(Layer):
        def hide(self, scores: Tensor, is_real: Tensor | None) -> Tensor:
            return super().hide(scores, is_real) if self.training else Block.hide(self, scores, is_real)

    return Wrong()


@wrong("The normed state goes on after cross-attention.", breaks=PRE)
def residual_of_the_normed() -> nn.Module:
    class Wrong(Layer):
        def forward(
            self,
            x: Tensor,
            memory: Tensor,
            is_real: Tensor | None = None,
            memory_is_real: Tensor | None = None,
        ) -> Tensor:
            x = x + self.attend(self.norm1(x), is_real)
            x = self.norm3(x)
            x = x + self.read(x, memory, memory_is_real)
            return x + self.feed(self.norm2(x))

    return Wrong()


@wrong("The last skip path begins before the norm of cross-attention.", breaks=POST)
def skip_around_the_norm() -> nn.Module:
    class Wrong(PostNorm):
        def forward(
            self,
            x: Tensor,
            memory: Tensor,
            is_real: Tensor | None = None,
            memory_is_real: Tensor | None = None,
        ) -> Tensor:
            x = self.norm1(x + self.attend(x, is_real))
            raw = x + self.read(x, memory, memory_is_real)
            return self.norm2(raw + self.feed(self.norm3(raw)))

    return Wrong()


@wrong("What is read from the memory takes the place of the state.", breaks=(SKIP, PRE, EARLIER))
def no_skip() -> nn.Module:
    class Wrong(Layer):
        def forward(
            self,
            x: Tensor,
            memory: Tensor,
            is_real: Tensor | None = None,
            memory_is_real: Tensor | None = None,
        ) -> Tensor:
            x = self.read(memory.mean(dim=1, keepdim=True).expand_as(x), memory, memory_is_real)
            return x + self.feed(self.norm2(x))

    return Wrong()


# Faults of causality


@wrong("No causal mask.", breaks=(LATER, LATER_GRADIENT, PREFIX))
def not_causal() -> nn.Module:
    class Wrong(Layer):
        def hide(self, scores: Tensor, is_real: Tensor | None) -> Tensor:
            return Block.hide(self, scores, is_real)

    return Wrong()


@wrong("The causal mask is off by one: the next state is seen.", breaks=(LATER, LATER_GRADIENT))
def one_too_far() -> nn.Module:
    class Wrong(Layer):
        def hide(self, scores: Tensor, is_real: Tensor | None) -> Tensor:
            future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(2)
            return Block.hide(self, scores, is_real).masked_fill(future, torch.finfo(scores.dtype).min)

    return Wrong()


@wrong("The causal mask is transposed.", breaks=(LATER, EARLIER))
def transposed() -> nn.Module:
    class Wrong(Layer):
        def hide(self, scores: Tensor, is_real: Tensor | None) -> Tensor:
            past = torch.ones(scores.shape[-2:], dtype=torch.bool).tril(-1)
            return Block.hide(self, scores, is_real).masked_fill(past, torch.finfo(scores.dtype).min)

    return Wrong()


@wrong("Beside a mask of padding the causal one is dropped.", breaks=LATER, real="keras 23040")
def causal_or_padding() -> nn.Module:
    class Wrong(Layer):
        def hide(self, scores: Tensor, is_real: Tensor | None) -> Tensor:
            return super().hide(scores, None) if is_real is None else Block.hide(self, scores, is_real)

    return Wrong()


@wrong("Self-attention is never called.", breaks=EARLIER)
def no_attention() -> nn.Module:
    class Wrong(Layer):
        def attend(self, x: Tensor, is_real: Tensor | None) -> Tensor:
            return torch.zeros_like(x)

    return Wrong()


@wrong("Each state sees its neighbour only.", breaks=EARLIER)
def undeclared_window() -> nn.Module:
    return windowed()


@wrong("The scores are divided by the root of the length.", breaks=(PREFIX, RIGHT_PADDING))
def scaled_by_length() -> nn.Module:
    class Wrong(Layer):
        def scores(self, q: Tensor, k: Tensor) -> Tensor:
            return super().scores(q, k) / math.sqrt(k.shape[-2])

    return Wrong()


@wrong("The feed-forward sees the mean of the sequence.", breaks=(LATER, PREFIX, IN_PADDING))
def norm_over_the_sequence() -> nn.Module:
    class Wrong(Layer):
        def feed(self, x: Tensor) -> Tensor:
            return super().feed(layer_norm(x, x.shape[1:]))

    return Wrong()


# Faults of the memory


@wrong("The memory is never read.", breaks=ALL_MEMORY)
def memory_ignored() -> nn.Module:
    class Wrong(Layer):
        def read(self, x: Tensor, memory: Tensor, is_real: Tensor | None) -> Tensor:
            return super().attend(x, None)

    return Wrong()


@wrong(
    "The causal mask reaches cross-attention.", breaks=(ALL_MEMORY, PERMUTED), real="TransformerEngine 629"
)
def causal_memory() -> nn.Module:
    class Wrong(Layer):
        def hide_memory(self, scores: Tensor, is_real: Tensor | None) -> Tensor:
            future = ~causal(scores.shape[-2], scores.shape[-1]).to(scores.device)
            return super().hide_memory(scores, is_real).masked_fill(future, torch.finfo(scores.dtype).min)

    return Wrong()


@wrong("The last of the memory is cut off.", breaks=(ALL_MEMORY, PERMUTED))
def memory_cut() -> nn.Module:
    class Wrong(Layer):
        def hide_memory(self, scores: Tensor, is_real: Tensor | None) -> Tensor:
            hidden = super().hide_memory(scores, is_real)
            last = torch.arange(scores.shape[-1]) == max(1, scores.shape[-1] - 1)
            return hidden.masked_fill(last, torch.finfo(scores.dtype).min)

    return Wrong()


@wrong("Positions for the memory that nobody declared.", breaks=PERMUTED)
def positions_of_the_memory() -> nn.Module:
    class Wrong(Layer):
        def read(self, x: Tensor, memory: Tensor, is_real: Tensor | None) -> Tensor:
            places = torch.arange(memory.shape[1], dtype=memory.dtype)[:, None]
            return super().read(x, memory + places.sin(), is_real)

    return Wrong()


@wrong("The mask of the memory is ignored.", breaks=(MEMORY_ALONE, IN_MEMORY, MEMORY_GRADIENT))
def memory_mask_ignored() -> nn.Module:
    class Wrong(Layer):
        def hide_memory(self, scores: Tensor, is_real: Tensor | None) -> Tensor:
            return scores

    return Wrong()


@wrong("The mask of the memory adds -10000, which large scores overcome.", breaks=IN_MEMORY)
def weak_mask() -> nn.Module:
    class Wrong(Layer):
        def hide_memory(self, scores: Tensor, is_real: Tensor | None) -> Tensor:
            return scores if is_real is None else scores + (~is_real)[:, None, None, :] * -1e4

    return Wrong()


@wrong(
    "Without a mask the memory's scores are not scaled.",
    breaks="memory/a-mask-of-nothing-in-the-memory-changes-nothing",
)
def memory_scaled_with_a_mask_only() -> nn.Module:
    class Wrong(Layer):
        def hide_memory(self, scores: Tensor, is_real: Tensor | None) -> Tensor:
            factor = math.sqrt(WIDTH // HEADS) if is_real is None else 1.0
            return super().hide_memory(scores * factor, is_real)

    return Wrong()


# Faults of the way back, and of what is kept


@wrong(
    "The memory's values are detached in the second half.",
    breaks="gradients/gradients-of-the-weights-are-slopes",
)
def half_detached() -> nn.Module:
    class Wrong(Layer):
        def read(self, x: Tensor, memory: Tensor, is_real: Tensor | None) -> Tensor:
            found = super().read(x, memory, is_real)
            return torch.cat([found[..., : WIDTH // 2], found[..., WIDTH // 2 :].detach()], dim=-1)

    return Wrong()


@wrong("Without a mask of x, that of the last call is used.", breaks="padding/a-mask-is-for-its-own-call")
def mask_of_the_last_call() -> nn.Module:
    class Wrong(Layer):
        last: Tensor | None = None

        def attend(self, x: Tensor, is_real: Tensor | None) -> Tensor:
            if is_real is None and self.last is not None and self.last.shape == x.shape[:2]:
                is_real = self.last
            self.last = is_real
            return super().attend(x, is_real)

    return Wrong()
