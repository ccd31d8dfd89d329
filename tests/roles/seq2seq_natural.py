"""Wrong encoder-decoders, as they come in ports, refactorings and exercises."""

from typing import Any

import torch
from torch import Tensor, nn

from tests.roles import right, wrong
from tests.roles.seq2seq import Pair, all_real
from tests.sub_layers import BY_ITSELF, EACH_PART, ONE_NORM, READ_TWICE, STALE, STANDS_IN, Slip, TwoSubLayers


@wrong(
    "The target is shifted to the left, where right was meant: a state reads the token it has to tell.",
    breaks="target/later-targets-do-not-matter",
)
def target_shifted_to_the_left() -> nn.Module:
    def embed_target(self: Pair, target: Tensor, real: Tensor) -> Tensor:
        return Pair.embed_target(self, target.roll(-1, dims=1), real)

    return Pair(embed_target=embed_target)


@wrong(
    "The mask of the source reaches the encoder only: the decoder reads the padding too.",
    breaks="padding/padding-the-source-changes-nothing",
    real="https://github.com/keras-team/keras-io/pull/1046",
)
def decoder_reads_source_padding() -> nn.Module:
    def memory_mask(self: Pair, real: Tensor, length: int) -> Tensor:
        return torch.ones_like(real)[:, None, None, :]

    return Pair(memory_mask=memory_mask)


@wrong(
    "What was read of a source is kept by shape, and serves the next source too.",
    breaks="batch/a-sequence-in-a-batch-is-itself-alone",
)
def memory_of_the_last_source() -> nn.Module:
    kept: dict[Any, Tensor] = {}

    def encode(self: Pair, source: Tensor, real: Tensor | None = None) -> Tensor:
        return kept.setdefault((source.shape, self.head.weight.dtype), Pair.encode(self, source, real))

    return Pair(encode=encode)


@wrong(
    "Sources are sorted by their length, and put back by the order itself, not by its inverse.",
    breaks="padding/pairs-of-different-lengths-are-each-itself-alone",
)
def sources_put_back_by_the_order() -> nn.Module:
    def encode(self: Pair, source: Tensor, real: Tensor | None = None) -> Tensor:
        if real is None:
            return Pair.encode(self, source)
        order = real.sum(dim=1).argsort(descending=True, stable=True)
        return Pair.encode(self, source[order], real[order])[order]

    return Pair(encode=encode)


class _OfItsTokens(Pair):
    """Token 0 is padding, and the masks are made of the tokens: of the target, as in many tutorials, along its rows."""

    def forward(self, source: Tensor, target: Tensor) -> Tensor:  # type: ignore[override]
        return self.decode(target, self.encode(source, source != 0), target != 0, source != 0)

    def target_mask(self, real: Tensor) -> Tensor:
        return real[:, None, :, None] & self.causal(real.shape[1])


@right("Token 0 is padding, and the masks are made of the tokens.")
def masks_of_its_tokens() -> nn.Module:
    return _OfItsTokens()


@wrong(
    "Masks are made of the tokens, and that of the target leaves the causal one out.",
    breaks="target/later-targets-do-not-matter",
)
def masks_of_its_tokens_alone() -> nn.Module:
    def target_mask(self: Pair, real: Tensor) -> Tensor:
        return real[:, None, :, None].expand(-1, -1, -1, real.shape[1])

    return _OfItsTokens(target_mask=target_mask)


class _Layered(Pair):
    """The source goes through a layer that is a module."""

    def __init__(self, slip: Slip = "") -> None:
        super().__init__()
        self.blocks = nn.ModuleList(TwoSubLayers(8, slip) for _ in range(2))

    def encode(self, source: Tensor, real: Tensor | None = None) -> Tensor:
        real = all_real(source, real)
        x = self.source_table(source) + self.places(self.positions(real, False))
        for block in self.blocks:
            x = block(x, self.source_mask(real))
        return self.norms[0](x)


@right("The encoder's layers are modules, their residual updated between the sub-layers.")
def layers_of_two_sub_layers() -> nn.Module:
    return _Layered()


@wrong(STALE, breaks=BY_ITSELF)
def residual_not_updated() -> nn.Module:
    return _Layered("stale")


@wrong(ONE_NORM, breaks=STANDS_IN)
def one_norm_for_both() -> nn.Module:
    return _Layered("one norm")


@wrong(READ_TWICE, breaks=EACH_PART)
def a_part_read_twice() -> nn.Module:
    return _Layered("read twice")
