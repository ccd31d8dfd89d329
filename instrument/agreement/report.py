"""The verdict of a family as text: deviations first, then who keeps which laws, who agrees with whom, and why."""

import shlex
from collections import defaultdict
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from headcheck.agreement.observe import in_words
from headcheck.agreement.verdict import Agreement, FamilyVerdict, Standing
from headcheck.attention.bench import PROBES
from headcheck.console import STYLES, counterexample_text, write_line
from headcheck.ranking import most_telling_first
from headcheck.verdict import LawResult

IN_FULL = 3
"""So many deviations of one subject or pair are shown in full, the most specific first."""
SAME_CASE: Mapping[str, str] = {
    "outputs-agree": "attention/accuracy/output-is-within-the-bound",
    "long-rows-agree": "attention/accuracy/output-is-within-the-bound",
    "masks-of-two-axes-agree": "attention/accuracy/output-is-within-the-bound",
    "biases-beside-the-causal-flag-agree": "attention/accuracy/output-is-within-the-bound",
    "scales-of-zero-and-below-agree": "attention/accuracy/explicit-scale-is-used",
    "low-biases-agree": "attention/accuracy/low-biases-keep-their-differences",
    "dead-rows-agree": "attention/accuracy/output-is-within-the-bound",
    "gradients-agree": "attention/gradients/gradients-are-within-the-bound",
    "log-sum-exps-agree": "attention/features/log-sum-exp-is-within-the-bound",
    "weights-agree": "attention/features/returned-weights-are-within-the-bound",
}
"""Law of a pair -> the law of one subject that shows each side of the same case."""
NO_LAW_OF_PAIRS = "no pair was compared, as --law leaves no law of pairs"


def show(verdict: FamilyVerdict, console: Console) -> None:
    """Everything."""
    where = ", ".join(
        f"{name} {verdict.environment.get(name, '?')}" for name in ("torch", "python", "device")
    )
    write_line(console, f"agreement: profile {verdict.profile}, seed {verdict.seed}; {where}", "bold")
    _deviations(verdict, console)
    _members(verdict, console)
    _pairs(verdict, console)
    _conventions(verdict, console)
    _operators(verdict, console)
    _absent(verdict, console)
    for each in verdict.told_beside:
        write_line(console, each)
    write_line(console, summary(verdict), STYLES[verdict.verdict])


def summary(verdict: FamilyVerdict) -> str:
    """The verdict in one line, with its denominators."""
    parts = [f"{len(verdict.judged)} subjects"]
    deviating = sum(bool(each.broken) for each in verdict.members)
    parts.append(
        f"{deviating} of them {'breaks' if deviating == 1 else 'break'} a law"
        if deviating
        else "each keeps its laws"
    )
    parts += _told_of_pairs(verdict, deviating) if verdict.pairs_asked else [NO_LAW_OF_PAIRS]
    parts.append(f"{sum(row.examples for row in verdict.rows):,} examples; {verdict.duration_s:.1f} s")
    if verdict.known:
        new = sum(len(each.new) for each in verdict.baseline or ())
        parts.append(
            f"{sum(map(len, verdict.known.values()))} of the broken laws are known deviations, {new} are new"
        )
    if verdict.unfinished:
        parts.append(f"NOT FINISHED: {verdict.unfinished}")
    return f"{verdict.verdict}: {'; '.join(parts)}"


def _told_of_pairs(verdict: FamilyVerdict, deviating: int) -> list[str]:
    """How many pairs agree, and on what; a law that a member breaks by itself is not asked of its pairs."""
    judged = [pair for pair in verdict.pairs if pair.judged]
    agreeing = [pair for pair in judged if not pair.broken]
    told = f"{len(agreeing)} of {len(judged)} pairs agree"
    if agreeing:
        told += f", at most {max(pair.worst for pair in agreeing):.2f} of the sum of their bounds apart"
    if agreeing and deviating:
        examples = sum(pair.examples for pair in agreeing)
        told += f", on {examples:,} inputs drawn for pairs, not on those by which a member breaks a law"
    lacking = len(verdict.pairs) - len(judged)
    return [told, *([f"{lacking} pairs have nothing in common to compare"] if lacking else [])]


def deviations(verdict: FamilyVerdict) -> list[tuple[str, list[LawResult]]]:
    """Who broke what: the subjects first, then the pairs; of each the most specific law first."""
    found = [(each.name, each.broken) for each in verdict.members]
    found += [(f"{pair.one}=={pair.other}", pair.broken) for pair in verdict.pairs]
    return [(name, most_telling_first(rows)) for name, rows in found if rows]


def _deviations(verdict: FamilyVerdict, console: Console) -> None:
    for name, broken in deviations(verdict):
        known = verdict.known.get(name, {})
        rows = [row for row in broken if row.id not in known]
        write_line(console, "")
        if known:
            write_line(console, f"{name} deviates as the baseline has it:")
        for law, reason in known.items():
            write_line(console, f"  {law}: {reason}", "dim")
        if not rows:
            continue
        write_line(
            console, f"{name} deviates: {len(rows)} {'law' if len(rows) == 1 else 'laws'} broken", "bold red"
        )
        for row in rows[:IN_FULL]:
            write_line(console, counterexample_text(row))
            for each in each_side(name, row):
                write_line(console, f"  {each}")
        for row in rows[IN_FULL:]:
            write_line(console, f"  {row.id}: {row.reason}", "red")


