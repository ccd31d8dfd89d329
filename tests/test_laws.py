"""The laws as a collection: each is documented, has its place, and holds where it must."""

import functools
import inspect
import pkgutil
import re
from collections import Counter
from importlib import import_module
from typing import Any

import pytest
from torch import Tensor

from headcheck import properties
from headcheck.attention.features import FEATURES
from headcheck.attention.role import role
from headcheck.attention.subject import AttentionSubject
from headcheck.comparison import Comparison
from headcheck.declarations import Attention
from headcheck.engine import Engine, Profile
from headcheck.errors import HeadcheckError
from headcheck.laws import Law, all_laws, choose, law, law_named
from headcheck.reference.canonical import canonical_attention
from headcheck.roles import HOMES
from headcheck.subjects import builtins
from tests.engines import PLAIN, engine_of
from tests.faults import VARIANTS

ALL = list(all_laws().values())
LAWS = choose("attention")
SHARED = {module.name for module in pkgutil.iter_modules(properties.__path__)} - set(HOMES)
"""The packages of laws that several roles share."""
SHORT = Profile("short", seeded=16, drawn=4)
FAMILIES = ("accuracy", "distribution", "gradients", "masks", "memory", "state", "symmetry")
"""Those that the first issue asks for."""


def each_law(laws: list[Law]) -> Any:
    return pytest.mark.parametrize("each", laws, ids=lambda each: each.id)


@functools.cache
def reference() -> AttentionSubject:
    return role.prepare(builtins()["reference"].declaration(), dtypes=(), device="cpu", seed=0)[0]


# Each law is documented and has its place


def test_every_law_has_an_id_of_its_own() -> None:
    """Ids are unique, the key of the table is the law's id, and finding the laws again finds the same."""
    counts = Counter(each.id for each in ALL)
    assert counts.most_common(1)[0][1] == 1
    assert all(key == each.id for key, each in all_laws().items())
    all_laws.cache_clear()
    assert list(all_laws()) == [each.id for each in ALL]


def test_no_law_is_lost() -> None:
    """Every module of the laws' package has laws, and each family that was asked for is there."""
    import headcheck.properties.attention as home

    modules = {module.name for module in pkgutil.iter_modules(home.__path__)}
    assert {each.family.rpartition("/")[2] for each in LAWS} == modules
    assert set(FAMILIES) <= modules


@pytest.mark.parametrize("of_role", HOMES)
def test_every_family_has_its_place_in_the_order_of_its_role(of_role: str) -> None:
    """Of a new module of laws the package's FAMILIES says where it stands, or its laws are shown last unnoticed."""
    placed = import_module(f"headcheck.properties.{of_role}").FAMILIES
    assert sorted(placed) == sorted({each.family_in_role for each in choose(of_role)})


@each_law(ALL)
def test_a_law_is_documented(each: Law) -> None:
    """Its statement is one sentence, its source and what it guards against say something."""
    assert each.statement[0].isupper() or each.statement.startswith("is_causal")
    assert each.statement.endswith(".")
    assert not re.search(r"\. [A-Z]", each.statement), "more than one sentence"
    assert len(each.statement.split()) >= 4
    assert len(each.source) > 3
    assert len(each.guards) > 10
    assert len(each.formula) > 3


@each_law(ALL)
def test_the_family_of_a_law_is_its_module(each: Law) -> None:
    """role/module/name, with dashes for underscores: the id says where the function stands."""
    module = each.check.__module__.removeprefix("headcheck.properties.").replace(".", "/").replace("_", "-")
    assert each.home == module
    assert each.family.rpartition("/")[2] == module.rpartition("/")[2]
    assert module.partition("/")[0].replace("-", "_") in {each.role, *SHARED}
    assert each.name == each.check.__name__.replace("_", "-")
    assert each.role in HOMES


@each_law(LAWS)
def test_a_law_needs_features_that_exist(each: Law) -> None:
    """What it needs is a feature of its role, and its share is a positive number."""
    assert set(each.needs) <= set(FEATURES)
    assert each.share > 0


