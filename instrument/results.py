"""Files of results: an object of JSON on each line, so that what a long run has found outlives it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headcheck.errors import HeadcheckError


def read_results(file: Path | None, what: str) -> list[dict[str, Any]]:
    """The objects of a file; none where it is not there yet. A last line that was cut off is left out.

    HeadcheckError: it cannot be read, or is no file of `what`.
    """
    if file is None or not file.exists():
        return []
    try:
        *whole, last = file.read_text(encoding="utf-8").split("\n")
        rows = [json.loads(line) for line in (whole if _is_cut_off(last) else [*whole, last]) if line]
    except OSError as problem:
        raise HeadcheckError(f"cannot read {file}: {problem.strerror}") from problem
    except ValueError as problem:
        raise no_results(file, what) from problem
    if not all(isinstance(row, dict) for row in rows):
        raise no_results(file, what)
    return rows


def no_results(file: Path, what: str) -> HeadcheckError:
    """The file holds something else."""
    return HeadcheckError(f"{file} holds no {what}; name another file")


def append_result(file: Path | None, result: Mapping[str, Any]) -> None:
    """One object more, in place of a last line that was cut off. HeadcheckError: it cannot be written."""
    if file is None:
        return
    try:
        with file.open("a+", encoding="utf-8") as out:
            out.seek(0)
            before, _, last = out.read().rpartition("\n")
            if _is_cut_off(last):
                out.truncate(len(f"{before}\n".encode()) if before else 0)
            elif last:
                out.write("\n")
            out.write(json.dumps(result) + "\n")
    except OSError as problem:
        raise HeadcheckError(f"cannot write {file}: {problem.strerror}") from problem


def _is_cut_off(line: str) -> bool:
    """Whether it is the beginning of an object."""
    try:
        json.loads(line)
    except ValueError:
        return line.startswith("{")
    return False
