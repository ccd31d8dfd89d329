"""The roles other than attention: their laws hold on what is right, and each is broken by a fault made for it."""

from collections import defaultdict
from dataclasses import replace

import pytest

from headcheck.engine import PROFILES, Engine, Profile
from headcheck.laws import all_laws, choose
from headcheck.roles import HOMES, MODULES, role
from tests.roles import RIGHT, WRONG, Entry, right, wrong

ROLES = sorted(set(HOMES) - {"attention"})


NO_WAY_BACK = "is not followed by gradients"
A_FEW = replace(PROFILES["quick"], seeded=3, drawn=0, shrinks=0)
"""What is right is judged by fewer examples here than by benchmarks/alarms.py. One drawn example is the simplest."""


def engine(entry: Entry, profile: Profile, seed: int = 0, dtypes: tuple[str, ...] = ()) -> Engine:
    """An engine that judges the entry; counterexamples are not made small."""
    of_role = role(entry.role)
    subject, _ = of_role.prepare(entry.declaration(), dtypes=dtypes, device="cpu", seed=seed)
    return Engine(of_role, subject, replace(profile, shrinks=0), seed, lambda law, case: "")


def ids_of(entry: Entry) -> list[str]:
    """The laws that an entry names, with the role."""
    return [f"{entry.role.replace('_', '-')}/{law}" for law in entry.breaks]


@pytest.mark.parametrize("name", list(WRONG))
def test_a_wrong_function_breaks_each_law_that_it_names(name: str) -> None:
    """The laws that a person would name for it exist, and break in the gate."""
    # One dtype shows most, and saves finding out how the others round; all are tried where it does not.
    first: tuple[str, ...] = () if WRONG[name].role in MODULES else ("float32",)
    for dtypes in dict.fromkeys([first, ()]):
        gate = engine(WRONG[name], PROFILES["gate"], dtypes=dtypes)
        rows = [gate.judge(all_laws()[law]) for law in ids_of(WRONG[name])]
        if all(row.outcome == "breaks" for row in rows):
            break
    for row in rows:
        assert row.outcome == "breaks", f"{WRONG[name].sentence} {row.id}: {row.outcome} {row.reason}"


NOT_IN_BFLOAT16 = {
    "causal_lm/by-fft": "torch has no such FFT",
    "causal_lm/one-hot": "its embedding is float32",
    "decoder/narrow-inside": "its mask, the least number of float32, is -inf there",
}


@pytest.mark.parametrize(
    "name", [each for each in RIGHT if RIGHT[each].role in MODULES and each not in NOT_IN_BFLOAT16]
)
def test_no_law_breaks_a_right_module_in_bfloat16(name: str) -> None:
    """Where rounding hides an influence it is not asked for, and the margins of 16 bits are wide enough."""
    entry = RIGHT[name]
    of_role = role(entry.role)
    subject, _ = of_role.prepare(entry.declaration(), dtypes=("bfloat16",), device="cpu", seed=0)
    brief = Engine(of_role, subject, A_FEW, 0, lambda law, case: "")
    rows = [brief.judge(law) for law in choose(entry.role)]
    broken = [f"{row.id}: {row.reason}" for row in rows if row.outcome == "breaks"]
    assert not broken, f"{entry.sentence} {broken}"
    assert sum(row.outcome == "holds" for row in rows) >= len(rows) / 4


@pytest.mark.parametrize("name", list(RIGHT))
def test_no_law_breaks_a_right_function(name: str) -> None:
    """However it is computed, in every dtype that it takes; and of the laws that speak of it two in three hold.

    Laws of gradients do not speak of what cannot be followed by gradients.
    """
    brief = engine(RIGHT[name], A_FEW)
    rows = {law: brief.judge(law) for law in choose(RIGHT[name].role)}
    broken = [f"{row.id}: {row.reason}" for row in rows.values() if row.outcome == "breaks"]
    assert not broken, f"{RIGHT[name].sentence} {broken}"
    speaking = [
        row
        for law, row in rows.items()
        if not any(map(brief.subject.lacks, law.needs)) and not row.reason.startswith(NO_WAY_BACK)
    ]
    assert sum(row.outcome == "holds" for row in speaking) >= len(speaking) * 2 / 3


@pytest.mark.parametrize("name", ROLES)
def test_each_law_is_broken_by_a_fault_made_for_it(name: str) -> None:
    """Every law of the role is named by a wrong function, and each role has right ones."""
    named = defaultdict(list)
    for entry in WRONG.values():
        for law in ids_of(entry):
            named[law].append(entry.id)
    assert not [law.id for law in choose(name) if law.id not in named]
    assert not [law for law in named if law not in all_laws()]
    assert sum(entry.role == name for entry in RIGHT.values()) >= 3


def test_a_name_clash_is_refused() -> None:
    """Two functions of one name in one module."""

    def twice() -> None:
        """Registered twice."""

    right("A function.")(twice)
    try:
        with pytest.raises(ValueError, match="two functions are called test_roles/twice"):
            wrong("A function.", breaks="a/b")(twice)
    finally:
        RIGHT.clear() if not ROLES else RIGHT.pop("test_roles/twice")
