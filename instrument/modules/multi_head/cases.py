"""What is drawn for a module of multi-head attention, and the tensors that are made of it."""

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from headcheck.modules.multi_head.masks import PATTERNS, pattern
from headcheck.modules.subject import ModuleCase, ModuleInputs
from headcheck.recipes import option
from headcheck.reference.masks import causal

SPREAD = {"integers": 1.0, "normal": 1.0, "large": 30.0, "tiny": 1e-3}
"""Regime -> the spread of query, key and value; the weights' is 1 over the root of d_model."""


@dataclass(frozen=True)
class MultiHeadCase(ModuleCase):
    """One call of a module with its weights."""

    SIZES: ClassVar[tuple[str, ...]] = ("batch", "heads", "head_dim", "q_len", "kv_len")

    heads: int = option(1, 1, 2, 2, 3, 4, rarely=(8, 12, 16))
    head_dim: int = option(1, 1, 2, 3, 4, 8, rarely=(16, 33, 64))
    q_len: int = option(1, 1, 2, 3, 4, 5, 8, rarely=(17, 33, 65, 129))
    kv_len: int = option(1, 1, 2, 3, 4, 5, 7, 9, rarely=(17, 33, 65, 129, 257))
    mode: str = option("self", "cross", "separate")
    """Keys and values: of the queries' own sequence, of another, or each of a sequence of its own."""
    mask: str = option(*PATTERNS)
    mask_shape: str = option("qk", "b1qk", "bhqk", "bqk", "(bh)qk", "b11k", "bk", "b1k")
    mask_kind: str = option("boolean", "additive")
    padding: bool = option(False, True)
    """Whether some keys are padding, said by a mask of the keys."""
    flag: bool = option(False, True)
    """Whether a causal mask is said by is_causal."""
    need_weights: bool = option(False, True)
    values: str = option(*SPREAD)

    @property
    def d_model(self) -> int:
        return self.heads * self.head_dim


def as_many_keys_as_queries(case: MultiHeadCase) -> MultiHeadCase:
    """With query, key and value of one length, each a tensor of its own."""
    return case.but(mode="separate", kv_len=case.q_len)


