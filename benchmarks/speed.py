"""How long a verdict takes, from a cold start: imports, the subject's own time and headcheck's.

    python benchmarks/speed.py [--markdown FILE] [--faults N]

Every figure is taken in a process of its own, as a user would start it. Absolute times are of one machine;
what carries over are the shares: of the time spent inside the subject, and of one profile to another.
"""

import argparse
import datetime as dt
import json
import platform
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"
SUBJECTS = ("reference", "torch-sdpa", "torch-sdpa-math", str(EXAMPLES / "right_attention.py") + ":attention")
COMMAND = "import sys; from headcheck.command import main; sys.exit(main())"
UNTIL_THE_FIRST_BREAK = """
import sys, time
sys.path.insert(0, sys.argv[1])
from headcheck.engine import PROFILES
from headcheck.isolation import Workers
from headcheck.laws import choose
from headcheck.plan import Plan
from tests.faults import FAULTS
with Workers(Plan(FAULTS[sys.argv[2]].declaration(), PROFILES["gate"]), processes=2) as workers:
    workers.introduce()
    broken = next((row.id for row in workers.judge(choose("attention")) if row.outcome == "breaks"), "")
    print(broken, flush=True)
"""


def verdict(subject: str, *options: str) -> tuple[float, dict[str, Any]]:
    """Seconds on the wall from start to end of one command, and its verdict."""
    line = [sys.executable, "-c", COMMAND, subject, "--quiet", "--json", "-", *options]
    began = time.perf_counter()
    ran = subprocess.run(line, capture_output=True, text=True, check=False, cwd=ROOT)
    took = time.perf_counter() - began
    if ran.returncode == 2:
        raise SystemExit(ran.stderr)
    return took, json.loads(ran.stdout)


def row(subject: str) -> str:
    """One subject under quick and gate on two processes, as the command has it."""
    quick_s, _ = verdict(subject, "--profile", "quick", "-n", "2")
    gate_s, gate = verdict(subject, "--profile", "gate", "-n", "2")
    single_s, single = verdict(subject, "--profile", "gate", "-n", "1", "--dtype", "float32")
    inside = sum(each["subject_s"] for each in single["laws"])
    judging = sum(each["duration_s"] for each in single["laws"])
    name = Path(subject).name
    return (
        f"| {name} | {quick_s:.1f} | {gate_s:.1f} | {gate['examples']:,} | {gate['examples'] / gate_s:.0f} "
        f"| {single['examples'] / judging:.0f} | {inside / judging:.0%} | {single_s:.1f} |"
    )


def to_the_first_break(names: Sequence[str]) -> tuple[list[float], list[str]]:
    """Seconds from the start of a process until the first law breaks, for each fault; and those never broken."""
    seconds, survived = [], []
    for name in names:
        began = time.perf_counter()
        ran = subprocess.run(
            [sys.executable, "-c", UNTIL_THE_FIRST_BREAK, str(ROOT), name],
            capture_output=True,
            text=True,
            check=True,
            cwd=ROOT,
        )
        if ran.stdout.strip():
            seconds.append(time.perf_counter() - began)
        else:
            survived.append(name)
    return seconds, survived


def main() -> None:
    parser = argparse.ArgumentParser(description="How long a verdict takes.")
    parser.add_argument(
        "--faults", type=int, default=40, help="so many faults of the corpus, drawn by chance"
    )
    parser.add_argument("--markdown", type=Path)
    arguments = parser.parse_args()

    sys.path.insert(0, str(ROOT))
    from tests.faults import FAULTS

    harmless = [name for name, fault in FAULTS.items() if fault.peril is None]
    drawn = random.Random(0).sample(harmless, min(arguments.faults, len(harmless)))
    lines = [
        "# Speed",
        "",
        (
            f"{dt.datetime.now(tz=dt.UTC).date()}, torch {torch.__version__}, Python {platform.python_version()}, "
            f"{platform.machine()}, two processes. Rerun: `python benchmarks/speed.py --markdown docs/speed.md`."
        ),
        "",
        "Seconds are on the wall, from the start of the command to its end, imports included. The last three",
        "columns are the gate in float32 on one process: examples a second while judging, the share of that time",
        "spent inside the subject, and seconds in all.",
        "",
        "| subject | quick s | gate s | examples | examples/s | one process: examples/s | in the subject | s |",
        "|---|---|---|---|---|---|---|---|",
        *[row(subject) for subject in SUBJECTS],
    ]
    seconds, survived = to_the_first_break(drawn)
    lines += [
        "",
        (
            f"From the start of the process to the first broken law, gate, all dtypes, {len(drawn)} faults of the "
            f"corpus drawn by chance: median {statistics.median(seconds):.1f} s, nine in ten within "
            f"{statistics.quantiles(seconds, n=10)[-1]:.1f} s, worst {max(seconds):.1f} s; "
            f"not caught: {', '.join(survived) or 'none'}."
        ),
    ]
    page = "\n".join(lines) + "\n"
    print(page)
    if arguments.markdown:
        arguments.markdown.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
