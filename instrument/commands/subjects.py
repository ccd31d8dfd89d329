"""`headcheck subjects`: the implementations that are known by name."""

import argparse

from headcheck.errors import HeadcheckError

SENTENCE = "list the built-in subjects"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which of them."""
    parser.add_argument("part", metavar="PART", nargs="?", default="", help="only names that hold PART")


def run(arguments: argparse.Namespace) -> int:
    """Print those that are installed, then those that are not, with what installs them."""
    from headcheck.subjects import builtins

    known = {name: each for name, each in builtins().items() if arguments.part in name}
    if not known:
        raise HeadcheckError(f"no built-in subject has {arguments.part!r} in its name")
    width = max(map(len, known))
    here = {name: each for name, each in known.items() if not each.missing}
    for name, each in here.items():
        print(f"{name:{width}}  {each.sentence}")
    missing = {name: each for name, each in known.items() if each.missing}
    if missing:
        print(f"\nnot installed: {len(missing)} of {len(known)}")
    for name, each in missing.items():
        print(f"{name:{width}}  {each.install}")
    return 0
