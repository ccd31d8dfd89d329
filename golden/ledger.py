"""What the ledger holds: claims of the documents, their code blocks, and the latent faults of that code.

A module d000_*.py, d001*.py, ... of this package holds sections; each entry is one call of a section's method.
"""

import importlib
import pkgutil
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

import headcheck.golden
from headcheck.golden.derived import Derived
from headcheck.golden.stated import Stated

Verdict = Literal["confirmed", "rounding", "erratum", "not-checkable"]
VERDICTS: tuple[Verdict, ...] = ("confirmed", "rounding", "erratum", "not-checkable")


@dataclass(frozen=True)
class Document:
    """One of the documents, and the SHA-256 of the text that the lines are counted in."""

    id: str
    title: str
    author: str
    sha256: str


DOCUMENTS = {
    each.id: each
    for each in (
        Document(
            "000",
            "Part 7: Transformers & Attention Mechanisms (PyTorch Mastery Series)",
            "Wasil Zafar",
            "f3a8cdb4fdc5f0672a9840e221105d87d626669e14f2c46b597300e0a0d0a511",
        ),
        Document(
            "001",
            "Transformers from Scratch: Implementing Attention Is All You Need",
            "Anoop Maurya",
            "f872abb39f4b1865ce38f85c8e66e45bb2381eeac10f83bc08928290169e5ed7",
        ),
        Document(
            "002",
            "Self-Attention & the Transformer",
            "not named in the text",
            "f60e51115a411106912a7d00c0712d7e3162ff3a653a4b94f422bd4887ed592a",
        ),
        Document(
            "003",
            "Transformers & Attention Mechanism (part 8 of 16)",
            "Wasil Zafar",
            "9d3c5ecfc66b4f42b3627d685bcda61682d0247aae4ff18cfb6cd6e4ef7b5327",
        ),
        Document(
            "004",
            "Part 2 of a series: the Transformer in running code",
            "not named in the text",
            "9064aa9efbda0f13ee533468e865ad8be1d262503fa3b20073071cdf759d705b",
        ),
    )
}


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One statement of a document."""

    id: str
    """document/section/name; it lasts."""
    line: int
    place: str
    """A few words as they stand in that line."""
    what: str
    """What is stated, in our own words."""
    verdict: Verdict
    """The declared verdict; `judging` computes it again."""
    stated: Stated | None = None
    derived: Derived | None = None
    formula: str = ""
    """LaTeX."""
    chain: Callable[[], Any] | None = None
    """rounding: the author's calculation with his own rounded numbers, which gives what is printed."""
    slip: str = ""
    """erratum: what went wrong, where we can tell."""
    gives: Callable[[], Any] | None = None
    """erratum: the calculation with the slip in it, which gives what is printed."""
    reason: str = ""
    """not-checkable: why."""

    @property
    def document(self) -> str:
        return self.id.partition("/")[0]


@dataclass(frozen=True, kw_only=True)
class Run:
    """What running a code block comes to. `error` is empty where it runs to its end."""

    error: str = ""
    """The exception's type and message, first line."""
    warnings: tuple[str, ...] = ()
    """The categories of the warnings, in order, each once."""
    prints: tuple[str, ...] = ()
    """Lines that it prints, in this order, others between them; of the same text for every random number."""


@dataclass(frozen=True, kw_only=True)
class Block:
    """A code block of a document, run as printed; its text stays in the document."""

    id: str
    first: int
    last: int
    what: str
    levels: str = ""
    """The indentation of each line that is not blank, as a digit, where it was lost; blanks are ignored."""
    alone: Run
    """In a fresh namespace."""
    in_order: Run
    """After all blocks of the document that stand before it, in one namespace."""
    needs: tuple[str, ...] = ()
    """Packages other than torch; where one is missing the block is not applicable."""

    @property
    def document(self) -> str:
        return self.id.partition("/")[0]


@dataclass(frozen=True, kw_only=True)
class Probe:
    """A latent fault of a document's code with the smallest input that shows it, or a behaviour of that code."""

    id: str
    line: int
    kind: Literal["latent fault", "behaviour"]
    what: str
    """The fault or the behaviour, in a sentence."""
    blocks: tuple[str, ...]
    """The blocks that the probe needs: ids, or names of the same section."""
    probe: str
    """A few lines of our own, run after those blocks."""
    prints: str
    """What they print."""
    setting: str = ""
    """Lines of our own, run before the blocks: the imports that they presuppose."""
    fault: str = ""
    """Of a latent fault: the entry of tests/faults or tests/roles with the same fault, which the laws break."""
    why_no_fault: str = ""
    """Why there is none."""

    @property
    def document(self) -> str:
        return self.id.partition("/")[0]