def each_side(pair: str, row: LawResult) -> list[str]:
    """The lines that show either side of a pair's case against the oracle."""
    if "==" not in pair or row.counterexample is None:
        return []
    law = SAME_CASE[row.name]
    case = str(row.counterexample.case)
    return [
        f"{name} alone: {shlex.join(['headcheck', 'replay', name, law, case])}" for name in pair.split("==")
    ]


def _members(verdict: FamilyVerdict, console: Console) -> None:
    families = list(dict.fromkeys(row.family_in_role for each in verdict.judged for row in each.laws))
    if not families:
        return
    table = _table("")
    for number in range(1, len(verdict.judged) + 1):
        table.add_column(str(number), justify="right")
    for family in families:
        table.add_row(family, *(_cell(each, family) for each in verdict.judged))
    write_line(console, "")
    write_line(console, "laws held, of each family, by the numbers of the subjects below", "bold")
    console.print(table)


def _cell(each: Standing, family: str) -> Text:
    outcomes = [row.outcome for row in each.laws if row.family_in_role == family]
    if "breaks" in outcomes:
        return Text("BREAK", style="bold red")
    held = outcomes.count("holds")
    return Text(str(held), style="green") if held else Text("-", style="dim")


def _pairs(verdict: FamilyVerdict, console: Console) -> None:
    names = [each.name for each in verdict.judged]
    by_names = {frozenset((pair.one, pair.other)): pair for pair in verdict.pairs}
    table = _table("", "")
    for number in range(1, len(names) + 1):
        table.add_column(str(number), justify="right")
    for number, one in enumerate(names, start=1):
        cells = [_pair_cell(by_names.get(frozenset((one, other)))) for other in names]
        table.add_row(str(number), one, *cells)
    write_line(console, "")
    write_line(console, "largest difference of each pair, as a share of the sum of both bounds", "bold")
    console.print(table)


def _pair_cell(pair: Agreement | None) -> Text:
    if pair is None:
        return Text("")
    if pair.broken:
        return Text("BREAK", style="bold red")
    share = f"{pair.worst:.2f}".removeprefix("0")  # As many columns as there are members: each digit counts.
    return Text(share, style="green") if pair.judged else Text("-", style="dim")


def _conventions(verdict: FamilyVerdict, console: Console) -> None:
    write_line(console, "")
    write_line(console, "conventions, by the numbers of the subjects above", "bold")
    for heading, values in conventions(verdict).items():
        told = "; ".join(f"{value}: {_numbers(verdict, names)}" for value, names in values.items())
        write_line(
            console, f"  {heading}: {told}" if len(values) > 1 else f"  {heading}: {next(iter(values))}, all"
        )
    for each in verdict.judged:
        for told in seen_otherwise(each):
            write_line(console, f"  {each.name}: {told}", "dim")


def conventions(verdict: FamilyVerdict) -> dict[str, dict[str, list[str]]]:
    """Convention -> value -> the subjects that have it: declared, or seen where nothing is declared."""
    found: dict[str, dict[str, list[str]]] = {}
    for probe in PROBES:
        if probe.compared:
            found[probe.compared] = defaultdict(list)
            for each in verdict.judged:
                found[probe.compared][convention(each, probe.name, probe.otherwise)].append(each.name)
    found["dtypes"] = defaultdict(list)
    for each in verdict.judged:
        assert each.observation is not None
        found["dtypes"][" ".join(each.observation.dtypes)].append(each.name)
    return found


def convention(each: Standing, field: str, default: str) -> str:
    """What a subject declares; where it does not, what it was seen to do."""
    assert each.observation is not None
    value = each.observation.declared.get(field)
    if value is None:
        seen = each.observation.seen.get(field, "?")
        return default if seen.startswith("?") else seen
    if value in (False, []):
        return "none" if field in ("causal", "masks", "grouped_heads") else "no"
    return in_words(value)


def seen_otherwise(each: Standing) -> list[str]:
    """Conventions of which tiny inputs showed another value than the one declared."""
    assert each.observation is not None
    declared = each.observation.declared
    return [
        f"{field} is declared {declared[field]}, and seen as {value}"
        for field, value in each.observation.seen.items()
        if field in declared and not value.startswith("?") and value != in_words(declared[field])
    ]


def _numbers(verdict: FamilyVerdict, names: Sequence[str]) -> str:
    every = [each.name for each in verdict.judged]
    return " ".join(str(1 + every.index(name)) for name in names)


def _operators(verdict: FamilyVerdict, console: Console) -> None:
    write_line(console, "")
    write_line(console, "which kernel ran, as the profiler saw it", "bold")
    for each in verdict.judged:
        assert each.observation is not None
        by_operator: dict[str, list[str]] = defaultdict(list)
        for kind, operators in each.observation.operators.items():
            by_operator[operators].append(kind)
        for operators, kinds in by_operator.items():
            write_line(
                console, f"  {each.name}: {operators or 'none that tells'} ({', '.join(kinds)})", "dim"
            )


def _absent(verdict: FamilyVerdict, console: Console) -> None:
    absent = {each.name: each.reason for each in verdict.members if each.reason}
    absent |= dict.fromkeys(verdict.left_out, f"left out of the profile {verdict.profile}: it compiles")
    write_line(console, "")
    if absent:
        write_line(console, f"not applicable, which is no pass: {len(absent)} subjects")
    for name, reason in absent.items():
        write_line(console, f"  {name}: {reason}", "dim")
    if absent:
        write_line(console, "")


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for number, column in enumerate(columns):
        table.add_column(column, overflow="fold", no_wrap=not column and number < 2)
    return table