@dataclass(frozen=True, eq=False)
class MultiHeadInputs(ModuleInputs):
    """query (batch, q_len, d_model); key, value (batch, kv_len, d_model), None is the tensor before them.

    may_attend (batch, heads or 1, q_len, kv_len) and is_real (batch, kv_len): True keeps. weights: the
    canonical ones, which the module is given.
    """

    query: Tensor
    key: Tensor | None = None
    value: Tensor | None = None
    may_attend: Tensor | None = None
    is_real: Tensor | None = None
    is_causal: bool = False
    """Whether may_attend, which is then causal, is said by is_causal."""
    beside_causal: bool = False
    """Whether is_causal is said beside may_attend, which then holds what else is hidden."""
    weights: dict[str, Tensor] = field(default_factory=dict)
    of_two_kinds: bool = False
    """Whether the mask of the keys is boolean whatever kind the other mask is of."""
    sliced_masks: bool = False
    """Whether masks are given as slices of larger ones."""
    key_bias: Tensor | None = None
    """What an additive mask of the keys holds where it keeps (batch, kv_len); None: zeros."""
    score_bias: Tensor | None = None
    """What an additive mask of queries and keys holds where it keeps (batch, heads or 1, q_len, kv_len); None: zeros.
    Along an axis that the shape of the mask leaves out it is one number."""

    def masked(self, may_attend: Tensor | None) -> Self:
        """The same inputs with another mask."""
        return replace(self, may_attend=may_attend, is_causal=False, beside_causal=False)

    def nothing_hidden(self) -> Self:
        """The same inputs with a mask that hides nothing."""
        return self.masked(
            torch.ones(len(self.query), 1, self.query.shape[1], self.keys.shape[1], dtype=torch.bool)
        )

    def weighing(self, **changes: Tensor) -> Self:
        """The same inputs with some weights replaced."""
        return replace(self, weights=self.weights | changes)

    @property
    def keys(self) -> Tensor:
        """What the keys are made of."""
        return self.query if self.key is None else self.key

    @property
    def values(self) -> Tensor:
        """What the values are made of."""
        return self.keys if self.value is None else self.value

    @property
    def heads(self) -> int:
        heads: int = self.case.heads
        return heads

    @property
    def head_dim(self) -> int:
        head_dim: int = self.case.head_dim
        return head_dim

    @property
    def kv_heads(self) -> int:
        """Heads of key and value, as the shape of w_k says."""
        return self.weights["w_k"].shape[0] // self.head_dim

    def with_only(self, *heads: int) -> Self:
        """With an output projection that reads these heads only."""
        kept = torch.zeros(self.heads, self.head_dim, dtype=torch.bool)
        kept[list(heads)] = True
        return self.weighing(w_o=self.weights["w_o"] * kept.flatten())

    def with_other_keys(self, places: Tensor, purpose: str) -> Self:
        """With other numbers where keys and values come from tokens of these places (batch, kv_len)."""
        changed: dict[str, Any] = {}
        for name in ("query" if self.key is None else "key", "value"):
            if (old := getattr(self, name)) is not None:
                other = 3 * self.random(f"{purpose}/{name}", *old.shape)
                changed[name] = torch.where(places[..., None], other, old)
        return replace(self, **changed)

    def with_louder_keys(self, places: Tensor) -> Self:
        """With numbers a thousand times as large where keys and values come from tokens of these places (kv_len)."""
        names = ["query" if self.key is None else "key", *(["value"] if self.value is not None else [])]
        louder = {name: torch.where(places[:, None], 1000, 1) * getattr(self, name) for name in names}
        return self.but(**louder)

    def with_keys(self, order: Tensor) -> Self:
        """With these keys and values only, in this order, and what the masks say of them; of all sequences.

        Where the queries are the same tokens, with these queries only.
        """
        name, mask, real = "query" if self.key is None else "key", self.may_attend, self.is_real
        if mask is not None:
            mask = mask[..., order] if self.key is not None else mask[:, :, order][..., order]
        changed: dict[str, Any] = {name: getattr(self, name)[:, order]}
        if self.value is not None:
            changed["value"] = self.value[:, order]
        return self.masked(mask).but(is_real=None if real is None else real[:, order], **changed)

    def rows_of(self, output: Tensor, order: Tensor) -> Tensor:
        """The rows of an output that belong to the queries of `with_keys`."""
        return output[:, order] if self.key is None else output

    def visible(self, *, always_causal: bool = False) -> Tensor:
        """(batch, heads or 1, q_len, kv_len): what is left to each query, all masks taken together."""
        seen = torch.ones(len(self.query), 1, self.query.shape[1], self.keys.shape[1], dtype=torch.bool)
        if self.may_attend is not None:
            seen = seen & self.may_attend
        if self.is_real is not None:
            seen = seen & self.is_real[:, None, None, :]
        return seen & causal(*seen.shape[2:]) if always_causal or self.beside_causal else seen

    def random(self, purpose: str, *shape: int) -> Tensor:
        """Numbers of a law's own, of the dtype of the query."""
        drawn = torch.randn(shape, generator=self.generator(purpose), dtype=torch.float64)
        return drawn.to(self.query.dtype)


def drawn_tensors(
    case: MultiHeadCase,
    shapes: dict[str, tuple[int, ...]],
    dtype: torch.dtype,
    *,
    anchor: int,
    counted: bool = False,
) -> MultiHeadInputs:
    """The inputs of a case. shapes: of the weights. anchor: a key that every query sees. counted: padding is behind."""
    generator = torch.Generator().manual_seed(case.seed)

    def numbers(*shape: int, spread: float = 1.0) -> Tensor:
        drawn = torch.randn(shape, generator=generator, dtype=torch.float64)
        if case.values == "integers":
            drawn = drawn.round() + 0.0  # No -0.
        return (spread * drawn).to(dtype)

    spread = SPREAD[case.values]
    query = numbers(case.batch, case.q_len, case.d_model, spread=spread)
    key = None if case.mode == "self" else numbers(case.batch, case.kv_len, case.d_model, spread=spread)
    value = numbers(case.batch, case.kv_len, case.d_model, spread=spread) if case.mode == "separate" else None
    sizes = case.batch, case.heads, case.q_len, case.kv_len
    may_attend = pattern(case.mask, sizes, anchor, generator)
    if may_attend is not None and case.mask_shape == "qk":
        may_attend = may_attend[:1].expand(case.batch, -1, -1, -1).clone()
    is_real = None
    if case.padding:
        drawn = torch.rand(case.batch, case.kv_len, generator=generator)
        is_real = torch.arange(case.kv_len) < drawn[:, :1] * (case.kv_len + 1) if counted else drawn < 0.6
        is_real[:, anchor] = True
    by = 1.0 if case.values == "integers" else case.d_model**-0.5
    weights = {
        name: numbers(*shape, spread=by if len(shape) > 1 else 0.5).double() for name, shape in shapes.items()
    }
    return MultiHeadInputs(case, query, key, value, may_attend, is_real, is_causal=case.flag, weights=weights)
