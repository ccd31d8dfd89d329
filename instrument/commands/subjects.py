"""`headcheck subjects`: the implementations that are known by name."""

import argparse

SENTENCE = "list the built-in subjects"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """It takes nothing."""


def run(arguments: argparse.Namespace) -> int:
    """Print them, with what installs those that are missing."""
    from headcheck.subjects import builtins

    known = builtins()
    width = max(map(len, known), default=0)
    for name, each in known.items():
        state = f" [not installed; run: {each.install}]" if each.missing else ""
        print(f"{name:{width}}  {each.sentence}{state}")
    return 0
