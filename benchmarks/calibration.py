"""How tight the error bounds are on correct attention, and which faults they see.

    python benchmarks/calibration.py [--quick] [--seed N] [--markdown FILE]

Correct outputs first: the largest and the median error / bound in both tiers, beside the share of the same
outputs that two other rules reject (false alarms): `torch.testing.assert_close` with its defaults, and the
rule of FlashAttention's tests, at most twice the error of a naive implementation in the same dtype.
Then faults: the smallest that each rule sees, on one draw of normal numbers and on inputs made to show it.
"""

import argparse
import datetime as dt
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import torch
from kernels import (
    BFLOAT16,
    CORRECT,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    Fault,
    Inputs,
    families,
    kernel,
    one_draw,
    suite,
)
from torch import Tensor

from headcheck.arithmetic import Arithmetic, named
from headcheck.attention.bounds import forward_bounds, subject_bounds
from headcheck.attention.exponents import LAMBDA

# Rules.


@lru_cache(maxsize=64)
def output_bound(inputs: Inputs, arithmetic: Arithmetic, generic: bool) -> Tensor:
    return forward_bounds(inputs.problem, arithmetic, inputs.dtype, generic=generic).output[0, 0]


def ratio(inputs: Inputs, observed: Tensor, arithmetic: Arithmetic, generic: bool) -> Tensor:
    """error / bound of each element; infinite where a finite bound meets a number that is not finite."""
    bound = output_bound(inputs, arithmetic, generic)
    error = (observed.double() - inputs.exact).abs().nan_to_num(nan=math.inf)
    return torch.where((error == 0) | bound.isinf(), 0.0, error / bound)


def assert_close_rejects(inputs: Inputs, observed: Tensor) -> bool:
    try:
        torch.testing.assert_close(observed, inputs.exact.to(inputs.dtype))
    except AssertionError:
        return True
    return False


def twice_naive_rejects(inputs: Inputs, observed: Tensor) -> bool:
    """max |out - ref| > 2 max |naive - ref| + 2 max |ref + 0.3 - 0.3 - ref|."""
    reference = inputs.exact.to(inputs.dtype)
    slack = 2 * (reference + 0.3 - 0.3 - reference).abs().max().double()
    naive = (inputs.naive.double() - inputs.exact).abs().max()
    return not bool((observed.double() - inputs.exact).abs().max() <= 2 * naive + slack)


# Tables.


@dataclass
class Table:
    """Rows of text, to be printed or written."""

    title: str
    head: Sequence[str]
    rows: list[Sequence[str]] = field(default_factory=list)

    def text(self) -> str:
        widths = [max(len(row[i]) for row in [self.head, *self.rows]) for i in range(len(self.head))]
        lines = [
            "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip()
            for row in (self.head, *self.rows)
        ]
        return "\n".join([self.title, "", lines[0], "-" * len(lines[0]), *lines[1:], ""])

    def markdown(self) -> str:
        lines = ["| " + " | ".join(row) + " |" for row in (self.head, ["---"] * len(self.head), *self.rows)]
        return "\n".join([f"## {self.title}", "", *lines, ""])


@dataclass
class Tally:
    """What was found on correct outputs."""

    worst: list[Tensor] = field(default_factory=list)
    generic: list[Tensor] = field(default_factory=list)
    close: list[bool] = field(default_factory=list)
    twice: list[bool] = field(default_factory=list)

    def add(self, inputs: Inputs, observed: Tensor, arithmetic: Arithmetic) -> None:
        self.worst.append(ratio(inputs, observed, arithmetic, generic=False))
        if inputs.generic:
            self.generic.append(ratio(inputs, observed, arithmetic, generic=True))
        self.close.append(assert_close_rejects(inputs, observed))
        self.twice.append(twice_naive_rejects(inputs, observed))

    def row(self) -> list[str]:
        worst, generic = (self._ratios(found) for found in (self.worst, self.generic))
        return [str(len(self.worst)), *worst, *generic, _share(self.close), _share(self.twice)]

    @staticmethod
    def _ratios(found: list[Tensor]) -> list[str]:
        if not found:
            return ["-", "-"]
        largest = max(float(each.max()) for each in found)
        median = statistics.median(float(each.median()) for each in found if each.any())
        return [f"{largest:.2f}", f"{median:.1e}"]


