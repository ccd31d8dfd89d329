"""The conventions that a module shows by itself, on plain calls that have one right answer.

Only what may be either way is found out: how a fused or bare weight is laid out, which shapes and kinds of mask
are taken, what True says where the name of the mask leaves it open. What a name says is what is asked of it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from random import Random

import torch

from headcheck.calling import SubjectRaised
from headcheck.comparison import LawBroken, NotApplicable, within
from headcheck.modules.multi_head.bounds import output_bound
from headcheck.modules.multi_head.cases import MultiHeadInputs
from headcheck.modules.multi_head.conventions import MASK_SHAPES
from headcheck.modules.multi_head.key_masks import find_key_mask, notes_of_key_mask
from headcheck.modules.multi_head.masks import KEY_SHAPES
from headcheck.modules.multi_head.projections import Layout
from headcheck.modules.multi_head.subject import MultiHeadSubject
from headcheck.modules.multi_head.trials import Build, agrees, is_read, masked_trial, trial
from headcheck.modules.multi_head.units import unit_that_explains
from headcheck.modules.subject import problem_of
from headcheck.signatures import left_at_defaults, not_recognised

Outcome = tuple[bool | None, bool, bool]
UNAMBIGUOUS = ("qk", "b1qk", "bhqk", "bqk", "b11k")
"""Shapes that can be read in one way only where all axes differ in length: what is taken must be right."""
TRIALS = 4


def find(build: Build, subject: MultiHeadSubject) -> list[str]:
    """What the subject left undeclared is written into `subject.found`; the words for the verdict."""
    found, guide = subject.found, _in_a_wide_format(build, subject)
    unit = _unit(build, subject)
    found.unit = unit if guide is subject else _unit(build, guide)
    subject.layout = guide.layout = _layout(build, guide)
    _find_mask(build, guide)
    find_key_mask(build, guide)
    found.unit = unit
    found.empty_rows = _empty_rows(build, subject)
    found.weights = _weights(build, subject)
    return _notes(build, subject)


def _in_a_wide_format(build: Build, subject: MultiHeadSubject) -> MultiHeadSubject:
    """The subject in float32 where it is judged in 16 bits: there more than one convention is within the bound."""
    if torch.finfo(getattr(torch, subject.dtypes[0])).bits > 16:
        return subject
    try:
        wide = subject.in_float32()
        wide(trial(build, wide))
    except (SubjectRaised, LawBroken, NotApplicable):
        return subject
    return wide


def _unit(build: Build, subject: MultiHeadSubject) -> float:
    return unit_that_explains(subject, [trial(build, subject, seed=n) for n in range(TRIALS)])


def _layout(build: Build, subject: MultiHeadSubject) -> Layout:
    """How fused and bare weights are laid out: the first way in which a plain call is right."""
    for layout in subject.layouts:
        subject.layout = layout
        if agrees(subject, trial(build, subject)):
            return layout
    return subject.layouts[0]


def _find_mask(build: Build, subject: MultiHeadSubject) -> None:
    places, declared, found = subject.places, subject.declaration, subject.found
    said = places["attn_mask"] or (places["key_mask"] and not subject.counts_keys)
    if not said and subject.required("key"):
        # Attention to another sequence alone, and its only mask.
        places["attn_mask"], places["cross_mask"] = places["cross_mask"], None
    place = places["attn_mask"]
    if not place or declared.masks == ():
        subject.places["cross_mask"] = None
        return
    means = ["block", "keep"] if place in ("attn_mask", "memory_mask") else ["keep"]  # Torch's names.
    means = [declared.true_means] if declared.true_means else means
    kinds, shapes = declared.masks or ("boolean", "additive"), declared.mask_shapes or MASK_SHAPES
    outcome = _outcomes(build, subject, list(product(means, kinds, shapes)))
    right = [key for key, (agreed, *_) in outcome.items() if agreed]
    sure = [key[0] for key in right if key[1] == "boolean"]  # An additive mask is the same in either meaning.
    found.true_means = sure[0] if sure else _hiding(build, subject, means, shapes)
    read = [key[1:] for key, (_, is_read, _) in outcome.items() if is_read and key[0] == found.true_means]
    if right:
        all_read, known = read, {each[2] for each in right} | {*UNAMBIGUOUS}
        read = [each for each in read if (found.true_means, *each) in right or each[1] in UNAMBIGUOUS]
        found.read_otherwise = tuple(dict.fromkeys(shape for _, shape in all_read if shape not in known))
        # Added in one shape, and so in every one that is taken.
        if any(kind == "additive" for _, kind, _ in right):
            read += [("additive", shape) for shape in _wrong_numbers(outcome) if shape in UNAMBIGUOUS]
    elif not read:
        # Booleans are added as numbers, or raise: numbers are meant, and what becomes of them is for laws to judge.
        wrong = _wrong_numbers(outcome)
        read = [("additive", shape) for shape in wrong if not _means_one_and_zero(build, subject, shape)]
    found.mask_forms = tuple(
        (kind, shape)
        for shape in declared.mask_shapes or tuple(dict.fromkeys(shape for _, shape in read))
        for kind in declared.masks or [k for k, each in read if each == shape] or ["boolean"]
    )


def _wrong_numbers(outcome: Mapping[tuple[str, str, str], Outcome]) -> list[str]:
    """The shapes in which a mask of numbers is taken, and gives a wrong answer."""
    wrong = (key[2] for key, (agreed, *_) in outcome.items() if agreed is False and key[1] == "additive")
    return list(dict.fromkeys(wrong))


def _hiding(build: Build, subject: MultiHeadSubject, means: Sequence[str], shapes: Sequence[str]) -> str:
    """Of meanings under which all answers are wrong, that by which hidden keys have no influence; or the first."""
    hides = (each for each in means for shape in shapes if hides_keys(build, subject, each, "boolean", shape))
    return next(hides, means[0]) if len(means) > 1 else means[0]


def hides_keys(build: Build, subject: MultiHeadSubject, true_means: str, kind: str, shape: str) -> bool:
    """Whether a mask of this meaning, kind and shape makes the answer independent of the keys that it hides."""
    before = subject.found
    subject.found = replace(before, true_means=true_means, mask_forms=((kind, shape),))
    try:
        x = masked_trial(build, subject, mask="keys", mask_shape=shape, mask_kind=kind)
        hidden = ~x.visible().any(dim=2).any(dim=1)
        # Where the keys are the queries, too, those that are not hidden are looked at.
        rows = ~hidden if x.key is None else torch.ones(x.query.shape[:2], dtype=torch.bool)
        other = x.with_other_keys(hidden, "hidden")
        return bool(hidden.any() and rows.any()) and torch.equal(subject(other)[rows], subject(x)[rows])
    except (SubjectRaised, LawBroken, NotApplicable):
        return False
    finally:
        subject.found = before


def _outcomes(
    build: Build, subject: MultiHeadSubject, tried: list[tuple[str, str, str]]
) -> dict[tuple[str, str, str], Outcome]:
    """What becomes of each form of a mask: in calls of self-attention where others ignore it, and these do not.

    Then a parameter that is named for it takes the mask of the others; where the mask acts there, it is another mask.
    """
    found = subject.found
    everywhere = {key: _outcome(build, subject, *key) for key in tried}
    if subject.has("cross") and not any(acts for *_, acts in everywhere.values()):
        found.of_self = True
        in_self = {key: _outcome(build, subject, *key) for key in tried}
        if any(acts for *_, acts in in_self.values()):
            return in_self
        found.of_self = False
    subject.places["cross_mask"] = None
    return everywhere


def _outcome(build: Build, subject: MultiHeadSubject, true_means: str, kind: str, shape: str) -> Outcome:
    """Whether a mask of this polarity, kind and shape gives the exact answer, is read at all, and changes anything."""
    before = subject.found
    subject.found = replace(before, true_means=true_means, mask_forms=((kind, shape),))
    try:
        x = _with_mask(build, subject, kind, shape)
        agreed = agrees(subject, x)
        undeclared = kind == "additive" and subject.declaration.masks is None
        read = is_read(subject, x, kind, agreed)
        acts = bool(agreed) or (agreed is False and _acts(subject, x))
        return agreed, read and not (undeclared and _takes_for_booleans(subject, x)), acts
    finally:
        subject.found = before


def _with_mask(build: Build, subject: MultiHeadSubject, kind: str, shape: str) -> MultiHeadInputs:
    """A plain call with a mask of this kind and shape that says all that the shape can."""
    mask = "keys" if shape in KEY_SHAPES else "by-head" if "h" in shape else "random"
    return masked_trial(build, subject, mask=mask, mask_shape=shape, mask_kind=kind)


def _acts(subject: MultiHeadSubject, x: MultiHeadInputs) -> bool:
    """Whether a mask that a call takes changes anything."""
    try:
        return not torch.equal(subject(x), subject(x.masked(None)))
    except (SubjectRaised, LawBroken, NotApplicable):
        return True


def works_with_a_mask_of_nothing(build: Build, subject: MultiHeadSubject) -> bool:
    """Whether a module that asks for attn_mask, and does not take None, takes one that hides nothing.

    It is given one from then on wherever there is no other.
    """
    found, declared = subject.found, subject.declaration
    if "attn_mask" not in subject.required("attn_mask") or declared.masks == ():
        return False
    found.needs_mask = True
    shapes = declared.mask_shapes or MASK_SHAPES
    for kind, shape in product(declared.masks or ("boolean", "additive"), shapes):
        found.mask_forms = ((kind, shape),)
        if problem_of(subject, trial(build, subject)) is None:
            return True
    found.needs_mask, found.mask_forms = False, ()
    return False


def _means_one_and_zero(build: Build, subject: MultiHeadSubject, shape: str) -> bool:
    """Whether numbers say which keys are seen, as in (1 - mask) * -1e9, which refuses booleans."""
    before = subject.found
    subject.found = replace(before, mask_forms=(("additive", shape),))
    try:
        return _takes_for_booleans(
            subject, masked_trial(build, subject, mask_shape=shape, mask_kind="additive")
        )
    finally:
        subject.found = before


def _takes_for_booleans(subject: MultiHeadSubject, x: MultiHeadInputs) -> bool:
    """Whether a finite number in a mask hides its key, or 0 does, be weights asked for or not."""
    whole = (len(x.query), 1, x.query.shape[1], x.keys.shape[1])
    odd = (torch.arange(whole[-1]) % 2 == 1).expand(whole)
    given = x.nothing_hidden().but(score_bias=odd.to(x.query.dtype))
    exact = [subject.exact(x.masked(seen)) for seen in (odd, ~odd)]
    try:
        answers = [subject(given.but(case=x.case.but(need_weights=asked))) for asked in (False, True)]
    except (SubjectRaised, LawBroken, NotApplicable):
        return False
    bound = output_bound(x, subject.found.unit)
    return all(any(not within(each, one, bound).broken for one in exact) for each in answers)


def _empty_rows(build: Build, subject: MultiHeadSubject) -> str:
    declared: str | None = subject.declaration.empty_rows
    if declared is not None:
        return declared
    dead = [without_keys(subject, trial(build, subject, need_weights=asked)) for asked in (False, True)]
    return "zeros" if all(each is not None and agrees(subject, each) for each in dead) else "undefined"


def without_keys(subject: MultiHeadSubject, x: MultiHeadInputs) -> MultiHeadInputs | None:
    """The same call with a query, or where that cannot be said a sequence, that may attend to nothing."""
    query = Random(x.case.seed).randrange(x.query.shape[1])
    if any(shape not in KEY_SHAPES for shape in subject.found.mask_shapes):
        seen = torch.ones(len(x.query), 1, x.query.shape[1], x.keys.shape[1], dtype=torch.bool)
        seen[:, :, query] = False
        return x.masked(seen).but(is_real=None)
    real = torch.ones(len(x.query), x.keys.shape[1], dtype=torch.bool)
    real[-1] = False
    if subject.counts_keys and subject.declaration.empty_rows in (None, "undefined"):
        return None  # A length of zero is no sequence, and may be refused.
    if subject.has("key_mask"):
        return x.masked(None).but(is_real=real)
    if subject.has("attn_mask"):
        seen = real[:, None, None, :].expand(-1, 1, x.query.shape[1], -1)
        return x.masked(seen.clone()).but(is_real=None)
    return None


def without_keys_by_both(subject: MultiHeadSubject, x: MultiHeadInputs) -> MultiHeadInputs | None:
    """The same call with a query to which attn_mask leaves one key, which in the last sequence is padding."""
    by_query = any(shape not in KEY_SHAPES for shape in subject.found.mask_shapes)
    kv_len = x.keys.shape[1]
    if not by_query or not subject.has("key_mask") or kv_len < 2:
        return None
    seen = torch.ones(len(x.query), 1, x.query.shape[1], kv_len, dtype=torch.bool)
    query, key = (Random(x.case.seed).randrange(n) for n in (x.query.shape[1], kv_len))
    seen[:, :, query] = torch.arange(kv_len) == key
    real = torch.ones(len(x.query), kv_len, dtype=torch.bool)
    real[-1, key] = False
    return x.masked(seen).but(is_real=real)


def _weights(build: Build, subject: MultiHeadSubject) -> str:
    declared = subject.declaration.weights
    if declared is not None:
        return declared or ""
    for name in ("averaged", "per-head"):
        subject.found.weights = name
        try:
            subject.returned_weights(trial(build, subject))
        except (SubjectRaised, LawBroken):
            continue
        return name
    return ""


def _notes(build: Build, subject: MultiHeadSubject) -> list[str]:
    found, notes = subject.found, []
    coarse = found.unit > torch.finfo(getattr(torch, subject.dtypes[0])).eps / 2
    if coarse and agrees(subject, trial(build, subject)):
        notes.append(f"it rounds inside to {found.unit:.2g} of a number")
    if found.mask_shapes:
        shapes, kinds = ", ".join(found.mask_shapes), " or ".join(found.masks)
        acts = any(_acts(subject, _with_mask(build, subject, *form)) for form in found.mask_forms)
        read = f"is {kinds} of shape {shapes}; True means {found.true_means}"
        notes.append(f"{subject.places['attn_mask']} {read if acts else 'changes nothing in a plain call'}")
    if found.read_otherwise and subject.declaration.mask_shapes is None:
        shapes, all_shapes = ", ".join(found.read_otherwise), [*found.mask_shapes, *found.read_otherwise]
        notes.append(
            f"{subject.places['attn_mask']} of shape {shapes} is read in another way than torch reads it, and is not "
            f"judged; where torch's is meant, --declare 'mask_shapes={','.join(all_shapes)}'"
        )
    if found.of_self:
        others = (
            subject.places["cross_mask"] or "none, under a name that is known; declare arguments.cross_mask"
        )
        notes.append(
            f"{subject.places['attn_mask']} acts in self-attention alone; the mask of calls with keys of another "
            f"sequence is {others}"
        )
    if not found.mask_shapes and subject.places["attn_mask"] and subject.declaration.masks != ():
        notes.append(f"{subject.places['attn_mask']} works in no shape that is known; declare mask_shapes")
    notes += notes_of_key_mask(subject)
    if found.weights:
        notes.append(f"weights are returned, {found.weights}")
    unknown = not_recognised(subject.function, subject.places.values(), inputs=1)
    if unknown:
        said = left_at_defaults(unknown)
        masks = [name for name in ("attn_mask", "key_mask") if not subject.places[name]]
        cures = " or ".join(f"--declare arguments.{name}=NAME" for name in masks)
        notes.append(f"{said}; if one is a mask, {cures}" if masks else said)
    return notes
