"""The record of a device: who agrees with whom, how close the bounds come, what flash costs against math.

    python benchmarks/device.py --write docs/cuda.md                      # where there is a CUDA device
    python benchmarks/device.py --device cpu --length 256 --examples 5    # the rehearsal

Memory is what torch's allocator counts at its peak, beyond the inputs; on a CPU it is not counted.
"""

import argparse
import contextlib
import io
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from random import Random

import torch

from headcheck.agreement.families import expanded
from headcheck.agreement.judging import PROFILES, judge_family
from headcheck.agreement.report import show
from headcheck.attention.case import Case
from headcheck.attention.inputs import Inputs, build
from headcheck.attention.role import role
from headcheck.attention.subject import AttentionSubject
from headcheck.comparison import LawBroken, NotApplicable, within
from headcheck.console import plain_console
from headcheck.errors import HeadcheckError
from headcheck.judging import make_plan
from headcheck.preparing import require_device
from headcheck.python_front import undisturbed
from headcheck.subjects import builtins


@dataclass(frozen=True)
class Row:
    """One measurement. ratio: the largest error over its bound."""

    subject: str
    what: str
    ratio: float = 0.0
    same_bits: bool | None = None
    peak_bytes: int = 0
    seconds: float = 0.0
    refused: str = ""


def prepared(name: str, device: str, dtype: str) -> AttentionSubject:
    """A subject in one dtype. SubjectError or HeadcheckError: it does not work so."""
    declaration = builtins()[name].declaration()
    if declaration.dtypes and dtype not in declaration.dtypes:
        raise HeadcheckError(f"does not take {dtype}, as declared")
    return role.prepare(declaration, dtypes=(dtype,), device=device, seed=0)[0]


def long_case(dtype: str, length: int, head_dim: int = 64, **more: object) -> Inputs:
    """One sequence of so many queries and keys, two heads."""
    case = Case(dtype=dtype, heads=2, kv_heads=2, q_len=length, kv_len=length, head_dim=head_dim)
    return build(replace(case, value_dim=head_dim, **more))  # type: ignore[arg-type]


def few_queries(x: Inputs, rows: int = 64) -> Inputs:
    """The same with its last queries only, so that the oracle is affordable: what stands before them is not masked."""
    return x.but(query=x.query[:, :, -rows:])


def calibration(name: str, device: str, examples: int = 40) -> Iterator[Row]:
    """The largest error over bound of each dtype, over drawn cases of every regime."""
    for dtype in builtins()[name].declaration().dtypes or ("float16", "bfloat16", "float32"):
        try:
            subject = prepared(name, device, dtype)
        except HeadcheckError as problem:
            yield Row(name, dtype, refused=str(problem))
            continue
        worst, refused = 0.0, ""
        for number in range(examples):
            x = role.build(role.draw(Random(f"calibration/{number}"), subject), subject)
            try:
                worst = max(worst, within(subject(x), subject.expected(x), subject.bound(x)).ratio)
            except NotApplicable as why:
                refused = str(why)
        yield Row(name, dtype, worst, refused=refused if worst == 0.0 else "")


def large_shapes(name: str, device: str, dtype: str, sizes: Sequence[tuple[int, int]]) -> Iterator[Row]:
    """Long sequences and wide heads: the last queries of each, held to the oracle."""
    for length, head_dim in sizes:
        what = f"{dtype}, length {length}, head_dim {head_dim}"
        try:
            subject = prepared(name, device, dtype)
            x = few_queries(long_case(dtype, length, head_dim))
            yield Row(name, what, within(subject(x), subject.expected(x), subject.bound(x)).ratio)
        except (HeadcheckError, NotApplicable) as problem:
            yield Row(name, what, refused=str(problem))


def determinism(name: str, device: str, length: int, times: int = 20) -> Row:
    """Whether equal calls give equal bits, forward and backward."""
    dtype = "float16" if device.startswith("cuda") else "float32"
    try:
        subject = prepared(name, device, dtype)
        x = long_case(dtype, length)
        outputs = [subject(x) for _ in range(times)]
    except (HeadcheckError, NotApplicable) as problem:
        return Row(name, dtype, refused=str(problem))
    same = all(torch.equal(outputs[0], each) for each in outputs)
    with contextlib.suppress(NotApplicable):
        found = [subject.gradients(x) for _ in range(times)]
        pairs = [(found[0], each) for each in found]
        same_back = all(_equal(a.query, b.query) and _equal(a.key, b.key) for a, b in pairs)
        return Row(name, f"{dtype}, gradients {'equal too' if same_back else 'differ'}", same_bits=same)
    return Row(name, f"{dtype}, no gradients", same_bits=same)


