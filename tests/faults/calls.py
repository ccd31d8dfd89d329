"""One call of attention, and the canonical signature around a function of it."""

import inspect
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

NEVER = float("-inf")
"""The score of a key that may not be attended to."""


@dataclass(frozen=True)
class Call:
    """The arguments of one call; its fields are the canonical signature, then the declared features."""

    query: Tensor
    key: Tensor
    value: Tensor
    attn_mask: Tensor | None = None
    dropout_p: float = 0.0
    is_causal: bool = False
    scale: float | None = None
    enable_gqa: bool = False
    window: tuple[int | None, int | None] | None = None
    softcap: float | None = None
    sinks: Tensor | None = None
    alibi_slopes: Tensor | None = None
    return_lse: bool = False
    return_weights: bool = False
    cu_seqlens_q: Tensor | None = None
    cu_seqlens_k: Tensor | None = None
    max_seqlen_k: int | None = None
    key_lengths: Tensor | None = None
    training: bool = True

    def but(self, **changes: Any) -> "Call":
        """The same call with some arguments changed."""
        return replace(self, **changes)

    @property
    def batch(self) -> int:
        return self.query.shape[0]

    @property
    def heads(self) -> int:
        return self.query.shape[1]

    @property
    def group(self) -> int:
        """Query heads for each key head."""
        return self.heads // max(self.key.shape[1], 1) if self.enable_gqa else 1

    @property
    def q_len(self) -> int:
        return self.query.shape[2]

    @property
    def kv_len(self) -> int:
        return self.key.shape[2]

    @property
    def head_dim(self) -> int:
        return self.query.shape[3]

    @property
    def dtype(self) -> torch.dtype:
        return self.query.dtype

    @property
    def mask(self) -> Tensor | None:
        """The mask, where it is boolean."""
        return self.attn_mask if self.attn_mask is not None and self.attn_mask.dtype == torch.bool else None

    @property
    def bias(self) -> Tensor | None:
        """The mask, where it is additive."""
        return self.attn_mask if self.attn_mask is not None and self.attn_mask.dtype != torch.bool else None

    def distance(self) -> Tensor:
        """j - i for each query i and key j."""
        queries, keys = (torch.arange(n, device=self.query.device) for n in (self.q_len, self.kv_len))
        return keys - queries[:, None]


Attend = Callable[[Call], Any]

PACKS = ("cu_seqlens_q", "cu_seqlens_k")
FEATURES = (
    "window",
    "softcap",
    "sinks",
    "alibi_slopes",
    "return_lse",
    "return_weights",
    *PACKS,
    "max_seqlen_k",
    "key_lengths",
    "training",
)


def canonical(
    attend: Attend,
    named_after: Callable[..., Any],
    features: tuple[str, ...] = (),
    without: tuple[str, ...] = (),
) -> Callable[..., Any]:
    """A plain function of the canonical signature, its features added and what it lacks taken away."""
    hidden = (set(FEATURES) - set(features)) | set(without)
    parameters = inspect.signature(Call).parameters.values()
    signature = inspect.Signature([parameter for parameter in parameters if parameter.name not in hidden])

    def attention(*arguments: Any, **options: Any) -> Any:
        call = Call(**signature.bind(*arguments, **options).arguments)
        # Entries make their tensors where torch makes them by default: on a device, that is where the query is.
        with nullcontext() if call.query.device.type == "cpu" else torch.device(call.query.device):
            return attend(call)

    attention.__signature__ = signature  # type: ignore[attr-defined]
    for name in ("__module__", "__name__", "__qualname__", "__doc__"):
        setattr(attention, name, getattr(named_after, name))
    return attention
