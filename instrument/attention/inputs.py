"""The tensors of one call in canonical form, and the exact problem that they pose."""

import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from headcheck.attention import patterns, values
from headcheck.attention.case import Case
from headcheck.attention.problem import Problem
from headcheck.inputs import CaseInputs
from headcheck.reference import masks
from headcheck.reference.positions import alibi_bias, alibi_slopes

BIAS_FORMS = ("additive", "lowest", "bias")


TENSORS = ("query", "key", "value", "attn_mask", "sinks", "alibi_slopes")


@dataclass(frozen=True, eq=False)
class Inputs(CaseInputs):
    """What the canonical call is given: contiguous CPU tensors in the dtype under test.

    query (batch, heads, q_len, head_dim), key (batch, kv_heads, kv_len, head_dim), value (batch, kv_heads,
    kv_len, value_dim), attn_mask broadcastable to (batch, heads, q_len, kv_len): boolean, True keeps, or a
    bias in the dtype of query. Laws make new inputs with `but`; nothing here is ever changed in place.
    """

    case: Case
    query: Tensor
    key: Tensor
    value: Tensor
    attn_mask: Tensor | None = None
    is_causal: bool = False
    scale: float | None = None
    window: tuple[int | None, int | None] | None = None
    softcap: float | None = None
    sinks: Tensor | None = None
    alibi_slopes: Tensor | None = None
    key_lengths: tuple[int, ...] | None = None
    """How many keys each sequence has, the first ones; None: it is not given."""
    dropout_p: float | None = None
    """None: it is not given; 0.0 is."""
    alignment: masks.Alignment = "top-left"
    """Where the subject declares the causal diagonal."""
    strides: str = "contiguous"
    mask_strides: str = "contiguous"
    autocast: torch.dtype | None = None
    """The dtype of the torch.autocast region that the call is made in."""
    generic: bool = False
    """Drawn from continuous distributions, so that the generic tier of the bound is valid."""

    def cast(self, dtype: torch.dtype) -> "Inputs":
        """The same numbers in another dtype; a boolean mask stays one."""
        given = {name: getattr(self, name) for name in TENSORS}
        changed = {n: t.to(dtype) for n, t in given.items() if t is not None and t.dtype != torch.bool}
        return self.but(**changed, generic=False)

    @property
    def dtype(self) -> torch.dtype:
        return self.query.dtype

    @property
    def dtypes(self) -> set[torch.dtype]:
        """Of query, key and value, what they promote to, and that of autocast: what the output may be in."""
        given = {self.query.dtype, self.key.dtype, self.value.dtype}
        promoted = functools.reduce(torch.promote_types, given)
        return given | {promoted} | ({self.autocast} if self.autocast else set())

    @property
    def narrowest(self) -> torch.dtype:
        """The least precise of them."""
        return max(self.dtypes, key=lambda dtype: torch.finfo(dtype).eps)

    @property
    def batch(self) -> int:
        return self.query.shape[0]

    @property
    def heads(self) -> int:
        return self.query.shape[1]

    @property
    def q_len(self) -> int:
        return self.query.shape[2]

    @property
    def head_dim(self) -> int:
        return self.query.shape[3]

    @property
    def kv_heads(self) -> int:
        return self.key.shape[1]

    @property
    def group(self) -> int:
        """How many query heads read one key head."""
        return self.heads // max(self.kv_heads, 1)

    @property
    def kv_len(self) -> int:
        return self.key.shape[2]

    @property
    def value_dim(self) -> int:
        return self.value.shape[3]

    @property
    def default_scale(self) -> float:
        """1 / sqrt(head_dim)."""
        return 1.0 / math.sqrt(self.head_dim)

    @property
    def resolved_scale(self) -> float:
        return self.default_scale if self.scale is None else self.scale

    @property
    def is_generic(self) -> bool:
        """Whether the scores are continuous too: a scale of zero or a cap reached makes ties."""
        return self.generic and self.softcap is None and self.scale != 0

    @cached_property
    def may_attend(self) -> Tensor:
        """Everything that masks, as booleans (batch, heads, q_len, kv_len)."""
        keep = torch.ones((self.batch, self.heads, self.q_len, self.kv_len), dtype=torch.bool)
        if self.attn_mask is not None:
            boolean = self.attn_mask.dtype == torch.bool
            keep = keep & (self.attn_mask if boolean else ~self.attn_mask.isneginf())
        if self.key_lengths is None:
            return keep & self._in_order(self.kv_len)
        by_sequence = [self._in_order(length) for length in self.key_lengths]
        filled = [functional.pad(seen, (0, self.kv_len - seen.shape[1])) for seen in by_sequence]
        return keep & torch.stack(filled)[:, None]

    def _in_order(self, kv_len: int) -> Tensor:
        """What the order of so many keys leaves to each query: booleans (q_len, kv_len)."""
        keep = torch.ones((self.q_len, kv_len), dtype=torch.bool)
        if self.is_causal:
            keep = keep & masks.causal(self.q_len, kv_len, self.alignment)
        if self.window is not None:
            keep = keep & masks.sliding_window(self.q_len, kv_len, *self.window, self.alignment)
        return keep

    def _lowered_by_distance(self, slopes: Tensor) -> Tensor:
        """What ALiBi adds (heads, q_len, kv_len), or (batch, heads, q_len, kv_len) where sequences end by themselves."""
        if self.key_lengths is None:
            return alibi_bias(slopes, self.q_len, self.kv_len, self.alignment)
        ended = [alibi_bias(slopes, self.q_len, length, self.alignment) for length in self.key_lengths]
        return torch.stack([functional.pad(each, (0, self.kv_len - each.shape[-1])) for each in ended])

    @property
    def dead_rows(self) -> Tensor:
        """The queries that may attend to nothing (batch, heads, q_len)."""
        return ~self.may_attend.any(dim=-1)

    @cached_property
    def problem(self) -> Problem:
        """What is to be computed, exactly."""
        bias = lifted = None
        if self.attn_mask is not None and self.attn_mask.dtype != torch.bool:
            bias = torch.where(self.attn_mask.isneginf(), 0.0, self.attn_mask.double())
        if self.alibi_slopes is not None:
            slopes = self._lowered_by_distance(self.alibi_slopes.double())
            bias = slopes if bias is None else bias + slopes
            lifted = slopes.abs().amax(dim=-1, keepdim=True) if self.is_causal and self.kv_len else None
        return Problem(
            query=self.query.double(),
            key=self.key.double(),
            value=self.value.double(),
            may_attend=None if bool(self.may_attend.all()) else self.may_attend,
            bias=bias,
            lifted=lifted,
            scale=self.resolved_scale,
            softcap=self.softcap,
            sinks=None if self.sinks is None else self.sinks.double(),
        )

    @property
    def hidden_keys(self) -> Tensor:
        """The key slots (batch, kv_heads, kv_len) that no query may attend to."""
        by_group = self.may_attend.reshape(self.batch, self.kv_heads, -1, self.kv_len)
        return ~by_group.any(dim=2)

    def twice(self, axis: Literal[0, 1]) -> "Inputs":
        """The same problem posed twice, side by side along the batch (0) or the heads (1)."""
        twice = {name: torch.cat([getattr(self, name)] * 2, dim=axis) for name in ("query", "key", "value")}
        mask = self.attn_mask
        if mask is not None and mask.ndim >= 4 - axis and mask.shape[axis - 4] > 1:
            twice["attn_mask"] = torch.cat([mask, mask], dim=axis - 4)
        for name in ("sinks", "alibi_slopes"):
            by_head = getattr(self, name)
            if axis == 1 and by_head is not None:
                twice[name] = torch.cat([by_head, by_head])
        return self.but(**twice, strides="contiguous", mask_strides="contiguous")

    def written_out(self) -> "Inputs":
        """The same numbers with no axis expanded, where a law changes some of them and then compares bits.

        What is no longer equal along an axis cannot be expanded, and other strides may round otherwise.
        """
        return self.but(strides="contiguous") if self.strides.startswith("expanded") else self

    def with_a_dead_row(self) -> "Inputs":
        """One query of one head and sequence may attend to nothing; the others as before. It has a mask."""
        assert self.attn_mask is not None
        dead = torch.zeros((self.batch, self.heads, self.q_len, 1), dtype=torch.bool)
        dead[self.case.seed % self.batch, self.case.seed % self.heads, self.case.seed % self.q_len] = True
        whole = self.attn_mask.expand(self.may_attend.shape)
        boolean = whole.dtype == torch.bool
        return self.but(attn_mask=whole & ~dead if boolean else whole.masked_fill(dead, -torch.inf))

    def with_low_biases(self) -> "Inputs":
        """An additive mask (q_len, kv_len) of biases near -2^15, some steps apart, that may hide the first keys."""
        low, random = -(2.0**15), self.generator("steps")
        step = max(1.0, -low * 2 * torch.finfo(self.dtype).eps)
        biases = low + step * torch.randint(0, 4, (self.q_len, self.kv_len), generator=random).double()
        first = torch.randint(0, self.kv_len, (self.q_len, 1), generator=random)
        if torch.rand((), generator=random) < 0.5:
            biases = biases.masked_fill(torch.arange(self.kv_len) < first, -torch.inf)
        return self.but(attn_mask=biases.to(self.dtype), generic=False)

    def normal_like(self, tensor: Tensor, purpose: str = "normal") -> Tensor:
        """Standard normal numbers of the shape and dtype of a tensor."""
        drawn = torch.randn(tensor.shape, generator=self.generator(purpose), dtype=torch.float64)
        return drawn.to(tensor.dtype)

    @cached_property
    def cotangent(self) -> Tensor:
        """The gradient of the output (batch, heads, q_len, value_dim)."""
        written = dict(self.case.numbers).get("cotangent")
        shape = (self.batch, self.heads, self.q_len, self.value_dim)
        if written is not None:
            return torch.tensor(written, dtype=torch.float64).reshape(shape).to(self.dtype)
        return self.normal_like(torch.empty(shape, dtype=self.dtype), "cotangent")

    def exact_gradients(self, names: Iterable[str]) -> list[Tensor | None]:
        """The oracle's gradients of these arguments."""
        exact = self.problem.gradients(self.cotangent.double())._asdict()
        exact["attn_mask"] = exact.pop("bias")
        return [exact[name] for name in names]


