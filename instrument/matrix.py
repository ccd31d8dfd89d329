"""Every built-in subject judged, each by a process of its own: records that can be resumed.

A record is one line of JSON: what became of one subject. A subject that crashes its process, hangs or cannot be
imported is a record too, and stops none of the others.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import packages_distributions, version
from pathlib import Path
from typing import Any

from headcheck.errors import HeadcheckError
from headcheck.results import append_result, no_results, read_results
from headcheck.subjects import BuiltIn, builtins, named
from headcheck.verdict import LawResult, Verdict


@dataclass(frozen=True)
class Record:
    """What became of one subject."""

    subject: str
    profile: str
    date: str
    """The day, in UTC."""
    seconds: float
    versions: dict[str, str] = field(default_factory=dict)
    """Package -> version, of what the subject needs."""
    verdict: dict[str, Any] | None = None
    """As `headcheck verify --json` writes it."""
    problem: str = ""
    """Why there is no verdict."""

    @property
    def role(self) -> str:
        return str(self.verdict["role"]) if self.verdict else ""

    def as_verdict(self) -> Verdict | None:
        """The verdict as an object, as far as the page and the baseline need it."""
        if self.verdict is None:
            return None
        rows = [LawResult.of(law) for law in self.verdict["laws"]]
        given = {name: self.verdict[name] for name in ("role", "profile", "seed", "declaration", "notes")}
        unfinished = self.verdict["unfinished"]
        return Verdict(
            subject=self.subject, laws=rows, duration_s=self.seconds, unfinished=unfinished, **given
        )


def chosen(parts: Sequence[str] = (), names: Sequence[str] = ()) -> tuple[list[BuiltIn], list[BuiltIn]]:
    """Built-in subjects: here, and not installed.

    Those named, members of families such as hf:llama too; or those whose name holds one of the parts; or all.
    """
    found = [_named(name) for name in names] or [
        each for name, each in builtins().items() if not parts or any(part in name for part in parts)
    ]
    if not found:
        raise HeadcheckError(
            f"no built-in subject has {' or '.join(parts)} in its name; `headcheck subjects` lists them"
        )
    return [each for each in found if not each.missing], [each for each in found if each.missing]


def _named(name: str) -> BuiltIn:
    found = named(name)
    if found is None:
        raise HeadcheckError(f"there is no built-in subject {name!r}; `headcheck subjects` lists them")
    return found


def judge_all(
    subjects: Sequence[BuiltIn],
    *,
    profile: str,
    processes: int,
    limit_s: float,
    file: Path | None = None,
    told: Callable[[Record], None] = lambda record: None,
) -> list[Record]:
    """Judge them side by side; records that the file has already are taken from there, new ones are added to it."""
    done = {each.subject: each for each in read_records(file) if each.profile == profile}
    left = [each for each in subjects if each.name not in done]
    commands: list[subprocess.Popen[str]] = []
    with ThreadPoolExecutor(processes) as pool:
        running = [pool.submit(judged, each, profile, limit_s, commands.append) for each in left]
        try:
            for future in as_completed(running):
                record = future.result()
                done[record.subject] = record
                append_result(file, asdict(record))
                told(record)
        except KeyboardInterrupt:
            pool.shutdown(cancel_futures=True, wait=False)
            for command in commands:
                command.kill()
            raise
    return [done[each.name] for each in subjects]


def judged(
    subject: BuiltIn,
    profile: str,
    limit_s: float,
    started: Callable[[subprocess.Popen[str]], None] = lambda command: None,
) -> Record:
    """One subject, in a process of its own that is ended at the limit. started: told of that process."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as directory:
        output = Path(directory) / "verdict.json"
        command = [sys.executable, "-m", "headcheck", "verify", subject.name, "--profile", profile]
        problem = _run([*command, "-n", "1", "--quiet", "--json", str(output)], limit_s, started)
        verdict = json.loads(output.read_text(encoding="utf-8")) if output.exists() else None
    seconds = round(time.perf_counter() - began, 1)
    today = datetime.now(UTC).date().isoformat()
    versions = {package: _version(package) for package in subject.needs}
    return Record(subject.name, profile, today, seconds, versions, verdict, "" if verdict else problem)


def read_records(file: Path | None) -> list[Record]:
    """The records of a file. HeadcheckError: it holds something else."""
    what = "records of `headcheck matrix`"
    rows = read_results(file, what)
    try:
        return [Record(**row) for row in rows]
    except TypeError as problem:
        raise no_results(Path(str(file)), what) from problem


def _run(command: list[str], limit_s: float, started: Callable[[subprocess.Popen[str]], None]) -> str:
    """The last line that a command writes, or how it ended. One thread each: they run side by side."""
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    pipe = subprocess.PIPE
    with subprocess.Popen(  # noqa: S603 - this interpreter, on a built-in name
        command, stdout=pipe, stderr=pipe, text=True, env=environment
    ) as process:
        started(process)
        try:
            out, err = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            process.kill()
            return f"not finished after {limit_s:g} s"
    last = (err.strip() or out.strip()).splitlines()
    return last[-1] if last else f"exit code {process.returncode}"


@cache
def _distributions() -> Any:
    return packages_distributions()


def _version(package: str) -> str:
    """The version of what holds an import package."""
    names = _distributions().get(package, [])
    return version(names[0]) if names else "unknown"
