"""From a case that breaks a law to the smallest one: a handful of numbers, by steps that never lead back."""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor

from headcheck.attention import drawing
from headcheck.attention.case import Case
from headcheck.attention.inputs import build
from headcheck.attention.role import role
from headcheck.attention.simpler import simpler
from headcheck.attention.subject import AttentionSubject
from headcheck.declarations import Attention
from headcheck.engine import Engine, Profile
from headcheck.laws import all_laws
from headcheck.minimise import minimise
from headcheck.numbers import READABLE, flat
from headcheck.reference.canonical import canonical_attention
from headcheck.subjects import builtins
from headcheck.verdict import LawResult

LAW = all_laws()["attention/accuracy/output-is-within-the-bound"]
SEARCH = Profile("search", seeded=150, drawn=40)
SEEDS = (0, 1, 2)


@functools.cache
def reference() -> AttentionSubject:
    return role.prepare(builtins()["reference"].declaration(), dtypes=(), device="cpu", seed=0)[0]


# Planted faults


@dataclass(frozen=True)
class Faulty:
    """The reference, its output one too high wherever the fault shows."""

    shows: Callable[..., bool]

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
        dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
        *, window: Any = None, softcap: float | None = None, sinks: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        output = canonical_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa,
            window=window, softcap=softcap, sinks=sinks,
        )  # fmt: skip
        assert isinstance(output, Tensor)
        return output + self.shows(query, key, value, attn_mask)


def engine_of(shows: Callable[..., bool], profile: Profile = SEARCH, seed: int = 0) -> Engine:
    declaration = Attention(
        Faulty(shows),
        name="faulty",
        dtypes=("float32", "float16", "bfloat16", "float64"),
        arithmetic={"float16": "wide", "bfloat16": "wide"},
        mask_with_causal="and",
        scale_with_causal="any",
    )
    prepared = role.prepare(declaration, dtypes=(), device="cpu", seed=0)[0]
    return Engine(role, prepared, profile, seed, lambda law, case: f"{law.id} {case}")


def smallest(shows: Callable[..., bool], seed: int = 0) -> Case:
    """The counterexample of a fault, which is found and still breaks the law."""
    engine = engine_of(shows, seed=seed)
    row = engine.judge(LAW)
    assert row.outcome == "breaks"
    assert row.counterexample is not None
    case = Case.parse(row.counterexample.case)
    assert engine.example(LAW, case).broken
    return case


def features_of(case: Case) -> dict[str, Any]:
    """All that is not at its default, but the dtype, the shapes, the numbers, and what only makes numbers."""
    plain = Case()
    rest = (
        "dtype",
        "numbers",
        "seed",
        "values",
        "batch",
        "heads",
        "kv_heads",
        "q_len",
        "kv_len",
        "head_dim",
        "value_dim",
    )
    return {
        name: value
        for name, value in vars(case).items()
        if name not in rest and value != getattr(plain, name)
    }


def sizes(case: Case) -> dict[str, int]:
    names = ("batch", "heads", "kv_heads", "q_len", "kv_len", "head_dim", "value_dim")
    return {name: getattr(case, name) for name in names if getattr(case, name) != 1}


def always(*_: Any) -> bool:
    return True


