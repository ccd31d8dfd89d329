"""Small engines on the reference and on functions of a test."""

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from headcheck.attention.case import Case
from headcheck.attention.inputs import Inputs
from headcheck.attention.role import role
from headcheck.attention.subject import AttentionSubject
from headcheck.declarations import Attention
from headcheck.engine import Engine, Profile
from headcheck.laws import Law, law
from headcheck.subjects import builtins
from headcheck.verdict import LawResult

TINY = Profile("tiny", seeded=6, drawn=3, shrinks=100, limit_s=5.0)
PLAIN = Case(heads=2, kv_heads=2, q_len=3, kv_len=4, head_dim=2, value_dim=2)
OUTPUT = "attention/accuracy/output-is-within-the-bound"
GRADIENTS = "attention/gradients/gradients-are-within-the-bound"


def engine_of(declaration: Attention, profile: Profile = TINY, seed: int = 0) -> Engine:
    dtypes = declaration.dtypes or ("float32",)
    prepared = role.prepare(declaration, dtypes=dtypes, device="cpu", seed=0)[0]
    return Engine(role, prepared, profile, seed, lambda law, case: str(case))


@functools.cache
def reference() -> AttentionSubject:
    return role.prepare(builtins()["reference"].declaration(), dtypes=(), device="cpu", seed=0)[0]


def on_reference(seed: int = 0, profile: Profile = TINY) -> Engine:
    return Engine(role, reference(), profile, seed, lambda law, case: str(case))


def timeless(row: LawResult) -> LawResult:
    return replace(row, duration_s=0.0, subject_s=0.0)


def a_law(check: Callable[[AttentionSubject, Inputs], Any], **options: Any) -> Law:
    """A law made of a function."""
    check.__doc__ = check.__doc__ or "It holds."
    return law(source="a test", guards="a fault of the test", formula="f(x) = x", **options)(check)
