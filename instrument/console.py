"""The verdict as text, for people: on a terminal, in a log, in the message of an assertion."""

import io
import math
import re
import textwrap
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from headcheck.calling import REFUSES
from headcheck.comparison import place
from headcheck.laws import Law, all_laws
from headcheck.ranking import most_telling_first, told_in_full
from headcheck.roles import role
from headcheck.verdict import Counterexample, Hint, LawResult, Verdict, apart, exceeded

WIDTH = 110
IN_FULL = 3
"""So many broken laws are shown with their counterexamples; of the others one of each family by a line."""
TAKES_NO = "takes no "
"""How a reason begins that names a feature which the subject lacks."""
NAMED = 4
"""So many of the laws that one exception breaks are named; the table and the JSON have them all."""
STYLES = {"conforms": "bold green", "breaks": "bold red", "untested": "bold yellow"}


def plain_console(file: Any, **options: Any) -> Console:
    """A console that takes text as it is: brackets in it are tensors, no markup."""
    console = Console(file=file, markup=False, highlight=False, emoji=False, **options)
    if not console.is_terminal:
        console = Console(file=file, markup=False, highlight=False, emoji=False, width=WIDTH, **options)
    return console


def as_text(verdict: Verdict) -> str:
    """The verdict as plain text."""
    file = io.StringIO()
    show(verdict, plain_console(file, color_system=None))
    return file.getvalue().rstrip("\n")


def counterexample_text(row: LawResult) -> str:
    """A broken law as plain text."""
    file = io.StringIO()
    _broken(row, [], {}, plain_console(file, color_system=None))
    return file.getvalue().strip("\n")


def show(verdict: Verdict, console: Console, *, verbose: bool = False) -> None:
    """Everything: the table, what is broken and may explain it, what was not applicable, one line that sums it up.

    Known deviations are not shown in full. verbose: with a line for each law, whatever became of it.
    """
    groups = _same_break(most_telling_first(verdict.new))
    hints = [note for note in verdict.notes if groups and isinstance(note, Hint)]
    _heading(verdict, hints, console)
    _table(verdict, verdict.known, verbose, console)
    for note in hints:
        write_line(console, "")
        write_line(console, f"hint: {note}", "yellow")
    in_full = told_in_full([first for first, _ in groups], IN_FULL)
    alike = {first.id: others for first, others in groups}
    for row in in_full:
        _broken(row, alike[row.id], verdict.declaration, console)
    _broken_too([group for group in groups if group[0] not in in_full], verbose, console)
    if verdict.known:
        write_line(console, "")
        write_line(console, "Broken as the baseline has it:")
    for law_id, reason in verdict.known.items():
        write_line(console, f"  {law_id}: {reason}")
    _not_applicable(verdict, verbose, console)
    write_line(console, summary(verdict), STYLES[verdict.verdict])
    for line in verdict.beside:
        write_line(console, line)


def summary(verdict: Verdict) -> str:
    """The verdict in one line, with its denominators."""
    judged = [each for each in verdict.laws if each.outcome != "not-applicable"]
    holding = [each for each in judged if each.outcome == "holds"]
    parts = []
    if verdict.broken:
        parts.append(f"{len(verdict.broken)} of {_count(len(judged), 'law')} broken, {len(holding)} hold")
    elif holding:
        worst = max(holding, key=lambda each: each.worst_error_over_bound)
        hold = f"{_count(len(holding), 'law')} {'holds' if len(holding) == 1 else 'hold'}"
        largest = f"worst error {worst.worst_error_over_bound:.2f} of its bound ({worst.id})"
        parts.append(f"{hold} over {verdict.examples:,} examples, {largest}")
    else:
        parts.append("no law could be judged")
    if verdict.broken:
        parts[0] += f", over {verdict.examples:,} examples"
    refused = sum(each.reason.startswith(REFUSES) for each in verdict.laws)
    of_them = f", {refused} of them as it refuses the calls" if refused else ""
    parts.append(f"{len(verdict.laws) - len(judged)} not applicable{of_them}")
    parts.append(f"{verdict.duration_s:.1f} s")
    if verdict.unfinished:
        parts.append(f"NOT FINISHED: {verdict.unfinished}")
    return f"{verdict.verdict}: {'; '.join(parts)}"