HEAD = ("outputs", "worst max", "median", "generic max", "median", "assert_close", "twice naive")


def _share(verdicts: list[bool]) -> str:
    return f"{100 * sum(verdicts) / len(verdicts):.1f} %"


def correct_outputs(quick: bool) -> list[Table]:
    lengths, dims = ((1, 7, 64, 257), (1, 8, 64)) if quick else ((1, 7, 64, 513, 4096), (1, 8, 64, 128))
    by_implementation: dict[tuple[str, ...], Tally] = {}
    by_family: dict[str, Tally] = {}
    for dtypes, name, implementation, model in CORRECT:
        for dtype in dtypes:
            tally = by_implementation.setdefault((str(dtype)[6:], name, model), Tally())
            for kv_len in lengths:
                for dim in dims:
                    for inputs in families(kv_len, dim, dtype):
                        observed = implementation(inputs)
                        for each in (tally, by_family.setdefault(inputs.name, Tally())):
                            each.add(inputs, observed, named(model))
    sizes = f"keys {', '.join(map(str, lengths))}; dimensions {', '.join(map(str, dims))}"
    first = Table(
        f"Correct outputs, by implementation ({sizes})", ("dtype", "implementation", "model", *HEAD)
    )
    for key, tally in sorted(by_implementation.items(), key=lambda item: item[0][0], reverse=True):
        first.rows.append([*key, *tally.row()])
    second = Table("The same, by family of inputs", ("family", *HEAD))
    second.rows.extend([name, *tally.row()] for name, tally in by_family.items())
    return [first, second]


def margin(quick: bool) -> Table:
    """How far the generic tier could be lowered on inputs without structure."""
    lams = (0.25, 0.5, 1.0, 2.0, 3.0, LAMBDA)
    dtypes = (FLOAT64, FLOAT32, FLOAT16, BFLOAT16)
    elements = dict.fromkeys(dtypes, 0)
    found = {(dtype, lam): [0, 0.0] for dtype in dtypes for lam in lams}
    repeats = 1 if quick else 8
    for each_dtypes, _, implementation, model in [*CORRECT] * repeats:
        for dtype in each_dtypes:
            for kv_len, dim in ((3, 2), (16, 8), (64, 8), (129, 64)):
                for inputs in families(kv_len, dim, dtype):
                    if not inputs.generic:
                        continue
                    error = (implementation(inputs).double() - inputs.exact).abs()
                    elements[dtype] += error.numel()
                    for lam in lams:
                        _, bounds = subject_bounds(inputs.problem, named(model), dtype, lam)
                        ratios = torch.where(error == 0, 0.0, error / bounds.output[0, 0])
                        entry = found[dtype, lam]
                        entry[0] += int((ratios > 1).sum())
                        entry[1] = max(entry[1], float(ratios.max()))
    head = ("lambda", *(f"{str(dtype)[6:]}, of {elements[dtype]}" for dtype in dtypes))
    table = Table(
        "Elements of correct outputs beyond the generic tier, by lambda; largest error / bound", head
    )
    for lam in lams:
        entries = (found[dtype, lam] for dtype in dtypes)
        table.rows.append([f"{lam:g}", *(f"{count:.0f}; {largest:.2f}" for count, largest in entries)])
    return table


# Faults.

COLUMNS = (
    (FLOAT32, "native"),
    (BFLOAT16, "wide"),
    (FLOAT16, "flash"),
    (BFLOAT16, "flash"),
    (BFLOAT16, "eager"),
)
SIZES = [round(10 ** (exponent / 3), 10) for exponent in range(-18, 0)]
FAULTS: Sequence[tuple[str, Callable[[float], Fault], bool]] = (
    ("scale x (1 + e)", lambda e: Fault(scale=e), True),
    ("exp off by e", lambda e: Fault(exp=e), True),
    ("output x (1 + e)", lambda e: Fault(output=e), True),
    ("one key missing", lambda _: Fault(missing=1), False),
    ("one key doubled", lambda _: Fault(doubled=1), False),
    ("one padding key in the sum", lambda _: Fault(padding=1), False),
    ("bfloat16 accumulator of p.v", lambda _: Fault(accumulator=BFLOAT16), False),
    ("bfloat16 row sum", lambda _: Fault(row_sum=BFLOAT16), False),
    ("bfloat16 scores", lambda _: Fault(scores=BFLOAT16), False),
    ("exp2 by a straight line", lambda _: Fault(straight_exp=True), False),
    ("mask value -10", lambda _: Fault(mask_value=-10.0), False),
    ("mask value -50", lambda _: Fault(mask_value=-50.0), False),
)
Rule = Callable[[Inputs, Tensor], bool]


