"""Which broken law is shown first."""

from dataclasses import replace

import pytest

from headcheck import ranking
from headcheck.laws import all_laws
from headcheck.ranking import most_telling_first, told_in_full
from headcheck.verdict import Counterexample, LawResult


def broken(law: str, case: str | None = "kv_len=2", factor: float | None = 1e4) -> LawResult:
    """A broken row of attention."""
    example = Counterexample(case, "a command", "output", factor=factor)
    return LawResult(f"attention/{law}", "A statement.", "breaks", counterexample=example)


def shown(*rows: LawResult) -> list[str]:
    """The laws in the order in which they are shown."""
    return [row.name_in_role for row in most_telling_first(rows)]


def test_what_a_plain_call_shows_comes_first() -> None:
    """A scale that is forgotten breaks laws of masks too; a mask has nothing to do with it."""
    assert shown(
        broken("masks/dead-rows-follow-the-convention", "q_len=2 kv_len=2 mask=random"),
        broken("masks/a-bias-of-log-two-counts-a-key-twice"),
        broken("symmetry/scale-trades-with-query-and-key"),
        broken("accuracy/default-scale-is-one-over-root-head-dim", "kv_len=2 head_dim=2"),
    )[:2] == ["accuracy/default-scale-is-one-over-root-head-dim", "symmetry/scale-trades-with-query-and-key"]


def test_where_each_break_needs_a_mask_the_laws_of_masks_come_first() -> None:
    """Accuracy breaks too, wherever a mask was drawn."""
    assert shown(
        broken("accuracy/output-is-within-the-bound", "kv_len=2 is_causal=true"),
        broken("masks/causal-equals-its-mask", "kv_len=2 is_causal=true"),
    ) == ["masks/causal-equals-its-mask", "accuracy/output-is-within-the-bound"]


def test_a_default_scale_that_a_given_one_does_not_have_explains_all() -> None:
    """A call that is given 1 / sqrt(head_dim) is right: then the default is what is wrong."""
    scale = broken("accuracy/default-scale-is-one-over-root-head-dim", "kv_len=2 head_dim=2")
    assert scale.counterexample is not None
    beside = replace(scale, counterexample=replace(scale.counterexample, calls=[{"scale": 0.7}]))
    output, given = broken("accuracy/output-is-within-the-bound"), broken("accuracy/explicit-scale-is-used")
    assert shown(output, beside)[0] == beside.name_in_role
    assert shown(output, scale)[0] == output.name_in_role
    assert shown(output, beside, given)[0] == output.name_in_role


def test_an_answer_of_chance_comes_first() -> None:
    """Where the same call gives two answers no comparison of two calls says anything."""
    assert shown(
        broken("memory/one-tensor-may-be-query-key-and-value", ""),
        broken("accuracy/output-is-within-the-bound"),
        broken("state/same-call-same-answer", "kv_len=2"),
    )[0] == ("state/same-call-same-answer")


def test_rows_without_keys_come_after_what_else_is_wrong_with_a_mask() -> None:
    """A mask that is added as -1e4 gives no zeros there, which may be meant; that it leaks is not."""
    assert shown(
        broken("masks/dead-rows-follow-the-convention", "mask=random"),
        broken("gradients/dead-rows-have-no-gradient", "mask=random"),
        broken("distribution/low-scores-leave-masked-keys-no-weight", "kv_len=2 mask=random"),
    )[0] == ("distribution/low-scores-leave-masked-keys-no-weight")


@pytest.mark.parametrize(
    ("smallest", "first"),
    [
        ("kv_len=2", "accuracy/output-is-within-the-bound"),
        ("kv_len=65 head_dim=8", "accuracy/a-moving-maximum-rescales-all"),
    ],
)
def test_a_general_law_comes_first_where_its_case_is_small(smallest: str, first: str) -> None:
    """Softmax along a wrong axis shows in two keys; a stale maximum of a tiled kernel has a law of its own."""
    assert (
        shown(
            broken("accuracy/a-moving-maximum-rescales-all", "kv_len=33 values=rising"),
            broken("accuracy/output-is-within-the-bound", smallest),
        )[0]
        == first
    )


def test_a_slight_break_comes_after_a_great_one() -> None:
    """A bound that is exceeded by little may be a consequence; equality is no matter of degree."""
    assert shown(
        broken("memory/strided-equals-contiguous", factor=1.2),
        broken("gradients/gradients-are-within-the-bound", factor=None),
        broken("accuracy/output-is-within-the-bound", "dtype=float64 kv_len=2"),
    ) == [
        "accuracy/output-is-within-the-bound",
        "gradients/gradients-are-within-the-bound",
        "memory/strided-equals-contiguous",
    ]


