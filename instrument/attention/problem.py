"""One attention problem: the exact numbers of which a subject's answer is an approximation."""

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from headcheck.reference.attention import (
    Attended,
    Gradients,
    attention,
    attention_gradients,
    group_heads,
)


@dataclass(frozen=True, eq=False)
class Problem:
    """What is to be computed: float64 on the CPU, the values that the subject was given, exactly.

    All conventions are resolved: the scale is a number, every mask is in `may_attend` (True keeps).
    """

    query: Float[Tensor, "batch heads q_len head_dim"]
    key: Float[Tensor, "batch kv_heads kv_len head_dim"]
    value: Float[Tensor, "batch kv_heads kv_len value_dim"]
    scale: float
    may_attend: Bool[Tensor, "#batch #heads #q_len #kv_len"] | None = None
    bias: Float[Tensor, "#batch #heads #q_len #kv_len"] | None = None
    """Finite: an entry of -inf is a False of `may_attend`."""
    lifted: Float[Tensor, "#batch #heads #q_len 1"] | None = None
    """By how much code may lift or lower all scores of a row, where it makes ALiBi of a causal call by the key alone.

    Slope x i where it is slope x j, and slope x (kv_len - 1 - i) where keys are counted from the last: the larger.
    """
    softcap: float | None = None
    sinks: Float[Tensor, " heads"] | None = None

    @property
    def heads(self) -> int:
        return self.query.shape[1]

    @cached_property
    def attended(self) -> Attended:
        """The exact answer, up to the rounding of float64."""
        return attention(
            self.query,
            self.seen_key,
            self.seen_value,
            may_attend=self.may_attend,
            bias=self.bias,
            scale=self.scale,
            softcap=self.softcap,
            sinks=self.sinks,
        )

    def gradients(self, cotangent: Float[Tensor, "batch heads q_len value_dim"]) -> Gradients:
        """The exact gradient of sum(output x cotangent)."""
        return attention_gradients(
            self.query,
            self.seen_key,
            self.seen_value,
            cotangent,
            may_attend=self.may_attend,
            bias=self.bias,
            scale=self.scale,
            softcap=self.softcap,
            sinks=self.sinks,
        )

    @torch.enable_grad()
    def log_sum_exp_gradients(self, cotangent: Float[Tensor, "batch heads q_len"]) -> dict[str, Tensor]:
        """The exact gradient of sum(log-sum-exp x cotangent), of query, key and sinks; every query has a key."""
        given = {"query": self.query, "key": self.seen_key, "sinks": self.sinks}
        wanted = {name: each.clone().requires_grad_() for name, each in given.items() if each is not None}
        again = replace(self, query=wanted["query"], key=wanted["key"], sinks=wanted.get("sinks"))
        found = torch.autograd.grad(again.attended.log_sum_exp, [*wanted.values()], cotangent)
        return dict(zip(wanted, found, strict=True))

    @cached_property
    def seen_key(self) -> Float[Tensor, "batch kv_heads kv_len head_dim"]:
        """The keys, zero where NaN or infinity stands in a slot that no query may read."""
        return self._without_unread_poison(self.key)

    @cached_property
    def seen_value(self) -> Float[Tensor, "batch kv_heads kv_len value_dim"]:
        """The values, zero where NaN or infinity stands in a slot that no query may read."""
        return self._without_unread_poison(self.value)

    @cached_property
    def grouped_key(self) -> Float[Tensor, "batch heads kv_len head_dim"]:
        """The key that each query head reads."""
        return self._per_query_head(self.seen_key)

    @cached_property
    def grouped_value(self) -> Float[Tensor, "batch heads kv_len value_dim"]:
        """The value that each query head reads."""
        return self._per_query_head(self.seen_value)

    @cached_property
    def product(self) -> Float[Tensor, "batch heads q_len kv_len"]:
        """q.k, before the scale."""
        return self.query @ self.grouped_key.mT

    @cached_property
    def magnitude(self) -> Float[Tensor, "batch heads q_len kv_len"]:
        """|q|.|k|: what the rounding errors of a dot product are relative to."""
        return self.query.abs() @ self.grouped_key.abs().mT

    def _per_query_head(self, x: Float[Tensor, "batch kv_heads kv_len dim"]) -> Tensor:
        return x if x.shape[1] == self.heads else group_heads(x, self.heads)

    def _without_unread_poison(self, x: Float[Tensor, "batch kv_heads kv_len dim"]) -> Tensor:
        if self.may_attend is None or bool(x.isfinite().all()):
            return x
        batch, kv_heads, kv_len, _ = x.shape
        q_len = self.query.shape[2]
        readable = self.may_attend.expand(batch, self.heads, q_len, kv_len).any(dim=2)
        read = readable.reshape(batch, kv_heads, self.heads // kv_heads, kv_len).any(dim=2)
        return torch.where(read[..., None] | x.isfinite(), x, 0.0)
