"""The three models: encoder-decoder, encoder-only with a [CLS] head, and decoder-only with a cache.

A model is put together from its parts, where the choices stand: `Embedding`, `Encoder`, `Decoder`.
`is_real` (batch, length) is True at tokens and False at padding, on either side; None is no padding.
Positions count real tokens, unless they are given.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from headcheck.reference.blocks import Decoder, Encoder
from headcheck.reference.embedding import Embedding, output_layer
from headcheck.reference.masks import causal
from headcheck.reference.multi_head import KeyValues
from headcheck.reference.positions import token_positions

Tokens = Int[Tensor, "batch length"]
IsReal = Bool[Tensor, "batch length"]
Hidden = Float[Tensor, "batch length d_model"]
Logits = Float[Tensor, "batch length vocab"]


def all_real(tokens: Tokens) -> IsReal:
    """No token is padding."""
    return torch.ones_like(tokens, dtype=torch.bool)


def causal_and_real(
    is_real: Bool[Tensor, "batch kv_len"], q_len: int
) -> Bool[Tensor, "batch 1 q_len kv_len"]:
    """The last `q_len` tokens see the real ones among those before them and themselves."""
    past = causal(q_len, is_real.shape[1], "bottom-right").to(is_real.device)
    return past & is_real[:, None, None, :]


class Seq2Seq(nn.Module):
    """The encoder-decoder transformer.  Vaswani et al. 2017, figure 1.

    One `Embedding` given twice is shared. tied: the output layer has the target's table.
    """

    def __init__(
        self,
        source_embedding: Embedding,
        target_embedding: Embedding,
        encoder: Encoder,
        decoder: Decoder,
        *,
        tied: bool,
        output_bias: bool,
    ) -> None:
        super().__init__()
        self.source_embedding, self.target_embedding = source_embedding, target_embedding
        self.encoder, self.decoder = encoder, decoder
        self.output = output_layer(target_embedding, tied=tied, bias=output_bias)

    def encode(self, source: Tokens, *, is_real: IsReal | None = None) -> Hidden:
        """The memory of a source."""
        is_real = all_real(source) if is_real is None else is_real
        positions = token_positions(is_real)
        x = self.source_embedding(source, positions)
        return self.encoder(x, may_attend=is_real[:, None, None, :], positions=positions)

    def decode(
        self,
        target: Tokens,
        memory: Float[Tensor, "batch source_len d_model"],
        *,
        is_real: IsReal | None = None,
        memory_is_real: Bool[Tensor, "batch source_len"] | None = None,
    ) -> Logits:
        """At t, the logits of the token after target[t], which sees no later target."""
        is_real = all_real(target) if is_real is None else is_real
        positions = token_positions(is_real)
        x = self.decoder(
            self.target_embedding(target, positions),
            memory,
            may_attend=causal_and_real(is_real, target.shape[1]),
            memory_may_attend=None if memory_is_real is None else memory_is_real[:, None, None, :],
            positions=positions,
        )
        return self.output(x)

    def forward(
        self,
        source: Int[Tensor, "batch source_len"],
        target: Tokens,
        *,
        source_is_real: Bool[Tensor, "batch source_len"] | None = None,
        target_is_real: IsReal | None = None,
    ) -> Logits:
        memory = self.encode(source, is_real=source_is_real)
        return self.decode(target, memory, is_real=target_is_real, memory_is_real=source_is_real)


class Classifier(nn.Module):
    """One decision for a sequence, read at its first real token, which the caller makes [CLS].

    The head is Linear, tanh, dropout, Linear: Devlin et al. 2019 (BERT), section 3; document 003, line 1051.
    """

    def __init__(
        self, embedding: Embedding, encoder: Encoder, num_classes: int, *, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.embedding, self.encoder = embedding, encoder
        d_model = embedding.table.embedding_dim
        self.head = nn.Sequential(
            nn.Linear(d_model, d_model), nn.Tanh(), nn.Dropout(dropout), nn.Linear(d_model, num_classes)
        )

    def forward(self, tokens: Tokens, *, is_real: IsReal | None = None) -> Float[Tensor, "batch num_classes"]:
        is_real = all_real(tokens) if is_real is None else is_real
        positions = token_positions(is_real)
        x = self.embedding(tokens, positions)
        x = self.encoder(x, may_attend=is_real[:, None, None, :], positions=positions)
        first = is_real.long().argmax(dim=1)
        return self.head(x[torch.arange(len(x), device=x.device), first])


class Cache:
    """What a `CausalLM` keeps of the tokens that it has seen; it grows in place."""

    def __init__(self, num_layers: int) -> None:
        self.layers = [KeyValues() for _ in range(num_layers)]
        self.is_real: Bool[Tensor, "batch seen"] | None = None

    def extend(self, is_real: IsReal) -> Bool[Tensor, "batch kv_len"]:
        """Which of all tokens, old and new, are real."""
        self.is_real = is_real if self.is_real is None else torch.cat((self.is_real, is_real), dim=1)
        return self.is_real


class CausalLM(nn.Module):
    """The decoder-only language model: a stack of self-attention under a causal mask.

    Radford et al. 2019 (GPT-2), section 2.3; document 003, line 1102.
    """

    def __init__(
        self, embedding: Embedding, stack: Encoder, *, tied: bool, output_bias: bool = False
    ) -> None:
        super().__init__()
        self.embedding, self.stack = embedding, stack
        self.output = output_layer(embedding, tied=tied, bias=output_bias)

    def new_cache(self) -> Cache:
        """An empty cache."""
        return Cache(len(self.stack.layers))

    def forward(
        self,
        tokens: Tokens,
        *,
        is_real: IsReal | None = None,
        positions: Int[Tensor, "#batch length"] | None = None,
        cache: Cache | None = None,
    ) -> Logits:
        """At t, the logits of the token after tokens[t].

        With a cache, `tokens` and `is_real` are the new ones only: they follow what the cache has seen.
        """
        q_len = tokens.shape[1]
        seen = all_real(tokens) if is_real is None else is_real
        if cache is not None:
            seen = cache.extend(seen)
        if positions is None:
            positions = token_positions(seen)[:, seen.shape[1] - q_len :]
        x = self.stack(
            self.embedding(tokens, positions),
            may_attend=causal_and_real(seen, q_len),
            positions=positions,
            cache=None if cache is None else cache.layers,
        )
        return self.output(x)