def with_mask_and_three_keys(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> bool:
    return mask is not None and key.shape[2] >= 3


def in_float16(query: Tensor, *_: Any) -> bool:
    return query.dtype == torch.float16


def beyond_64_keys(query: Tensor, key: Tensor, *_: Any) -> bool:
    return key.shape[2] >= 65


def at_a_value_above_2(query: Tensor, key: Tensor, value: Tensor, *_: Any) -> bool:
    return bool((value > 2).any())


def with_grouped_heads(query: Tensor, key: Tensor, *_: Any) -> bool:
    return query.shape[1] > key.shape[1]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_fault_that_always_shows_ends_in_three_numbers(seed: int) -> None:
    """One query, one key, one value, all of them plain, and no feature."""
    case = smallest(always, seed)
    assert (sizes(case), features_of(case), case.elements) == ({}, {}, 3)
    assert case.written_out
    assert {number for name, numbers in case.numbers for number in flat(numbers)} <= {0.0, 1.0}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_fault_with_a_mask_and_three_keys_keeps_just_these(seed: int) -> None:
    """A mask and exactly three keys are left: seven numbers and the mask."""
    case = smallest(with_mask_and_three_keys, seed)
    assert sizes(case) == {"kv_len": 3}
    assert case.mask != "none"
    assert set(features_of(case)) <= {"mask", "mask_form"}
    assert case.elements == 7


@pytest.mark.parametrize("seed", SEEDS)
def test_a_fault_of_one_dtype_keeps_the_dtype(seed: int) -> None:
    """Three numbers in float16."""
    case = smallest(in_float16, seed)
    assert (sizes(case), features_of(case), case.elements, case.dtype) == ({}, {}, 3, "float16")


@pytest.mark.parametrize("seed", SEEDS)
def test_a_fault_beyond_64_keys_stays_a_recipe_with_exactly_65(seed: int) -> None:
    """Too many numbers to write out: the recipe says 65 keys, and nothing else of note."""
    case = smallest(beyond_64_keys, seed)
    assert (sizes(case), features_of(case)) == ({"kv_len": 65}, {})
    assert not case.written_out
    assert case.values == "integers"
    assert len(str(case)) < 60


@pytest.mark.parametrize("seed", SEEDS)
def test_a_fault_at_a_value_keeps_a_round_value(seed: int) -> None:
    """One value above 2 is left, a whole number; query and key are zero or one."""
    case = smallest(at_a_value_above_2, seed)
    assert (sizes(case), features_of(case), case.elements) == ({}, {}, 3)
    written = {name: flat(numbers) for name, numbers in case.numbers}
    (value,) = written["value"]
    assert value > 2
    assert value == round(value)
    assert {*written["query"], *written["key"]} <= {0.0, 1.0}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_fault_of_grouped_heads_keeps_two_heads_on_one(seed: int) -> None:
    """The smallest group: two query heads on one key head."""
    case = smallest(with_grouped_heads, seed)
    assert sizes(case) == {"heads": 2}
    assert case.elements == 4


def test_a_case_that_was_drawn_written_out_loses_its_grouped_heads() -> None:
    """A written-out case of grouped heads ends as small as any other if the fault always shows."""
    numbers = {"query": ((1.0,), (2.0,)), "key": (1.0,), "value": (1.0,)}
    case = drawing.fit(Case(heads=2, numbers=tuple(numbers.items())), reference())
    engine = engine_of(always)
    assert sizes(engine.smallest(LAW, engine.example(LAW, case)).case) == {}


def test_thousands_of_written_numbers_become_a_recipe() -> None:
    """A law asks for thousands of keys, and so they all stand in a case that was drawn: none is looked at by itself."""
    numbers = {"query": ((1.0, 2.0),), "key": (1.0, 3.0, 0.5), "value": (1.0, -2.0)}
    drawn = Case(kv_len=8200, head_dim=2, numbers=tuple(numbers.items()))
    case = drawing.fit(drawn, reference())
    assert len(list(simpler(case, reference()))) < 20
    engine = engine_of(beyond_64_keys)
    smallest = engine.smallest(LAW, engine.example(LAW, case)).case
    assert (sizes(smallest), smallest.written_out) == ({"kv_len": 65}, False)


def test_the_search_is_deterministic() -> None:
    """The same seed ends in the same counterexample, found after as many examples."""
    rows = [engine_of(at_a_value_above_2).judge(LAW) for _ in range(2)]
    assert rows[0].counterexample == rows[1].counterexample


@pytest.mark.parametrize("tries", [0, 1, 7, 25])
def test_the_budget_is_respected(tries: int) -> None:
    """No more simpler cases are run than the profile allows, and what was reached by then is returned."""
    run: list[str] = []
    broken = Judged(Case(q_len=9, kv_len=9, head_dim=4, value_dim=4, mask="random"))

    def try_case(case: Case) -> "Judged | None":
        run.append(str(case))
        return Judged(case) if case.kv_len >= 3 else None

    found = minimise(broken, lambda case: simpler(case, reference()), try_case, tries)
    assert len(run) == len(set(run)) == tries
    assert (found is broken) == (tries == 0)


@dataclass(frozen=True)
class Judged:
    """The least that the minimiser needs."""

    case: Case


@pytest.mark.parametrize("number", range(6))
def test_only_a_case_that_breaks_is_returned(number: int) -> None:
    """Whatever breaks, and whatever does not: the result was tried and broke, or it is the case given."""
    random = Random(number)
    start = Judged(drawing.draw(random, reference()))
    broke = {str(start.case)}

    def try_case(case: Case) -> Judged | None:
        if Random(f"{number}/{case}").random() < 0.6:
            return None
        broke.add(str(case))
        return Judged(case)

    found = minimise(start, lambda case: simpler(case, reference()), try_case, 200)
    assert str(found.case) in broke


def test_nothing_simpler_that_breaks_leaves_the_case() -> None:
    """If only the case itself breaks, it is what is returned, the very object."""
    start = Judged(Case(kv_len=4, mask="random"))
    assert minimise(start, lambda case: simpler(case, reference()), lambda case: None, 1000) is start


def test_a_hang_that_is_not_met_again_is_left_as_it_was_found() -> None:
    """Each try that hangs costs its whole limit, and none does here, the case itself included."""
    engine = engine_of(always)
    hanging = engine.example(LAW, Case(kv_len=3))
    hanging.error, hanging.hung = "did not return within 30 s", True
    smallest = engine.smallest(LAW, hanging)
    assert (smallest.case, smallest.hung) == (Case(kv_len=3), True)
    assert smallest.error == "did not return within 30 s; not each time"


def test_the_time_for_it_can_be_bounded() -> None:
    """What is found by then is what is shown: here there would always be a simpler case."""

    @dataclass(frozen=True)
    class Found:
        case: int

    def simpler_by_one(case: int) -> Iterator[int]:
        yield case - 1

    assert minimise(Found(0), simpler_by_one, Found, 10**9, seconds=0.05).case < 0
    assert minimise(Found(0), simpler_by_one, Found, 10**9, seconds=-1.0).case == 0


# The steps


def starts() -> Iterator[Case]:
    for number in range(30):
        yield drawing.draw(Random(f"chains/{number}"), reference())


def chain(case: Case, random: Random) -> Iterator[Case]:
    """Simpler and simpler cases, chosen by chance, until there is none."""
    while True:
        yield case
        options = list(islice(simpler(case, reference()), random.randint(1, 30)))
        if not options:
            return
        case = options[-1]


def test_no_step_leads_back() -> None:
    """Along random chains no case is met twice, and each chain ends, in a case of a few numbers."""
    for number, start in enumerate(starts()):
        met: dict[str, int] = {}
        for case in chain(start, Random(number)):
            assert str(case) not in met, f"after {len(met)} steps back at step {met[str(case)]}: {case}"
            met[str(case)] = len(met)
            assert len(met) < 1000
        assert case.elements <= READABLE


def test_no_step_leads_back_from_written_numbers() -> None:
    """No case that one step leads to has the given one among its own simpler cases."""
    sizes = {"batch": 1, "heads": 1, "kv_heads": 1, "q_len": 1, "kv_len": 2, "head_dim": 1, "value_dim": 2}
    small = [drawing.fit(start.but(**sizes), reference()) for start in starts()]
    written = [
        next((case for case in simpler(start, reference()) if case.written_out), start) for start in small
    ]
    drawn = [drawing.fit(Case(kv_len=2, numbers=(("value", (0.0, 1.0)), ("query", (2.5,)))), reference())]
    for case in (*written[:16], *drawn):
        for step in simpler(case, reference()):
            back = [str(each) for each in simpler(step, reference())]
            assert str(case) not in back, f"{case} -> {step} -> {case}"


def test_every_step_builds_and_is_no_larger() -> None:
    """Each simpler case is another one, has no more numbers, fits the subject, and can be built."""
    for number, start in enumerate(starts()):
        before = start
        for step in chain(start, Random(number)):
            assert step.elements <= before.elements
            assert drawing.fit(step, reference()) == step
            assert build(step).query.numel() > 0
            before = step


def test_writing_out_changes_no_number() -> None:
    """A case and the same case with its numbers in it pose the very same problem."""
    tried = 0
    for start in starts():
        small = start.but(batch=1, heads=1, kv_heads=1, q_len=2, kv_len=3, head_dim=2, value_dim=2)
        small = drawing.fit(small, reference())
        for written in (case for case in simpler(small, reference()) if case.written_out):
            x, y = build(small), build(written)
            for name in ("query", "key", "value", "sinks", "cotangent", "may_attend"):
                one, other = getattr(x, name), getattr(y, name)
                assert (one is None and other is None) or torch.equal(one, other), f"{name} of {small}"
            one, other = (z.problem.bias for z in (x, y))
            assert (one is None and other is None) or torch.equal(one.expand(other.shape), other), small
            assert (x.scale, x.softcap, x.window) == (y.scale, y.softcap, y.window)
            tried += 1
    assert tried >= 25


def test_a_row_of_the_verdict_shows_the_smallest_case() -> None:
    """The row's replay line is that of the smallest case, and its tensors are written out."""
    row: LawResult = engine_of(always).judge(LAW)
    shown = row.counterexample
    assert shown is not None
    assert shown.replay == f"{LAW.id} {shown.case}"
    assert set(shown.inputs) == {"query", "key", "value"}
    assert all(len(flat(_frozen(numbers))) == 1 for numbers in shown.inputs.values())


def _frozen(numbers: Any) -> Any:
    return tuple(map(_frozen, numbers)) if isinstance(numbers, list) else numbers
