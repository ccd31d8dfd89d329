"""Wrong encoders, as they come in ports, refactorings and exercises."""

import torch
from torch import Tensor, nn

from tests.roles import wrong
from tests.roles.encoder import WIDTH, Block, PostNorm


@wrong(
    "Pre-norm, but what is carried past the attention is the normed state, not the state.",
    breaks="residual/zero-sub-layers-leave-a-pre-norm-block-the-identity",
    real="https://github.com/pytorch/pytorch/issues/61165",
)
def normed_residual() -> nn.Module:
    class Wrong(Block):
        def forward(self, x: Tensor, is_real: Tensor | None = None) -> Tensor:
            x = self.norm1(x)
            x = x + self.attend(x, is_real)
            x = self.norm2(x)
            return x + self.feed(x)

    return Wrong()


@wrong(
    "The attention takes its first axis for the length, and is given the batch there.",
    breaks="batch/a-sequence-in-a-batch-is-itself-alone",
    real="https://github.com/songyangco/GETNext/issues/2",
)
def attends_across_the_batch() -> nn.Module:
    class Wrong(Block):
        def attend(self, x: Tensor, is_real: Tensor | None) -> Tensor:
            mask = None if is_real is None else is_real.T
            return super().attend(x.transpose(0, 1), mask).transpose(0, 1)

    return Wrong()


@wrong(
    "The option norm_first is kept, but not handed on to the layer, which is post-norm.",
    breaks="residual/zero-sub-layers-leave-a-pre-norm-block-the-identity",
    real="https://github.com/k2-fsa/snowfall/pull/184",
)
def option_not_handed_on() -> nn.Module:
    class Wrong(PostNorm):
        norm_first = True

    return Wrong()


@wrong(
    "Padding has the score -1e-9, where -1e9 was meant.",
    breaks="padding/what-stands-in-padding-does-not-matter",
)
def sign_of_the_exponent() -> nn.Module:
    class Wrong(Block):
        def hide(self, scores: Tensor, is_real: Tensor | None) -> Tensor:
            return scores if is_real is None else scores.masked_fill(~is_real[:, None, None, :], -1e-9)

    return Wrong()


@wrong(
    "The fast path, taken in evaluation where no gradient is wanted, leaves the mask out.",
    breaks="padding/padding-on-the-right-changes-nothing",
)
def unmasked_fast_path() -> nn.Module:
    class Wrong(Block):
        def forward(self, x: Tensor, is_real: Tensor | None = None) -> Tensor:
            fast = not self.training and not torch.is_grad_enabled()
            return super().forward(x, None if fast else is_real)

    return Wrong()


@wrong(
    "Pre-norm, but only the queries are made of normed states; keys and values are made of the states as they are.",
    breaks="residual/what-a-pre-norm-block-adds-does-not-grow-with-its-states",
    real="https://github.com/facebookresearch/xformers/pull/233",
)
def queries_alone_are_normed() -> nn.Module:
    class Wrong(Block):
        def forward(self, x: Tensor, is_real: Tensor | None = None) -> Tensor:
            q, k, v = self.w_q(self.norm1(x)), self.w_k(x), self.w_v(x)
            scores = self.hide(self.scores(self.split(q), self.split(k)), is_real)
            x = x + self.w_o(self.merge(self.weigh(scores) @ self.split(v)))
            return x + self.feed(self.norm2(x))

    return Wrong()


@wrong(
    "Sequences are sorted by their length, and put back by the order itself, not by its inverse.",
    breaks="padding/a-padded-batch-gives-what-each-sequence-gives-alone",
)
def put_back_by_the_order() -> nn.Module:
    class Wrong(Block):
        def forward(self, x: Tensor, is_real: Tensor | None = None) -> Tensor:
            if is_real is None:
                return super().forward(x)
            order = is_real.sum(dim=1).argsort(descending=True, stable=True)
            return super().forward(x[order], is_real[order])[order]

    return Wrong()


@wrong(
    "Pre-norm with a norm at the end, and behind it a tanh that no pre-norm block has.",
    breaks="residual/what-a-pre-norm-block-adds-does-not-grow-with-its-states",
    norm_order="pre",
)
def squeezed_behind_the_last_norm() -> nn.Module:
    class Wrong(Block):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(WIDTH)

        def forward(self, x: Tensor, is_real: Tensor | None = None) -> Tensor:
            return torch.tanh(self.norm(super().forward(x, is_real))) * 3

    return Wrong()
