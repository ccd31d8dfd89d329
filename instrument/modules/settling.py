"""What masks of padding say, where simple calls are wrong else: taken where their names leave it open, or hinted at."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from headcheck.comparison import LawBroken, NotApplicable
from headcheck.errors import SubjectError
from headcheck.modules.masks import CAUSAL, CAUSAL_ALONE, leaves_open
from headcheck.verdict import IF_MEANT, Hint

Candidate = Mapping[str, Any]
"""Fields of a declaration, each with one of its values."""
OF_PADDING: tuple[Candidate, ...] = (
    {"true_means": "padding"},
    {"true_means": "real"},
    {"mask_kind": "additive"},
)
OF_CAUSALITY: tuple[Candidate, ...] = (
    {"causal_mask": True},
    {"causal_mask": True, "true_means": "padding"},
    {"causal_mask": True, "mask_kind": "additive"},
)
"""Of a role whose caller may give the causal mask."""


def settled_masks(
    subject: Any,
    find: Callable[[Any], Iterable[str]],
    is_right: Callable[[Any], bool],
    *,
    call: str,
    candidates: Sequence[Candidate] = OF_PADDING,
) -> list[str]:
    """What `find` finds out about the masks; if calls are wrong then, what cures them is taken or hinted at.

    find: notes of a subject, into which it writes the forms of its masks. is_right: whether its simple calls are.
    call: what these are, in words. candidates: tried each alone, where its fields are there and not declared. What
    True says is taken where the names of the masks leave it open.
    """
    notes = list(find(subject))
    if is_right(subject):
        return notes
    given = [name for name, place in subject.places.items() if place]
    for fields in candidates:
        if any(getattr(subject.declaration, field, "none") is not None for field in fields):
            continue
        try:
            declared = subject.declaration.but(**fields)
            other = type(subject)(declared, dtypes=subject.dtypes, device=subject.device)
            found = list(find(other))
        except (SubjectError, LawBroken, NotApplicable):
            continue
        # A mask that is no longer given is not wrong any more, and not right either.
        if not all(other.places[name] for name in given) or not is_right(other):
            continue
        turned = [name for name in given if _says_otherwise(subject, other, name)]
        if [*fields] == ["true_means"] and all(_leaves_open(subject, name) for name in turned):
            subject.forms, subject.places = other.forms, other.places
            return found
        declares = " ".join(f"--declare {field}={value}" for field, value in fields.items())
        return [*notes, Hint(f"a {call} is right with {declares}, {IF_MEANT}")]
    return [*notes, *of_unknown_masks(subject, find, is_right, call)]


def of_unknown_masks(
    subject: Any, find: Callable[[Any], Iterable[str]], is_right: Callable[[Any], bool], call: str
) -> list[Hint]:
    """Of masks that are asked for and were None, the one with which simple calls are right, as the causal one."""
    for name in subject.left_at_none if CAUSAL in subject.places else ():
        declared = subject.declaration.but(arguments={**subject.declaration.arguments, CAUSAL: name})
        try:
            other = type(subject)(declared, dtypes=subject.dtypes, device=subject.device)
            list(find(other))
        except (SubjectError, LawBroken, NotApplicable):
            continue
        if is_right(other):
            return [Hint(f"a {call} is right with --declare arguments.{CAUSAL}={name}, {IF_MEANT}")]
    return []


def _leaves_open(subject: Any, mask: str) -> bool:
    """Whether nothing tells what True says: not its name, nor, of a causal mask alone, the padding that it hides."""
    return leaves_open(str(subject.places[mask])) or subject.lacks(mask) == CAUSAL_ALONE


def _says_otherwise(subject: Any, other: Any, mask: str) -> bool:
    """Whether True says something else in the mask to the other."""
    forms = subject.forms.get(mask), other.forms.get(mask)
    return None not in forms and len({form.real_is_true for form in forms}) > 1
