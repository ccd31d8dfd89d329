"""Faults that nobody chose: slips in the right functions of the corpus, under the laws.

    python -m benchmarks.mutants [--every N] [--only PART] [--gate] [--processes 2] [--results mutants.jsonl]

Of some 6,000 slips every N-th is judged. What was judged before stands in the file of results and is not judged again.
What no law sees is to be read by a person: most of it is right, too (docs/mutants.md).
"""

import argparse
import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path

from benchmarks.mutants.sites import mutants
from benchmarks.mutants.trying import Outcome, outcomes


def read(path: Path) -> dict[str, Outcome]:
    """The outcomes of a file, by mutant; none where it does not exist yet."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {each["id"]: Outcome(**each) for each in map(json.loads, lines)}


def _wanting(outcome: Outcome) -> bool:
    """Whether the gate may see more of it than quick did."""
    return not outcome.by and not outcome.gate and outcome.reached and outcome.differs


def table(outcomes: list[Outcome]) -> str:
    """What became of the mutants of each role, in Markdown."""
    lines = [
        "| role | slips | do not run | caught | of them by the gate | no law breaks |",
        "|---|---|---|---|---|---|",
    ]
    roles = dict.fromkeys(each.role for each in sorted(outcomes, key=lambda each: each.role))
    for name, some in [
        *((role, [each for each in outcomes if each.role == role]) for role in roles),
        ("together", outcomes),
    ]:
        by = Counter(each.by for each in some)
        caught = len(some) - by["refused"] - by[""]
        lines.append(f"| {name} | {len(some)} | {by['refused']} | {caught} | {by['gate']} | {by['']} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--every", type=int, default=1, metavar="N", help="judge every N-th slip")
    parser.add_argument(
        "--only", default="", metavar="PART", help="slips whose id or right function has this in it"
    )
    parser.add_argument("--gate", action="store_true", help="judge by the gate what quick let through")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--results", type=Path, default=Path("mutants.jsonl"), help="default: mutants.jsonl")
    options = parser.parse_args()
    chosen = [each for each in mutants() if options.only in f"{each.base} {each.id}"][:: options.every]
    known = read(options.results)
    open_ones = [
        each for each in chosen if each.id not in known or (options.gate and _wanting(known[each.id]))
    ]
    for found in outcomes(open_ones, known, options.processes):
        known[found.id] = found
        with options.results.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(found)) + "\n")
        print(f"{found.by or 'HOLDS':8} {found.base}: {found.id}", flush=True)
    print(table([known[each.id] for each in chosen]))


if __name__ == "__main__":
    main()
