"""`headcheck replay`: one law on one case again."""

import argparse

from headcheck.commands._shared import common_options, plan_of, tell_of_bugs

SENTENCE = "run one law on one case, as a verdict printed it"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The subject, the law and the case."""
    parser.add_argument("subject", metavar="SUBJECT")
    parser.add_argument("law", metavar="LAW_ID")
    parser.add_argument(
        "case", metavar="CASE", nargs="+", help="name=value ..., quoted or not; '' is the plainest"
    )
    common_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """0 the law holds on the case, 1 it is broken, 2 it does not apply."""
    from headcheck.console import call_lines, finding_lines, tensor_lines
    from headcheck.isolation import Workers
    from headcheck.laws import law_named
    from headcheck.roles import role

    law, case = law_named(arguments.law), " ".join(arguments.case)
    role(law.role).parse(case)  # A case that cannot be read is refused before anything starts.
    with Workers(plan_of(arguments, arguments.subject)) as workers:
        row = workers.replay(law, case)
    tell_of_bugs(workers)
    print(f"{law.id}\n  {law.statement}")
    shown = row.counterexample
    if shown is None:
        print(f"not applicable: {row.reason}")
        return 2
    for line in [*tensor_lines(shown.inputs), *call_lines(shown.calls)]:
        print(f"  {line}")
    for line in finding_lines(shown) if shown.observed is not None else [shown.message]:
        print(f"  {line}")
    if row.outcome == "holds":
        print(
            "the law holds on this case; where it broke before, that is mended, or it took chance or the calls before it"
        )
        return 0
    print("the law is broken by this case")
    return 1
