"""What the signature of a subject offers, and a plain call refuses."""

from collections.abc import Iterable

from headcheck.attention.features import FEATURES, RETURN_ARGUMENTS
from headcheck.attention.inputs import Inputs
from headcheck.attention.mask_shapes_shown import PLAINLY, WHOLE_MASKS
from headcheck.attention.subject import AttentionSubject
from headcheck.attention.trying import built, is_refusal, refuses_an_argument, willing
from headcheck.calling import SubjectRaised, was_raised
from headcheck.comparison import Failure, NotApplicable, failure_of

OTHER_KIND = {"boolean": "additive", "additive": "boolean"}
"""The two kinds of masks."""


def refused_by(trial: AttentionSubject) -> dict[str, str]:
    """Features that the signature offers and a plain call refuses, and why.

    None where the call is refused without them, too: that says nothing of features.
    """
    plain = willing(trial, trial.dtypes[0])
    if plain is None:
        return {}
    masked = [plain.but(mask="all-true", mask_axes=axes) for axes in WHOLE_MASKS]
    uses = {
        "boolean": masked,
        "additive": [case.but(mask_form="additive") for case in masked],
        "is_causal": [plain.but(is_causal=True)],
        "scale": [plain.but(scale=0.5)],
        "grouped_heads": [plain.but(kv_heads=1)],
        "window": [plain.but(window=(1, 1))],
        "softcap": [plain.but(softcap=5.0)],
        "sinks": [plain.but(sinks=True)],
        "alibi": [plain.but(alibi=True)],
    }
    calls = {feature: [built(trial, case) for case in cases] for feature, cases in uses.items()}
    x = built(trial, plain)
    calls["dropout"] = [x.but(dropout_p=0.5)]
    calls["key_lengths"] = [x.but(key_lengths=(x.kv_len,) * x.batch)]
    calls |= {feature: [x] for feature in RETURN_ARGUMENTS}
    refused = {}
    for feature, ways in calls.items():
        if trial.has(feature) and not trial.declared(feature):
            asked = {feature: True} if feature in RETURN_ARGUMENTS else {}
            failure = _failure_of_all(trial, ways, **asked)
            if isinstance(failure, NotApplicable):
                refused[feature] = str(failure)
            elif _refuses(trial, feature, failure) or (
                feature in OTHER_KIND
                and _says_of_the_kind(failure)
                and _failure_of_all(trial, calls[OTHER_KIND[feature]]) is None
            ):
                refused[feature] = f"{FEATURES[feature].absent}{PLAINLY} {failure}"
    if {"boolean", "additive"} <= {*trial.refused, *refused}:
        refused["attn_mask"] = {**trial.refused, **refused}["additive"]
    return refused


def answered_elsewhere(trial: AttentionSubject, refused: Iterable[str]) -> list[str]:
    """Of the features that a plain call refuses those that another call has: a window of keys before, or beside
    is_causal, several key heads.
    """
    plain = willing(trial, trial.dtypes[0])
    if plain is None:
        return []
    causal = [plain.but(is_causal=True)] if trial.has("is_causal") else []
    ways = {
        "grouped_heads": [plain.but(heads=4, kv_heads=2)],
        "window": [each.but(window=(left, 0)) for each in (plain, *causal) for left in (1, None)],
        "softcap": [each.but(softcap=5.0) for each in causal],
        "sinks": [each.but(sinks=True) for each in causal],
        "alibi": [each.but(alibi=True) for each in causal],
    }
    ways["window"] += [each.but(window=(1, 1)) for each in causal]
    return [
        feature
        for feature in refused
        if (cases := ways.get(feature))
        and _failure_of_all(trial, [built(trial, each) for each in cases]) is None
    ]


def _refuses(trial: AttentionSubject, feature: str, failure: Failure | None) -> bool:
    """Whether a feature's argument was refused. Of the two kinds of masks an operator may refuse one, such as ~."""
    if feature in OTHER_KIND:
        return is_refusal(failure)
    if feature == "dropout" and isinstance(failure, SubjectRaised) and trial.no_rate != 0.0:
        return True
    canonical = FEATURES[feature].argument or feature
    return refuses_an_argument(failure, canonical, trial.arguments.get(canonical, canonical))


def _says_of_the_kind(failure: Failure | None) -> bool:
    """Whether anything is raised on purpose, or an operator wants a boolean tensor, as masked_fill, or none, as minus.

    Where masks of the other kind work: else it is no kind that is refused.
    """
    if not isinstance(failure, SubjectRaised) or not isinstance(failure.problem, Exception):
        return False
    return was_raised(failure.problem) or "bool" in str(failure.problem).lower()


def _failure_of_all(trial: AttentionSubject, ways: Iterable[Inputs], **asked: bool) -> Failure | None:
    """Why the first of several calls does not work, or None if any of them does."""
    failures = []
    for x in ways:
        failures.append(failure_of(trial.answer, x, **asked))
        if failures[-1] is None:
            return None
    return failures[0]
