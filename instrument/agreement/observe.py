"""What a subject is seen to do, in a process of its own: its conventions on tiny inputs, and which kernels run."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import headcheck.attention.probe  # noqa: F401 - importing it registers the probes
from headcheck.attention.bench import PROBES, Bench
from headcheck.attention.case import Case
from headcheck.attention.inputs import Inputs, build
from headcheck.attention.operators import operators_in, telling
from headcheck.attention.subject import AttentionSubject
from headcheck.comparison import LawBroken, NotApplicable
from headcheck.errors import HeadcheckError, SubjectError
from headcheck.plan import Plan
from headcheck.preparing import subject_of
from headcheck.processes import answers_apart
from headcheck.roles import role
from headcheck.worker import answer_once

LIMIT_S = 300.0
"""Seconds that the observation of one subject may take; it may compile."""


@dataclass(frozen=True)
class Observation:
    """Plain data, as it travels between processes."""

    declared: dict[str, Any]
    dtypes: tuple[str, ...]
    seen: dict[str, str] = field(default_factory=dict)
    """Convention -> what the subject did."""
    operators: dict[str, str] = field(default_factory=dict)
    """Kind of call -> the operators that say which kernel ran."""
    environment: dict[str, str] = field(default_factory=dict)


def observed(plans: Sequence[Plan], processes: int) -> Iterator["Observation | str"]:
    """Watch subjects in processes of their own: what each is seen to do, or why it cannot be had here."""
    for answer in answers_apart(plans, observe, LIMIT_S, processes):
        if isinstance(answer, HeadcheckError):
            yield str(answer)
        else:
            found = json.loads(answer)
            yield Observation(**{**found, "dtypes": tuple(found["dtypes"])})


def observe(plan: Plan, connection: Connection, other_end: Connection) -> None:
    """The inside of that process."""
    answer_once(lambda: json.dumps(asdict(_observation(plan)), default=str), connection, other_end)


def _observation(plan: Plan) -> Observation:
    loaded = subject_of(plan)
    if loaded.role != "attention":
        raise SubjectError(f"{loaded.name} is {loaded.role}, and only attention functions can be compared")
    prepared = loaded.prepared()
    subject = prepared.engine.subject
    return Observation(
        declared=loaded.declaration.summary(),
        dtypes=subject.dtypes,
        seen=dict(_seen(subject)),
        operators=dict(_operators(subject)),
        environment=dict(prepared.introduction.environment),
    )


def _seen(subject: AttentionSubject) -> Iterator[tuple[str, str]]:
    bench = Bench(subject.declaration, subject.device)
    bench.dtype = subject.dtypes[0]
    for probe in PROBES:
        if not probe.compared:
            continue
        for each in probe.findings(bench):
            yield each.topic, in_words(each.value) if each.told else "?"


def in_words(value: Any) -> str:
    """What a convention is; of several values all."""
    return (" and ".join(value) or "none") if isinstance(value, list | tuple) else str(value)


def _operators(subject: AttentionSubject) -> Iterator[tuple[str, str]]:
    plain = Case(batch=2, heads=2, kv_heads=2, q_len=16, kv_len=16, head_dim=8, value_dim=8)
    of_role = role("attention")
    plain = of_role.fit(plain.but(dtype=subject.dtypes[0]), subject)
    cases = {
        "plain": plain,
        "is_causal": plain.but(is_causal=True),
        "boolean mask": plain.but(mask="random"),
        "additive mask": plain.but(mask="random", mask_form="bias"),
        "grouped heads": plain.but(heads=4),
        "window": plain.but(window=(2, 1)),
        **{dtype: plain.but(dtype=dtype) for dtype in subject.dtypes[1:]},
    }
    for kind, case in cases.items():
        if of_role.fit(case, subject) == case:
            yield kind, _ran(subject, build(case, subject.alignment))
    yield "with gradients", _ran(subject, build(plain, subject.alignment), gradients=True)


def _ran(subject: AttentionSubject, x: Inputs, *, gradients: bool = False) -> str:
    try:
        seen = operators_in(subject, x, gradients=gradients)
    except (LawBroken, NotApplicable) as problem:
        return f"refused: {problem}"
    return ", ".join(telling(seen))