def short(verdict: Verdict) -> str:
    """The first broken law that is new with its replay line, and the summary: a few lines for the log of a test."""
    if not verdict.new:
        return "\n".join([summary(verdict), *verdict.beside])
    first = most_telling_first(verdict.new)[0]
    hints = [f"hint: {note}" for note in verdict.notes if isinstance(note, Hint)]
    lines = [f"breaks {first.id}: {first.reason}", *hints]
    law = all_laws().get(first.id)
    if law is not None and (cure := _cure(law, first.counterexample, verdict.declaration)):
        lines.append(f"where that is meant: {cure}")
    if first.counterexample is not None:
        lines.append(first.counterexample.replay)
    return "\n".join([*lines, summary(verdict), *verdict.beside])


def tensor_lines(inputs: dict[str, Any]) -> list[str]:
    """The arguments of a call, one to a line; axes of size 1 in front are told by the shape alone."""
    lines = []
    for name, value in inputs.items():
        if not isinstance(value, list):
            lines.append(f"{name} = {value}")
            continue
        inner: Any = value
        while len(inner) == 1 and isinstance(inner[0], list):
            inner = inner[0]
        lines.append(f"{name} {_shape(value)} = {_written(inner)}")
    return lines


def call_lines(calls: list[dict[str, Any]]) -> list[str]:
    """What the law chose itself: a call to an item, its arguments below each other."""
    lines = ["the law also called it with"] if calls else []
    for call in calls:
        first, *others = tensor_lines(call)
        lines += [f"  - {first}", *(f"    {each}" for each in others)]
    return lines


def _heading(verdict: Verdict, hints: Container[str], console: Console) -> None:
    asked = f"profile {verdict.profile}, seed {verdict.seed}"
    where = ", ".join(
        f"{name} {verdict.environment.get(name, '?')}" for name in ("torch", "python", "device")
    )
    write_line(console, f"{verdict.subject} ({verdict.role}): {asked}; {where}", "bold")
    for name, value in verdict.declaration.items():
        write_line(console, f"declared {name} = {value}", "dim")
    for note in verdict.notes:
        if note not in hints:
            write_line(console, note, "dim")


def _table(verdict: Verdict, known: Container[str], verbose: bool, console: Console) -> None:
    """Each law that was judged, by family; where one breaks, those that hold are counted."""
    counted = bool(verdict.broken) and not verbose
    families: dict[str, list[LawResult]] = defaultdict(list)
    for row in verdict.laws:
        if row.outcome != "not-applicable":
            families[row.family].append(row)
    if not families:
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("law", overflow="fold")
    table.add_column("")
    table.add_column("examples", justify="right")
    table.add_column("error / bound", justify="right")
    for family, rows in families.items():
        holding = [row for row in rows if row.outcome == "holds"] if counted else []
        table.add_row(Text(family, style="bold"), *(_of_all(holding) if holding else ()))
        for row in rows:
            if row in holding:
                continue
            mark, style = _mark(row, known)
            name = f"  {row.name}"
            table.add_row(Text(name), Text(mark, style=style), f"{row.examples:,}", _ratio(row))
    console.print(table)


def _mark(row: LawResult, known: Container[str]) -> tuple[str, str]:
    """What became of a law, and the style that it is written in."""
    if row.outcome == "holds":
        return "holds", "green"
    return ("breaks (known)", "yellow") if row.id in known else ("BREAKS", "bold red")


def _of_all(holding: list[LawResult]) -> tuple[Text, str, str]:
    """How many laws hold, their examples, and the largest share of a bound."""
    worst = max(row.worst_error_over_bound for row in holding)
    return (
        Text(f"{len(holding)} hold", style="green"),
        f"{sum(row.examples for row in holding):,}",
        f"{worst:.2f}",
    )


