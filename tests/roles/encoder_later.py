"""Wrong encoders, the later ones by somebody who did not know the laws."""

import torch
from torch import Tensor, nn

from tests.roles import right, wrong
from tests.roles.encoder import WIDTH, Block, PostNorm
from tests.sub_layers import BY_ITSELF, EACH_PART, ONE_NORM, READ_TWICE, STALE, STANDS_IN


@wrong(
    "Padding is taken out and put back behind the states: those of a sequence padded in front are displaced.",
    breaks="padding/padding-on-the-left-changes-nothing",
    real="https://github.com/pytorch/pytorch/pull/79927",
)
def padding_put_back_behind() -> nn.Module:
    class Wrong(Block):
        def forward(self, x: Tensor, is_real: Tensor | None = None) -> Tensor:
            found = super().forward(x, is_real)
            if is_real is None:
                return found
            order = torch.argsort((~is_real).long(), dim=1, stable=True)
            return found.gather(1, order[..., None].expand_as(found))

    return Wrong()


@wrong(
    "A batch with padding is packed into one sequence, whose parts see one another.",
    breaks="padding/a-padded-batch-gives-what-each-sequence-gives-alone",
    real="https://github.com/huggingface/transformers/pull/46634",
)
def packed_without_borders() -> nn.Module:
    class Wrong(Block):
        def attend(self, x: Tensor, is_real: Tensor | None) -> Tensor:
            if is_real is None or is_real.all():
                return super().attend(x, is_real)
            found = torch.zeros_like(x)
            found[is_real] = super().attend(x[is_real][None], None)[0]
            return found

    return Wrong()


@wrong(
    "A single token, which can see itself alone, is not attended at all.",
    breaks="symmetry/copies-of-a-token-give-what-it-gives-alone",
)
def single_token_not_attended() -> nn.Module:
    class Wrong(Block):
        def attend(self, x: Tensor, is_real: Tensor | None) -> Tensor:
            return super().attend(x, is_real) * (x.shape[1] > 1)

    return Wrong()


@wrong(
    "A padded batch is sorted by its lengths, longest first, and handed back in that order.",
    breaks="padding/a-padded-batch-gives-what-each-sequence-gives-alone",
)
def sorted_and_not_restored() -> nn.Module:
    class Wrong(Block):
        def forward(self, x: Tensor, is_real: Tensor | None = None) -> Tensor:
            if is_real is None:
                return super().forward(x, is_real)
            order = is_real.sum(dim=1).argsort(descending=True, stable=True)
            return super().forward(x[order], is_real[order])

    return Wrong()


@wrong(
    "In training the fused sum and norm hands back the state before the sum: attention's part is normed only.",
    breaks="paths/training-without-dropout-gives-evaluation",
)
def sum_lost_in_training() -> nn.Module:
    class Wrong(Block):
        def forward(self, x: Tensor, is_real: Tensor | None = None) -> Tensor:
            attended = x + self.attend(self.norm1(x), is_real)
            return (x if self.training else attended) + self.feed(self.norm2(attended))

    return Wrong()


class PackedAtTheFirstCall(Block):
    packed: Tensor | None = None

    def feed(self, x: Tensor) -> Tensor:
        if self.packed is None:
            self.packed = self.down.weight.detach().clone()
        return nn.functional.linear(nn.functional.gelu(self.up(x)), self.packed.to(x.dtype), self.down.bias)


@wrong(
    "The weights of the last projection are packed at the first call, and read from there.",
    breaks="state/weights-changed-in-place-are-read-again",
)
def packed_at_the_first_call() -> nn.Module:
    return PackedAtTheFirstCall()


class ScaledByTheLargest(Block):
    range = 1.0

    def attend(self, x: Tensor, is_real: Tensor | None) -> Tensor:
        return super().attend(x, is_real) * self.range

    def forward(self, x: Tensor, *rest: Tensor | None, **named: Tensor | None) -> Tensor:
        self.range = 0.5 if x.numel() and x.abs().max() > 448 else 1.0
        found: Tensor = super().forward(x, *rest, **named)
        return found


