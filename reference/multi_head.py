"""Several attentions side by side, each in a subspace of its own.  Vaswani et al. 2017, section 3.2.2."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Float, Num
from torch import Tensor, nn

from headcheck.reference.attention import Attended, MayAttend, attention, group_heads

Positions = Num[Tensor, "#batch length"] | Num[Tensor, " length"] | None
"""For rotary positions; None is 0, 1, 2, ..., counted on from what a cache holds."""
Rotation = Callable[[Tensor, Tensor], Tensor]
"""(x, positions) -> x turned: `rotary`, or functools.partial of it with its options."""


def split_heads(
    x: Float[Tensor, "batch length width"], heads: int
) -> Float[Tensor, "batch heads length dim"]:
    """Head h takes the dims h x dim .. (h + 1) x dim - 1, where dim = width / heads."""
    return x.reshape(*x.shape[:2], heads, x.shape[-1] // heads).transpose(1, 2)


def merge_heads(x: Float[Tensor, "batch heads length dim"]) -> Float[Tensor, "batch length width"]:
    """The heads of each token side by side: `split_heads` undone."""
    return x.transpose(1, 2).flatten(-2)


class KeyValues:
    """The keys and values of all tokens that one attention has seen: a cache, which grows in place."""

    def __init__(self) -> None:
        self.key: Float[Tensor, "batch kv_heads kv_len head_dim"] | None = None
        self.value: Float[Tensor, "batch kv_heads kv_len head_dim"] | None = None

    def __len__(self) -> int:
        return 0 if self.key is None else self.key.shape[2]

    def extend(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of new tokens are put behind the old; all of them come back."""
        if self.key is not None and self.value is not None:
            key, value = torch.cat((self.key, key), dim=2), torch.cat((self.value, value), dim=2)
        self.key, self.value = key, value
        return key, value


class ScaledDotProductAttention(nn.Module):
    """`attention` as a module: with dropout on the weights, and a place where they can be watched."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, may_attend: MayAttend) -> Attended:
        """The weights are those before dropout."""
        attended = attention(query, key, value, may_attend=may_attend)
        if not (self.training and self.dropout.p):
            return attended
        dropped = self.dropout(attended.weights) @ group_heads(value, query.shape[1])
        return attended._replace(output=dropped)


class MultiHeadAttention(nn.Module):
    """Concat(head_1, ..., head_h) W_o, head_i = Attention(Q W_q^i, K W_k^i, V W_v^i).

    num_heads: ValueError unless d_model is num_heads x head_dim.
    kv_heads: fewer heads of key and value (Ainslie et al. 2023, GQA); None is num_heads.
    rotate: rotary positions, for self-attention only.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
        kv_heads: int | None = None,
        bias: bool = True,
        dropout: float = 0.0,
        rotate: Rotation | None = None,
    ) -> None:
        super().__init__()
        kv_heads = num_heads if kv_heads is None else kv_heads
        if num_heads < 1 or d_model % num_heads:
            raise ValueError(f"d_model = {d_model} is not num_heads = {num_heads} times a head_dim")
        if kv_heads < 1 or num_heads % kv_heads:
            raise ValueError(f"num_heads = {num_heads} is not kv_heads = {kv_heads} times a group")
        self.num_heads, self.kv_heads, self.rotate = num_heads, kv_heads, rotate
        kv_width = d_model // num_heads * kv_heads
        self.w_q = nn.Linear(d_model, d_model, bias=bias)
        self.w_k = nn.Linear(d_model, kv_width, bias=bias)
        self.w_v = nn.Linear(d_model, kv_width, bias=bias)
        self.w_o = nn.Linear(d_model, d_model, bias=bias)
        self.attention = ScaledDotProductAttention(dropout)

    def forward(
        self,
        query: Float[Tensor, "batch q_len d_model"],
        key: Float[Tensor, "batch kv_len d_model"] | None = None,
        value: Float[Tensor, "batch kv_len d_model"] | None = None,
        *,
        may_attend: MayAttend = None,
        positions: Positions = None,
        cache: KeyValues | None = None,
    ) -> Float[Tensor, "batch q_len d_model"]:
        """Self-attention where `key` is None; `value` is `key` where it is None.

        cache: of self-attention; kv_len is then the length of all that it holds, query included.
        """
        if key is not None and (self.rotate is not None or cache is not None):
            raise ValueError("rotary positions and a cache are for self-attention: pass no key")
        key = query if key is None else key
        value = key if value is None else value
        q = split_heads(self.w_q(query), self.num_heads)
        k, v = split_heads(self.w_k(key), self.kv_heads), split_heads(self.w_v(value), self.kv_heads)
        if self.rotate is not None:
            if positions is None:
                start = 0 if cache is None else len(cache)
                positions = torch.arange(start, start + query.shape[1], device=query.device)
            q, k = self.rotate(q, positions), self.rotate(k, positions)
        if cache is not None:
            k, v = cache.extend(k, v)
        return self.w_o(merge_heads(self.attention(q, k, v, may_attend).output))


@contextmanager
def attention_weights(model: nn.Module) -> Iterator[dict[str, Float[Tensor, "batch heads q_len kv_len"]]]:
    """The weights of every `MultiHeadAttention` in a model, by its name, as of its latest call inside `with`."""
    weights: dict[str, Tensor] = {}

    def record(name: str) -> Callable[..., None]:
        def hook(_module: nn.Module, _inputs: object, attended: Attended) -> None:
            weights[name] = attended.weights

        return hook

    handles = [
        module.attention.register_forward_hook(record(name))
        for name, module in model.named_modules()
        if isinstance(module, MultiHeadAttention)
    ]
    try:
        yield weights
    finally:
        for handle in handles:
            handle.remove()
