"""The subject as laws see it: what it gives, what it should give, and how far the two may be apart."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache, lru_cache

import torch
from torch import Tensor

from headcheck.arithmetic import Arithmetic, named
from headcheck.attention.bounds import ForwardBounds, forward_bounds
from headcheck.attention.edge import GRADIENTS, Edge
from headcheck.attention.gradient_bounds import (
    GradientBounds,
    gradient_bounds,
    log_sum_exp_gradient_bounds,
    of_the_mask,
)
from headcheck.attention.inputs import Inputs
from headcheck.attention.problem import Problem
from headcheck.comparison import (
    Comparison,
    LawBroken,
    NotApplicable,
    compared_gradients,
    forward_only,
    within,
)
from headcheck.declarations import Attention, EmptyRows
from headcheck.graph import parts_in_sixteen_bits
from headcheck.oracle import HeldToAnOracle
from headcheck.reference import masks

DEAD_ROWS = "dead rows"
SCALES = "a scale of zero or below"
CAUSAL_SCALES = "a scale of zero or below with is_causal"
MASK_WITH_CAUSAL = "attn_mask with is_causal"
"""What a subject may avoid."""
STEP_BY_STEP = replace(named("opwise"), scaled="input")
"""The widest arithmetic of code whose sums are kept in float32."""


class AttentionSubject(Edge, HeldToAnOracle[Inputs]):
    """An attention function behind its declaration, with the oracle and the bounds it is held to."""

    def __init__(
        self,
        declaration: Attention,
        *,
        dtypes: tuple[str, ...],
        arithmetic: Mapping[str, Arithmetic] | None = None,
        device: str = "cpu",
        refused: Mapping[str, str] | None = None,
        avoids: Iterable[str] = (),
    ) -> None:
        """arithmetic: by dtype; None for that of each dtype itself."""
        super().__init__(declaration, device=device, refused=refused)
        self.dtypes = dtypes
        self.arithmetic = dict.fromkeys(dtypes, named("native")) if arithmetic is None else arithmetic
        self.effort = declaration.effort
        self.empty_rows: EmptyRows = declaration.empty_rows or "zeros"
        self.avoids = frozenset(avoids)
        """What drawn cases leave out (DEAD_ROWS, ...), because one law of its own asks about it."""
        self.answered_otherwise: Mapping[str, str] = {}
        """Dtypes that are not judged, since a plain call in them is answered in another one: a law of its own says so."""
        self.rounded_log_sum_exps: frozenset[str] = frozenset()
        """Dtypes of 16 bits in which the log-sum-exp is returned, of scores that may be rounded to them: eager code takes
        it of those, and of nothing that the output is made of."""
        self.forward_bounds = lru_cache(maxsize=8)(self._forward_bounds)

    def but(
        self,
        *,
        declaration: Attention | None = None,
        dtypes: tuple[str, ...] | None = None,
        arithmetic: Mapping[str, Arithmetic] | None = None,
    ) -> "AttentionSubject":
        """The subject under another declaration, in other dtypes or by another arithmetic; what was found out is kept."""
        other = AttentionSubject(
            declaration or self.declaration,
            dtypes=dtypes or self.dtypes,
            arithmetic=self.arithmetic if arithmetic is None else arithmetic,
            device=self.device,
            refused=self.refused,
            avoids=self.avoids,
        )
        other.found, other.answered_otherwise = self.found, self.answered_otherwise
        other.rounded_log_sum_exps = self.rounded_log_sum_exps
        return other

    def expected(self, x: Inputs) -> Tensor:
        """The oracle's output, with dead rows by the subject's convention."""
        exact = x.problem.attended.output
        if self.empty_rows in ("zeros", "undefined") or x.sinks is not None or not x.dead_rows.any():
            return exact
        filled = torch.full_like(exact, torch.nan)
        if self.empty_rows == "mean":
            filled = _mean_problem(x.problem).attended.output
        return torch.where(x.dead_rows[..., None], filled, exact)

    def bound(self, x: Inputs) -> Tensor:
        """How far each element of the output may be from `expected`; where dead rows are avoided, any far there."""
        bound = self.strict_bound(x)
        if DEAD_ROWS not in self.avoids or x.sinks is not None:
            return bound
        return torch.where(self.special_rows(x)[..., None], torch.inf, bound)

    def strict_bound(self, x: Inputs) -> Tensor:
        """As `bound`, and dead rows are held to the convention."""
        bound = self.forward_bounds(x).output
        if self.empty_rows != "mean" or x.sinks is not None or not x.dead_rows.any():
            return bound
        mean = forward_bounds(_mean_problem(x.problem), self.arithmetic_for(x), x.narrowest).output
        return torch.where(x.dead_rows[..., None], mean, bound)

    def log_sum_exp_bound(self, x: Inputs) -> Tensor:
        """How far each log-sum-exp may be from the oracle's; any far where rows without keys do not give zeros."""
        bound = self.forward_bounds(x).log_sum_exp
        if x.case.dtype in self.rounded_log_sum_exps:
            by_steps = forward_bounds(x.problem, STEP_BY_STEP, x.narrowest, generic=x.is_generic)
            bound = torch.maximum(bound, by_steps.log_sum_exp)
        if self.empty_rows == "zeros" and DEAD_ROWS not in self.avoids:
            return bound
        return torch.where(self.special_rows(x), torch.inf, bound)

    def special_rows(self, x: Inputs) -> Tensor:
        """The queries (batch, heads, q_len) whose output is a convention's matter, not the softmax's.

        Where dead rows are avoided, NaN of one head may have reached the others.
        """
        dead = x.dead_rows
        return dead.any(dim=1, keepdim=True).expand(dead.shape) if DEAD_ROWS in self.avoids else dead

    @property
    def forward_only(self) -> str:
        """Why no call has gradients, as declared or as found; '' where some have."""
        return forward_only(declared=self.declaration.gradients, shown=GRADIENTS in self.found)

    def claims_gradients(self, x: Inputs) -> bool:
        """Whether the gradients of this call are specified: dead rows other than zeros leave them open."""
        return not x.dead_rows.any() or (self.empty_rows == "zeros" and DEAD_ROWS not in self.avoids)

    def require_specified_gradients(self, x: Inputs) -> None:
        """NotApplicable: the gradients of this call are not specified; where no call has any, that is why."""
        if not self.claims_gradients(x):
            raise NotApplicable(self.forward_only or "gradients of rows without keys are not specified")

    def _forward_bounds(self, x: Inputs) -> ForwardBounds:
        return forward_bounds(x.problem, self.arithmetic_for(x), x.narrowest, generic=x.is_generic)

    def gradient_bounds(
        self,
        x: Inputs,
        cotangent: Tensor | None = None,
        *,
        scores_cancel: bool = False,
        parts: int | None = None,
    ) -> GradientBounds:
        """How far each element of each gradient may be from the oracle's.

        scores_cancel: what is asked does not depend on the scores, so that how they are stored does not count.
        parts: `parts_of_gradients`, where they were counted.
        """
        generic = x.is_generic and cotangent is None
        sent_back = x.cotangent if cotangent is None else cotangent
        model, parts = self.arithmetic_for(x), parts or self.parts_of_gradients(x)
        if scores_cancel:
            model = replace(model, scaled="float32+", scores="float32+")
        return gradient_bounds(
            x.problem, sent_back.double(), model, x.narrowest, generic=generic, parts=parts
        )

    def apart(
        self, *calls: Inputs, at: Callable[[Tensor], Tensor] = lambda bound: bound
    ) -> Callable[[], Tensor]:
        """How far the outputs of calls of one exact answer may be apart: by the bounds of all; at: in a part of them."""
        return lambda: torch.stack([at(self.bound(x)) for x in calls]).sum(dim=0)

    def gradients_apart(self, x: Inputs, cotangent: Tensor | None = None) -> dict[str, Callable[[], Tensor]]:
        """How far the gradients of query, key and value may be apart in two calls: by the bounds of both."""
        bounds = cache(lambda: self.gradient_bounds(x, cotangent).of(times=2))

        def one(name: str) -> Callable[[], Tensor]:
            return lambda: bounds()[name]

        return {name: one(name) for name in ("query", "key", "value")}

    def gradients_against_the_oracle(
        self, x: Inputs, cotangent: Tensor | None = None
    ) -> Iterator[Comparison]:
        """The gradients of query, key, value and sinks against the oracle's."""
        self.require_specified_gradients(x)
        found, bounds = self.gradients(x, cotangent), self.gradient_bounds(x, cotangent)
        exact = x.problem.gradients((x.cotangent if cotangent is None else cotangent).double())
        names = ("query", "key", "value", *(("sinks",) if x.sinks is not None else ()))
        yield from compared_gradients(found._asdict(), exact._asdict(), bounds.of(*names))

    def mask_gradient_against_the_oracle(
        self, x: Inputs, wanted: Collection[str] | None = None
    ) -> Comparison | None:
        """The gradient of an additive mask against the oracle's, summed where it is broadcast; None without a mask."""
        mask = x.attn_mask
        if mask is None or mask.dtype == torch.bool:
            return None
        if not self.declaration.mask_gradient:
            raise NotApplicable("mask_gradient=False: attn_mask wants no gradient")
        self.require_specified_gradients(x)
        if x.mask_strides == "expanded":  # A gradient for each number.
            x = x.but(mask_strides="contiguous")
        observed = self.gradients(x, wanted=wanted).bias
        if observed is None:
            raise LawBroken("no gradient for attn_mask (declare mask_gradient=False if none is meant)")
        exact = x.problem.gradients(x.cotangent.double()).bias
        exact, limit = of_the_mask(mask, exact, self.gradient_bounds(x).bias, x.dtype)
        return within(observed, exact, limit, "gradient of attn_mask")

    def log_sum_exp_gradient_bounds(self, x: Inputs, cotangent: Tensor) -> dict[str, Tensor]:
        """The same, of query, key and sinks, for the gradient of sum(log-sum-exp x cotangent)."""
        return log_sum_exp_gradient_bounds(x.problem, cotangent.double(), self.arithmetic_for(x), x.narrowest)

    def parts_of_gradients(self, x: Inputs) -> int:
        """Into how many parts, added up in 16 bits by autograd itself, a gradient of this call falls."""
        if x.autocast is None and not any(dtype.itemsize == 2 for dtype in x.dtypes):
            return 1
        try:
            output, _ = self.followed(x)
        except (LawBroken, NotApplicable):  # Whoever asks for the gradients themselves will see it.
            return 1
        return parts_in_sixteen_bits(output)

    def arithmetic_for(self, x: Inputs) -> Arithmetic:
        """How the subject rounds in this dtype; where several dtypes meet, each step may round to the narrowest."""
        if len(x.dtypes) > 1 or x.autocast:
            most = {
                name: max(getattr(each, name) for each in self.arithmetic.values())
                for name in ("log_sum_exps", "merges")
            }
            return replace(STEP_BY_STEP, **most)
        return self.arithmetic[str(x.dtype).removeprefix("torch.")]

    def declares_arithmetic(self, dtype: str) -> bool:
        """Whether the declaration says how a dtype is computed."""
        declared = self.declaration.arithmetic
        return declared is not None and (not isinstance(declared, Mapping) or dtype in declared)

    def mask_of(self, keep: Tensor, dtype: torch.dtype) -> Tensor:
        """A boolean mask where the subject takes one, else the same as a bias."""
        return keep if self.has("boolean") else masks.additive(keep, dtype)

    def unchanged(self, observed: Tensor, expected: Tensor, x: Inputs, what: str) -> Comparison:
        """Two answers to `x` that must be the same bits, or, if declared not deterministic, agree within the bound."""
        limit = 0.0 if self.declaration.deterministic else self.apart(x, x)
        return within(observed, expected, limit, what)


def _mean_problem(problem: Problem) -> Problem:
    """The problem in which every key counts the same."""
    return replace(problem, query=torch.zeros_like(problem.query), may_attend=None, bias=None, sinks=None)