@wrong(
    "Beyond the range of a format of eight bits the states of the whole batch are scaled down.",
    breaks="batch/an-outlier-stays-in-its-own-sequence",
)
def scaled_by_the_largest_of_the_batch() -> nn.Module:
    return ScaledByTheLargest()


class HalfAGradient(Block):
    def feed(self, x: Tensor) -> Tensor:
        return super().feed((x + x.detach()) / 2)


@wrong(
    "Half of the gradient into the feed-forward layer is lost on its way back.",
    breaks="gradients/gradients-of-the-input-are-slopes",
)
def half_a_gradient_of_the_input() -> nn.Module:
    return HalfAGradient()


@wrong(STALE, breaks=BY_ITSELF)
def residual_not_updated() -> nn.Module:
    class Wrong(Block):
        def forward(self, x: Tensor, is_real: Tensor | None = None) -> Tensor:
            read = x + self.attend(self.norm1(x), is_real)
            return x + self.feed(self.norm2(read))

    return Wrong()


@wrong(ONE_NORM, breaks=STANDS_IN)
def one_norm_for_both() -> nn.Module:
    class Wrong(PostNorm):
        def forward(self, x: Tensor, is_real: Tensor | None = None) -> Tensor:
            x = self.norm1(x + self.attend(x, is_real))
            return self.norm1(x + self.feed(x))

    return Wrong()


@wrong(
    "Positions are those of a table of 16, which begins anew where it is made longer.",
    breaks="symmetry/the-order-of-the-input-counts",
    positions=True,
)
def table_begins_anew() -> nn.Module:
    class Wrong(Block):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.randn(16, WIDTH))

        def forward(self, x: Tensor, is_real: Tensor | None = None) -> Tensor:
            return super().forward(x + self.table[torch.arange(x.shape[1]) % 16], is_real)

    return Wrong()


@wrong(READ_TWICE, breaks=EACH_PART)
def a_part_read_twice() -> nn.Module:
    class Wrong(Fused):
        def attend(self, x: Tensor, is_real: Tensor | None) -> Tensor:
            q, k, _ = map(self.split, self.qkv(x).chunk(3, dim=-1))
            return self.w_o(self.merge(self.weigh(self.hide(self.scores(q, k), is_real)) @ k))

    return Wrong()


@wrong(
    "A graph is made only where a weight wants a gradient: a frozen encoder passes none on.",
    breaks="gradients/a-frozen-module-passes-gradients-on",
)
def no_graph_where_frozen() -> nn.Module:
    class Wrong(Block):
        def forward(self, x: Tensor, is_real: Tensor | None = None) -> Tensor:
            trained = any(each.requires_grad for each in self.parameters())
            with torch.set_grad_enabled(torch.is_grad_enabled() and trained):
                return super().forward(x, is_real)

    return Wrong()


class Fused(Block):
    """Query, key and value in one projection."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.w_q = self.w_k = self.w_v = nn.Identity()

    def attend(self, x: Tensor, is_real: Tensor | None) -> Tensor:
        q, k, v = map(self.split, self.qkv(x).chunk(3, dim=-1))
        return self.w_o(self.merge(self.weigh(self.hide(self.scores(q, k), is_real)) @ v))


@right("The rows of the query begin at zero, as muP has it: keys have no influence before it is trained.")
def query_at_zero() -> nn.Module:
    class Right(Fused):
        def __init__(self) -> None:
            super().__init__()
            with torch.no_grad():
                self.qkv.weight[:WIDTH] = 0

    return Right()


@right("All states read one key, the mean of those that are real: query and key have no influence.")
def one_key_for_all() -> nn.Module:
    class Right(Block):
        def __init__(self) -> None:
            super().__init__()
            self.kv = nn.Linear(WIDTH, 2 * WIDTH)
            self.w_k = self.w_v = nn.Identity()

        def attend(self, x: Tensor, is_real: Tensor | None) -> Tensor:
            real = torch.ones_like(x[..., :1]) if is_real is None else is_real[..., None].to(x)
            mean = (x * real).sum(dim=1, keepdim=True) / real.sum(dim=1, keepdim=True).clamp(min=1)
            k, v = map(self.split, self.kv(mean).chunk(2, dim=-1))
            return self.w_o(self.merge(self.weigh(self.scores(self.split(self.w_q(x)), k)) @ v))

    return Right()
