"""A language model that writes tokens by a method of its own, where that can be had without drawing."""

from functools import cached_property
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from headcheck.calling import SubjectRaised
from headcheck.comparison import LawBroken, NotApplicable
from headcheck.modules.subject import AnyInputs
from headcheck.modules.tokens import TokenSubject
from headcheck.signatures import needed_by, parameters_of

GENERATE = "generate"
MISSING = {GENERATE: "has no generate(tokens, max_new_tokens) that draws nothing"}
COUNTS = (
    *("max_new_tokens", "num_new_tokens", "n_new_tokens", "new_tokens"),
    *("steps", "n_steps", "num_steps", "n_tokens", "num_tokens"),
)
"""Names of how many tokens are written."""
FLAGS = {"do_sample": False, "sample": False, "greedy": True}
"""Arguments that say that the likeliest token is taken."""
LIKELIEST: tuple[dict[str, Any], ...] = ({}, {"top_k": 1}, {"temperature": 0.0})
"""What says so where no argument of those does: tried in this order."""
STOPS = ("eos", "stop", "end_token")
"""Parts of the names of what ends a sequence early."""
TRIED = 6
"""Tokens of each sequence in a call that shows whether any is drawn."""


class GeneratingSubject(TokenSubject[AnyInputs]):
    """Laws see prompts with what was written behind them."""

    def lacks(self, feature: str) -> str | None:
        if feature == GENERATE:
            if not self.declaration.generates:
                return f"{MISSING[feature]}, as declared"
            return None if self.taking_the_likeliest is not None else MISSING[feature]
        return super().lacks(feature)

    @cached_property
    def taking_the_likeliest(self) -> dict[str, Any] | None:
        """The keywords with which generate draws nothing; None where it has none, or ends sequences by itself."""
        own = getattr(self.module, GENERATE, None)
        takes = (parameters_of(own) or {}) if callable(own) else {}
        if (
            not callable(own)
            or self._counted is None
            or len({*(needed_by(own) or ())} - {self._counted}) != 1
        ):
            return None
        if any(part in name for name in (*takes, *vars(self.module)) for part in STOPS):
            return None
        said = {name: value for name, value in FLAGS.items() if name in takes}
        for more in LIKELIEST:
            if {*more} <= {*takes} and self._is_settled(said | more):
                return said | more
        return None

    @property
    def _counted(self) -> str | None:
        """What the number of new tokens is called."""
        own = getattr(self.module, GENERATE, None)
        takes = (parameters_of(own) or {}) if callable(own) else {}
        return next((name for name in COUNTS if name in takes), None)

    def _is_settled(self, keywords: dict[str, Any]) -> bool:
        """Whether two calls write the same, from two states of the generator."""
        prompts = self.given(torch.tensor([[0, 1], [1, 0]]))
        written = []
        try:
            for seed in range(2):
                with torch.random.fork_rng([]):
                    torch.manual_seed(seed)
                    written.append(self._written(prompts, TRIED, keywords))
        except (SubjectRaised, LawBroken, NotApplicable):
            return False
        return all(torch.equal(one, other) for one, other in pairwise(written))

    def _written(self, prompts: Tensor, new: int, keywords: dict[str, Any]) -> Tensor:
        """Prompts with so many tokens behind them, as the module has them; some return these alone."""
        own: Any = getattr(self.module, GENERATE)
        with torch.no_grad():
            found = self.clock.call(own, prompts, **{str(self._counted): new}, **keywords)
        batch, length = prompts.shape
        if not isinstance(found, Tensor) or found.shape not in ((batch, length + new), (batch, new)):
            raise LawBroken(f"generate returned something else than (batch, length + {new}) tokens")
        return found if found.shape[1] > new else torch.cat([prompts, found], dim=1)

    def generated(self, prompts: Tensor, new: int) -> Tensor:
        """Prompts (batch, length) with so many tokens behind them.

        NotApplicable: there is no room for them, or one is padding, which stands in no sequence of a case.
        """
        assert self.taking_the_likeliest is not None
        self.require_room(prompts.shape[1] + new)
        with torch.random.fork_rng([]):
            found = self._written(self.given(prompts), new, self.taking_the_likeliest).cpu()
        if self.pad is None:
            return found
        if bool((found == self.pad).any()):
            raise NotApplicable("the token that is padding is written")
        return found - (found > self.pad).to(found.dtype)
