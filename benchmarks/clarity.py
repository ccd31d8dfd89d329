"""How often the law that a person would name for a fault is shown first, and how small what is shown is.

    python -m benchmarks.clarity [--every N] [--profile quick]

Every N-th fault of the corpus is judged by all laws of its role, each counterexample is made small, and the broken
laws are put into the order of a verdict. A fault names the laws that one would expect to break (docs/extending.md);
one that does harm to its process is left out, and so is one of which none of these laws breaks in the profile.
"""

import argparse
from statistics import median

import torch

from headcheck.engine import PROFILES, Engine, Profile
from headcheck.laws import choose
from headcheck.ranking import most_telling_first
from headcheck.roles import role
from headcheck.teeth.corpus import Entry
from headcheck.teeth.trial import numbers_shown
from headcheck.verdict import LawResult
from tests.corpus import WRONG

FEW = 3
"""So many broken laws are shown in full."""


def shown(entry: Entry, profile: Profile) -> list[LawResult]:
    """The broken laws of a fault in the order of a verdict."""
    of_role = role(entry.role)
    subject, _ = of_role.prepare(entry.declaration(), dtypes=(), device="cpu", seed=0)
    engine = Engine(of_role, subject, profile, 0, lambda law, case: "")
    return most_telling_first(row for row in engine.rows(choose(entry.role)) if row.outcome == "breaks")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--every", type=int, default=9, metavar="N", help="judge every N-th fault")
    parser.add_argument("--profile", choices=PROFILES, default="quick")
    options = parser.parse_args()
    torch.set_num_threads(1)
    places, numbers, left_out = [], [], []
    for entry in [*WRONG.values()][:: options.every]:
        rows = [] if getattr(entry, "peril", None) else shown(entry, PROFILES[options.profile])
        named = [place for place, row in enumerate(rows, 1) if row.name_in_role in entry.breaks]
        if not named:
            left_out.append(entry.id)
            continue
        places.append(named[0])
        numbers.append(numbers_shown(rows[0]))
        print(f"{named[0]:3} of {len(rows):3}  {entry.id}: {rows[0].name_in_role}", flush=True)
    first, among = (sum(place <= most for place in places) for most in (1, FEW))
    print(f"shown first: {first} of {len(places)}; among the first {FEW}: {among}")
    print(f"numbers in the tensors of what is shown first: {median(numbers):g}, at most {max(numbers):,}")
    print(f"left out: {len(left_out)}")


if __name__ == "__main__":
    main()
