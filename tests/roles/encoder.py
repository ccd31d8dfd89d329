"""Wrong and right encoders, most of them one block with one part replaced."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import flex_attention
from torch.nn.functional import (
    gelu,
    layer_norm,
    scaled_dot_product_attention,
    silu,
)

from headcheck import reference
from tests.roles import right, wrong

ALONE = "batch/a-sequence-in-a-batch-is-itself-alone"
RIGHT_PADDING = "padding/padding-on-the-right-changes-nothing"
LEFT_PADDING = "padding/padding-on-the-left-changes-nothing"
IN_PADDING = "padding/what-stands-in-padding-does-not-matter"
RAGGED = "padding/a-padded-batch-gives-what-each-sequence-gives-alone"
NO_MASK = "padding/a-mask-of-nothing-changes-nothing"
EMPTY = "padding/a-sequence-of-padding-only-spoils-no-other"
GRADIENT = "padding/no-gradient-goes-to-padding"
PERMUTED = "symmetry/permuting-the-input-permutes-the-states"
COPIES = "symmetry/copies-of-a-token-give-what-it-gives-alone"
EVERY = "symmetry/every-state-depends-on-every-token"
ITSELF = "symmetry/a-token-that-sees-itself-alone-is-alone"
POSITION_WISE = "symmetry/position-wise-parts-mix-no-tokens"
PRE = "residual/zero-sub-layers-leave-a-pre-norm-block-the-identity"
POST = "residual/zero-sub-layers-leave-a-post-norm-block-its-norms"
SKIP = "residual/the-gradient-passes-through-the-skip-path"
FAST = "paths/the-fast-path-gives-what-the-slow-path-gives"
TRAINING = "paths/training-without-dropout-gives-evaluation"
WIDTH, HEADS = 8, 2


class Block(nn.Module):
    """A pre-norm block, right as it stands; a fault replaces one of its parts."""

    norm_first = True

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.w_q, self.w_k, self.w_v, self.w_o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 16), nn.Linear(16, WIDTH)

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (HEADS, -1)).transpose(1, 2)

    def merge(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2).flatten(-2)

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])

    def hide(self, scores: Tensor, is_real: Tensor | None) -> Tensor:
        if is_real is None:
            return scores
        return scores.masked_fill(~is_real[:, None, None, :], torch.finfo(scores.dtype).min)

    def weigh(self, scores: Tensor) -> Tensor:
        return scores.softmax(dim=-1)

    def attend(self, x: Tensor, is_real: Tensor | None) -> Tensor:
        q, k, v = (self.split(project(x)) for project in (self.w_q, self.w_k, self.w_v))
        return self.w_o(self.merge(self.weigh(self.hide(self.scores(q, k), is_real)) @ v))

    def feed(self, x: Tensor) -> Tensor:
        return self.down(gelu(self.up(x)))

    def forward(self, x: Tensor, is_real: Tensor | None = None) -> Tensor:
        x = x + self.attend(self.norm1(x), is_real)
        return x + self.feed(self.norm2(x))


class PostNorm(Block):
    """The same parts, post-norm."""

    norm_first = False

    def forward(self, x: Tensor, is_real: Tensor | None = None) -> Tensor:
        x = self.norm1(x + self.attend(x, is_real))
        return self.norm2(x + self.feed(x))


# Right


@right("Pre-norm, the lowest finite number as a mask.")
def by_the_book() -> nn.Module:
    return Block()


@right("Post-norm, as in the paper.")
def post_norm() -> nn.Module:
    return PostNorm()


@right("Pre-norm, a norm at the end, and behind it padding that is cleared.", norm_order="pre")
def cleared_behind_the_last_norm() -> nn.Module:
    class Right(Block):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(WIDTH)

        def forward(self, x: Tensor, is_real: Tensor | None = None) -> Tensor:
            real = torch.ones_like(x[..., 0], dtype=torch.bool) if is_real is None else is_real
            return self.norm(super().forward(x, is_real)).masked_fill(~real[..., None], 0.0)

    return Right()


@right("What is added is normed once more before it is.", norm_order="pre")
def normed_before_it_is_added() -> nn.Module:
    class Right(Block):
        def forward(self, x: Tensor, is_real: Tensor | None = None) -> Tensor:
            return x + self.norm2(self.attend(self.norm1(x), is_real))

    return Right()


@right("torch's layer with dropout, which evaluation leaves out.")
def torch_layer() -> nn.Module:
    return nn.TransformerEncoderLayer(4, 2, 8, dropout=0.5, batch_first=True)


@right("torch's stack with an odd number of heads, so that nothing is fused.", norm_order="pre")
def torch_stack() -> nn.Module:
    layer = nn.TransformerEncoderLayer(9, 3, 5, dropout=0.1, batch_first=True, norm_first=True, bias=False)
    return nn.TransformerEncoder(layer, 3, nn.LayerNorm(9), enable_nested_tensor=False)


@right("On flex_attention, which on a CPU refuses what wants gradients.", effort=0.1)
def on_flex_attention() -> nn.Module:
    class Right(Block):
        def attend(self, x: Tensor, is_real: Tensor | None) -> Tensor:
            real = torch.ones_like(x[..., 0], dtype=torch.bool) if is_real is None else is_real

            def seen(score: Tensor, batch: Tensor, head: Tensor, q: Tensor, k: Tensor) -> Tensor:
                return torch.where(real[batch, k], score, -torch.inf)

            parts = (self.split(project(x)) for project in (self.w_q, self.w_k, self.w_v))
            return self.w_o(self.merge(flex_attention(*parts, score_mod=seen)))

    return Right()


@right("The mask is True at padding, (batch, 1, length), and asked for.", true_means="padding")
def required_mask() -> nn.Module:
    class Right(Block):
        def hide(self, scores: Tensor, is_real: Tensor | None) -> Tensor:
            return scores if is_real is None else scores.masked_fill(is_real.unsqueeze(1), -1e9)

        def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
            return super().forward(x, mask)

    return Right()


@right("An additive mask (batch, 1, 1, length).", mask_kind="additive", mask_rank=4)
def additive_mask() -> nn.Module:
    class Right(Block):
        def hide(self, scores: Tensor, is_real: Tensor | None) -> Tensor:
            return scores if is_real is None else scores + is_real

        def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
            return super().forward(x, attention_mask)

    return Right()


@right("The mask is a number, taken from one.")
def mask_of_numbers() -> nn.Module:
    class Right(Block):
        def hide(self, scores: Tensor, is_real: Tensor | None) -> Tensor:
            return scores if is_real is None else scores + (1.0 - is_real)[:, None, None, :] * -1e30

    return Right()


@right("Computed in float32 inside, large weights.")
def narrow_inside() -> nn.Module:
    class Right(Block):
        def forward(self, x: Tensor, is_real: Tensor | None = None) -> Tensor:
            return super().forward(x.float(), is_real).to(x.dtype)

        def to(self, *_: Any) -> Any:
            return self

    made = Right()
    with torch.no_grad():
        made.w_q.weight.mul_(20)
        made.w_k.weight.mul_(20)
    return made


@right("The scores in float32, one state two numbers wide.")
def tiny() -> nn.Module:
    class Right(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.qkv, self.out = nn.LayerNorm(2), nn.Linear(2, 6), nn.Linear(2, 2)

        def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
            q, k, v = (each[:, None] for each in self.qkv(x).float().chunk(3, dim=-1))
            mask = None if padding_mask is None else padding_mask[:, None, None, :]
            mixed = scaled_dot_product_attention(q, k, v, attn_mask=mask)[:, 0]
            return self.norm(x + self.out(mixed.to(x.dtype)))

    return Right()


@right(
    "A gated feed-forward, norms of queries and keys, RMS norms, a scale for each layer; a function of a batch."
)
def modern() -> nn.Module:
    class Right(Block):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
            self.q_norm, self.k_norm = nn.RMSNorm(WIDTH // HEADS), nn.RMSNorm(WIDTH // HEADS)
            self.gate = nn.Linear(WIDTH, 16)
            self.scale = nn.Parameter(torch.full((WIDTH,), 1e-4))

        def scores(self, q: Tensor, k: Tensor) -> Tensor:
            return super().scores(self.q_norm(q), self.k_norm(k))

        def feed(self, x: Tensor) -> Tensor:
            return self.scale * self.down(silu(self.gate(x)) * self.up(x))

    return Right()


@right(
    "Learned positions by distance from the first token, padded on the right.",
    positions=True,
    padding=("right",),
)
def own_positions() -> nn.Module:
    class Right(Block):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(64, WIDTH)

        def forward(self, x: Tensor, is_real: Tensor | None = None) -> Tensor:
            return super().forward(x + self.table.weight[: x.shape[1]], is_real)

    return Right()


@right("Weights that may rest on nothing: one is added to the sum.", only_tokens=False)
def quiet() -> nn.Module:
    class Right(Block):
        def weigh(self, scores: Tensor) -> Tensor:
            top = scores.amax(dim=-1, keepdim=True).clamp(min=0.0)
            raised = torch.exp(scores - top)
            return raised / (raised.sum(dim=-1, keepdim=True) + torch.exp(-top))

    return Right()


def behind_sinusoids(x: Tensor) -> Tensor:
    """States with the positions of the paper, made at each call: no weight."""
    return x + reference.sinusoidal(x.shape[1], WIDTH).to(x)


@right("Rotary tables that were made in float32, whatever the module is sent to afterwards.", positions=True)
def tables_of_single_precision() -> nn.Module:
    class Right(Block):
        def __init__(self) -> None:
            super().__init__()
            half = WIDTH // HEADS // 2
            angles = torch.arange(64)[:, None] * 10_000.0 ** -(torch.arange(half) / half)
            for name, table in (("cosines", angles.cos()), ("sines", angles.sin())):
                self.register_buffer(name, table.float().to(angles.dtype), persistent=False)

        def turned(self, x: Tensor) -> Tensor:
            length = x.shape[-2]
            a, b = x.chunk(2, dim=-1)
            cos, sin = self.cosines[:length], self.sines[:length]
            return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)

        def scores(self, q: Tensor, k: Tensor) -> Tensor:
            return super().scores(self.turned(q), self.turned(k))

    return Right()


@right("Pre-norm, behind fixed sinusoids.", positions=True, padding=("right",))
def sinusoids_first() -> nn.Module:
    class Right(Block):
        def forward(self, x: Tensor, is_real: Tensor | None = None) -> Tensor:
            return super().forward(behind_sinusoids(x), is_real)

    return Right()


@right("Post-norm, behind fixed sinusoids.", positions=True, padding=("right",))
def sinusoids_first_post_norm() -> nn.Module:
    class Right(PostNorm):
        def forward(self, x: Tensor, is_real: Tensor | None = None) -> Tensor:
            return super().forward(behind_sinusoids(x), is_real)

    return Right()


@right("Two registers before the sequence, seen by all and cut off at the end.", only_tokens=False)
def registers() -> nn.Module:
    class Right(Block):
        def __init__(self) -> None:
            super().__init__()
            self.registers = nn.Parameter(torch.randn(1, 2, WIDTH))

        def forward(self, x: Tensor, is_real: Tensor | None = None) -> Tensor:
            before = self.registers.expand(len(x), -1, -1)
            real = None if is_real is None else nn.functional.pad(is_real, (2, 0), value=True)
            return super().forward(torch.cat([before, x], dim=1), real)[:, 2:]

    return Right()


@right(
    "An additive mask beside a causal one, so that padding behind a sequence is never seen.",
    mask_kind="additive",
    causal=True,
)
def additive_beside_causal() -> nn.Module:
    class Right(Block):
        def hide(self, scores: Tensor, is_real: Tensor | None) -> Tensor:
            scores = scores.masked_fill(torch.ones_like(scores[0, 0]).triu(1).bool(), -1e9)
            return scores if is_real is None else scores + is_real

        def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
            return super().forward(x, mask)

    return Right()


@right("A function without a module, which says how wide a state is.", d_model=3)
def plain_function(x: Tensor, is_real: Tensor | None = None) -> Tensor:
    mask = None if is_real is None else is_real[:, None, :]
    return x + scaled_dot_product_attention(x, x, x, attn_mask=mask)


# Faults behind positions


@wrong(
    "Behind fixed sinusoids, the normed state is put on the skip path.",
    breaks=PRE,
    positions=True,
    padding=("right",),
)
def residual_of_the_normed_behind_sinusoids() -> nn.Module:
    class Wrong(Block):
        def forward(self, x: Tensor, is_real: Tensor | None = None) -> Tensor:
            x = self.norm1(behind_sinusoids(x))
            x = x + self.attend(x, is_real)
            return x + self.feed(self.norm2(x))

    return Wrong()


@wrong(
    "Behind fixed sinusoids, the skip path begins before the first norm.",
    breaks=POST,
    positions=True,
    padding=("right",),
)
def skip_around_the_norm_behind_sinusoids() -> nn.Module:
    class Wrong(PostNorm):
        def forward(self, x: Tensor, is_real: Tensor | None = None) -> Tensor:
            x = behind_sinusoids(x)
            normed = self.norm1(x + self.attend(x, is_real))
            return self.norm2(x + self.feed(normed))

    return Wrong()


# Faults of state


@wrong("Dropout is left on in evaluation.", breaks="state/same-call-same-answer")
def dropout_in_evaluation() -> nn.Module:
    class Wrong(Block):
        def weigh(self, scores: Tensor) -> Tensor:
            return nn.functional.dropout(super().weigh(scores), 0.1, training=True)

    return Wrong()


@wrong("Keys and values of the last call are kept.", breaks="state/another-call-between-changes-nothing")
def mean_of_the_last_call() -> nn.Module:
    class Wrong(Block):
        last: Tensor | None = None

        def feed(self, x: Tensor) -> Tensor:
            kept = x.mean() if self.last is None else self.last
            self.last = x.mean().detach()
            return super().feed(x) + kept

    return Wrong()


@wrong("A running mean is updated in evaluation.", breaks="state/a-call-changes-no-weight")
def running_mean() -> nn.Module:
    class Wrong(Block):
        def feed(self, x: Tensor) -> Tensor:
            self.down.bias.data.lerp_(x.mean(dim=(0, 1)), 0.1)
            return super().feed(x)

    return Wrong()


@wrong("The residual is added in place.", breaks="state/inputs-are-not-changed")
def in_place() -> nn.Module:
    class Wrong(Block):
        def forward(self, x: Tensor, is_real: Tensor | None = None) -> Tensor:
            x.data += self.attend(self.norm1(x), is_real)
            return x + self.feed(self.norm2(x))

    return Wrong()


@wrong("The mask is multiplied with minus infinity.", breaks="state/output-is-finite", real="onnx 2816da65b")
def zero_times_infinity() -> nn.Module:
    class Wrong(Block):
        def hide(self, scores: Tensor, is_real: Tensor | None) -> Tensor:
            if is_real is None:
                return scores
            return scores + (~is_real)[:, None, None, :].to(scores.dtype) * -torch.inf

    return Wrong()


@wrong("The generator is seeded.", breaks="state/nothing-global-is-touched")
def seeds() -> nn.Module:
    class Wrong(Block):
        def feed(self, x: Tensor) -> Tensor:
            torch.manual_seed(0)
            return super().feed(x)

    return Wrong()


# Faults of batch


@wrong("torch's attention without batch_first.", breaks=ALONE)
def batch_first_forgotten() -> nn.Module:
    class Wrong(Block):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(WIDTH, HEADS)

        def attend(self, x: Tensor, is_real: Tensor | None) -> Tensor:
            return self.attention(x, x, x)[0]

    return Wrong()


@wrong("Positions count sequences.", breaks=("batch/permuting-the-batch-permutes-the-output", ALONE))
def positions_of_the_batch() -> nn.Module:
    class Wrong(Block):
        def forward(self, x: Tensor, is_real: Tensor | None = None) -> Tensor:
            return super().forward(x + torch.arange(len(x), dtype=x.dtype)[:, None, None], is_real)

    return Wrong()


@wrong("A norm over the batch.", breaks=ALONE)
def norm_over_the_batch() -> nn.Module:
    class Wrong(PostNorm):
        def forward(self, x: Tensor, is_real: Tensor | None = None) -> Tensor:
            states = super().forward(x, is_real)
            return states - states.mean(dim=0, keepdim=True)

    return Wrong()


# Faults of padding


@wrong("True hides.", breaks=(RIGHT_PADDING, RAGGED), real="x-transformers ff7e307")
def inverted_mask() -> nn.Module:
    class Wrong(Block):
        def hide(self, scores: Tensor, is_real: Tensor | None) -> Tensor:
            return super().hide(scores, None if is_real is None else ~is_real)

    return Wrong()


@wrong("The masked scores are thrown away.", breaks=(RIGHT_PADDING, IN_PADDING), real="flamingo-pytorch 10")
def masked_fill_discarded() -> nn.Module:
    class Wrong(Block):
        def hide(self, scores: Tensor, is_real: Tensor | None) -> Tensor:
            if is_real is not None:
                scores.masked_fill(~is_real[:, None, None, :], -torch.inf)
            return scores

    return Wrong()


@wrong("The mask is read as a length, counted from the left.", breaks=LEFT_PADDING)
def lengths_from_the_left() -> nn.Module:
    class Wrong(Block):
        def hide(self, scores: Tensor, is_real: Tensor | None) -> Tensor:
            if is_real is None:
                return scores
            lengths = is_real.sum(dim=1, keepdim=True)
            return super().hide(scores, torch.arange(is_real.shape[1]) < lengths)

    return Wrong()


@wrong("The mask of the first sequence is used for all.", breaks=RAGGED)
def mask_of_the_first() -> nn.Module:
    class Wrong(Block):
        def hide(self, scores: Tensor, is_real: Tensor | None) -> Tensor:
            return super().hide(scores, None if is_real is None else is_real[:1].expand_as(is_real))

    return Wrong()


@wrong("The mask adds -10000, which large scores overcome.", breaks=IN_PADDING)
def weak_mask() -> nn.Module:
    class Wrong(PostNorm):
        def hide(self, scores: Tensor, is_real: Tensor | None) -> Tensor:
            return scores if is_real is None else scores + (~is_real)[:, None, None, :] * -1e4

    return Wrong()


@wrong("The mask is put on queries instead of keys.", breaks=(RIGHT_PADDING, IN_PADDING))
def mask_on_queries() -> nn.Module:
    class Wrong(Block):
        def hide(self, scores: Tensor, is_real: Tensor | None) -> Tensor:
            return scores if is_real is None else scores.masked_fill(~is_real[:, None, :, None], -1e9)

    return Wrong()


@wrong("The softmax runs over queries.", breaks=RIGHT_PADDING)
def softmax_over_queries() -> nn.Module:
    class Wrong(Block):
        def weigh(self, scores: Tensor) -> Tensor:
            return scores.softmax(dim=-2)

    return Wrong()


@wrong("The second layer is given no mask.", breaks=(RIGHT_PADDING, GRADIENT))
def mask_in_one_layer() -> nn.Module:
    class Wrong(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([Block(), Block()])

        def forward(self, x: Tensor, is_real: Tensor | None = None) -> Tensor:
            return self.layers[1](self.layers[0](x, is_real))

    return Wrong()


@wrong(
    "NaN in padding is said to be stopped, and is not.",
    breaks="padding/nan-in-padding-does-not-matter",
    nan_in_padding=True,
)
def nan_leaks() -> nn.Module:
    return Block()


@wrong("The values are right; the gradient of a mean goes to padding.", breaks=GRADIENT)
def gradient_of_a_mean() -> nn.Module:
    class Wrong(Block):
        def forward(self, x: Tensor, is_real: Tensor | None = None) -> Tensor:
            mean = x.mean(dim=1, keepdim=True)
            return super().forward(x, is_real) + (mean - mean.detach())

    return Wrong()


@wrong("Without a mask the scores are not scaled.", breaks=NO_MASK)
def scaled_with_a_mask_only() -> nn.Module:
    class Wrong(Block):
        def hide(self, scores: Tensor, is_real: Tensor | None) -> Tensor:
            return scores * math.sqrt(WIDTH // HEADS) if is_real is None else super().hide(scores, is_real)

    return Wrong()


@wrong("A sequence of length zero is refused.", breaks=EMPTY)
def empty_refused() -> nn.Module:
    class Wrong(Block):
        def forward(self, x: Tensor, is_real: Tensor | None = None) -> Tensor:
            if is_real is not None and not is_real.any(dim=1).all():
                raise RuntimeError("Length of all samples has to be greater than 0")
            return super().forward(x, is_real)

    return Wrong()


@wrong(
    "NaN of an empty sequence reaches the others through a norm of the batch.",
    breaks=EMPTY,
    real="pytorch 103749",
)
def empty_spreads() -> nn.Module:
    class Wrong(Block):
        def hide(self, scores: Tensor, is_real: Tensor | None) -> Tensor:
            return scores if is_real is None else scores.masked_fill(~is_real[:, None, None, :], -torch.inf)

        def attend(self, x: Tensor, is_real: Tensor | None) -> Tensor:
            attended = super().attend(x, is_real)
            return torch.zeros_like(attended) if attended.isnan().any() else attended

    return Wrong()


# Faults of paths


@wrong("Without gradients another path is taken, which drops the mask.", breaks=FAST, real="pytorch 190486")
def fused_without_a_mask() -> nn.Module:
    class Wrong(Block):
        def hide(self, scores: Tensor, is_real: Tensor | None) -> Tensor:
            return super().hide(scores, is_real if torch.is_grad_enabled() else None)

    return Wrong()


@wrong("Without gradients GELU is approximated.", breaks=FAST)
def fused_approximately() -> nn.Module:
    class Wrong(Block):
        def feed(self, x: Tensor) -> Tensor:
            how = "none" if torch.is_grad_enabled() else "tanh"
            return self.down(gelu(self.up(x), approximate=how))

    return Wrong()


@wrong("The mask is applied in training only.", breaks=(TRAINING, RIGHT_PADDING))
def mask_in_training() -> nn.Module:
    class Wrong(Block):
        def hide(self, scores: Tensor, is_real: Tensor | None) -> Tensor:
            return super().hide(scores, is_real if self.training else None)

    return Wrong()


@wrong("What dropout scales up in training is scaled in evaluation as well.", breaks=TRAINING)
def scaled_in_evaluation() -> nn.Module:
    class Wrong(Block):
        def feed(self, x: Tensor) -> Tensor:
            fed = super().feed(x)
            return fed if self.training else 0.9 * fed

    return Wrong()


# Faults of residual paths


@wrong("The normed state goes on: norm(x) + f(norm(x)).", breaks=PRE, real="Compact-Transformers 25")
def residual_of_the_normed() -> nn.Module:
    class Wrong(Block):
        def forward(self, x: Tensor, is_real: Tensor | None = None) -> Tensor:
            x = self.norm1(x)
            x = x + self.attend(x, is_real)
            x = self.norm2(x)
            return x + self.feed(x)

    return Wrong()


@wrong("In one sub-layer alone, and in place: n = norm(x); n += f(n).", breaks=PRE, real="RiNALMo 9")
def residual_of_the_normed_in_place() -> nn.Module:
    class Wrong(Block):
        def forward(self, x: Tensor, is_real: Tensor | None = None) -> Tensor:
            x = x + self.attend(self.norm1(x), is_real)
            normed = self.norm2(x)
            normed += self.feed(normed)
            return normed

    return Wrong()


@wrong("The skip path is scaled by a half.", breaks=PRE)
def halved_skip() -> nn.Module:
    class Wrong(Block):
        def forward(self, x: Tensor, is_real: Tensor | None = None) -> Tensor:
            x = (x + self.attend(self.norm1(x), is_real)) / 2
            return x + self.feed(self.norm2(x))

    return Wrong()


@wrong("Declared pre-norm, and post-norm.", breaks=PRE, norm_order="pre")
def post_for_pre() -> nn.Module:
    return PostNorm()


@wrong("Declared post-norm, and pre-norm.", breaks=POST, norm_order="post")
def pre_for_post() -> nn.Module:
    return Block()


@wrong("The second skip path begins before the first norm.", breaks=POST, real="gluon-nlp 1488, NeMo 4350")
def skip_around_the_norm() -> nn.Module:
    class Wrong(PostNorm):
        def forward(self, x: Tensor, is_real: Tensor | None = None) -> Tensor:
            attended = x + self.attend(x, is_real)
            return self.norm2(attended + self.feed(self.norm1(attended)))

    return Wrong()


@wrong("A norm is left out.", breaks=POST)
def norm_inside() -> nn.Module:
    class Wrong(PostNorm):
        def forward(self, x: Tensor, is_real: Tensor | None = None) -> Tensor:
            x = self.norm1(x + self.attend(x, is_real))
            return x + self.norm2(self.feed(x))

    return Wrong()


@wrong("The feed-forward is not added to its input.", breaks=(SKIP, PRE))
def no_skip() -> nn.Module:
    class Wrong(Block):
        def forward(self, x: Tensor, is_real: Tensor | None = None) -> Tensor:
            x = x + self.attend(self.norm1(x), is_real)
            return self.feed(self.norm2(x))

    return Wrong()


@wrong("The skip path is detached.", breaks=SKIP)
def detached_skip() -> nn.Module:
    class Wrong(PostNorm):
        def forward(self, x: Tensor, is_real: Tensor | None = None) -> Tensor:
            x = self.norm1(x.detach() + self.attend(x, is_real))
            return self.norm2(x + self.feed(x))

    return Wrong()


# Faults of symmetry


@wrong("A causal mask is left on.", breaks=(PERMUTED, EVERY))
def causal() -> nn.Module:
    class Wrong(Block):
        def hide(self, scores: Tensor, is_real: Tensor | None) -> Tensor:
            future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
            return super().hide(scores, is_real).masked_fill(future, torch.finfo(scores.dtype).min)

    return Wrong()


@wrong("Each token sees its neighbours only.", breaks=(PERMUTED, EVERY))
def windowed() -> nn.Module:
    class Wrong(Block):
        def hide(self, scores: Tensor, is_real: Tensor | None) -> Tensor:
            near = torch.ones(scores.shape[-2:], dtype=torch.bool).tril(1).triu(-1)
            return super().hide(scores, is_real).masked_fill(~near, torch.finfo(scores.dtype).min)

    return Wrong()


@wrong("Attention is never called.", breaks=EVERY)
def no_attention() -> nn.Module:
    class Wrong(Block):
        def forward(self, x: Tensor, is_real: Tensor | None = None) -> Tensor:
            return x + self.feed(self.norm2(x))

    return Wrong()


@wrong("Heads are split without a transpose.", breaks=(PERMUTED, RIGHT_PADDING))
def split_without_transpose() -> nn.Module:
    class Wrong(Block):
        def split(self, x: Tensor) -> Tensor:
            return x.reshape(len(x), HEADS, x.shape[1], -1)

        def merge(self, x: Tensor) -> Tensor:
            return x.reshape(len(x), -1, WIDTH)

    return Wrong()


@wrong("Heads are merged without a transpose.", breaks=PERMUTED)
def merge_without_transpose() -> nn.Module:
    class Wrong(Block):
        def merge(self, x: Tensor) -> Tensor:
            return x.reshape(len(x), x.shape[2], -1)

    return Wrong()


@wrong(
    "Positions are said to be there, and are zeros.",
    breaks="symmetry/the-order-of-the-input-counts",
    positions=True,
)
def positions_lost() -> nn.Module:
    return Block()


class Placed(Block):
    """A block with a table of learned positions, of so many rows."""

    rows = 64

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(self.rows, WIDTH))

    def forward(self, x: Tensor, is_real: Tensor | None = None) -> Tensor:
        return super().forward(x + self.table[: x.shape[1]], is_real)


@wrong(
    "A table of one position is broadcast: every token stands at position 0.",
    breaks="symmetry/the-order-of-the-input-counts",
    real="documents 000 and 003",
    positions=True,
)
def one_position_for_all() -> nn.Module:
    class Wrong(Placed):
        rows = 1

    return Wrong()


@wrong(
    "The table of positions ends at four tokens, and says so in an error of the addition.",
    breaks=ALONE,
    real="documents 000, 002 and 003",
    positions=True,
)
def table_ends() -> nn.Module:
    class Wrong(Placed):
        rows = 4

    return Wrong()


@wrong(
    "Positions count the padding in front.",
    breaks=LEFT_PADDING,
    real="document 002, line 317",
    positions=True,
)
def positions_count_padding() -> nn.Module:
    return Placed()


@wrong("Positions that nobody declared.", breaks=(PERMUTED, COPIES))
def undeclared_positions() -> nn.Module:
    return own_positions()


@wrong("The weights do not sum to one: the sum begins at one.", breaks=COPIES)
def sum_from_one() -> nn.Module:
    return quiet()


@wrong("The feed-forward is a convolution over three tokens.", breaks=(COPIES, ITSELF, PERMUTED))
def feed_forward_over_neighbours() -> nn.Module:
    class Wrong(Block):
        def __init__(self) -> None:
            super().__init__()
            self.wide = nn.Conv1d(WIDTH, WIDTH, 3, padding=1)

        def feed(self, x: Tensor) -> Tensor:
            return super().feed(self.wide(x.transpose(1, 2)).transpose(1, 2))

    return Wrong()


@wrong("A norm over the sequence and the state.", breaks=(ITSELF, IN_PADDING))
def norm_over_the_sequence() -> nn.Module:
    class Wrong(Block):
        def feed(self, x: Tensor) -> Tensor:
            return super().feed(layer_norm(x, x.shape[1:]))

    return Wrong()


@wrong("A post-norm over the sequence and the state.", breaks=(POSITION_WISE, ITSELF))
def post_norm_over_the_sequence() -> nn.Module:
    class Wrong(PostNorm):
        def forward(self, x: Tensor, is_real: Tensor | None = None) -> Tensor:
            x = super().forward(x, is_real)
            return layer_norm(x, x.shape[1:])

    return Wrong()


@wrong("The skip path is shifted by one token.", breaks=(POSITION_WISE, PERMUTED))
def shifted_skip() -> nn.Module:
    class Wrong(Block):
        def forward(self, x: Tensor, is_real: Tensor | None = None) -> Tensor:
            x = x.roll(1, dims=1) + self.attend(self.norm1(x), is_real)
            return x + self.feed(self.norm2(x))

    return Wrong()
