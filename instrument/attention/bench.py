"""Where a subject is probed: its conventions as far as they are known, and how a call goes under others."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from headcheck.attention.case import Case
from headcheck.attention.forms import canonical_shape
from headcheck.attention.inputs import Inputs, build
from headcheck.attention.layout_shown import as_laid_out
from headcheck.attention.mask_needed import as_given_a_mask
from headcheck.attention.returning import as_returned
from headcheck.attention.sizes import sized
from headcheck.attention.sizes_shown import as_sized
from headcheck.attention.subject import AttentionSubject
from headcheck.calling import SubjectRaised
from headcheck.comparison import Failure, LawBroken, NotApplicable, failure_of, within
from headcheck.declarations import DTYPES, Attention
from headcheck.pasting import written
from headcheck.reference import masks


@dataclass(frozen=True)
class Finding:
    """What one probe showed."""

    topic: str
    """The field of the declaration, where it can be declared."""
    value: Any
    how: str
    told: bool = True
    """False: it could not be told, and `how` says why."""
    declarable: bool = True


class Bench:
    """The subject on the bench: the conventions known so far, and how a call goes under others."""

    def __init__(self, declaration: Attention, device: str) -> None:
        self.device = device
        self.dtype = "float32"
        masked, _ = as_given_a_mask(declaration, DTYPES, device)
        laid_out, _ = as_laid_out(masked, DTYPES, device, though_answered=True)
        in_sizes, _ = as_sized(laid_out, DTYPES, device)
        self.declaration, _ = as_returned(in_sizes, DTYPES, device)

    @property
    def tensor_dtype(self) -> torch.dtype:
        dtype: torch.dtype = getattr(torch, self.dtype)
        return dtype

    def inputs(self, alignment: masks.Alignment = "top-left", **fields: Any) -> Inputs:
        """A tiny input with a query of zeros; every axis has a size of its own."""
        sizes = {
            "batch": 2,
            "heads": 3,
            "kv_heads": 3,
            "q_len": 5,
            "kv_len": 5,
            "head_dim": 4,
            "value_dim": 4,
        }
        forms = {"mask_axes": self.subject().mask_forms[0]} if "mask" in fields else {}
        x = self.built(alignment, seed=1, **{**sizes, **forms, **fields})
        return x.but(query=torch.zeros_like(x.query))

    def built(self, alignment: masks.Alignment = "top-left", **fields: Any) -> Inputs:
        """The inputs of a case, in sizes that the subject takes."""
        return build(sized(Case(**{"dtype": self.dtype, **fields}), self.declaration), alignment)

    def subject(self, **conventions: Any) -> AttentionSubject:
        """The subject as it would be with these conventions."""
        return AttentionSubject(self.declaration.but(**conventions), dtypes=(self.dtype,), device=self.device)

    def problem(self, x: Inputs, **conventions: Any) -> str:
        """Why a call does not give a tensor of the right form; '' if it does."""
        return str(self._failure(x, conventions) or "")

    def refusal(self, x: Inputs, **conventions: Any) -> str:
        """The exception that a call raises; '' if it returns anything at all."""
        failure = self._failure(x, conventions)
        return str(failure) if isinstance(failure, SubjectRaised | NotApplicable) else ""

    def _failure(self, x: Inputs, conventions: dict[str, Any]) -> Failure | None:
        return failure_of(self.subject(**conventions), x)

    def fits(self, x: Inputs, as_if: Inputs | None = None, /, **conventions: Any) -> bool:
        """Whether the answer is the one that these conventions give (for the input `as_if`, if given)."""
        subject, wanted = self.subject(**conventions), as_if or x
        try:
            return not within(subject(x), subject.expected(wanted), subject.bound(wanted)).broken
        except (LawBroken, NotApplicable):
            return False

    def error(self, x: Inputs, as_if: Inputs) -> float:
        """The largest difference from the answer to another input; infinite where there is none."""
        subject = self.subject()
        try:
            return float((subject(x).double() - subject.expected(as_if)).abs().max())
        except (LawBroken, NotApplicable):
            return math.inf

    def reads_mask_of(self, shape: str) -> bool:
        """Whether masks of a shape have their effect, of one kind and of one meaning at least."""
        axes = canonical_shape(shape)
        cases = [self.inputs(mask="random", mask_axes=axes, mask_form=form) for form in ("boolean", "bias")]
        return any(
            self.fits(x, masks=None, mask_shapes=(shape,), true_means=meaning)
            for x in cases
            for meaning in ("keep", "block")
        )

    def which(
        self,
        topic: str,
        candidates: Iterable[Any],
        fits: Callable[[Any], bool],
        how: str,
        *,
        why_not: str = "",
        declarable: bool = True,
    ) -> Finding:
        """The one candidate that fits; nothing is claimed where none or several do."""
        fitting = [value for value in candidates if fits(value)]
        if len(fitting) == 1:
            return Finding(topic, fitting[0], how, declarable=declarable)
        names = [written(value) for value in fitting or candidates]
        reason = (
            f"{' and '.join(names)} all fit" if fitting else why_not or f"neither {' nor '.join(names)} fits"
        )
        return Finding(topic, None, reason, told=False, declarable=declarable)


Found = Finding | Iterator[Finding]


@dataclass(frozen=True)
class Probe:
    """One way to find a convention out."""

    ask: Callable[[Bench], Found]
    compared: str
    """The convention in words, by which `headcheck agree` compares subjects; '' where it does not.

    Then the probe is called as the field of the declaration that it finds.
    """
    otherwise: str
    """What it is taken for there where it is neither declared nor seen."""

    @property
    def name(self) -> str:
        return str(getattr(self.ask, "__name__", ""))

    def findings(self, bench: Bench) -> Iterator[Finding]:
        """What it shows: nothing where it has no meaning for the subject."""
        if OF_ALWAYS.get(self.name, self.name) in bench.declaration.always:
            return  # It is declared, and no call can show it.
        try:
            found = self.ask(bench)
            yield from [found] if isinstance(found, Finding) else found
        except (LawBroken, NotApplicable) as problem:
            # Such as an exception of one that asserts finite numbers.
            yield Finding(self.name, None, str(problem), told=False)


PROBES: list[Probe] = []
OF_ALWAYS = {"default_scale": "scale", "scale_with_causal": "scale", "window_of_every_call": "window"}
"""Probes of what every call may have, by other names than its own."""


def probe(*, compared: str = "", otherwise: str = "?") -> Callable[[Callable[[Bench], Found]], Probe]:
    """Register a function as a probe; it may yield several findings."""

    def register(ask: Callable[[Bench], Found]) -> Probe:
        PROBES.append(Probe(ask, compared, otherwise))
        return PROBES[-1]

    return register


def as_asked(field: str, bench: Bench, plain: Inputs, x: Inputs, what: str) -> Finding:
    """Whether a call that asks for a feature, undeclared, gives what it should, and not what a plain call gives."""
    absent = bench.subject(**{field: None}).lacks(field)
    problem = absent or bench.refusal(x, **{field: None})
    if problem:
        return Finding(field, False, problem)
    if bench.fits(x, **{field: None}):
        return Finding(field, True, what)
    ignored = bench.fits(x, plain, **{field: None})
    return Finding(
        field, None, f"{what}: {'it changes nothing' if ignored else 'another answer'}", told=False
    )
