"""How far the work is, for who waits for a verdict."""

import time
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from headcheck.console import write_line
from headcheck.judging import Watcher
from headcheck.verdict import LawResult

EVERY_S = 10.0
"""Where there is no terminal, a line of progress is printed this often at most."""


class Progress(Watcher):
    """How far the work is: a bar on a terminal, now and then a line elsewhere. Nothing when quiet."""

    def __init__(self, console: Console, *, quiet: bool = False) -> None:
        self.console = console
        self.quiet = quiet
        self.total, self.done, self.broken = 0, 0, 0
        self.said = self.began = time.monotonic()
        self.bar: Bar | None = None
        self.pass_number = 0

    def __enter__(self) -> Self:
        if self.console.is_terminal and not self.quiet:
            # No refreshing thread: the process is going to be forked.
            columns = (
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("{task.description}"),
            )
            self.bar = Bar(*columns, console=self.console, transient=True, auto_refresh=False)
            self.bar.start()
            self.bar.add_task("importing the subject", total=None)
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.stop()

    def expect(self, laws: int) -> None:
        self.total, self.done = laws, 0
        self.pass_number += 1

    def row(self, row: LawResult) -> None:
        self.done += 1
        self.broken += row.outcome == "breaks"

    def tick(self, awaited: list[str]) -> None:
        if self.bar is not None:
            task = self.bar.tasks[0].id
            total = self.total or None
            self.bar.update(
                task, total=total, completed=self.done, description=self._text(awaited), refresh=True
            )
        elif not self.quiet and time.monotonic() - self.said > EVERY_S:
            self.said = time.monotonic()
            seconds = self.said - self.began
            judged = f"{self.done} of {self.total} laws judged, " if self.total else ""
            text = f"headcheck: {judged}{seconds:.0f} s, {self._text(awaited)}"
            write_line(self.console, text)

    def _text(self, awaited: list[str]) -> str:
        if not self.total:
            return "; ".join(dict.fromkeys(awaited))
        again = f"pass {self.pass_number}, " if self.pass_number > 1 else ""
        return f"{again}{self.broken} broken; now: {', '.join(awaited)}"
