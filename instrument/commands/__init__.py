"""What the command can do: one module for each subcommand.

A module has a `SENTENCE` for the help, `add_arguments(parser)` and `run(arguments)`, which returns the exit code.
Its name is what a user types. It imports what it needs inside `run`, so that `--help` loads no torch.
"""

import argparse
import importlib
import pkgutil
from typing import Protocol, cast


class Command(Protocol):
    """A module of this package."""

    SENTENCE: str
    """What it does, without a capital and a full stop."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare what it takes."""

    def run(self, arguments: argparse.Namespace) -> int:
        """Do it; the exit code."""


def all_commands() -> dict[str, Command]:
    """Every subcommand by its name."""
    names = sorted(
        module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_")
    )
    return {name: cast(Command, importlib.import_module(f"{__name__}.{name}")) for name in names}
