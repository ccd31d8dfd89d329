"""A law's finding as a value: what was observed, what was expected, and how far apart they may be."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

NEXT_TO_NOTHING = 1e-6
"""What a gradient that is zero may be computed as in float64, and far more."""


@dataclass(frozen=True, eq=False)
class Comparison:
    """One elementwise comparison, of tensors on the CPU.

    ratio: the largest error over its bound, 0 where they agree exactly; above 1 the law is broken.
    index: where that is.
    """

    what: str
    observed: Tensor
    expected: Tensor
    bound: Tensor
    ratio: float
    index: tuple[int, ...]
    against: str = ""
    """What the expected numbers are, where they are an answer of the subject too."""

    @property
    def broken(self) -> bool:
        return self.ratio > 1.0


class LawBroken(Exception):
    """Raised by a law, or by the subject's edge, for a break that is no comparison of numbers."""


class NotApplicable(Exception):
    """Raised by a law where it has nothing to say about this subject; the message is the reason."""


def within(observed: Tensor, expected: Tensor, bound: Tensor | float, what: str = "output") -> Comparison:
    """Each element of `observed` is as close to `expected` as its own `bound`.

    NaN agrees with NaN alone and an infinity with itself alone, before any difference is taken: a NaN in
    either must not pass as agreement. Where the bound is infinite nothing is claimed.
    """
    observed, expected = _plain(observed), _plain(expected)
    if observed.shape != expected.shape:
        raise LawBroken(f"{what} has shape {tuple(observed.shape)}, expected {tuple(expected.shape)}")
    limit = _plain(bound) if isinstance(bound, Tensor) else observed.new_full((), bound)
    limit = limit.expand(observed.shape)
    error = (observed - expected).abs()
    ratio = error / limit
    agree = (observed == expected) | (observed.isnan() & expected.isnan()) | (limit == torch.inf)
    ratio = torch.where(ratio.isnan() | (limit < 0), torch.inf, ratio)
    ratio = torch.where(agree, 0.0, ratio)
    worst, index = _worst(ratio)
    return Comparison(what, observed, expected, limit, worst, index)


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
    return Comparison(what, observed, meant.expand(observed.shape), torch.zeros_like(observed), worst, index)


def compared_gradients(
    found: Mapping[str, Tensor | None],
    expected: Mapping[str, Tensor | None],
    bounds: Mapping[str, Tensor],
    what: str = "",
) -> Iterator[Comparison]:
    """The gradient of each input that has a bound; one that autograd leaves out stands for zero, on either side.

    LawBroken: it is left out where it should not be zero.
    """
    for name, bound in bounds.items():
        observed, wanted = found[name], expected[name]
        if wanted is None:
            wanted = torch.zeros_like(bound if observed is None else observed)
        if observed is None:
            if wanted.any():
                raise LawBroken(f"the output carries a gradient, but none for {name}")
            observed = torch.zeros_like(wanted)
        yield within(observed, wanted, bound, f"gradient of {name}{what}")


def to_speak_of(gradients: Iterable[Tensor | None]) -> bool:
    """Whether any of these exact gradients is more than zero but for rounding: none may be left out then."""
    return any(each is not None and bool((each.abs() > NEXT_TO_NOTHING).any()) for each in gradients)


def none(what: str) -> Comparison:
    """The law holds on a case where no numbers are compared: whatever `what` names would have raised LawBroken."""
    return same(torch.zeros(()), torch.zeros(()), f"number of {what}")


def place(what: str, index: Sequence[int]) -> str:
    """Where an element stands: output[0, 0, 1, 0] of an earlier query, logits[0, 1] (as a remark says)."""
    if not index:
        return what
    named = "output" if what.startswith("output") else what.partition(" (")[0]
    return f"{named}[{', '.join(map(str, index))}]{what.removeprefix(named)}"


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
