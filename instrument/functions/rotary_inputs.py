"""What rotary positions are given: their declaration, their case, tokens and where they stand."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from headcheck.declarations import Declaration
from headcheck.errors import SubjectError
from headcheck.functions.inputs import FunctionCase, Inputs
from headcheck.recipes import option
from headcheck.reference.positions import Pairing

Layout = Literal["bhsd", "bshd"]
LAYOUTS: tuple[Layout, ...] = ("bhsd", "bshd")
AXES_OF_TABLES = ("bsd", "b1sd", "bs1d", "sd", "1sd", "11sd", "1s1d")
WIDTHS_OF_TABLES = ("doubled", "repeated", "half", "complex", "stacked")
"""The forms of tables of cosines and sines that are known: batch, length and numbers, and how often these stand there."""
DIMS = (2, 4, 6, 8, 16, 32, 64, 80, 96, 128)
"""The dims that are tried first."""
FRESH_DIMS = tuple(dim for dim in range(10, 128, 2) if dim not in DIMS)
"""Dims that no case is drawn with, for laws that have to be the first to meet one: what is kept for it is made there."""
BETWEEN_SEQUENCES = 7
"""Where each sequence has positions of its own, they start so far apart."""


@dataclass(frozen=True, kw_only=True)
class Rotary(Declaration):
    """Rotary positions with their conventions. A field left at None is found out, and reported as a note.

    function: f(x, positions) -> a tensor like x; x (batch, heads, length, dim), positions (length,) or
    (batch, length). Each pair (a, b) turns from a to b: a' = a cos - b sin, b' = a sin + b cos. f(x, cos, sin),
    f(query, key, cos, sin) -> (query, key) and f(query, key, freqs_cis) are called with tables of the positions.
    """

    role = "rotary"
    ARGUMENTS: ClassVar = {
        "positions": ("positions", "position_ids", "input_pos", "pos", "position"),
        "base": ("base", "theta", "rope_theta", "rope_base"),
        "interleaved": ("interleaved", "interleave", "is_interleaved"),
    }
    ALLOWED: ClassVar = {
        "tables": (*(f"{axes}-{width}" for axes in AXES_OF_TABLES for width in WIDTHS_OF_TABLES), None)
    }

    base: float | None = None
    """The angle of pair i is position x base^(-2i / rotary_dim); None: as the signature says, or 10000."""
    pairing: Pairing | None = None
    """Which dims turn together: neighbours (0, 1), (2, 3), ..., or those half of rotary_dim apart."""
    pairing_out: Pairing | None = None
    """Where the pairs stand in the output; None: where they stand in x. DeepSeek takes neighbours and returns halves."""
    backwards: bool | None = None
    """Whether it turns by minus the angle, as nanochat: products of query and key are the same; None: it does not."""
    magnitude: float | None = None
    """What the turned dims are multiplied by, as by YaRN's attention factor in cos and sin; None: 1."""
    rotary_dim: int | float | None = None
    """So many dims are turned, the first ones, or this share of them (below 1); None: all, or found out."""
    frequencies: tuple[float, ...] | None = None
    """The angle of each pair at position 1, in place of the powers of the base; for a subject of one dim."""
    angles: Literal["float32", "float64"] | None = None
    """The format of the angles; None: the narrowest that fits, for 16 bits float32."""
    layout: Layout | None = None
    """The order of the axes batch, heads, sequence and dim of x: bhsd or bshd; None: bshd where that alone works."""
    tables: str | None = None
    """The form of cos and sin, or freqs_cis, where those are parameters. Axes of batch, length and dim: 'sd', 'bsd',
    'b1sd' or 'bs1d', and these with 1 for b; then 'half' for one number of each pair, 'doubled' or 'repeated' for each
    twice, half of the dims apart or side by side; of both in one 'complex', or 'stacked' for cosine and sine in a last
    axis of two: transformers has 'bsd-doubled', gpt-fast 'sd-stacked'. None: the form that is right, those with a batch
    first."""
    any_strides: bool | None = None
    """Whether x may lie in memory in any way; False: it may raise where x is not contiguous. None: where it is not, it
    may raise what names strides, as view_as_complex does."""
    dims: tuple[int, ...] | None = None
    """The dims that it takes."""
    max_position: int | None = None
    """The largest position that it takes; None: as far as plain calls go, so that a table that grows needs none."""
    shared_positions: bool | None = None
    """Whether it takes positions (length,) for all sequences."""
    batched_positions: bool | None = None
    """Whether it takes positions (batch, length); False is held to raise, None is tried."""
    fractional: bool | None = None
    """Whether it takes positions in float32; False is held to raise on fractions, None is tried."""
    negative: bool | None = None
    """Whether it takes positions below zero; False is held to raise on them, None is tried."""
    autocast: bool | None = None
    """Whether its angles are held to be exact under torch.autocast, too; None: where those of plain calls far out are, in
    each form of positions."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.frequencies is not None and (not self.dims or len(self.dims) != 1):
            raise SubjectError(
                "frequencies=(...) needs the one dim that they are for: dims=(64,), or --declare dims=64"
            )
        if isinstance(self.rotary_dim, int) and self.rotary_dim % 2:
            raise SubjectError(f"dims turn in pairs, and rotary_dim={self.rotary_dim} is an odd number")
        if self.dims and not self.in_pairs(self.dims):
            raise SubjectError(
                f"dims turn in pairs, and rotary_dim={self.rotary_dim} of dims={self.dims[0]} is an odd number"
            )
        if (
            self.frequencies is not None
            and self.dims
            and self._pairs_of(self.dims[0]) != len(self.frequencies)
        ):
            raise SubjectError(
                f"frequencies=(...) has {len(self.frequencies)} angles, and dims={self.dims} with rotary_dim="
                f"{self.rotary_dim} has {self._pairs_of(self.dims[0])} pairs"
            )

    def in_pairs(self, dims: Iterable[int]) -> tuple[int, ...]:
        """Those of which an even number is turned, as far as is declared."""
        return tuple(dim for dim in dims if self._turned_of(dim) % 2 == 0)

    def _pairs_of(self, dim: int) -> int:
        """So many pairs of a dim are turned."""
        return self._turned_of(dim) // 2

    def _turned_of(self, dim: int) -> int:
        share = self.turned
        return round(share * dim if isinstance(share, float) else min(share or dim, dim))

    @property
    def turned(self) -> int | float | None:
        """`rotary_dim`, or as many dims as there are frequencies for."""
        of_frequencies = None if self.frequencies is None else 2 * len(self.frequencies)
        return of_frequencies if self.rotary_dim is None else self.rotary_dim


@dataclass(frozen=True)
class RotaryCase(FunctionCase):
    """Tokens and where they stand."""

    AXES: ClassVar = {
        "x": ("batch", "heads", "length", "dim"),
        "cotangent": ("batch", "heads", "length", "dim"),
    }

    batch: int = option(1, 1, 2, 3, rarely=(9, 17))
    heads: int = option(1, 1, 2, 3, 5, rarely=(8, 17, 32))
    length: int = option(1, 2, 3, 4, 5, 7, 8, 16, 17, 33, rarely=(65, 129, 513, 1025, 2049))
    dim: int = option(2, 4, 6, 8, 8, 16, 16, 32, 64, 128, rarely=(80, 96, 192, 256, 512))
    start: int = option(0, 0, 0, 1, 7, 100, 255, 300, 1000, 2047, 4093, 32_769, 65_537, 100_003)
    """The first position."""
    spacing: float = option(1.0, 1.0, 1.0, 2.0, 13.0, 1000.0, 0.5, 0.25, 0.3)
    """From one position to the next; where it is no whole number, positions are float32."""
    order: str = option("rising", "rising", "falling", "shuffled", "repeated")
    """How the positions follow each other; repeated: each twice."""
    per_sequence: bool = option(False, False, True)
    """Whether each sequence has positions of its own."""
    base: float = option(0.0, 0.0, 0.0, 100.0, 500_000.0)
    """Asked for in the call; 0: not asked for."""
    pairing: str = option("declared", "declared", "interleaved", "half")
    """Asked for in the call, or not."""

    @property
    def span(self) -> float:
        """How far the last position lies behind the first."""
        apart = BETWEEN_SEQUENCES * (self.batch - 1) if self.per_sequence else 0
        return apart + self.spacing * (self.length - 1)

    def positions(self) -> Tensor:
        """(length,) or (batch, length), int64 or float32."""
        steps = torch.arange(self.length, dtype=torch.float64)
        if self.order == "shuffled":
            steps = steps[torch.randperm(self.length, generator=torch.Generator().manual_seed(self.seed))]
        steps = {"falling": steps.flip(0), "repeated": steps // 2}.get(self.order, steps)
        if self.per_sequence:
            rows = [steps.roll(row) * self.spacing + BETWEEN_SEQUENCES * row for row in range(self.batch)]
            steps = torch.stack(rows)
        else:
            steps = steps * self.spacing
        return (self.start + steps).to(torch.int64 if self.spacing.is_integer() else torch.float32)


@dataclass(frozen=True, eq=False)
class RotaryInputs(Inputs):
    """x (batch, heads, length, dim) and its positions, whatever the layout of the subject."""

    positions: Tensor
    base: float
    pairing: Pairing

    def at(self, positions: Tensor) -> "RotaryInputs":
        """The same tokens elsewhere."""
        return self.but(positions=positions)

    def idle(self) -> "RotaryInputs":
        """At position 0."""
        return self.at(torch.zeros_like(self.positions))

    @property
    def furthest(self) -> float:
        """The largest position."""
        return float(self.positions.max())
