"""Patterns of attn_mask: which query may attend to which key, drawn to reach the edges.

Each pattern is one function from a case to booleans (batch, heads, q_len, kv_len), True keeps. Adding one is
adding one function. `@pattern(dead_rows=True)` marks those that may leave a query with no key at all.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from headcheck.attention.case import Case
from headcheck.reference import masks

Pattern = Callable[[Case, torch.Generator], Tensor]
PATTERNS: dict[str, Pattern] = {}
DEAD_ROWS: set[str] = set()


def pattern(*, dead_rows: bool = False) -> Callable[[Pattern], Pattern]:
    """Register a pattern under its function's name, dashes for underscores."""

    def register(function: Pattern) -> Pattern:
        name = function.__name__.replace("_", "-")
        if name in PATTERNS:
            raise ValueError(f"two mask patterns are called {name}")
        PATTERNS[name] = function
        if dead_rows:
            DEAD_ROWS.add(name)
        return function

    return register


def _shape(case: Case) -> tuple[int, int, int, int]:
    return (case.batch, case.heads, case.q_len, case.kv_len)


def _chance(case: Case, generator: torch.Generator, keep: float) -> Tensor:
    return torch.rand(_shape(case), generator=generator) < keep


@pattern()
def all_true(case: Case, generator: torch.Generator) -> Tensor:
    """Nothing is masked."""
    return torch.ones(_shape(case), dtype=torch.bool)


@pattern()
def random(case: Case, generator: torch.Generator) -> Tensor:
    """Each pair by chance, and every query keeps one key at least."""
    keep = _chance(case, generator, 0.6)
    if case.kv_len:
        sure = torch.randint(case.kv_len, (*_shape(case)[:3], 1), generator=generator)
        keep.scatter_(-1, sure, True)
    return keep


@pattern(dead_rows=True)
def some_dead_rows(case: Case, generator: torch.Generator) -> Tensor:
    """As random, and some queries may attend to nothing."""
    dead = torch.rand(_shape(case)[:3], generator=generator) < 0.4
    return random(case, generator) & ~dead[..., None]


@pattern()
def some_open_rows(case: Case, generator: torch.Generator) -> Tensor:
    """As random, and some queries may attend to everything, the first ones among them."""
    rows = torch.rand(_shape(case)[:3], generator=generator) < 0.5
    rows[..., : case.q_len // 2] = True
    return random(case, generator) | rows[..., None]


@pattern(dead_rows=True)
def all_dead(case: Case, generator: torch.Generator) -> Tensor:
    """No query may attend to anything."""
    return torch.zeros(_shape(case), dtype=torch.bool)


@pattern()
def dead_prefix(case: Case, generator: torch.Generator) -> Tensor:
    """The first keys are masked for everyone: the first blocks of an online softmax are empty."""
    return _from(case, int(case.kv_len * 0.7))


@pattern()
def left_padding(case: Case, generator: torch.Generator) -> Tensor:
    """Each sequence begins after its own padding."""
    starts = torch.randint(max(case.kv_len, 1), (case.batch, 1, 1, 1), generator=generator)
    return (torch.arange(case.kv_len) >= starts).expand(_shape(case)).clone()


@pattern()
def padding(case: Case, generator: torch.Generator) -> Tensor:
    """Each sequence ends before its own padding; half of the time, the first has none."""
    lengths = 1 + torch.randint(max(case.kv_len, 1), (case.batch,), generator=generator)
    if case.batch > 1 and torch.rand((), generator=generator) < 0.5:
        lengths[0] = case.kv_len
    return masks.padding(lengths, case.kv_len).expand(_shape(case)).clone()


@pattern()
def last_key_only(case: Case, generator: torch.Generator) -> Tensor:
    """Only the last key may be attended to."""
    return _from(case, case.kv_len - 1)


@pattern()
def causal(case: Case, generator: torch.Generator) -> Tensor:
    """The causal triangle as an explicit mask, top-left."""
    return masks.causal(case.q_len, case.kv_len).expand(_shape(case)).clone()


@pattern(dead_rows=True)
def window(case: Case, generator: torch.Generator) -> Tensor:
    """A band of a few keys around the query's position."""
    return masks.sliding_window(case.q_len, case.kv_len, 2, 1).expand(_shape(case)).clone()


@pattern(dead_rows=True)
def documents(case: Case, generator: torch.Generator) -> Tensor:
    """Packed sequences: two to three documents, each sees itself only."""
    ids = torch.arange(max(case.q_len, case.kv_len)) * 3 // max(case.q_len, case.kv_len, 1)
    seen = masks.document(ids[None, : case.q_len], ids[None, : case.kv_len])
    return seen.expand(_shape(case)).clone()


@pattern(dead_rows=True)
def future_only(case: Case, generator: torch.Generator) -> Tensor:
    """Only keys after the query's position: together with the causal mask, nothing is left."""
    return ~masks.causal(case.q_len, case.kv_len).expand(_shape(case)).clone()


def _from(case: Case, first: int) -> Tensor:
    return (torch.arange(case.kv_len) >= first).expand(_shape(case)).clone()


def restrict(keep: Tensor, axes: str) -> Tensor:
    """The mask in one of BROADCAST_SHAPES, taken from its first batch, head or query where it has size 1."""
    for position, axis in enumerate(axes.rjust(4, " ")):
        if axis in "1 ":
            keep = keep.narrow(position, 0, 1)
    return keep.reshape(keep.shape[4 - len(axes) :])
