"""A corpus: functions that are wrong in one named way, and right ones that must not be failed."""

import hashlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from headcheck.errors import HeadcheckError, first_line_of
from headcheck.loading import place_in_its_package

HERE = Path("tests") / "corpus.py"
"""Where a clone of the repository has its corpus."""


class Entry(Protocol):
    """One function of a corpus. A fault may also have `peril`: what it does to the process that runs it."""

    @property
    def id(self) -> str:
        """A name that lasts."""

    @property
    def role(self) -> str:
        """What kind of thing it is."""

    @property
    def sentence(self) -> str:
        """The fault, or the variant, in words."""

    @property
    def breaks(self) -> tuple[str, ...]:
        """Laws, without their role, that a person would name; none of a right variant."""

    def declaration(self) -> Any:
        """The function as a subject that remembers nothing of those handed out before."""


@dataclass(frozen=True)
class Corpus:
    """Entries by id. wrong: the faults. right: the variants."""

    wrong: Mapping[str, Entry]
    right: Mapping[str, Entry]

    def entry(self, name: str) -> Entry:
        """The entry of that id."""
        return self.wrong[name] if name in self.wrong else self.right[name]


@cache
def load(path: Path) -> Corpus:
    """The corpus of a Python file: its `WRONG` and `RIGHT`, each a mapping from ids to entries.

    Raises HeadcheckError where there is none.
    """
    if not path.is_file():
        raise HeadcheckError(
            f"there is no corpus {path}; run this in a clone of headcheck's repository, or name a file by --corpus"
        )
    root, name = place_in_its_package(path.resolve())
    sys.path.insert(0, str(root))
    try:
        module = import_module(name)
    except Exception as problem:
        said = f"{type(problem).__name__}: {first_line_of(problem)}"
        raise HeadcheckError(f"cannot import the corpus {path}: {said}") from problem
    finally:
        sys.path.remove(str(root))
    if not hasattr(module, "WRONG") or not hasattr(module, "RIGHT"):
        raise HeadcheckError(
            f"{path} is no corpus: it must have WRONG and RIGHT, mappings from ids to entries"
        )
    return Corpus(module.WRONG, module.RIGHT)


def held_out(name: str) -> bool:
    """Whether an entry belongs to the quarter that one does not look at while designing laws."""
    return hashlib.sha256(name.encode()).digest()[0] % 4 == 0