def test_no_two_laws_say_the_same() -> None:
    """No statement is used twice in a role."""
    assert Counter((each.role, each.statement) for each in ALL).most_common(1)[0][1] == 1


# Every law holds where it must


UNDECLARED = {
    "masked-nan-does-not-leak": "masked_nan='leaks'",
    "what-is-declared-unsupported-is-refused": "declares no feature absent",
    "the-declared-operator-runs": "no operator is declared",
    "queries-before-the-first-key-follow-the-convention": "every query sees the first key",
    "nothing-is-dropped-out-of-training": "takes no argument that says whether it is in training",
    **{each.name: "takes no sequences of several lengths" for each in choose("attention", ["/ragged/"])},
}
"""Laws about what the reference does not declare; each holds, below or in test_ragged, for one that does."""


@each_law(LAWS)
def test_every_law_holds_on_the_reference(each: Law) -> None:
    """With at least one example judged in earnest; a convention may rule a law out, if it says so."""
    row = Engine(role, reference(), SHORT, 0, lambda law, case: str(case)).judge(each)
    if each.name in UNDECLARED:
        assert (row.outcome, UNDECLARED[each.name] in row.reason) == ("not-applicable", True)
        return
    assert row.outcome == "holds", row.reason
    assert row.examples >= 1
    assert row.worst_error_over_bound <= 1


def test_the_law_of_queries_before_the_first_key_holds_where_there_are_any() -> None:
    """Of a function that is aligned at the last key."""
    each = all_laws()["attention/caches/queries-before-the-first-key-follow-the-convention"]
    row = engine_of(VARIANTS["conventions/aligned-at-the-last-key"].declaration(), SHORT).judge(each)
    assert (row.outcome, row.examples > 0) == ("holds", True), row.reason


def test_the_law_of_training_that_is_off_holds_where_there_is_such_an_argument() -> None:
    """Of a function that drops in training alone."""
    each = all_laws()["attention/dropout/nothing-is-dropped-out-of-training"]
    row = engine_of(VARIANTS["natural_right/dropped-in-training"].declaration(), SHORT).judge(each)
    assert (row.outcome, row.examples > 0) == ("holds", True), row.reason


def test_the_law_of_masked_nan_holds_where_it_is_declared() -> None:
    """Who declares to stop masked NaN is held to it: one that does conforms, one that does not breaks."""
    declaration = builtins()["reference"].declaration().but(masked_nan="stopped")
    careful = Attention(
        without_masked_nan,
        name="careful",
        masks=("boolean", "additive"),
        masked_nan="stopped",
        dtypes=("float32",),
    )
    outcomes = []
    for each in (careful, declaration):
        subject = role.prepare(each, dtypes=("float32",), device="cpu", seed=0)[0]
        row = Engine(role, subject, SHORT, 0, lambda law, case: str(case)).judge(
            all_laws()["attention/masks/masked-nan-does-not-leak"]
        )
        outcomes.append(row.outcome)
        assert row.examples >= 1
    assert outcomes == ["holds", "breaks"]


