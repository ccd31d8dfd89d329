"""Which declaration would make right what a module gives for plain calls, where it is wrong as it is."""

from collections.abc import Iterator
from typing import Any

import torch

from headcheck.calling import SubjectRaised
from headcheck.comparison import LawBroken, NotApplicable
from headcheck.errors import SubjectError
from headcheck.modules.multi_head.bounds import output_bound
from headcheck.modules.multi_head.cases import MultiHeadInputs
from headcheck.modules.multi_head.conventions import MASK_SHAPES
from headcheck.modules.multi_head.finding import find, hides_keys, works_with_a_mask_of_nothing
from headcheck.modules.multi_head.masks import KEY_SHAPES
from headcheck.modules.multi_head.subject import MultiHeadSubject
from headcheck.modules.multi_head.trials import Build, agrees, masked_trial, trial
from headcheck.verdict import IF_MEANT, IN_FLOAT32, Hint

PLAIN: tuple[dict[str, Any], ...] = (
    {"causal": True},
    {"batch_first": False},
    {"causal": True, "batch_first": False},
)
"""What may be wrong where no mask is given, in the order in which it is tried."""
WITH_A_MASK: tuple[dict[str, Any], ...] = ({"true_means": "block"}, {"true_means": "keep"})
"""What may be wrong where a mask is always given, which was meant to hide nothing."""
ORDERED = (
    "the order of the tokens counts, as with positions inside, and a plain call is right by no convention that is known; "
    "where that is meant, the module is judged without a reference by --role encoder --declare skip_path=False "
    "--declare positions=True"
)
DIFFERENT = (
    "a plain call of equal tokens is right, and of different ones by no convention that is known, as where scores are "
    "not scaled, or are of queries and keys that are normed; where that is meant, an instance is judged without a "
    "reference by --role encoder --declare skip_path=False"
)
INSIDE = ("w_q", "w_k", "w_v")
NO_SUM = "the weights do not sum to one: tokens that are all alike give another output where there are more of them"
WITHOUT_SUM = (
    "where that is meant, the module is judged without a reference by --role encoder --declare skip_path=False --declare "
    "only_tokens=False"
)
NO_WEIGHTS = (
    "what is returned second does not sum to one over the keys, as weights do: a plain call is right with"
)


def hints(build: Build, subject: MultiHeadSubject) -> list[Hint]:
    """At most one for what a plain call gives, or else for its masks and its weights."""
    if not agrees(subject, trial(build, subject)):
        return _of_plain_calls(build, subject)
    return [*_of_masks(build, subject), *_of_weights(build, subject)]


def _of_plain_calls(build: Build, subject: MultiHeadSubject) -> list[Hint]:
    if subject.dtypes[0] == "float64":
        narrow = _declared(build, subject, {}, dtypes=("float32",))
        fine = narrow is not None and narrow.found.unit <= torch.finfo(torch.float32).eps / 2
        if narrow is not None and fine and agrees(narrow, trial(build, narrow)):
            return [Hint(IN_FLOAT32)]
    for candidate in PLAIN + (WITH_A_MASK if subject.found.needs_mask else ()):
        other = _declared(build, subject, candidate)
        if other is None or not agrees(other, trial(build, other)):
            continue
        if candidate.get("causal") and other.has("attn_mask") and not _takes_its_mask(build, other):
            unless = candidate | {"causal": "unless-masked"}
            masked = _declared(build, subject, unless)
            if masked is not None and _takes_its_mask(build, masked):
                return [_hint(unless)]
        return [_hint(candidate)]
    return [*_of_positions(build, subject), *_of_sums(build, subject)]


def _of_masks(build: Build, subject: MultiHeadSubject) -> Iterator[Hint]:
    """Of polarities that are not declared, whether a call with a mask is right by the other only."""
    found = subject.found
    for field, takes in (("true_means", _takes_its_mask), ("key_true_means", _takes_its_key_mask)):
        if not subject.has("attn_mask" if field == "true_means" else "key_mask") or takes(build, subject):
            continue
        candidate = {field: "keep" if getattr(found, field) == "block" else "block"}
        other = _declared(build, subject, candidate)
        if other is not None and takes(build, other):
            yield _hint(candidate, "a call with a mask")
    numbers = ("additive" in found.key_masks, "additive" in found.masks)
    if all(numbers) and not _takes_both_masks(build, subject):
        other = _declared(build, subject, {"key_masks": ("boolean",)})
        if other is not None and _takes_both_masks(build, other):
            yield _hint({"key_masks": "boolean"}, "a call with both masks")


def _of_weights(build: Build, subject: MultiHeadSubject) -> Iterator[Hint]:
    if subject.declaration.weights is not None or not subject.found.weights:
        return
    total = subject.returned_weights(trial(build, subject)).sum(dim=-1)
    if not torch.allclose(total, torch.ones_like(total), atol=64 * subject.found.unit):
        yield Hint(f"{NO_WEIGHTS} --declare weights=False, {IF_MEANT}")


