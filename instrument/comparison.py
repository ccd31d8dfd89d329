"""A law's finding as a value: what was observed, what was expected, and how far apart they may be."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

NO_GRADIENTS = "has no gradients, as declared"
NEXT_TO_NOTHING = 1e-6
"""What a gradient that is zero may be computed as in float64, and far more."""


Limit = Tensor | float | Callable[[], Tensor | float]
"""How far numbers may be apart; as a function it is asked for only where they are not equal."""


@dataclass(frozen=True, eq=False)
class Comparison:
    """One elementwise comparison, of tensors on the CPU.

    ratio: the largest error over its bound, 0 where they agree exactly; above 1 the law is broken.
    index: where that is.
    """

    what: str
    observed: Tensor
    expected: Tensor
    limit: Limit
    """A function stands for a bound that was not needed: the numbers are finite and equal."""
    ratio: float
    index: tuple[int, ...]
    against: str = ""
    """What the expected numbers are, where they are an answer of the subject too."""

    @property
    def broken(self) -> bool:
        return self.ratio > 1.0

    @cached_property
    def bound(self) -> Tensor:
        """Of each element."""
        limit = _asked(self.limit)
        each = _plain(limit) if isinstance(limit, Tensor) else self.observed.new_full((), limit)
        return each.expand(self.observed.shape)

    @property
    def claims(self) -> bool:
        """Whether anything is said of any element: where every bound is infinite, nothing is.

        Of a bound that was not asked for something is: the same finite numbers agree, whatever it would be.
        """
        if callable(self.limit) or not self.observed.numel():
            return True
        if isinstance(self.limit, Tensor):
            return not bool((self.limit == torch.inf).all())
        return self.limit != torch.inf


class LawBroken(Exception):
    """Raised by a law, or by the subject's edge, for a break that is no comparison of numbers."""


class NotApplicable(Exception):
    """Raised by a law where it has nothing to say about this subject; the message is the reason."""


Failure = LawBroken | NotApplicable
"""Why a call of a subject does not work."""


def failure_of(call: Callable[..., object], *arguments: Any, **keywords: Any) -> Failure | None:
    """Why a call of a subject does not work, or None if it does."""
    try:
        call(*arguments, **keywords)
    except (LawBroken, NotApplicable) as problem:
        return problem
    return None


def within(observed: Tensor, expected: Tensor, bound: Limit, what: str = "output") -> Comparison:
    """Each element of `observed` is as close to `expected` as its own `bound`.

    NaN agrees with NaN alone and an infinity with itself alone, before any difference is taken: a NaN in
    either must not pass as agreement. Where the bound is infinite nothing is claimed.
    """
    observed, expected = _plain(observed), _plain(expected)
    if observed.shape != expected.shape:
        raise LawBroken(f"{what} has shape {tuple(observed.shape)}, expected {tuple(expected.shape)}")
    found = Comparison(what, observed, expected, bound, 0.0, (0,) * observed.ndim if observed.numel() else ())
    if torch.equal(observed, expected) and bool(observed.isfinite().all()):
        return found
    limit = found.bound
    error = (observed - expected).abs()
    ratio = error / limit
    agree = (observed == expected) | (observed.isnan() & expected.isnan()) | (limit == torch.inf)
    ratio = torch.where(ratio.isnan() | (limit < 0), torch.inf, ratio)
    ratio = torch.where(agree, 0.0, ratio)
    worst, index = _worst(ratio)
    return replace(found, limit=limit, ratio=worst, index=index)


def same(observed: Tensor, expected: Tensor, what: str = "output") -> Comparison:
    """Equal, element for element (0 equals -0, NaN equals NaN)."""
    return within(observed, expected, 0.0, what)


