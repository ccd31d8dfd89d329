"""What a subject whose exact answer is known is held to: that answer, and the answers of its other calls."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from torch import Tensor

from headcheck.comparison import Comparison, within
from headcheck.sides import OUTPUT, of_two_calls

AnyInputs = TypeVar("AnyInputs")


class HeldToAnOracle(ABC, Generic[AnyInputs]):
    """A subject says what it gives, what it should give, and how far the two may be apart."""

    declaration: Any

    @abstractmethod
    def __call__(self, x: AnyInputs) -> Tensor:
        """The output, copied, on the CPU."""

    @abstractmethod
    def expected(self, x: AnyInputs) -> Tensor:
        """The right answer, in float64."""

    @abstractmethod
    def bound(self, x: AnyInputs) -> Tensor:
        """How far each element of the output may be from `expected`."""

    def against_the_oracle(self, x: AnyInputs, what: str = OUTPUT) -> Comparison:
        """The output against the oracle's, which is right to the bound."""
        return within(self(x), self.expected(x), lambda: self.bound(x), what)

    def agree(
        self,
        one: AnyInputs,
        other: AnyInputs,
        back: Callable[[Tensor], Tensor] = lambda output: output,
        what: str = OUTPUT,
        slack: Tensor | float = 0.0,
    ) -> Comparison:
        """Two calls whose exact answers are the same: `back` takes the first output to the second's form.

        Each may be off by its own bound, so their difference may be the sum of the two. slack: by how much more,
        where the exact answers are not quite the same.
        """
        found = within(
            back(self(one)), self(other), lambda: back(self.bound(one)) + self.bound(other) + slack, what
        )
        if not found.broken:
            return found
        return of_two_calls(found, (back(self.expected(one)), self.expected(other)), (one, other))

    def identical(self, one: AnyInputs, other: AnyInputs, what: str = OUTPUT) -> Comparison:
        """Two calls that must give the same bits, or, if declared not deterministic, agree within the bounds."""
        limit = 0.0 if self.declaration.deterministic else lambda: self.bound(one) + self.bound(other)
        return within(self(one), self(other), limit, what)
