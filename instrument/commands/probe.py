"""`headcheck probe`: find out a subject's conventions."""

import argparse

from headcheck.commands._shared import declare_option, timeout_option

PROBING_S = 600.0
SENTENCE = "find out a subject's conventions and print its declaration"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The subject, and where to try it."""
    parser.add_argument("subject", metavar="SUBJECT")
    parser.add_argument("--device")
    parser.add_argument("--role")
    timeout_option(parser)
    declare_option(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the declaration to paste."""
    from headcheck.judging import make_plan
    from headcheck.processes import answer_apart
    from headcheck.worker import try_out

    plan = make_plan(
        arguments.subject,
        role=arguments.role,
        device=arguments.device,
        declare=arguments.declare,
        timeout=arguments.timeout,
    )
    print(answer_apart(plan, try_out, max(PROBING_S, arguments.timeout or 0.0)))
    return 0
