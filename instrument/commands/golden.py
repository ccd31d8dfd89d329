"""`headcheck golden`: the ledger of what five documents state."""

import argparse
import sys
from pathlib import Path
from typing import Any

from headcheck.errors import HeadcheckError

SENTENCE = "show what five documents on attention got right"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `headcheck golden`."""
    parser.add_argument("id", metavar="ID", nargs="?", help="an entry's id, or a part of it")
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--errata", action="store_true", help="list what is wrong in the documents")
    shown.add_argument("--missing", action="store_true", help="list claims reached in one way, and why")
    shown.add_argument("--json", action="store_true", help="print the whole ledger as JSON")
    parser.add_argument("--documents", metavar="DIR", help="run the code blocks of the documents in DIR too")


def run(arguments: argparse.Namespace) -> int:
    """Print what was asked for; 0 where the ledger is right, 1 where the documents do otherwise."""
    text = _text_module()
    if arguments.id:
        listed = next((name for name in ("errata", "missing", "json") if getattr(arguments, name)), None)
        if listed:
            raise HeadcheckError(f"--{listed} is of the whole ledger: leave out {arguments.id!r}")
        return _show(arguments.id, text)
    if arguments.errata:
        print(text.errata())
    elif arguments.missing:
        print(text.without_way())
    elif arguments.json:
        from headcheck.golden.export import golden_json

        sys.stdout.write(golden_json())
    else:
        return _counted(arguments.documents, text)
    return 0


def _text_module() -> Any:
    try:
        from headcheck.golden import text
    except ModuleNotFoundError as problem:
        raise HeadcheckError(
            f"the golden ledger needs {problem.name}: pip install 'headcheck[golden]'"
        ) from problem
    return text


def _show(name: str, text: Any) -> int:
    found = text.entry_named(name)
    if not found:
        raise HeadcheckError(f"the ledger holds no {name!r}; docs/golden.md lists what there is")
    if len(found) == 1:
        print(text.in_full(found[0]))
        return 0
    for entry in found:
        print(f"{entry.id}: {entry.what}")
    return 0


def _counted(documents: str | None, text: Any) -> int:
    folder = Path(documents).resolve() if documents else None
    problems = text.all_problems(folder)
    print(text.counts())
    for problem in problems:
        print(problem)
    if folder is None:
        print("the code blocks were not run; --documents DIR says where the documents are")
    return 1 if problems else 0