def without_masked_nan(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Any:
    return canonical_attention(query, key.nan_to_num(0.0), value.nan_to_num(0.0), attn_mask)


def test_equal_lengths_rule_laws_out_with_a_reason() -> None:
    """rectangular=False: a law that needs fewer queries than keys says so."""
    engine = engine_of(Attention(canonical_attention, rectangular=False))
    for each in choose("attention", ["/caches/", "duplicated-keys", "parts-merge", "padding-equals"]):
        row = engine.judge(each)
        assert (row.outcome, row.reason) == (
            "not-applicable",
            "takes as many queries as keys only, as declared",
        )


def test_rows_without_keys_may_have_any_gradient() -> None:
    """Of a case with such rows a law says why it was not judged, and of the others it holds."""
    engine = engine_of(VARIANTS["conventions/mean-without-keys"].declaration(), SHORT)
    (each,) = choose("attention", ["gradients-are-within-the-bound"])
    reason = engine.example(each, PLAIN.but(mask="all-dead")).reason
    assert reason == "gradients of rows without keys are not specified"
    assert engine.judge(each).outcome == "holds"


def test_what_is_wrong_anyway_is_no_example_of_a_memory() -> None:
    """An answer that is wrong whenever it is asked for says nothing of what is remembered."""

    def doubled(query: Tensor, key: Tensor, value: Tensor) -> Any:
        return 2 * canonical_attention(query, key, value)

    (each,) = choose("attention", ["inputs-changed-in-place-are-read-again"])
    assert engine_of(Attention(doubled)).judge(each).outcome == "not-applicable"


def test_a_law_can_be_chosen_by_a_part_of_its_id() -> None:
    """Patterns pick laws by parts of ids, none picks all; one that picks nothing is refused."""
    assert choose("attention") == LAWS
    assert [each.id for each in choose("attention", ["output-is-within-the-bound"])] == [
        "attention/accuracy/output-is-within-the-bound"
    ]
    masks, state = choose("attention", ["/masks/"]), choose("attention", ["/state/"])
    assert {each.id for each in choose("attention", ["/state/", "/masks/"])} == {
        e.id for e in (*masks, *state)
    }
    with pytest.raises(
        HeadcheckError, match="no law of the role attention matches 'attention/masks/nothing'"
    ):
        choose("attention", ["/masks/", "attention/masks/nothing"])


# Making a law


def test_a_law_without_a_statement_is_refused() -> None:
    """The docstring is the statement: without one, or without its full stop, there is no law."""
    for text in (None, "", "No full stop"):

        def unstated(attention: Any, x: Any) -> Comparison | None:
            return None

        unstated.__doc__ = text
        with pytest.raises(ValueError, match="the law unstated has no statement"):
            law(source="a source", guards="a kind of bug", formula="f(x) = x")(unstated)


def test_the_statement_is_the_first_paragraph_on_one_line() -> None:
    """What follows an empty line is not part of it."""

    @law(source="a source", guards="a kind of bug", formula="f(x) = x")
    def stated(attention: Any, x: Any) -> Comparison | None:
        """It holds
        for all.

        And this is why.
        """
        return None

    assert stated.statement == "It holds for all."
    assert stated.check.__doc__ != stated.statement
    assert inspect.signature(stated.check).return_annotation == Comparison | None


def test_repairs_are_made_in_their_order() -> None:
    """`given` is read from left to right."""

    @law(
        source="a source",
        guards="a kind of bug",
        formula="f(x) = x",
        given=(lambda n: n + 1, lambda n: 10 * n),
    )
    def repaired(attention: Any, x: Any) -> None:
        """It is repaired."""

    assert repaired.repaired(1) == 20


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("causal-equals-mask", "attention/masks/causal-equals-its-mask"),
        ("attention/masks/causal-equal-its-mask", "attention/masks/causal-equals-its-mask"),
    ],
)
def test_a_law_that_is_mistyped_is_named(typed: str, meant: str) -> None:
    """By its own name, with or without the family; where none is like it, the command that lists them."""
    for ask in (law_named, lambda text: choose("attention", [text])):
        with pytest.raises(HeadcheckError, match=f"{typed}'; do you mean {meant}\\?$"):
            ask(typed)
        with pytest.raises(HeadcheckError, match=r"`headcheck laws` lists them$"):
            ask("zzzz")


@pytest.mark.parametrize(("typed", "meant"), [("msks", "masks"), ("Lengths", "lengths"), ("Masks", "masks")])
def test_a_family_that_is_mistyped_is_named(typed: str, meant: str) -> None:
    """Where a part of an id will do, with capitals, too."""
    with pytest.raises(HeadcheckError, match=f"'{typed}'; do you mean {meant}\\?$"):
        choose("attention", [typed])


def test_a_law_may_be_named_without_its_role() -> None:
    """By what it ends in, where one law alone does; the state of every role has the same names."""
    assert law_named("masks/causal-equals-its-mask") is law_named("attention/masks/causal-equals-its-mask")
    with pytest.raises(HeadcheckError, match="there is no law 'state/same-call-same-answer'"):
        law_named("state/same-call-same-answer")
