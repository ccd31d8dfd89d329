"""What the roles `layer_norm` and `rms_norm` have in common: how cases are built, tried and settled."""

from dataclasses import replace
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from headcheck.arithmetic import Arithmetic, named
from headcheck.calling import REFUSALS, SubjectRaised
from headcheck.comparison import Failure, LawBroken, NotApplicable, failure_of, within
from headcheck.declarations import Declaration
from headcheck.errors import SubjectError
from headcheck.functions.axis_hints import axis_note
from headcheck.functions.inputs import tensor_of
from headcheck.functions.norm_hints import notes
from headcheck.functions.norm_modules import as_function
from headcheck.functions.norms import WIDTHS, NormCase, NormInputs, NormSubject, alternating
from headcheck.functions.role import FunctionRole
from headcheck.functions.subject import FunctionSubject

MOST_NUMBERS = 20_000
"""A case has fewer rows rather than more numbers than this."""

WIDE, NARROW = 1000, 65
"""The width of rows that show whether a function is slow, and of the widest that a slow one is tried with."""
SLOW_S = 0.02
MANY_ROWS = 4096
"""So many rows that are alike show in which format their sum is kept; laws ask for no more."""

AnyCase = TypeVar("AnyCase", bound=NormCase)


class NormRole(FunctionRole[AnyCase, NormInputs], Generic[AnyCase]):
    """Case, declaration and subject of a norm."""

    other: tuple[str, str, str]  # The other kind of norm in words, this one, and the role of the other.
    asks_for_doubles = True
    classes = True  # A class is made with a width, and with eps where it takes one.
    inferred = (named("wide"), named("flash"), named("opwise"), replace(named("opwise"), rescale="input"))
    cure = "say its role with --role, or the width of a module that has one: dims=(24,) in its declaration"

    def prepare(
        self, declaration: Declaration, *, dtypes: tuple[str, ...], device: str, seed: int
    ) -> tuple[FunctionSubject[NormInputs], list[str]]:
        """A module, made or to be made, is called with the weights that the laws give."""
        subject, notes = super().prepare(as_function(declaration), dtypes=dtypes, device=device, seed=seed)
        assert isinstance(subject, NormSubject)
        subject.widest = None
        return subject, notes

    def find_out(self, subject: NormSubject) -> list[str]:
        """Which of a few widths are refused aloud, and whether wide rows take long.

        SubjectError: all but one raise, as of a module of one width.
        """
        subject.widest = NARROW if self._is_slow(subject) else None
        if subject.dims:
            return []
        tries = ([self._try(subject, dtype, width) for width in WIDTHS] for dtype in subject.dtypes)
        found = next((each for each in tries if any(not isinstance(why, SubjectRaised) for why in each)), [])
        if found and all(isinstance(why, SubjectRaised) for why in found[1:]):
            raise SubjectError(
                f"the subject takes no width of rows as {self.plain_call}: of 1, {found[0] or 'works'}; "
                f"of 2, {found[1]}; put a function around it that does, {self.cure}"
            )
        refused = {
            width: why
            for width, why in zip(WIDTHS, found, strict=False)
            if isinstance(why, SubjectRaised) and isinstance(why.problem, REFUSALS)
        }
        subject.avoids = (*refused,)
        return [f"rows of {width}: not asked for ({why})" for width, why in refused.items()]

    def _is_slow(self, subject: NormSubject) -> bool:
        """Whether each call with wide rows takes long, as of a loop over features: one may compile, or be interrupted."""
        for _ in range(3):
            before = subject.seconds
            self._try(subject, subject.dtypes[0], subject.width(WIDE))
            if subject.seconds - before <= SLOW_S:
                return False
        return True

    def _try(self, subject: NormSubject, dtype: str, width: int) -> Failure | None:
        """Why a call with rows of one width does not work, or None if it does."""
        rows = torch.ones(1, 2, width, dtype=getattr(torch, dtype))
        x = alternating(NormInputs(self.case(), rows), 1.0)
        given = {name: torch.ones_like(x[0, 0]) for name in subject.affine if subject.has(name)}
        return failure_of(subject, NormInputs(self.case(), x).but(**given))

    def build(self, case: AnyCase, subject: NormSubject) -> NormInputs:
        x = tensor_of(case, "x")
        given = {name: _vector(case, name) for name in subject.affine}
        return NormInputs(case, x, eps=case.eps, **given)

    def settle(self, case: AnyCase, subject: NormSubject) -> AnyCase:
        for name in subject.affine:
            if subject.lacks(name):
                case = case.but(**{name: "none"})
            elif getattr(case, name) == "none" and subject.lacks(f"{name}less"):
                case = case.but(**{name: type(case).__dataclass_fields__[name].default})
        absent = [name for name in subject.affine if getattr(case, name) == "none"]
        kept = tuple(pair for pair in case.numbers if pair[0] not in absent)
        case = case.but(dim=subject.width(min(case.dim, subject.widest or case.dim)))
        rows = max(1, min(case.rows, MOST_NUMBERS // (case.batch * case.dim)))
        own_eps = subject.eps_in(getattr(torch, case.dtype))
        return case.but(numbers=kept, rows=rows, eps=case.eps if own_eps is None else own_eps)

    def telling(self, case: AnyCase) -> AnyCase:
        """Half of them with rows by the hundred, half far from zero: there a sum or a mean kept in 16 bits shows."""
        many = case.but(rows=200, batch=1, dim=min(case.dim, 65)) if case.seed % 2 else case
        return many.but(values="offset", dim=max(2, many.dim)) if case.seed // 2 % 2 else many

    def conventions(self, subject: NormSubject) -> dict[str, Any]:
        found = {subject.eps_in(getattr(torch, dtype)) for dtype in subject.dtypes}
        return {"eps": found.pop() if len(found) == 1 else None}

    def _ratio(self, subject: FunctionSubject[NormInputs], case: AnyCase, model: Arithmetic) -> float:
        """With each step stored, sums over rows may be too: it shows in rows that are alike, of which nothing cancels."""
        found = super()._ratio(subject, case, model)
        return found if model != named("opwise") else max(found, self._ratio_of_sums(subject, case, model))

    def _ratio_of_sums(self, subject: FunctionSubject[NormInputs], case: AnyCase, model: Arithmetic) -> float:
        """The largest error over bound of the gradients that are sums over rows."""
        assert isinstance(subject, NormSubject)
        trial = subject.held_to({case.dtype: model})
        trial.dtypes = (case.dtype,)
        x = self.build(case, trial)
        x = x.but(x=x.x[:1, :1].expand(-1, min(MANY_ROWS, MOST_NUMBERS // x.x.shape[-1]), -1).contiguous())
        g = x.normal(x.output_shape, "of rows that are alike").abs()
        try:
            found, exact = trial.gradients(x, g), trial.exact_gradients(x, g)
            bounds = trial.gradient_bounds(x, g.double())
        except (LawBroken, NotApplicable):
            return 0.0
        sums = {name: each for name, each in found.items() if name != "x" and each is not None}
        return max(
            (within(each, exact[name], bounds[name]).ratio for name, each in sums.items()), default=0.0
        )

    def notes(self, subject: NormSubject) -> list[str]:
        plain = self.case(dtype=subject.dtypes[0], rows=3, dim=8, seed=1)
        square = plain.but(batch=2, rows=subject.width(8), **dict.fromkeys(subject.affine, "normal"))
        x, y = (self.build(self.fit(case, subject), subject) for case in (plain, square))
        return [*notes(subject, x, self.other), *axis_note(subject, y)]


def _vector(case: NormCase, name: str) -> Tensor | None:
    """A weight or bias: written out, or of the kind that the case names."""
    kind = getattr(case, name)
    if kind == "none":
        return None
    if name in dict(case.numbers) or kind not in ("ones", "zeros"):
        return tensor_of(case, name, "normal")
    return torch.full((case.dim,), float(kind == "ones"), dtype=getattr(torch, case.dtype))