def _of_positions(build: Build, subject: MultiHeadSubject) -> Iterator[Hint]:
    """Whether the last token hears those before it by their places, and what they say as the reference has it."""
    x = trial(build, subject, mode="self")
    if not agrees(subject, x.but(query=x.query[:, :1].expand(x.query.shape).clone())):
        return
    last = x.query.shape[1] - 1
    order = torch.tensor([*reversed(range(last)), last])
    try:
        before, after = subject(x), subject(x.but(query=x.query[:, order]))
        causal = _declared_causal(subject, x)
    except (SubjectRaised, LawBroken, NotApplicable):
        return
    if torch.allclose(before[:, last], after[:, last]):
        yield Hint(DIFFERENT)
        return
    yield Hint(
        f"{ORDERED}{causal}{' --declare mask_kind=additive' if _adds_its_mask(build, subject) else ''}"
    )


def _declared_causal(subject: MultiHeadSubject, x: MultiHeadInputs) -> str:
    """What is to be declared where the first token does not hear the last."""
    last = torch.arange(x.query.shape[1]) == x.query.shape[1] - 1
    other = x.with_other_keys(last.expand(len(x.query), -1), "last")
    return " --declare causal=True" if torch.equal(subject(x)[:, 0], subject(other)[:, 0]) else ""


def _of_sums(build: Build, subject: MultiHeadSubject) -> Iterator[Hint]:
    """Whether ones are weighed to another number where there are more of them.

    Every query, key and value is 1 in all its features, and so is what is merged, in whichever order; the output
    projection changes nothing.
    """
    drawn = trial(build, subject, mode="self")
    token = drawn.query[:1, :1]
    rows = {name: (token[0] / token.square().sum()).expand(drawn.weights[name].shape) for name in INSIDE}
    zeros = {name: torch.zeros_like(each) for name, each in drawn.weights.items() if name[0] == "b"}
    x = drawn.weighing(**rows, **zeros, w_o=torch.eye(token.shape[-1], dtype=token.dtype))
    x = x.but(query=token.expand(x.query.shape))
    try:
        one, more = subject(x.but(query=x.query[:, :1])), subject(x)
        causal = _declared_causal(subject, drawn)
    except (SubjectRaised, LawBroken, NotApplicable):
        return
    bound = output_bound(x, subject.found.unit)
    of_ones = all(bool((each.amax(dim=-1) - each.amin(dim=-1) <= bound).all()) for each in (one, more))
    if of_ones and bool(((more - one).abs() > bound).any()):
        needed = subject.required("key", "value")
        yield Hint(NO_SUM if needed else f"{NO_SUM}; {WITHOUT_SUM}{causal}")


def _adds_its_mask(build: Build, subject: MultiHeadSubject) -> bool:
    """Whether a mask hides as numbers what it does not hide as booleans."""
    if not subject.has("attn_mask"):
        return False
    boolean, additive = (
        any(
            hides_keys(build, subject, means, kind, shape)
            for means in ("keep", "block")
            for shape in MASK_SHAPES
        )
        for kind in ("boolean", "additive")
    )
    return additive and not boolean


def _takes_its_mask(build: Build, subject: MultiHeadSubject) -> bool:
    """Whether a call is right with a mask of some form that was found."""
    return any(
        agrees(subject, masked_trial(build, subject, mask=_pattern(shape), mask_kind=kind, mask_shape=shape))
        for kind, shape in subject.found.mask_forms
    )


def _pattern(shape: str) -> str:
    return "keys" if shape in KEY_SHAPES else "random"


def _takes_its_key_mask(build: Build, subject: MultiHeadSubject) -> bool:
    x: MultiHeadInputs = trial(build, subject, padding=True)
    return any(agrees(subject, x.but(case=x.case.but(mask_kind=kind))) for kind in subject.found.key_masks)


def _takes_both_masks(build: Build, subject: MultiHeadSubject) -> bool:
    """Whether a call is right with an additive attn_mask and a mask of the keys."""
    return any(
        agrees(
            subject,
            masked_trial(
                build, subject, mask=_pattern(shape), mask_kind="additive", mask_shape=shape, padding=True
            ),
        )
        for kind, shape in subject.found.mask_forms
        if kind == "additive"
    )


def _declared(
    build: Build, subject: MultiHeadSubject, fields: dict[str, Any], dtypes: tuple[str, ...] = ()
) -> MultiHeadSubject | None:
    """The subject with more declared, its other conventions found out; None where it is declared, or does not work."""
    if any(getattr(subject.declaration, field) not in (None, False) for field in fields):
        return None
    try:
        other = MultiHeadSubject(
            subject.declaration.but(**fields), dtypes=dtypes or subject.dtypes, device=subject.device
        )
        other.max_length = subject.max_length
        if subject.found.needs_mask:
            works_with_a_mask_of_nothing(build, other)
        find(build, other)
    except (SubjectError, LawBroken, NotApplicable):
        return None
    return other


def _hint(fields: dict[str, Any], call: str = "a plain call") -> Hint:
    said = " ".join(f"--declare {field}={value}" for field, value in fields.items())
    return Hint(f"{call} is right with {said}, {IF_MEANT}")
