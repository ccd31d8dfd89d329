"""pytest --pyargs headcheck.properties --subject SUBJECT: each law is one item.

This module is loaded by every pytest run of its environment, so it imports nothing heavy at its top.
"""

from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import cache, cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from headcheck.baseline import Known
    from headcheck.isolation import Workers
    from headcheck.laws import Law
    from headcheck.plan import Plan
    from headcheck.preparing import Introduction
    from headcheck.verdict import LawResult


ASKED = (
    "--subject",
    *(f"--headcheck-{name}" for name in ("role", "dtype", "device", "declare", "timeout", "baseline")),
)
"""The options in which a user can be mistaken, beyond what pytest finds."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of the command; all but SUBJECT and the documents by names that other plugins will not have."""
    group = parser.getgroup("headcheck", "headcheck: judge an attention function by its laws")
    group.addoption(
        "--subject", metavar="SUBJECT", help="built-in name, package.module:attribute or file.py:attribute"
    )
    group.addoption("--headcheck-role", help="the role; default: what the name or class of the subject tells")
    group.addoption(
        "--headcheck-profile", choices=("quick", "gate", "deep"), default="gate", help="default: gate"
    )
    group.addoption("--headcheck-seed", type=int, help="default: 0, and a fresh one for deep")
    group.addoption("--headcheck-dtype", action="append", help="only these dtypes; repeat, or use commas")
    group.addoption("--headcheck-device", help="default: what the subject declares first, or cpu")
    group.addoption(
        "--headcheck-timeout",
        metavar="SECONDS",
        type=float,
        help="one example, of a call or a few, that takes longer has hung",
    )
    group.addoption(
        "--headcheck-declare",
        metavar="FIELD=VALUE",
        action="append",
        default=[],
        help="a convention of the subject, such as layout=bshd; repeat",
    )
    group.addoption(
        "--headcheck-baseline", metavar="FILE", help="known deviations (TOML): only what is not listed fails"
    )
    group.addoption("--documents", metavar="DIR", help="headcheck.golden: the folder of the five documents")


def pytest_configure(config: pytest.Config) -> None:
    """One session object holds the subject and hears of every law."""
    named = [each for each in config.invocation_params.args if str(each).partition("=")[0] == "--subject"]
    if len(named) > 1:
        raise pytest.UsageError("--subject is given twice: a run judges one; `headcheck` judges several")
    config.pluginmanager.register(Session(config), "headcheck-session")


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> "LawFile | None":
    """The modules of headcheck.properties are files of laws; every other file is left alone."""
    if file_path.suffix != ".py" or "properties" not in file_path.parts or file_path.name.startswith("_"):
        return None
    inside = _inside_properties(file_path)
    if inside is None:
        return None
    found: LawFile = LawFile.from_parent(parent, path=file_path, nodeid=f"properties/{inside.as_posix()}")
    return found


@cache
def _roots() -> list[Path]:
    spec = find_spec("headcheck.properties")
    return [Path(each) for each in (spec.submodule_search_locations or ())] if spec else []


def _inside_properties(file: Path) -> Path | None:
    """The path of a module within headcheck.properties, wherever that lies; None for every other file."""
    after = len(file.parts) - file.parts[::-1].index("properties")
    inside = Path(*file.parts[after:])
    for root in _roots():
        # The same file may be seen by two paths: an editable installation is made of links.
        if (root / inside).exists() and (root / inside).samefile(file):
            return inside
    return None


class LawFile(pytest.File):
    """One module of laws."""

    def collect(self) -> Iterator["LawItem"]:
        from headcheck.laws import choose

        session: Any = self.config.pluginmanager.get_plugin("headcheck-session")
        home = self.nodeid.removeprefix("properties/").removesuffix(".py").replace("_", "-")
        for law in choose(session.role):
            if law.home == home:
                yield LawItem.from_parent(self, name=law.name, law=law)


