"""Runs code blocks, in a process of its own: `python -m headcheck.golden.runner < JOBS`, jobs and answers as JSON.

A job is a list of sources that share one namespace, run one after the other in a copy (fork) of this process;
the answer says of each what it printed, which categories of warnings it gave, and how it failed.
"""

import contextlib
import io
import json
import os
import signal
import sys
import tempfile
import warnings
from typing import Any

import torch

LIMIT_S = 120
"""Seconds of one job."""


def run(sources: list[str]) -> list[dict[str, Any]]:
    """The sources, in one namespace; one that fails does not stop those after it."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    return [_run_one(source, namespace) for source in sources]


def _run_one(source: str, namespace: dict[str, Any]) -> dict[str, Any]:
    out, error = io.StringIO(), ""
    with warnings.catch_warnings(record=True) as caught, contextlib.redirect_stdout(out):
        warnings.simplefilter("always")
        torch.manual_seed(0)
        try:
            exec(compile(source, "<block>", "exec"), namespace)  # noqa: S102 - that is what it is for
        except Exception as problem:  # noqa: BLE001 - whatever it raises is the finding
            error = f"{type(problem).__name__}: {problem}".split("\n", maxsplit=1)[0]
    categories = list(dict.fromkeys(each.category.__name__ for each in caught))
    return {"error": error, "warnings": categories, "printed": out.getvalue().splitlines()}


def run_apart(sources: list[str]) -> list[dict[str, Any]]:
    """`run` in a copy of this process, in an empty folder, ended after LIMIT_S seconds."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        signal.alarm(LIMIT_S)
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            answer = json.dumps(run(sources))
            os.chdir("/")
        with os.fdopen(writing, "w", encoding="utf-8") as pipe:
            pipe.write(answer)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as pipe:
        answer = pipe.read()
    _, status = os.waitpid(child, 0)
    if answer:
        found: list[dict[str, Any]] = json.loads(answer)
        return found
    code = os.waitstatus_to_exitcode(status)
    ended = f"ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
    return [{"error": ended, "warnings": [], "printed": []} for _ in sources]


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.stdout.write(json.dumps([run_apart(job) for job in json.load(sys.stdin)]))