def _equal(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    return one is other or (one is not None and other is not None and torch.equal(one, other))


def batch_invariance(name: str, device: str, length: int) -> Row:
    """A sequence alone and among seven others: the same bits, or a difference within both bounds."""
    dtype = "float16" if device.startswith("cuda") else "float32"
    try:
        subject = prepared(name, device, dtype)
        among = few_queries(long_case(dtype, length, batch=8))
        alone = among.but(query=among.query[:1], key=among.key[:1], value=among.value[:1])
        one, other = subject(among)[:1], subject(alone)
    except (HeadcheckError, NotApplicable) as problem:
        return Row(name, dtype, refused=str(problem))
    found = within(one, other, 2 * subject.bound(alone))
    return Row(name, dtype, found.ratio, same_bits=torch.equal(one, other))


def flash_against_math(pair: Sequence[str], device: str, lengths: Sequence[int]) -> list[Row]:
    """Time, peak memory and the difference of two kernels on ever longer sequences, the whole of each."""
    dtype = "float16" if device.startswith("cuda") else "float32"
    rows = []
    for length in lengths:
        for name in pair:
            try:
                subject, x = prepared(name, device, dtype), long_case(dtype, length)
                peak, seconds = cost(subject, x)
                last = few_queries(x)
                ratio = within(subject(last), subject.expected(last), subject.bound(last)).ratio
                rows.append(Row(name, f"{dtype}, length {length}", ratio, peak_bytes=peak, seconds=seconds))
            except (HeadcheckError, NotApplicable, LawBroken) as problem:
                rows.append(Row(name, f"{dtype}, length {length}", refused=str(problem)))
    return rows


def cost(subject: AttentionSubject, x: Inputs, times: int = 10) -> tuple[int, float]:
    """Peak bytes beyond the inputs, and the best of several times in seconds."""
    arguments = subject.arguments_for(x)
    on_cuda = subject.device.startswith("cuda")

    def once() -> None:
        with torch.no_grad():
            subject.run(x, arguments)
        if on_cuda:
            torch.cuda.synchronize()

    once()
    before = 0
    if on_cuda:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        once()
        taken.append(time.perf_counter() - began)
    return (torch.cuda.max_memory_allocated() - before if on_cuda else 0), min(taken)


def matrix(family: Sequence[str], device: str, profile: str) -> str:
    """The report of `headcheck agree` on the device."""
    names, left_out = expanded(family, device, profile)
    plan = make_plan(names[0], profile=PROFILES[profile], device=device)
    text = io.StringIO()
    show(judge_family(names, plan, left_out=left_out), plain_console(text, color_system=None))
    return text.getvalue()


def table(heading: str, rows: Sequence[Row]) -> str:
    """One section; a cell is empty where nothing was measured."""
    head = "| subject | what | error / bound | same bits | peak MiB | ms |\n|---|---|---|---|---|---|"
    return "\n".join([f"## {heading}", "", head, *map(_line, rows)])


def _line(row: Row) -> str:
    if row.refused:
        return f"| {row.subject} | {row.what} | not applicable: {row.refused} | | | |"
    bits = {None: "", True: "yes", False: "no"}[row.same_bits]
    peak = f"{row.peak_bytes / 2**20:.1f}" if row.peak_bytes else ""
    taken = f"{1e3 * row.seconds:.2f}" if row.seconds else ""
    return f"| {row.subject} | {row.what} | {row.ratio:.3f} | {bits} | {peak} | {taken} |"


def record(family: Sequence[str], device: str, length: int, examples: int, profile: str) -> str:
    """The whole page."""
    chip = torch.cuda.get_device_name(device) if device.startswith("cuda") else "CPU"
    today = datetime.now(tz=UTC).date()
    names, _ = expanded(family, device, "quick")
    flash = "torch-cuda-flash" if device.startswith("cuda") else "torch-sdpa-flash"
    kernels = [name for name in names if name.startswith(("torch-sdpa", "torch-cuda"))]
    dtype = "bfloat16" if device.startswith("cuda") else "float32"
    sizes = [(length, 64), (length + 1, 96), (length + 5, 128), (length - 1, 256)]
    calibrated = [row for name in names for row in calibration(name, device, examples)]
    large = [row for name in kernels for row in large_shapes(name, device, dtype, sizes)]
    costs = flash_against_math(("torch-sdpa-math", flash), device, (length // 4, length // 2, length))
    parts = [
        f"# Attention on {chip}",
        (
            f"Written on {today} by `python benchmarks/device.py --device {device} --length {length} "
            f"--examples {examples} --profile {profile} --family {' '.join(family)}`, torch {torch.__version__}."
        ),
        f"## The family\n\n```text\n{matrix(family, device, profile)}```",
        table("Calibration: the largest error over bound", calibrated),
        table("Large shapes", large),
        table("Determinism", [determinism(name, device, length) for name in kernels]),
        table("Batch invariance", [batch_invariance(name, device, length) for name in kernels]),
        table("Flash against math: the same numbers, at what cost", costs),
    ]
    return "\n\n".join(parts) + "\n"


def main() -> int:
    """Print the record, or write it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--length", type=int, default=8192)
    parser.add_argument("--examples", type=int, default=200)
    parser.add_argument("--profile", choices=tuple(PROFILES), default="gate")
    parser.add_argument("--family", nargs="+", default=["torch"], metavar="SUBJECT")
    parser.add_argument("--write", type=Path, metavar="FILE")
    asked = parser.parse_args()
    try:
        require_device(asked.device)
    except HeadcheckError as problem:
        print(problem, file=sys.stderr)
        return 2
    with undisturbed():
        page = record(asked.family, asked.device, asked.length, asked.examples, asked.profile)
    print(page) if asked.write is None else asked.write.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