def detection() -> Table:
    """For each fault and rule the smallest size that is rejected, or whether the fault is."""
    head = ("fault", "rule", *(f"{str(dtype)[6:]} {model}" for dtype, model in COLUMNS))
    table = Table("Faults that are seen: on randn; on the suite", head)
    columns = [_Column(dtype, model) for dtype, model in COLUMNS]
    for name, fault, sized in FAULTS:
        draws = "masked" if name.startswith("mask") else "plain"
        cells = [column.cells(fault, sized, draws) for column in columns]
        rules = ("bound, worst -> generic", "assert_close", "twice naive")
        table.rows.extend(
            (name if i == 0 else "", rule, *(c[i] for c in cells)) for i, rule in enumerate(rules)
        )
    return table


class _Column:
    """A model and dtype, with its inputs and the rules that reject even the kernel without a fault."""

    def __init__(self, dtype: torch.dtype, model: str) -> None:
        self.model = model
        self.inputs = {
            "plain": [one_draw(dtype)],
            "masked": [one_draw(dtype, masked=True)],
            "suite": list(suite(dtype)),
        }

    def rules(self) -> list[Rule]:
        arithmetic = named(self.model)

        def worst(inputs: Inputs, observed: Tensor) -> bool:
            return bool((ratio(inputs, observed, arithmetic, generic=False) > 1).any())

        def generic(inputs: Inputs, observed: Tensor) -> bool:
            return bool((ratio(inputs, observed, arithmetic, generic=inputs.generic) > 1).any())

        return [worst, generic, assert_close_rejects, twice_naive_rejects]

    def cells(self, fault: Callable[[float], Fault], sized: bool, draws: str) -> tuple[str, str, str]:
        """What the bound, assert_close and the rule of twice naive see."""
        worst, generic, close, twice = self.rules()

        def seen(rule: Rule, where: str) -> str:
            return self._smallest(rule, fault, self.inputs[where], sized)

        return (
            f"{seen(worst, draws)} -> {seen(generic, draws)}; {seen(worst, 'suite')}",
            f"{seen(close, draws)}; {seen(close, 'suite')}",
            f"{seen(twice, draws)}; {seen(twice, 'suite')}",
        )

    def _smallest(self, rule: Rule, fault: Callable[[float], Fault], many: list[Inputs], sized: bool) -> str:
        if any(rule(inputs, kernel(inputs, self.model)) for inputs in many):
            return "(all)"
        for size in SIZES if sized else [0.0]:
            if any(rule(inputs, kernel(inputs, self.model, fault(size))) for inputs in many):
                return f"{size:.0e}".replace("e-0", "e-") if sized else "yes"
        return "-" if sized else "no"


def preface(seed: int) -> str:
    return f"""# Calibration of the error bounds

{dt.datetime.now(tz=dt.UTC).date()}, torch {torch.__version__}, seed {seed}, on a CPU.
`python benchmarks/calibration.py --markdown docs/calibration.md` measures all of it again, in some minutes.
`--quick` takes fewer sizes and `--seed N` other draws; the last digits of a median depend on the processor.

An error / bound above 1 on a correct output would be a false alarm of the bound. The last two columns are
the false alarms of `torch.testing.assert_close` and of the rule 'at most twice the error of a naive
implementation' on the same outputs. Faults are put into one kernel: a size is the smallest that is rejected,
and (all) says that the rule rejects the kernel without a fault as well. Worst is the worst-case tier, generic
the probabilistic one.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer sizes: under two minutes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables there as well")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    started = time.perf_counter()
    tables = [*correct_outputs(options.quick), margin(options.quick), detection()]
    print("\n".join(table.text() for table in tables))
    print(f"{time.perf_counter() - started:.0f} s, torch {torch.__version__}, seed {options.seed}")
    if options.markdown:
        options.markdown.write_text(
            "\n".join([preface(options.seed), *(table.markdown() for table in tables)])
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