def build(case: Case, alignment: masks.Alignment = "top-left", *, dead_rows: bool = True) -> Inputs:
    """The inputs that a case describes. dead_rows: whether a mask may leave a query without keys."""
    dtype = getattr(torch, case.dtype)
    generator = torch.Generator().manual_seed(case.seed)
    query, key, value = (x.to(dtype) for x in _triple(case, generator))
    if case.strides in ("expanded", "expanded-heads"):
        axis = 0 if case.strides == "expanded" else 1
        key, value = (_alike(x, axis) for x in (key, value))
    if case.strides in ("expanded-queries", "expanded-rows"):
        query = _alike(query, 0 if case.strides == "expanded-queries" else 2)
    return Inputs(
        case=case,
        query=query,
        key=key,
        value=value,
        attn_mask=_mask(case, generator, dtype, dead_rows, alignment),
        is_causal=case.is_causal,
        scale=case.scale,
        window=case.window,
        softcap=case.softcap,
        sinks=_sinks(case).to(dtype) if case.sinks else None,
        alibi_slopes=slopes(case.heads, dtype) if case.alibi else None,
        alignment=alignment,
        strides=case.strides,
        mask_strides=case.mask_strides,
        generic=case.values in values.CONTINUOUS and not case.written_out and case.mask_form != "lowest",
    )