def _ratio(row: LawResult) -> str:
    factor = row.worst_error_over_bound
    if row.counterexample is not None and row.counterexample.factor is None:
        return "-"
    return f"{factor:.2f}" if factor < 100 else f"{factor:.2g}"


def _same_break(rows: Iterable[LawResult]) -> list[tuple[LawResult, list[LawResult]]]:
    """Rows that were broken by one exception, whatever sizes it names, or by one number of one case belong together."""
    groups: dict[str, tuple[LawResult, list[LawResult]]] = {}
    for row in rows:
        example = row.counterexample
        thrown = example is not None and example.what in ("call", "process")
        seen = row.id if example is None or not example.case else f"{example.case}: {row.reason}"
        key = "hung" if row.hung else re.sub(r"\d+", "#", row.reason) if thrown else seen
        if key in groups:
            groups[key][1].append(row)
        else:
            groups[key] = (row, [])
    return list(groups.values())


def _broken(row: LawResult, others: list[LawResult], declared: Mapping[str, Any], console: Console) -> None:
    write_line(console, "")
    write_line(console, f"BREAKS {row.id}", "bold red")
    write_line(console, f"  {row.statement}")
    example = row.counterexample
    if example is not None:
        _example(example, row, console)
    law = all_laws().get(row.id)
    died = row.hung or (example is not None and example.what == "process")
    if law is not None and law.guards and not died:  # Which law met it says nothing about why.
        write_line(console, f"  guards against: {law.guards}", "dim")
    if law is not None and not died and (cure := _cure(law, example, declared)):
        write_line(console, f"  where that is meant: {cure}", "yellow")
    if others:
        names = _some([each.name_in_role for each in others])
        write_line(console, f"  The same breaks {_count(len(others), 'more law')}: {names}")


def _broken_too(groups: list[tuple[LawResult, list[LawResult]]], verbose: bool, console: Console) -> None:
    """A line for what else is broken: the most telling law of each family, or each law."""
    if not groups:
        return
    lines: dict[str, tuple[LawResult, int]] = {}
    for first, others in groups:
        key = first.id if verbose else first.family
        told, more = lines.get(key, (first, -1))
        lines[key] = (told, more + 1 + len(others))
    folded = "" if verbose or len(lines) == len(groups) else ", --verbose names each"
    write_line(console, "")
    heading = f"Broken too, often by the same fault (--law ID shows one in full{folded}):"
    write_line(console, heading, "bold red")
    for told, more in lines.values():
        beside = f" (and {more} more)" if more else ""
        write_line(console, f"  {told.id}{beside}: {told.reason}", "red")


def _cure(law: Law, example: Counterexample | None, declared: Mapping[str, Any]) -> str:
    """What declares what was observed: of a NaN no mean, of a number no NaN, and nothing random where no number was.

    declared: the fields of the declaration; of one that says otherwise already only that it claims nothing.
    """
    observed = example.observed if example is not None else None
    contradicted = "=nan" if observed is not None else "deterministic=False"
    if isinstance(observed, float) and math.isnan(observed):
        contradicted = "=mean"
    named = [each for each in law.unless if not each.endswith(contradicted)]
    open_still = [each for each in named if each.partition("=")[0] not in declared]
    none_claimed = [each for each in named if each.endswith("=undefined") and each not in open_still]
    return " or ".join(f"--declare {each}" for each in (*open_still, *none_claimed))


