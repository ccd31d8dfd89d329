"""How a module of multi-head attention takes what is padding among its keys."""

import math
from collections.abc import Iterator
from dataclasses import replace

import torch

from headcheck.calling import SubjectRaised
from headcheck.comparison import LawBroken, NotApplicable, within
from headcheck.modules.multi_head.bounds import output_bound
from headcheck.modules.multi_head.cases import MultiHeadInputs
from headcheck.modules.multi_head.oracle import with_bias
from headcheck.modules.multi_head.subject import LENGTHS_OF_KEYS, MultiHeadSubject
from headcheck.modules.multi_head.trials import Build, agrees, is_read, trial

COUNT_KEYS = ("valid_lens", "valid_len", "valid_length")
"""Of the names of lengths those that are of keys, and not of queries or of both (d2l)."""
TWICE = math.log(2)
"""Added to the score of a key, it counts the key twice."""


def find_key_mask(build: Build, subject: MultiHeadSubject) -> None:
    """Which kinds are taken, and what True says, are written into `subject.found`; lengths only where they work."""
    place, declared, found = subject.places["key_mask"], subject.declaration, subject.found
    if not place:
        return
    if subject.counts_keys:
        found.key_masks = (LENGTHS_OF_KEYS,)
        meant = place in COUNT_KEYS or "key_mask" in declared.arguments
        if declared.key_masks == () or not _counts_keys(build, subject, asserted=meant):
            subject.places["key_mask"], subject.places["lengths"] = None, place
        return
    named = "block" if place == "key_padding_mask" else "keep"
    found.key_true_means = declared.key_true_means or named
    # A name of its own says nothing.
    if declared.key_true_means is None and "key_mask" in declared.arguments:
        found.key_true_means = _meaning_of_keys(build, subject, named)
    said = declared.masks or ()
    asserted = declared.key_masks or (said if "boolean" in said else ())
    if asserted:
        found.key_masks = asserted
        return
    kinds = []
    for kind in ("boolean", "additive"):
        found.key_masks = (kind,)
        x = trial(build, subject, padding=True, mask_kind=kind)
        if is_read(subject, x, kind, agrees(subject, x)) and (kind == "boolean" or _is_added(subject, x)):
            kinds.append(kind)
    found.key_masks = tuple(kinds) or said or ("boolean",)


def _counts_keys(build: Build, subject: MultiHeadSubject, *, asserted: bool) -> bool:
    """Whether it takes how many keys are real: plain calls are right, or wrong where that is what is meant.

    Not where the longest sequence must fill the batch, nor where queries behind a sequence of self-attention are
    answered otherwise than others.
    """
    x = trial(build, subject, padding=True)
    assert x.is_real is not None
    right, last = True, torch.arange(x.is_real.shape[1]) == x.is_real.shape[1] - 1
    for real in (x.is_real, x.is_real & ~last):
        each = x.but(is_real=real)
        try:
            given, exact, bound = subject(each), subject.exact(each), output_bound(each, subject.found.unit)
        except (SubjectRaised, LawBroken, NotApplicable):
            return False
        right = right and not within(given, exact, bound).broken
        seen = given if x.key is not None else torch.where(real[..., None], given, exact)
        if not right and not (asserted and within(seen, exact, bound).broken):
            return False
    return True


def _meaning_of_keys(build: Build, subject: MultiHeadSubject, usual: str) -> str:
    """What True in a mask of the keys means: the meaning under which a padded call is right, the usual one before."""
    before = subject.found
    try:
        for true_means in (usual, "keep" if usual == "block" else "block"):
            subject.found = replace(before, key_true_means=true_means, key_masks=("boolean",))
            if agrees(subject, trial(build, subject, padding=True, mask_kind="boolean")):
                return true_means
    finally:
        subject.found = before
    return usual


def _is_added(subject: MultiHeadSubject, x: MultiHeadInputs) -> bool:
    """Whether a finite number in a mask of the keys is added to the scores: converted to bool, it would hide its key."""
    real = x.visible()
    bias = TWICE * (torch.arange(real.shape[-1]) % 2).double()
    exact = with_bias(x, bias, subject.visible(x))
    try:
        given = subject(x.but(key_bias=bias.expand(len(real), -1)))
    except (SubjectRaised, LawBroken, NotApplicable):
        return False
    return not within(given, exact, output_bound(x, subject.found.unit)).broken


def notes_of_key_mask(subject: MultiHeadSubject) -> Iterator[str]:
    """What was found, in words."""
    name, lengths = subject.places["key_mask"], subject.places["lengths"]
    if subject.counts_keys:
        yield (
            f"{name} (batch,) is how many keys of each sequence are real; where it says something else, "
            "--declare key_masks=()"
        )
    elif name:
        yield f"{name} is {' or '.join(subject.found.key_masks)}; True means {subject.found.key_true_means}"
    if lengths:
        yield (
            f"{lengths} is left at None: of what it hides nothing is judged; if it counts the keys that are real, "
            f"--declare arguments.key_mask={lengths}"
        )
