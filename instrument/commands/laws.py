"""`headcheck laws`: the laws, or one of them in full."""

import argparse
from typing import Any

from headcheck.errors import HeadcheckError

SENTENCE = "list the laws, or show one in full"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which laws."""
    parser.add_argument("id", metavar="ID", nargs="?", help="a law's id, or a part of it")
    parser.add_argument("--role", help="only the laws of this role")


def run(arguments: argparse.Namespace) -> int:
    """Print them."""
    from headcheck.laws import all_laws
    from headcheck.roles import role

    if arguments.role:
        role(arguments.role)
    chosen = [law for law in all_laws().values() if law.role == (arguments.role or law.role)]
    if arguments.id:
        exact = [law for law in chosen if law.id == arguments.id]
        chosen = exact or [law for law in chosen if arguments.id in law.id]
        if not chosen:
            raise HeadcheckError(f"there is no law {arguments.id!r}; `headcheck laws` lists them")
        if len(chosen) == 1:
            print(_law_in_full(chosen[0]))
            return 0
    family = ""
    for law in chosen:
        if law.family != family:
            family = law.family
            print(f"{family}")
        print(f"  {law.name}: {law.statement}")
    print(f"{len(chosen)} laws; `headcheck laws ID` shows one in full")
    return 0


def _law_in_full(law: Any) -> str:
    from headcheck.proofs import proofs_of

    proofs = ", ".join(proof.name for proof in proofs_of(law.id))
    rows = [
        ("formula", law.formula),
        ("source", law.source),
        ("guards against", law.guards),
        ("otherwise where declared", " or ".join(law.unless)),
        ("needs", ", ".join(law.needs)),
        ("proved", f"yes, by {proofs}" if proofs else ""),
    ]
    return "\n".join([law.id, f"  {law.statement}", *(f"  {name}: {text}" for name, text in rows if text)])
