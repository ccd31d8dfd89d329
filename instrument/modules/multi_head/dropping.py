"""A module of multi-head attention in training: with its dropout, with another rate, or without."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from headcheck.modules.multi_head.cases import MultiHeadInputs
from headcheck.modules.multi_head.weighted import WeightedModule
from headcheck.modules.weights import rates_of_dropout

ALPHA_DROPOUTS = nn.AlphaDropout, nn.FeatureAlphaDropout
"""They keep mean and variance of what is standardised alone."""
OF_ANOTHER_KIND = ("layer", "path", "head", "key")
"""What is dropped where a rate says so beside "drop": not weights, and not scaled as they are."""


class DroppingModule(WeightedModule):
    """The module of the case, of which rates of dropout can be set."""

    def _dropouts(self) -> list[tuple[Any, str]]:
        """Where rates of dropout are kept, by which weights are dropped."""
        return [
            (part, name)
            for part, name in (rates_of_dropout(self.module) if self.module is not None else ())
            if not isinstance(part, ALPHA_DROPOUTS)
            and not any(word in name.lower() for word in OF_ANOTHER_KIND)
        ]

    def is_made_to_drop(self, x: MultiHeadInputs) -> bool:
        """Whether a rate of dropout is above zero by itself."""
        self._ready(x)
        return any(getattr(each, name) > 0 for each, name in self._dropouts())

    @contextmanager
    def dropping(self, rate: float | None, x: MultiHeadInputs) -> Iterator[None]:
        """With this rate of dropout wherever there is one; None: with those that it has by itself."""
        self._ready(x)
        before = [(each, name, getattr(each, name)) for each, name in self._dropouts()]
        for each, name, old in before:
            setattr(each, name, old if rate is None else rate)
        try:
            yield
        finally:
            for each, name, old in before:
                setattr(each, name, old)

    @contextmanager
    def training(self, x: MultiHeadInputs, rate: float | None = 0.0) -> Iterator[None]:
        """In training, with dropout at this rate, as of `dropping`; the generator is as it was when it ends."""
        with self.dropping(rate, x), torch.random.fork_rng([]):
            self.set_mode(training=True)
            try:
                yield
            finally:
                self.set_mode(training=False)

    def trains_without_dropout(self, x: MultiHeadInputs) -> bool:
        """Whether dropout can be turned off in training: nothing is drawn, and two calls give the same bits.

        What is drawn may show in gradients alone, as where all values are zero.
        """
        with self.training(x):
            before, first = torch.get_rng_state(), self(x)
            return torch.equal(torch.get_rng_state(), before) and torch.equal(first, self(x))