def slopes(heads: int, dtype: torch.dtype) -> Tensor:
    """The slopes of ALiBi (heads,) in float32, as all functions are given them.

    Beside inputs in float64 to 11 bits: whoever multiplies them by a distance in float32 rounds nothing there.
    """
    exact = alibi_slopes(heads)
    return exact.half().float() if dtype == torch.float64 else exact.float()


def _alike(x: Tensor, axis: int) -> Tensor:
    """The first along an axis, in place of all."""
    return x.narrow(axis, 0, min(1, x.shape[axis])).expand(x.shape)


def _sinks(case: Case) -> Tensor:
    """From a generator of their own: written-out numbers do not change them."""
    return torch.randn(case.heads, generator=torch.Generator().manual_seed(case.seed + 1))


def _triple(case: Case, generator: torch.Generator) -> values.Triple:
    written = dict(case.numbers)
    drawn = values.generate(case, generator)
    names = ("query", "key", "value")
    query, key, value = (
        torch.tensor(written[name], dtype=torch.float64).reshape(x.shape) if name in written else x
        for name, x in zip(names, drawn, strict=True)
    )
    return query, key, value


def _mask(
    case: Case,
    generator: torch.Generator,
    dtype: torch.dtype,
    dead_rows: bool,
    alignment: masks.Alignment,
) -> Tensor | None:
    written = dict(case.numbers).get("mask")
    if written is not None:
        whole = (case.batch, case.heads, case.q_len, case.kv_len)
        kind = torch.bool if case.mask_form == "boolean" else dtype
        mask = torch.tensor(written, dtype=torch.float64).reshape(whole).to(kind)
        return mask if dead_rows else _revived(mask, case, alignment)
    if case.mask == "none":
        return None
    keep = patterns.PATTERNS[case.mask](case, generator)
    keep = patterns.restrict(keep, case.mask_axes)
    if not dead_rows:
        keep = _revived(keep, case, alignment)
    if case.mask_form == "boolean":
        return keep
    finite = torch.zeros(keep.shape, dtype=torch.float64)
    if case.mask_form == "bias":
        finite = 2 * torch.randn(keep.shape, generator=generator, dtype=torch.float64)
        if case.seed % 4 == 3 and finite.numel():  # As of distances: none is above zero.
            finite = finite - finite.amax()
    fill = torch.finfo(dtype).min if case.mask_form == "lowest" else float("-inf")
    return finite.to(dtype).masked_fill(~keep, fill)