class LawItem(pytest.Item):
    """One law, on the subject of this run."""

    def __init__(self, *, law: "Law", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.law = law
        self.row: LawResult | None = None
        self.extra_keyword_matches.add(law.id)

    def runtest(self) -> None:
        session: Any = self.config.pluginmanager.get_plugin("headcheck-session")
        row: LawResult = session.judge(self.law)
        self.row = row
        self.user_properties += [
            ("subject", session.subject),
            ("law", row.id),
            ("outcome", row.outcome),
            ("examples", row.examples),
            ("worst_error_over_bound", row.worst_error_over_bound),
            ("unfinished", session.unfinished),
        ]
        if row.outcome == "not-applicable":
            pytest.skip(f"not applicable: {row.reason}")
        if row.outcome == "breaks":
            if (known := session.known(row)) is not None:
                pytest.xfail(known.reason)
            raise LawIsBroken(row)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """What a reader needs of a broken law is its counterexample; a traceback would show headcheck."""
        from headcheck.console import counterexample_text
        from headcheck.errors import HeadcheckError

        if isinstance(excinfo.value, LawIsBroken):
            return counterexample_text(excinfo.value.row)
        if isinstance(excinfo.value, HeadcheckError):
            return f"headcheck: {excinfo.value}"
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return self.path, None, self.law.id


class LawIsBroken(Exception):
    """The finding of an item."""

    def __init__(self, row: "LawResult") -> None:
        super().__init__(row.reason)
        self.row = row


class Session:
    """The subject, prepared once in this process, and what became of the laws in all processes."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.outcomes: Counter[str] = Counter()
        self.by_law: dict[str, str] = {}
        self.workers: Workers | None = None
        self.problem = ""
        self.unfinished = ""
        """What was left out of all that were judged, and why: then the subject is not said to conform."""
        self.introduction: Introduction | None = None
        self.rows: list[LawResult] = []

    def pytest_sessionstart(self) -> None:
        """What is asked of headcheck is tried before anything is collected: a mistake is one usage error."""
        if not self._is_asked or hasattr(self.config, "workerinput"):
            return
        from headcheck.errors import HeadcheckError

        with ExitStack() as stack:
            stack.callback(self._end)
            try:
                _ = self.baseline, self.role
            except HeadcheckError as problem:
                raise pytest.UsageError(f"headcheck: {problem}") from problem
            if not self.config.pluginmanager.has_plugin("dsession"):
                stack.pop_all()  # Here the laws are judged; where pytest-xdist spreads them, elsewhere.

    @property
    def _is_asked(self) -> bool:
        """Whether any option of headcheck is given: other runs must not pay for it."""
        return any(self.config.getoption(each) for each in ASKED)

    @cached_property
    def role(self) -> str:
        """The role of the subject: laws of other roles are no items of this run."""
        self.introduction = self._workers().introduce()
        return self.introduction.role

    @property
    def notes(self) -> Sequence[str]:
        """What was found out of the subject, and what the laws that broke say together of a declaration."""
        from headcheck.hints import hints_of

        if self.introduction is None:
            return ()
        return [*self.introduction.notes, *hints_of(self._plan, self.introduction, self.rows)]

    def judge(self, law: "Law") -> "LawResult":
        from headcheck.errors import HeadcheckError
        from headcheck.judging import with_only

        if self.problem:
            pytest.skip(f"the subject could not be tried: {self.problem}")
        try:
            workers = self._workers()
            (row,) = workers.judge([law])
        except HeadcheckError as problem:
            self.problem = str(problem)
            raise
        if workers.bugs:
            raise RuntimeError(f"this is a bug in headcheck, please report it: {workers.bugs.pop()}")
        self.unfinished = workers.unfinished
        return with_only(workers.plan, row)

    @cached_property
    def listed(self) -> "tuple[Known, ...]":
        """The known deviations of all subjects."""
        from headcheck.baseline import read_baseline

        file = self.config.getoption("--headcheck-baseline")
        return read_baseline(file) if file else ()

    @cached_property
    def baseline(self) -> "tuple[Known, ...]":
        """Those of this one."""
        from headcheck.baseline import known_of

        return known_of(self.subject, self.listed)

    @property
    def remarks(self) -> tuple[str, ...]:
        """What the way in which they are written means for this run."""
        from headcheck.baseline import remarks

        return remarks(self.listed, self.subject, self.role) if self.listed else ()

    @property
    def subject(self) -> str:
        """As it was named, or the default."""
        from headcheck.loading import DEFAULT

        return self.config.getoption("--subject") or DEFAULT

    def known(self, row: "LawResult") -> "Known | None":
        """The entry of the baseline for which a broken law is no news."""
        from headcheck.baseline import entry_of

        return entry_of(row, self.baseline)

    @property
    def fixed(self) -> "list[Known]":
        """Known deviations whose laws were judged in all that the subject supports, and none of them breaks."""
        from headcheck.baseline import is_fixed

        if self.unfinished or self.config.getoption("--headcheck-dtype"):
            return []
        return [each for each in self.baseline if is_fixed(each, self.by_law)]

    def _workers(self) -> "Workers":
        from headcheck.isolation import Workers

        if self.workers is None:
            self.workers = Workers(self._plan)
        return self.workers

    @cached_property
    def _plan(self) -> "Plan":
        from headcheck.judging import make_plan

        option = self.config.getoption
        return make_plan(
            self.subject,
            role=option("--headcheck-role"),
            profile=option("--headcheck-profile"),
            seed=option("--headcheck-seed"),
            dtype=option("--headcheck-dtype"),
            device=option("--headcheck-device"),
            declare=option("--headcheck-declare"),
            timeout=option("--headcheck-timeout"),
        )

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """The row of a law goes with its report, from whatever process judged it."""
        report = yield
        if isinstance(item, LawItem) and item.row is not None and report.when == "call":
            report.headcheck_row = asdict(item.row)  # type: ignore[attr-defined]
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Hear of every law, also of those that other processes have judged."""
        properties = dict(report.user_properties)
        if report.when == "call" and "law" in properties:
            self.outcomes[str(properties["outcome"])] += 1
            self.by_law[str(properties["law"])] = str(properties["outcome"])
            self.unfinished = self.unfinished or str(properties["unfinished"])
            self._heard_of(getattr(report, "headcheck_row", None))
        elif "::" in report.nodeid and report.nodeid.startswith("properties/") and report.when == "call":
            self.outcomes["not judged"] += 1

    def _heard_of(self, row: "dict[str, Any] | None") -> None:
        from headcheck.verdict import LawResult

        if row is not None:
            self.rows.append(LawResult.of(row))

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self._end()
        controls = not hasattr(self.config, "workerinput")
        if controls and self.outcomes and not self._judged and session.exitstatus in (0, 1):
            session.exitstatus = 2
        if controls and (self._is_left_out or self.unfinished) and session.exitstatus == 0:
            session.exitstatus = 2
        if controls and session.exitstatus == 0 and self._judged and self.fixed:
            session.exitstatus = 1

    def _end(self) -> None:
        if self.workers is not None:
            self.workers.__exit__()
            self.workers = None

    @property
    def _is_left_out(self) -> bool:
        """Whether a subject was named, and no law was among what ran."""
        option = self.config.getoption
        return bool(option("--subject")) and not self.outcomes and not option("--collect-only")

    @property
    def _judged(self) -> int:
        return self.outcomes["holds"] + self.outcomes["breaks"]

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self._is_left_out:
            terminalreporter.section("headcheck")
            terminalreporter.line(
                f"{self.subject}: NOT JUDGED, no law was run; --pyargs headcheck.properties collects them, and -k "
                "chooses by their names, in which words are joined by hyphens",
                red=True,
            )
        if not self.outcomes:
            return
        holds, breaks = self.outcomes["holds"], self.outcomes["breaks"]
        counts = f"{holds} laws hold, {breaks} broken, {self.outcomes['not-applicable']} not applicable"
        if self.outcomes["not judged"]:
            counts += f", {self.outcomes['not judged']} not judged"
        terminalreporter.section("headcheck")
        terminalreporter.line(f"{self.subject}: {counts}", red=bool(breaks), green=bool(holds and not breaks))
        from headcheck.verdict import Hint

        for note in self.notes:
            terminalreporter.line(f"hint: {note}" if breaks and isinstance(note, Hint) else note)
        for each in self.fixed:
            terminalreporter.line(f"{each.told_as_fixed}: take it out of the baseline", red=True)
        for line in self.remarks:
            terminalreporter.line(line)
        if self.unfinished:
            terminalreporter.line(f"NOT FINISHED: {self.unfinished} (exit code 2)", red=True, bold=True)
        if not self._judged:
            terminalreporter.line(
                "NO LAW COULD BE JUDGED: this is no pass (exit code 2)", red=True, bold=True
            )
