"""Repairs bring a case to where a law speaks, and leave it there."""

import inspect
from collections.abc import Callable

import pytest

from headcheck import given as shared
from headcheck.attention import drawing, given
from headcheck.attention.case import Case
from headcheck.attention.inputs import build
from headcheck.attention.patterns import DEAD_ROWS
from headcheck.engine import PROFILES
from headcheck.judging import make_plan
from headcheck.laws import Law, choose
from headcheck.preparing import subject_of
from tests.drawn import by_hypothesis, prepared, seeded, strict
from tests.engines import a_law, on_reference

# Repairs

Predicate = Callable[[Case], bool]
HIDING = ("padding", "left-padding", "dead-prefix", "last-key-only", "all-dead")
REPAIRS: dict[str, tuple[shared.Repair, Predicate]] = {
    "masked": (given.masked, lambda c: c.mask not in ("none", "all-true")),
    "hiding_keys": (given.hiding_keys, lambda c: c.mask in HIDING),
    "hiding_something": (
        given.hiding_something,
        lambda c: c.is_causal or c.window is not None or c.mask not in ("none", "all-true"),
    ),
    "boolean_mask": (
        given.boolean_mask,
        lambda c: c.mask not in ("none", "all-true") and c.mask_form == "boolean",
    ),
    "thousands_of_numbers": (
        given.thousands_of_numbers,
        lambda c: min(c.q_len, c.kv_len) * c.head_dim >= 4096 and c.value_dim == c.head_dim,
    ),
    "unmasked": (given.unmasked, lambda c: c.mask == "none" and not c.is_causal and c.window is None),
    "no_mask": (given.no_mask, lambda c: c.mask == "none"),
    "blind_to_order": (given.blind_to_order, lambda c: not c.is_causal and c.window is None and not c.alibi),
    "causal": (given.causal, lambda c: c.is_causal),
    "live_rows": (given.live_rows, lambda c: c.mask not in DEAD_ROWS and c.mask_axes != "bhq1"),
    "default_scale": (given.default_scale, lambda c: c.scale is None),
    "no_negative_scale": (given.no_negative_scale, lambda c: c.scale is None or c.scale > 0),
    "without": (given.without("sinks", "window"), lambda c: not c.sinks and c.window is None),
    "at_least": (shared.at_least(kv_len=3, batch=2), lambda c: c.kv_len >= 3 and c.batch >= 2),
    "at_most": (shared.at_most(kv_len=3, q_len=2), lambda c: c.kv_len <= 3 and c.q_len <= 2),
    "alternately": (
        shared.alternately((given.unmasked,), ()),
        lambda c: (
            c.written_out
            or c.seed // 11 % 2 == 1
            or (c.mask == "none" and not c.is_causal and c.window is None)
        ),
    ),
    "one_in": (
        shared.one_in(3, given.unmasked, shared.at_most(q_len=1)),
        lambda c: (
            c.written_out
            or c.seed // 11 % 3 > 0
            or (c.mask == "none" and c.q_len == 1 and not c.is_causal and c.window is None)
        ),
    ),
    "long_rows": (
        given.long_rows,
        lambda c: c.kv_len > 1024 and c.batch == 1 and max(c.q_len - 2, c.head_dim - 4, c.value_dim - 4) <= 0,
    ),
    "rare_lengths": (
        given.rare_lengths,
        lambda c: (c.q_len, c.kv_len) == (18 + c.seed % 43, 18 + c.seed // 43 % 47) and c.head_dim <= 8,
    ),
    "without_keys_for_some": (
        given.without_keys_for_some,
        lambda c: c.mask in DEAD_ROWS if c.seed % 2 else c.is_causal and c.q_len > c.kv_len,
    ),
    "hiding_blocks": (
        given.hiding_blocks,
        lambda c: (c.kv_len, c.mask, c.is_causal) == (200, "dead-prefix", False) and c.q_len <= 5,
    ),
    "beside_a_block": (given.beside_a_block, lambda c: c.kv_len in (15, 16, 17, 31, 32, 33, 63, 64, 65)),
    "alike": (given.alike("batch", "heads"), lambda c: c.batch == c.heads),
    "wide_heads": (
        given.wide_heads,
        lambda c: (
            c.head_dim in (40, 72, 80, 96, 112, 136, 192, 256)
            and c.batch == 1
            and max(c.q_len - 5, c.kv_len - 17) <= 0
        ),
    ),
    "of_one_projection": (
        given.of_one_projection,
        lambda c: (
            (c.q_len, c.heads, c.head_dim, c.strides) == (c.kv_len, c.kv_heads, c.value_dim, "projected")
        ),
    ),
    "more_slots_than_sixteen_bits": (
        given.more_slots_than_sixteen_bits,
        lambda c: c.q_len * c.kv_len > 65536 and c.batch * c.heads == 1 and c.mask_axes == "bhqk",
    ),
    "causal_beyond_whole_halves": (
        given.causal_beyond_whole_halves,
        lambda c: c.is_causal and c.q_len == c.kv_len > 256 and c.dtype == "bfloat16" and c.head_dim <= 4,
    ),
    "many_queries": (
        given.many_queries,
        lambda c: (
            c.q_len in (66, 96, 129, 130)
            and c.batch == 1
            and max(c.kv_len - 33, c.head_dim - 4, c.value_dim - 4) <= 0
        ),
    ),
    "causal_across_blocks": (
        given.causal_across_blocks,
        lambda c: (
            c.is_causal and (c.q_len, c.kv_len) == ((128, 128), (130, 163), (192, 192), (97, 206))[c.seed % 4]
        ),
    ),
    "causal_over_hundreds": (
        given.causal_over_hundreds,
        lambda c: (
            c.is_causal
            and (c.q_len, c.kv_len) == ((300, 300), (520, 520), (260, 600), (385, 385))[c.seed % 4]
            and c.batch == c.heads == c.kv_heads == 1
            and max(c.head_dim, c.value_dim) <= 4
        ),
    ),
    "real_sizes": (
        given.real_sizes,
        lambda c: (
            c.batch == c.kv_heads == 1
            and {
                "heads": c.heads,
                "q_len": c.q_len,
                "kv_len": c.kv_len,
                "head_dim": c.head_dim,
                "value_dim": c.value_dim,
            }
            == {"heads": 1, "value_dim": c.head_dim, **given.REAL_SIZES[c.seed % len(given.REAL_SIZES)]}
        ),
    ),
    "equal_widths": (given.equal_widths, lambda c: c.value_dim == c.head_dim),
    "equal_heads": (given.equal_heads, lambda c: c.kv_heads == c.heads),
    "grouped": (given.grouped, lambda c: 1 < c.kv_heads < c.heads),
    "having": (shared.having(batch=2), lambda c: c.batch == 2),
    "one_of": (shared.one_of("mask_form", "bias", "additive"), lambda c: c.mask_form in ("bias", "additive")),
}


def test_no_repair_is_missing_here() -> None:
    """Every public function of `given` is under test below."""
    public = {
        name
        for module in (given, shared)
        for name, each in vars(module).items()
        if inspect.isfunction(each) and each.__module__ == module.__name__ and not name.startswith("_")
    }
    assert public == set(REPAIRS)


@pytest.mark.parametrize("name", REPAIRS)
def test_a_repair_does_what_it_says_once(name: str) -> None:
    """After it the case is where its docstring says; a case that was there already is left alone."""
    repair, there = REPAIRS[name]
    cases = [*seeded(prepared(), 400), *by_hypothesis(prepared(), 60)]
    moved = 0
    for case in cases:
        repaired = repair(case)
        assert there(repaired), f"{name}: {case}"
        assert repair(repaired) == repaired
        if there(case):
            assert repaired == case, f"{name} changed a case that was there: {case}"
        moved += repaired != case
    assert moved > 0


def test_live_rows_live() -> None:
    """After `live_rows`, a mask by itself leaves every query a key."""
    for case in seeded(prepared(), 600):
        alone = given.live_rows(case).but(is_causal=False, window=None)
        x = build(drawing.fit(alone, prepared()))
        assert not bool(x.dead_rows.any()), str(alone)


@pytest.mark.parametrize("law", choose("attention"), ids=lambda law: law.id)
def test_preparing_a_case_for_a_law_is_done_in_one_go(law: Law) -> None:
    """Repairing and fitting a case twice is doing it once: or it could not be made smaller."""
    for subject in (prepared(), strict("refused"), strict("square"), strict("boolean")):
        if any(subject.lacks(feature) for feature in law.needs):
            continue
        for case in seeded(subject, 60):
            once = drawing.fit(law.repaired(case), subject)
            assert drawing.fit(law.repaired(once), subject) == once


REFERENCES = [
    "reference-softmax",
    "reference-rotary",
    "reference-sinusoidal",
    "reference-layer-norm",
    "reference-rms-norm",
    "reference-multi-head-attention",
    "reference-encoder-layer",
    "reference-decoder-layer",
    "reference-causal-lm",
    "reference-seq2seq",
    "reference-vit",
    "reference==torch-sdpa-math",
]


@pytest.mark.parametrize("subject", REFERENCES)
def test_a_law_of_any_role_speaks_of_the_cases_that_it_is_given(subject: str) -> None:
    """What was made for a law is replayed as it stands, and can be made smaller."""
    plan = make_plan(subject, profile=PROFILES["quick"])
    engine = subject_of(plan).prepared().engine
    for law in choose(engine.role.name):
        if not any(engine.subject.lacks(feature) for feature in law.needs):
            for case in engine.seeded(law):
                assert engine.nearest(law, case) == case, law.id


def test_a_law_speaks_of_cases_for_which_a_choice_was_not_made() -> None:
    """One case in three has equal heads and one query: an edited one may have what it likes, but two keys it needs."""
    chosen = a_law(
        lambda attention, x: None, given=(shared.at_least(kv_len=2), shared.one_in(1, given.equal_heads))
    )
    case = Case(heads=2, kv_len=2, seed=1)
    assert chosen.repaired(case).kv_heads == 2
    assert on_reference().nearest(chosen, case) == case
    assert on_reference().nearest(chosen, case.but(kv_len=1)) == case
