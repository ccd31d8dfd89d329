"""The teeth as a page of Markdown."""

from collections.abc import Iterator, Mapping, Sequence

import torch

from headcheck import __version__
from headcheck.laws import choose
from headcheck.teeth.corpus import Corpus
from headcheck.teeth.summary import Run, cover, effort, killed, named, of_laws, runs
from headcheck.teeth.trial import Outcome, Way


def page(outcomes: Sequence[Outcome], corpus: Corpus, date: str, picture: str = "") -> str:
    """Everything that the outcomes show. picture: the address of the kill matrix as a picture."""
    of_runs = runs(outcomes, corpus)
    whole = [
        each
        for each in outcomes
        if each.id in corpus.wrong and (each.way is Way.ALL or _perilous(each, corpus))
    ]
    lines = [
        "# Teeth",
        "",
        f"{date}, headcheck {__version__}, torch {torch.__version__}; made by `headcheck teeth`. The corpus is",
        f"{len(corpus.wrong)} faults, each a right function with one thing wrong, and {len(corpus.right)} right",
        "variants of such functions.",
        "A fault is *held out* by a hash of its id; seconds are on the wall of a shared machine, on one core each.",
        "A run of few faults is one of those that another profile had left.",
        "",
        *_table_of_runs(of_runs),
        "",
        *_efforts(of_runs),
        *_remarks(of_runs),
    ]
    if any(each.way is Way.ALL for each in whole):
        first = [each for each in whole if each.seed == whole[0].seed and each.profile == whole[0].profile]
        swift = {each.id: each for each in outcomes if each.broken and each.way is Way.FIRST}
        lines += ["", "## The kill matrix", "", *_matrix(first, corpus, picture)]
        for role in _roles(first, corpus):
            lines += _role(_of_role(first, corpus, role), swift, corpus, role)
    return "\n".join(lines).rstrip() + "\n"


def _perilous(outcome: Outcome, corpus: Corpus) -> bool:
    return bool(getattr(corpus.wrong[outcome.id], "peril", None))


def _table_of_runs(of_runs: Sequence[Run]) -> Iterator[str]:
    yield "| profile | seed | faults caught | of those held out | of the others | right variants failed |"
    yield "|---|---|---|---|---|---|"
    for run in of_runs:
        counts = (killed(run.faults), killed(run.faults, outside=True), killed(run.faults, outside=False))
        shown = " | ".join(f"{caught} of {all_of}" for caught, all_of in counts)
        failed = f"{len(run.failed)} of {len(run.variants)}" if run.variants else "not judged"
        yield f"| {run.profile} | {run.seed} | {shown} | {failed} |"


def _efforts(of_runs: Sequence[Run]) -> Iterator[str]:
    if any(each.way is Way.NAMED for run in of_runs for each in run.faults):
        yield "Where only was asked whether a fault is caught, the laws that are named for it were judged before the"
        yield "others, and nothing was measured."
        yield ""
    if not any(effort(run.faults) for run in of_runs):
        return
    yield "To the first broken law, median and worst:"
    yield ""
    yield "| profile | seed | seconds | examples | numbers in the smallest counterexample |"
    yield "|---|---|---|---|---|"
    for run in of_runs:
        taken = effort(run.faults)
        if taken is not None:
            numbers = f"{taken.numbers[0]:.0f}, {taken.numbers[1]}" if taken.numbers else "not made small"
            yield (
                f"| {run.profile} | {run.seed} | {taken.seconds[0]:.2f}, {taken.seconds[1]:.1f} "
                f"| {taken.examples[0]:.0f}, {taken.examples[1]:,} | {numbers} |"
            )
    yield ""


def _remarks(of_runs: Sequence[Run]) -> Iterator[str]:
    """Who survived and who was failed wrongly: by name."""
    survivors = [f"{name} ({run.profile}, seed {run.seed})" for run in of_runs for name in run.survivors]
    failed = [
        f"{each.id} by {', '.join(each.broken)} ({run.profile}, seed {run.seed})"
        for run in of_runs
        for each in run.failed
    ]
    yield f"- Survivors: {', '.join(survivors) or 'none'}."
    judged = any(run.variants for run in of_runs)
    yield f"- Right variants failed: {'; '.join(failed) or ('none' if judged else 'not judged in these runs')}."


def _matrix(whole: Sequence[Outcome], corpus: Corpus, picture: str) -> Iterator[str]:
    """Every law against every fault of its role, all laws judged."""
    which = "Every fault" if len(whole) == len(corpus.wrong) else f"{len(whole)} of the faults"
    yield f"{which} by every law of its role, profile {whole[0].profile}, seed {whole[0].seed}; faults that do"
    yield "harm to their process only by the laws named for them."
    if picture:
        yield ""
        yield f"![Laws in rows, faults in columns, role by role; a dot where the law is broken]({picture})"
    yield ""
    yield (
        "| role | laws | faults | caught | by a law named for it | laws that suffice | laws that catch nothing |"
    )
    yield "|---|---|---|---|---|---|---|"
    for role in _roles(whole, corpus):
        faults = _of_role(whole, corpus, role)
        caught, all_of = killed(faults)
        by_name = sum(bool(named(each, corpus.wrong[each.id])) for each in faults)
        idle = [law.id for law in of_laws(whole, corpus, role) if not law.kills]
        yield (
            f"| {role} | {len(choose(role))} | {all_of} | {caught} | {by_name} | {len(cover(faults))} "
            f"| {', '.join(idle) or 'none'} |"
        )
    yield ""
    yield "*Laws that suffice*: the size of a small set of laws that catches all; the others say what is wrong"
    yield "more exactly, and guard against faults that nobody has written yet."


def _roles(outcomes: Sequence[Outcome], corpus: Corpus) -> list[str]:
    return list(dict.fromkeys(corpus.wrong[each.id].role for each in outcomes))


def _of_role(outcomes: Sequence[Outcome], corpus: Corpus, role: str) -> list[Outcome]:
    return [each for each in outcomes if corpus.wrong[each.id].role == role]


def _role(
    faults: Sequence[Outcome], swift: Mapping[str, Outcome], corpus: Corpus, role: str
) -> Iterator[str]:
    """The laws of a role and its faults. swift: the outcomes that ended with the first broken law."""
    yield from ("", f"### {role}", "", "| law | faults caught | by it alone |", "|---|---|---|")
    for law in of_laws(faults, corpus, role):
        yield f"| {law.id} | {law.kills} | {law.alone or ''} |"
    yield ""
    yield "| fault | what is wrong | laws broken | the one to name | first break after | smallest |"
    yield "|---|---|---|---|---|---|"
    for each in sorted(faults, key=lambda outcome: outcome.id):
        entry = corpus.wrong[each.id]
        yield (
            f"| {each.id} | {entry.sentence} | {len(each.broken)} | {named(each, entry) or '-'} "
            f"| {_effort_of(swift.get(each.id))} |"
        )


def _effort_of(outcome: Outcome | None) -> str:
    if outcome is None:
        return " | "
    plural = "" if outcome.until_broken == 1 else "s"
    return f"{outcome.until_broken:,} example{plural} | {outcome.smallest or ''}"