def test_grouped_heads_are_more_than_a_plain_call() -> None:
    """They are asked for by the number of heads."""
    assert shown(
        broken("accuracy/output-is-within-the-bound", "heads=4 kv_heads=2"),
        broken("gradients/gradients-are-within-the-bound", "heads=2 kv_heads=2"),
    ) == ["gradients/gradients-are-within-the-bound", "accuracy/output-is-within-the-bound"]


def test_a_break_without_a_case_has_its_place() -> None:
    """A process that died between two cases leaves none; nor has a law that is not of headcheck a family."""
    assert shown(broken("of/no-role"), broken("masks/the-future-does-not-matter", "")) == [
        "masks/the-future-does-not-matter",
        "of/no-role",
    ]


def test_the_plainest_case_is_a_case() -> None:
    """Nothing in it is other than by default, so its text is empty; a process that died between two cases has none."""
    general, of_values = "accuracy/output-is-within-the-bound", "distribution/equal-scores-count-every-key"
    assert shown(broken(of_values, ""), broken(general, "")) == shown(broken(of_values), broken(general))


def test_the_next_in_full_are_of_other_families_and_print_their_numbers() -> None:
    """Three laws of one family say one thing three times, and shapes alone say little."""
    first = broken("masks/causal-equals-its-mask")
    alike = broken("masks/additive-mask-adds-up")
    long = broken("accuracy/large-logits-do-no-harm")
    small = broken("gradients/gradients-are-within-the-bound")
    for each in (first, alike, small):
        assert each.counterexample is not None
        each.counterexample.inputs["query"] = [[0.0]]
    rows = [first, alike, long, small]
    assert told_in_full(rows, 3) == [first, small, long]
    assert told_in_full(rows[:2], 3) == rows[:2]
    assert told_in_full([], 3) == []


def test_laws_of_dtypes_say_little_where_the_output_is_wrong_in_any() -> None:
    """A wrong eps is wrong in float64, too; that float32 is right and float64 is not is a matter of dtypes."""
    doubles = broken("dtypes/doubles-are-computed-as-doubles", factor=1e9)
    output, scale = (
        broken("accuracy/output-is-within-the-bound"),
        broken("symmetry/scale-trades-with-query-and-key"),
    )
    assert shown(doubles, scale, output)[-1] == doubles.name_in_role
    masked = broken("masks/causal-equals-its-mask", "q_len=2 kv_len=2 is_causal=true")
    assert shown(masked, doubles)[0] == doubles.name_in_role


def test_nothing_holds_where_the_form_is_wrong() -> None:
    """What is asked of a call says nothing as long as the shape is another."""
    form, weights = (
        broken("memory/output-has-the-right-form"),
        broken("features/asking-for-more-changes-nothing"),
    )
    assert shown(weights, form)[0] == form.name_in_role


def test_a_family_without_a_place_comes_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """A law that somebody has just written, in a module of its own, is shown as any other is."""
    from headcheck.properties import attention

    placed = tuple(family for family in attention.FAMILIES if family != "memory")
    monkeypatch.setattr(attention, "FAMILIES", placed)
    assert shown(broken("memory/inputs-are-not-changed"), broken("state/same-call-same-answer")) == [
        "state/same-call-same-answer",
        "memory/inputs-are-not-changed",
    ]


def test_the_laws_and_families_that_are_named_are_there() -> None:
    """One that is renamed would stop to rank, and nobody would see it."""
    laws = all_laws().values()
    named = (
        ranking.OF_THE_OUTPUT,
        ranking.OF_THE_FORM,
        ranking.OF_CHANCE,
        ranking.DEFAULT_SCALE,
        ranking.GIVEN_SCALE,
    )
    assert {*named} <= {law.name for law in laws}
    families = {*ranking.OF_THEIR_OWN, *ranking.IN_ANOTHER_DTYPE, *ranking.OF_TWO_CALLS}
    assert families <= {law.family_in_role for law in laws}


def test_what_follows_from_a_wrong_output_is_not_told_in_full_beside_it() -> None:
    """A law of two calls breaks where one call alone is wrong, and says no more."""
    rows = [
        broken("accuracy/output-is-within-the-bound"),
        broken("state/one-call-does-not-answer-for-another"),
        broken("accuracy/equal-scores-average-the-values"),
    ]
    assert [row.name for row in told_in_full(rows, 2)][1] == "equal-scores-average-the-values"
