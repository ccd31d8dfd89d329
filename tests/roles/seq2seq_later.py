"""Wrong encoder-decoders, the later ones by somebody who did not know the laws."""

import torch
from torch import Tensor, nn

from tests.roles import wrong
from tests.roles.seq2seq import Pair


@wrong(
    "A target of a single token is taken for the start mark, token 1, whatever it is.",
    breaks="target/a-target-prefix-gives-the-same-logits",
)
def single_target_is_the_start() -> nn.Module:
    def embed_target(self: Pair, target: Tensor, real: Tensor) -> Tensor:
        target = torch.ones_like(target) if target.shape[1] == 1 else target
        return Pair.embed_target(self, target, real)

    return Pair(embed_target=embed_target)


@wrong(
    "In evaluation the encoder runs without gradients.",
    breaks="gradients/gradients-of-the-weights-are-slopes",
)
def encoder_without_gradients() -> nn.Module:
    def encode(self: Pair, source: Tensor, real: Tensor | None = None) -> Tensor:
        with torch.set_grad_enabled(self.training and torch.is_grad_enabled()):
            return Pair.encode(self, source, real)

    return Pair(encode=encode)


@wrong(
    "Targets are counted on from the end of the source, its padding included.",
    breaks="padding/padding-the-source-changes-nothing",
)
def counted_on_from_the_source() -> nn.Module:
    def decode(self: Pair, target: Tensor, memory: Tensor, *masks: Tensor | None) -> Tensor:
        self.remembered = memory.shape[1]
        return Pair.decode(self, target, memory, *masks)

    def positions(self: Pair, real: Tensor, decoding: bool) -> Tensor:
        found = Pair.positions(self, real, decoding)
        return (found + self.remembered).clamp(max=79) if decoding else found

    return Pair(decode=decode, positions=positions)


@wrong(
    "The causal mask is as long as the longest target without padding: where all are padded, it ends too early.",
    breaks="padding/padding-the-target-changes-nothing",
)
def causal_mask_of_the_longest_target() -> nn.Module:
    def target_mask(self: Pair, real: Tensor) -> Tensor:
        longest = int(real.sum(dim=1).max()) if len(real) else 0
        seen = torch.ones(real.shape[1], real.shape[1], dtype=torch.bool)
        seen[:longest, :longest] = self.causal(longest)
        return seen & real[:, None, None, :]

    return Pair(target_mask=target_mask)


@wrong(
    "The table of the targets' positions is copied at the first call, and read from there.",
    breaks="state/weights-changed-in-place-are-read-again",
)
def positions_copied() -> nn.Module:
    def embed_target(self: Pair, target: Tensor, real: Tensor) -> Tensor:
        if not isinstance(self.remembered, Tensor):
            self.remembered = self.places.weight.detach().clone()
        return self.target_table(target) + self.remembered[self.positions(real, True)]

    return Pair(embed_target=embed_target)