def holds(condition: Tensor, observed: Tensor, what: str, expected: Tensor | float = 0.0) -> Comparison:
    """A condition on each element, such as 'not negative'; `expected` is what the message shows."""
    good = condition.detach().cpu()
    observed = _plain(observed)
    meant = _plain(expected) if isinstance(expected, Tensor) else observed.new_full((), expected)
    ratio = torch.where(good, 0.0, torch.inf).to(torch.float64).expand(observed.shape)
    worst, index = _worst(ratio)
    no_bound = torch.full_like(observed, torch.nan)
    return Comparison(what, observed, meant.expand(observed.shape), no_bound, worst, index)


def compared_gradients(
    found: Mapping[str, Tensor | None],
    expected: Mapping[str, Tensor | None],
    bounds: Mapping[str, Limit],
    what: str = "",
) -> Iterator[Comparison]:
    """The gradient of each input that has a bound; one that autograd leaves out stands for zero, on either side.

    LawBroken: it is left out where it should not be zero.
    """
    for name, bound in bounds.items():
        observed, wanted = found[name], expected[name]
        if wanted is None:
            wanted = torch.zeros_like(torch.as_tensor(_asked(bound)) if observed is None else observed)
        if observed is None:
            if wanted.any():
                raise LawBroken(f"the output carries a gradient, but none for {name}")
            observed = torch.zeros_like(wanted)
        yield within(observed, wanted, bound, f"gradient of {name}{what}")


def require_gradients(declared: bool | None) -> None:
    """NotApplicable: a subject is declared to have no gradients."""
    if declared is False:
        raise NotApplicable(NO_GRADIENTS)


def forward_only(*, declared: bool | None, shown: bool) -> str:
    """Why no call of a subject has gradients, as declared or as found; '' where some have.

    shown: whether a plain call has some.
    """
    if declared is False:
        return NO_GRADIENTS
    return "" if declared or shown else "the output carries no gradient"


def require_a_graph(
    output: Tensor,
    *,
    declared: bool | None,
    elsewhere: bool,
    of: Iterable[str] = (),
    exact: Callable[[], Iterable[Tensor | None]] | None = None,
) -> None:
    """LawBroken, or NotApplicable where nothing says that it should: the output carries no gradient.

    elsewhere: whether the outputs of other calls do. of: the tensors that want one here. exact: their gradients; where
    all are zero but for rounding, a path that knows it may leave them out.
    """
    if output.requires_grad:
        return
    if declared:
        raise LawBroken("the output carries no gradient, and gradients are declared")
    if elsewhere and (exact is None or any(map(_is_to_speak_of, exact()))):
        names = " and ".join(of)
        raise LawBroken(f"the output carries no gradient{names and f' of {names}'}, that of other calls does")
    raise NotApplicable("the output carries no gradient")


def _is_to_speak_of(gradient: Tensor | None) -> bool:
    return gradient is not None and bool((gradient.abs() > NEXT_TO_NOTHING).any())


def none(what: str) -> Comparison:
    """The law holds on a case where no numbers are compared: whatever `what` names would have raised LawBroken."""
    return same(torch.zeros(()), torch.zeros(()), f"number of {what}")


def place(what: str, index: Sequence[int]) -> str:
    """Where an element stands: output[0, 0, 1, 0] of an earlier query, logits[0, 1] (as a remark says)."""
    if not index:
        return what
    named = "output" if what.startswith("output") else re.split(r",? \(|, ", what)[0]
    return f"{named}[{', '.join(map(str, index))}]{what.removeprefix(named)}"


def _asked(limit: Limit) -> Tensor | float:
    return limit() if callable(limit) else limit


def _plain(x: Tensor) -> Tensor:
    return x.detach().to("cpu", torch.float64)


def _worst(ratio: Tensor) -> tuple[float, tuple[int, ...]]:
    if ratio.numel() == 0:
        return 0.0, ()
    flat = int(ratio.argmax())
    index = []
    for size in reversed(ratio.shape):
        index.append(flat % size)
        flat //= size
    return float(ratio.max()), tuple(reversed(index))
