"""The laws against the fault corpus: every fault breaks a law that a person would name, no right variant any.

The whole matrix, all laws against all faults at several seeds, is `headcheck teeth`.
"""

from dataclasses import replace

import pytest

from headcheck.engine import PROFILES, Engine, Profile
from headcheck.isolation import Workers
from headcheck.laws import Law, choose
from headcheck.plan import Plan
from headcheck.roles import role
from headcheck.verdict import LawResult
from tests.faults import FAULTS, VARIANTS, Entry

ATTENTION = role("attention")
LAWS = {law.id: law for law in choose("attention")}
HARMLESS = [name for name, fault in FAULTS.items() if fault.peril is None]
PERILOUS = [name for name, fault in FAULTS.items() if fault.peril is not None]


def named_laws(entry_id: str) -> list[Law]:
    """The laws that the corpus says a person would name."""
    return [LAWS[f"attention/{law}"] for law in FAULTS[entry_id].breaks]


def judged(entry: Entry, laws: list[Law], profile: Profile, dtypes: tuple[str, ...] = ()) -> list[LawResult]:
    """The rows of these laws until the first that breaks; its counterexample is not made small."""
    subject, _ = ATTENTION.prepare(entry.declaration(), dtypes=dtypes, device="cpu", seed=0)
    engine = Engine(ATTENTION, subject, replace(profile, shrinks=0), 0, lambda law, case: "")
    rows: list[LawResult] = []
    for law in laws:
        rows.append(engine.judge(law))
        if rows[-1].outcome == "breaks":
            break
    return rows


@pytest.mark.parametrize("name", list(FAULTS))
def test_the_laws_that_a_fault_names_exist(name: str) -> None:
    """What the corpus says that a fault breaks is a law that there is."""
    assert named_laws(name)


@pytest.mark.parametrize("name", HARMLESS)
def test_a_fault_breaks_a_law_that_a_person_would_name(name: str) -> None:
    """Each fault is caught, in the gate, by a law that is named for it."""
    fault = FAULTS[name]
    # One dtype is enough to see most, and all are tried where it is not.
    rows = judged(fault, named_laws(name), PROFILES["gate"], fault.dtypes or ("float32",))
    if rows[-1].outcome != "breaks" and not fault.dtypes:
        rows = judged(fault, named_laws(name), PROFILES["gate"])
    assert rows[-1].outcome == "breaks", f"{fault.sentence} {[row.reason for row in rows]}"


@pytest.mark.parametrize("name", PERILOUS)
def test_a_fault_that_does_harm_is_caught_from_outside(name: str) -> None:
    """A fault that hangs, exits or patches its process breaks a law, and the others are still judged."""
    fault = FAULTS[name]
    plan = Plan(fault.declaration(), replace(PROFILES["quick"], shrinks=0, limit_s=3.0), dtypes=("float32",))
    with Workers(plan) as workers:
        rows = list(workers.judge(named_laws(name)[:2]))
    assert any(row.outcome == "breaks" for row in rows), fault.sentence


@pytest.mark.parametrize("name", list(VARIANTS))
def test_no_law_breaks_a_right_variant(name: str) -> None:
    """What is right, however it is computed, is not failed: every law, every dtype."""
    # benchmarks/alarms.py asks for more; a single drawn example is Hypothesis' simplest, which says little.
    rows = judged(VARIANTS[name], list(LAWS.values()), replace(PROFILES["quick"], seeded=2, drawn=0))
    broken = [row for row in rows if row.outcome == "breaks"]
    assert not broken, f"{VARIANTS[name].sentence} {broken[0].id}: {broken[0].reason}"
    assert sum(row.outcome == "holds" for row in rows) > 40