def _example(example: Counterexample, row: LawResult, console: Console) -> None:
    size = "smallest case found" if example.what != "process" else "case"
    after = f"broken at example {example.found_after}" if example.found_after else "broken"
    write_line(console, f"  {after}; the {size}{_dtype(example, row)}:")
    for line in tensor_lines(example.inputs):
        write_line(console, f"    {line}")
    if not any(isinstance(value, list) for value in example.inputs.values()):
        case = "not one in particular" if example.case is None else example.case or "the plainest"
        write_line(console, f"    {case}")
    for line in call_lines(example.calls):
        write_line(console, f"  {line}")
    if example.observed is not None:
        for line in finding_lines(example):
            write_line(console, f"  {line}")
    else:
        write_line(console, f"  observed: {example.message}")
    if example.replay != example.only:
        write_line(console, f"  replay: {example.replay}")
    if example.only:
        write_line(console, f"  only this law: {example.only}")


def _dtype(example: Counterexample, row: LawResult) -> str:
    law = all_laws().get(row.id)
    if law is None or example.case is None or law.family_in_role == "dtypes":
        return ""  # Laws of dtypes ask for their own.
    return f", in {role(law.role).parse(example.case).dtype}"


def finding_lines(example: Counterexample) -> list[str]:
    """Observed, expected and bound of a comparison."""
    where = place(example.what, example.index)
    factor = ""
    if example.factor:
        exceeds = example.factor > 1
        factor = f", {exceeded(example.factor)}" if exceeds else f"; error {example.factor:.2f} of it"
    against = f", the {example.against}" if example.against else ""
    assert isinstance(example.observed, float) and isinstance(example.expected, float)
    observed, expected = apart(example.observed, example.expected)
    lines = [f"observed: {where} = {observed}", f"expected: {expected}{against}"]
    error = abs(example.observed - example.expected)
    lines += [f"error:    {error:.3g}"] if math.isfinite(error) else []
    if example.bound is not None:
        bound = f"{example.bound:.3g}" if example.bound else "0, they must be equal"
        lines.append(f"bound:    {bound}{factor}")
    return lines


def _not_applicable(verdict: Verdict, verbose: bool, console: Console) -> None:
    reasons: dict[str, list[str]] = defaultdict(list)
    for row in verdict.laws:
        if row.outcome == "not-applicable":
            reasons[row.reason].append(row.name_in_role)
    write_line(console, "")
    if not reasons:
        return
    hint = "" if verbose else " (--verbose names them)"
    number = _count(sum(map(len, reasons.values())), "law")
    write_line(console, f"not applicable, which does not count as passing: {number}{hint}")
    in_order = sorted(reasons.items(), key=lambda pair: -len(pair[1]))
    if verbose:
        lines = [f"  {len(laws):3}  {reason}: {', '.join(laws)}" for reason, laws in in_order]
    else:
        lines = _reasons({reason: len(laws) for reason, laws in in_order}, console.width)
    for line in lines:
        write_line(console, line, "dim")
    write_line(console, "")


def _reasons(numbers: Mapping[str, int], width: int) -> list[str]:
    """What the subject does not take, with how many laws ask for it, then each other reason on a line."""
    absent, others = [], []
    for reason, number in numbers.items():
        parts = [part.removeprefix(TAKES_NO) for part in reason.split("; ") if part.startswith(TAKES_NO)]
        if len(parts) == reason.count("; ") + 1:
            absent.append(f"{' and '.join(parts)} ({number})")
        else:
            others.append(textwrap.shorten(f"{number} {reason}", width - 2, placeholder=" ..."))
    told = f"{TAKES_NO}{', '.join(absent)}" if absent else ""
    return [f"  {line}" for line in (*textwrap.wrap(told, width - 2, break_on_hyphens=False), *others)]


def _some(names: list[str]) -> str:
    """The first few names, and how many more there are."""
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"{', '.join(names[:NAMED])}{more}"


def write_line(console: Console, text: str, style: str = "") -> None:
    """One line that is never broken by us, so that it can be copied."""
    console.print(Text(text, style=style), soft_wrap=True)


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _shape(value: Any) -> tuple[int, ...]:
    shape = []
    while isinstance(value, list):
        shape.append(len(value))
        value = value[0] if value else None
    return tuple(shape)


def _written(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_written, value))}]"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