def _revived(mask: Tensor, case: Case, alignment: masks.Alignment) -> Tensor:
    """The mask with the first key open to every query that it would leave without one; beside a window, every key."""
    keep = mask if mask.dtype == torch.bool else ~mask.isneginf()
    if case.window is not None:
        return _open_beside(_band(case, alignment), mask, keep)
    seen = keep
    if case.is_causal and keep.shape[-1] == case.kv_len and keep.shape[-2] == case.q_len:
        seen = keep & masks.causal(case.q_len, case.kv_len)
    dead = ~seen.any(dim=-1, keepdim=True)
    if case.is_causal and keep.shape[-2] != case.q_len:
        dead = torch.ones_like(dead)  # One row for all queries: the first query sees the first key only.
    first = torch.arange(mask.shape[-1]) == 0
    return torch.where(dead & first, True if mask.dtype == torch.bool else 0.0, mask).to(mask.dtype)


def _band(case: Case, alignment: masks.Alignment) -> Tensor:
    """What a window leaves, causal or not: booleans (q_len, kv_len)."""
    left, right = case.window or (None, None)
    band = masks.sliding_window(case.q_len, case.kv_len, left, right, alignment)
    return band & masks.causal(case.q_len, case.kv_len, alignment) if case.is_causal else band


def _open_beside(band: Tensor, mask: Tensor, keep: Tensor) -> Tensor:
    """The mask with every key open in the rows that leave some query nothing of what the band leaves it."""
    dead = band.any(dim=-1, keepdim=True) & ~(keep & band).any(dim=-1, keepdim=True)
    if mask.shape[-2] != band.shape[-2]:
        dead = dead.any(dim=-2, keepdim=True)
    return mask.masked_fill(dead, True if mask.dtype == torch.bool else 0.0)