@dataclass
class Section:
    """A part of a document; its entries' ids begin with document/name/.

    >>> PART = Section("001", "scaled-dot-product")
    >>> PART.confirmed("scale", 51, "divided by", "The divisor is sqrt(d_k).", HOLDS, derived, formula=r"...")
    """

    document: str
    name: str
    claims: list[Claim] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    probes: list[Probe] = field(default_factory=list)

    def _id(self, name: str) -> str:
        return f"{self.document}/{self.name}/{name}"

    def confirmed(
        self,
        name: str,
        line: int,
        place: str,
        what: str,
        stated: Stated,
        derived: Derived,
        *,
        formula: str = "",
    ) -> None:
        """It agrees at the stated precision."""
        self._claim(
            name, line, place, what, stated=stated, derived=derived, formula=formula, verdict="confirmed"
        )

    def rounding(
        self,
        name: str,
        line: int,
        place: str,
        what: str,
        stated: Stated,
        derived: Derived,
        *,
        chain: Callable[[], Any],
        formula: str = "",
    ) -> None:
        """It disagrees, but follows from the author's own rounded intermediate values: the chain."""
        self._claim(
            name,
            line,
            place,
            what,
            stated=stated,
            derived=derived,
            formula=formula,
            chain=chain,
            verdict="rounding",
        )

    def erratum(
        self,
        name: str,
        line: int,
        place: str,
        what: str,
        stated: Stated,
        derived: Derived,
        *,
        slip: str,
        gives: Callable[[], Any] | None = None,
        formula: str = "",
    ) -> None:
        """It is wrong. `gives`, the calculation with the slip in it, must give what is printed."""
        self._claim(
            name,
            line,
            place,
            what,
            stated=stated,
            derived=derived,
            formula=formula,
            slip=slip,
            gives=gives,
            verdict="erratum",
        )

    def not_checkable(self, name: str, line: int, place: str, what: str, *, reason: str) -> None:
        """No derivation can decide it."""
        self._claim(name, line, place, what, reason=reason, verdict="not-checkable")

    def _claim(self, name: str, line: int, place: str, what: str, **fields: Any) -> None:
        self.claims.append(Claim(id=self._id(name), line=line, place=place, what=what, **fields))

    def block(
        self,
        name: str,
        first: int,
        last: int,
        what: str,
        *,
        alone: Run,
        in_order: Run | None = None,
        levels: str = "",
        needs: tuple[str, ...] = (),
    ) -> None:
        """A code block; `in_order` need not be said where it is as `alone`."""
        self.blocks.append(
            Block(
                id=self._id(name),
                first=first,
                last=last,
                what=what,
                levels=levels,
                alone=alone,
                in_order=in_order or alone,
                needs=needs,
            )
        )

    def latent_fault(self, name: str, line: int, what: str, **fields: Any) -> None:
        """A latent fault of the code: the fields of `Probe`."""
        self.probes.append(Probe(id=self._id(name), line=line, what=what, kind="latent fault", **fields))

    def behaviour(self, name: str, line: int, what: str, **fields: Any) -> None:
        """What the code does, where the text says something of it: the fields of `Probe`."""
        self.probes.append(Probe(id=self._id(name), line=line, what=what, kind="behaviour", **fields))


@dataclass(frozen=True)
class Ledger:
    """Everything, by id, in the order of the documents."""

    claims: dict[str, Claim]
    blocks: dict[str, Block]
    probes: dict[str, Probe]

    def blocks_named(self, probe: Probe) -> list[Block]:
        """The blocks that a probe needs, by their ids, or their names where they are of its own section."""
        own = probe.id.rpartition("/")[0]
        return [self.blocks.get(f"{own}/{name}") or self.blocks[name] for name in probe.blocks]


@cache
def ledger() -> Ledger:
    """Every entry of every module of this package named after a document."""
    found = [
        each
        for module in pkgutil.iter_modules(headcheck.golden.__path__)
        if re.match(r"d\d{3}", module.name)
        for each in vars(importlib.import_module(f"headcheck.golden.{module.name}")).values()
        if isinstance(each, Section)
    ]
    parts = [
        {each.id: each for each in sorted(entries, key=_place)}
        for entries in (
            _without_clash([entry for each in found for entry in getattr(each, kind)])
            for kind in ("claims", "blocks", "probes")
        )
    ]
    return Ledger(*parts)


def _place(entry: Any) -> tuple[str, int]:
    return entry.document, entry.first if isinstance(entry, Block) else entry.line


def _without_clash(entries: list[Any]) -> list[Any]:
    ids = [entry.id for entry in entries]
    twice = {each for each in ids if ids.count(each) > 1}
    if twice:
        raise ValueError(f"two entries of the ledger are called {', '.join(sorted(twice))}")
    return entries
