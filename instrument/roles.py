"""What the engine asks of a role, so that it need not know what is judged."""

from collections.abc import Iterator
from importlib import import_module
from random import Random
from typing import Any, Protocol

from hypothesis.strategies import SearchStrategy

from headcheck.errors import HeadcheckError

HOMES = {
    "attention": "headcheck.attention.role",
    "softmax": "headcheck.functions.softmax",
    "rotary": "headcheck.functions.rotary",
    "sinusoidal": "headcheck.functions.sinusoidal",
    "layer_norm": "headcheck.functions.layer_norm",
    "rms_norm": "headcheck.functions.rms_norm",
    "multi_head_attention": "headcheck.modules.multi_head.role",
    "encoder": "headcheck.modules.encoder",
    "decoder": "headcheck.modules.decoder",
    "seq2seq": "headcheck.modules.seq2seq",
    "causal_lm": "headcheck.modules.causal_lm",
    "vision": "headcheck.modules.vision",
    "agreement": "headcheck.agreement.role",
}
"""Role -> the module whose `role` it is."""
MODULES = tuple(name for name, home in HOMES.items() if home.startswith("headcheck.modules."))
"""The roles whose subject is a module: they share the laws of properties/modules."""
LARGER = tuple(name for name in MODULES if name != "multi_head_attention")
"""All of these but a single attention, whose weights come with each case."""
FUNCTIONS = tuple(name for name, home in HOMES.items() if home.startswith("headcheck.functions."))
"""The roles whose subject is a function of a few arguments: they share laws, in properties/functions."""
OF_LENGTHS = ("attention", *(name for name in MODULES if name != "vision"))
"""Those whose subjects may take sequences up to a `max_length` only."""
OF_TENSORS = tuple(name for name in FUNCTIONS if name != "sinusoidal")
"""Those that are given a tensor; a table of positions is made from two sizes."""


class PreparedSubject(Protocol):
    """A subject as laws see it."""

    dtypes: tuple[str, ...]
    effort: float
    """The share of each law's examples to spend on this subject."""
    seconds: float
    """Wall time spent inside the implementation so far."""

    def lacks(self, feature: str) -> str | None:
        """Why the subject does not have a feature, or None if it has."""


class Role(Protocol):
    """One kind of subject: how its cases are drawn, built, simplified and read."""

    name: str

    def recognises(self, attribute: Any) -> bool:
        """Whether a plain callable, by its name or its kind, is one of this role."""

    def declare(self, attribute: Any, name: str) -> Any:
        """A declaration of a plain callable; a declaration is returned as it is."""

    def prepare(
        self, declaration: Any, *, dtypes: tuple[str, ...], device: str, seed: int
    ) -> tuple[PreparedSubject, list[str]]:
        """Try the declaration on small cases: the subject as laws see it, and notes for the verdict."""

    def limited(self, subject: Any) -> tuple[str, ...]:
        """Fields of a case of which the subject may take some values only: a law that speaks of others says nothing."""

    def draw(self, random: Random, subject: Any) -> Any:
        """One case, its conditions drawn jointly, within what the subject supports."""

    def drawn(self, subject: Any) -> SearchStrategy[Any]:
        """The same space for Hypothesis, with numbers drawn one by one."""

    def fit(self, case: Any, subject: Any) -> Any:
        """The case with what the subject lacks taken out."""

    def build(self, case: Any, subject: Any) -> Any:
        """The inputs that a case describes."""

    def simpler(self, case: Any, subject: Any) -> Iterator[Any]:
        """Cases simpler than this one, the boldest first."""

    def parse(self, text: str) -> Any:
        """Read a case as it was printed."""

    def show(self, inputs: Any) -> dict[str, Any]:
        """The tensors of an input, written out, where they are small."""


def role(name: str) -> Role:
    """The role of that name."""
    if name not in HOMES:
        raise HeadcheckError(f"there is no role {name!r}; there are: {', '.join(sorted(HOMES))}")
    found: Role = import_module(HOMES[name]).role
    return found
