"""What is found out about features beyond masks and causality: dropout, windows, caps, sinks, ALiBi, the log-sum-exp."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from headcheck.attention.bench import Bench, Finding, Found, as_asked, probe
from headcheck.attention.hints import (
    band_by_a_default,
    given_in_an_empty_window,
    is_inf_without_keys,
)
from headcheck.attention.inputs import build
from headcheck.comparison import LawBroken, NotApplicable, within
from headcheck.declarations import BASE_2
from headcheck.forks import asked_apart


@probe()
def dropout(bench: Bench) -> Finding:
    """Whether dropout_p has an effect."""
    x = bench.inputs(q_len=5, kv_len=16)
    if absent := bench.subject(dropout=None).lacks("dropout"):
        return Finding("dropout", False, absent)
    if problem := bench.refusal(x.but(dropout_p=0.5), dropout=None):
        return Finding("dropout", False, problem)
    if bench.fits(x, dropout=None) and not bench.fits(x.but(dropout_p=0.5), x, dropout=None):
        return Finding("dropout", True, "dropout_p=0.5 changes the answer")
    return Finding("dropout", None, "dropout_p=0.5 changes nothing", told=False)


@probe()
def further_features(bench: Bench) -> Iterator[Finding]:
    """What the signature offers beyond torch's: does it do what it says?"""
    uses: dict[str, dict[str, Any]] = {
        "window": {"window": (2, 1)},
        "softcap": {"softcap": 0.5, "values": "large"},
        "sinks": {"sinks": True},
        "alibi": {"alibi": True},
    }
    for feature, asked in uses.items():
        if bench.subject(**{feature: None}).lacks(feature) is None:
            plain = bench.built(heads=2, kv_heads=2, q_len=5, kv_len=5, head_dim=4, value_dim=4)
            x = build(replace(plain.case, **asked))
            yield as_asked(feature, bench, plain, x, f"{feature} on random numbers")


@probe()
def key_lengths(bench: Bench) -> Found:
    """Whether a sequence has as many keys as is said."""
    if bench.subject(key_lengths=None).lacks("key_lengths"):
        return iter(())
    x = bench.inputs(batch=2, q_len=3)
    return as_asked("key_lengths", bench, x, x.but(key_lengths=(5, 2)), "lengths of the keys, equal scores")


@probe()
def window_of_every_call(bench: Bench) -> Found:
    """Whether a query sees a window in every call, by the default of a parameter that no call of a probe reaches."""
    always, named = bench.declaration.always, band_by_a_default(bench.subject())
    return Finding("always", {**always, "window": named[1]}, f"as {named[0]} says") if named else iter(())


@probe()
def empty_windows(bench: Bench) -> Found:
    """What a query gives to which a window leaves no keys."""
    gives = given_in_an_empty_window(bench.subject())
    return Finding("empty_rows", gives, "a window beyond the last key") if gives else iter(())


@probe()
def log_sum_exp(bench: Bench) -> Found:
    """Whether it is returned where it is asked for, and to which base."""
    topic, x = "log_sum_exp", bench.inputs(heads=2, kv_heads=2, q_len=3)
    if bench.subject(log_sum_exp=None).lacks(topic):
        return iter(())
    for value in (True, BASE_2):
        subject = bench.subject(log_sum_exp=value)
        try:
            found = subject.log_sum_exp(x)
        except (LawBroken, NotApplicable) as problem:
            return Finding(topic, None, str(problem), told=False)
        if not within(found, x.problem.attended.log_sum_exp, subject.forward_bounds(x).log_sum_exp).broken:
            return Finding(topic, value, "return_lse=True on equal scores")
    return Finding(topic, None, "return_lse=True on equal scores: another number", told=False)


@probe()
def empty_log_sum_exp(bench: Bench) -> Found:
    """Whether the log-sum-exp of no keys is +inf."""
    subject = bench.subject()
    if subject.lacks("log_sum_exp") or not asked_apart(partial(is_inf_without_keys, subject), bench.device):
        return iter(())
    return Finding("empty_log_sum_exp", "inf", "a call without any keys")
