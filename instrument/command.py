"""The command `headcheck`: a thin front of the engine. It returns 0, 1 or 2, and shows no traceback."""

import argparse
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from headcheck import __version__, golden_command
from headcheck.errors import HeadcheckError

COMMANDS = ("verify", "replay", "probe", "laws", "subjects", "golden")
MOST_PROCESSES = 4
PROBING_S = 600.0


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, as everything here does."""

    def error(self, message: str) -> NoReturn:
        raise HeadcheckError(f"{message}; `{self.prog} --help` shows what there is")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the exit code: 0 conforms, 1 breaks, 2 untested or could not run."""
    given = list(sys.argv[1:] if argv is None else argv)
    if not given or given[0] not in (*COMMANDS, "-h", "--help", "--version"):
        given.insert(0, "verify")
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        arguments = _parser().parse_args(given)
        run: Callable[[Any], int] = arguments.run
        return run(arguments)
    except HeadcheckError as problem:
        return _say(f"headcheck: {problem}")
    except KeyboardInterrupt:
        return _say("headcheck: interrupted before anything was judged")
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 2
    except Exception as problem:  # noqa: BLE001 - whatever it is, it is told in one way.
        what = f"{type(problem).__name__}: {problem}"
        return _say(
            f"headcheck: this is a bug in headcheck, please report it: {what}\n{traceback.format_exc()}"
        )


def _say(message: str) -> int:
    print(message.rstrip(), file=sys.stderr)
    return 2


# The arguments


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="headcheck",
        description="Laws that any attention must keep, and the smallest case that breaks one.",
        epilog="`headcheck SUBJECT` is `headcheck verify SUBJECT`; "
        "`headcheck` alone judges torch's own attention. "
        "SUBJECT: a built-in name, package.module:attribute, or path/to/file.py:attribute. "
        "Exit codes: 0 all laws hold, 1 a law is broken, 2 nothing could be judged.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"headcheck {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    _verify_parser(commands)
    _replay_parser(commands)
    probe = _command(commands, "probe", _probe, "find out a subject's conventions and print its declaration")
    probe.add_argument("subject", metavar="SUBJECT")
    probe.add_argument("--device")
    probe.add_argument("--role")
    laws = _command(commands, "laws", _laws, "list the laws, or show one in full")
    laws.add_argument("id", metavar="ID", nargs="?", help="a law's id, or a part of it")
    laws.add_argument("--role", help="only the laws of this role")
    _command(commands, "subjects", _subjects, "list the built-in subjects")
    golden = _command(
        commands, "golden", golden_command.run, "show what five documents on attention got right"
    )
    golden_command.add_arguments(golden)
    return parser


def _command(commands: Any, name: str, run: Callable[[Any], int], sentence: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=sentence, description=sentence[0].upper() + sentence[1:] + ".", allow_abbrev=False
    )
    parser.set_defaults(run=run)
    return parser


def _verify_parser(commands: Any) -> None:
    from headcheck.loading import DEFAULT

    parser = _command(
        commands, "verify", _verify, "judge a subject by the laws of its role (the default command)"
    )
    parser.add_argument("subject", metavar="SUBJECT", nargs="?", default=DEFAULT, help=f"default: {DEFAULT}")
    parser.add_argument("--profile", choices=("quick", "gate", "deep"), default="gate", help="default: gate")
    parser.add_argument("--fuzz", metavar="SECONDS", type=_seconds, help="go on with fresh seeds for so long")
    parser.add_argument(
        "--law", metavar="PART", action="append", default=[], help="only laws whose id holds PART"
    )
    parser.add_argument("--json", metavar="FILE", help="write the verdict as JSON; - is stdout")
    parser.add_argument(
        "-n", metavar="N", type=_whole, help=f"processes (default: cores, at most {MOST_PROCESSES})"
    )
    parser.add_argument(
        "-q", "--quiet", action="store_true", help="no table and no progress, only the last line"
    )
    _common_options(parser)


def _replay_parser(commands: Any) -> None:
    parser = _command(commands, "replay", _replay, "run one law on one case, as a verdict printed it")
    parser.add_argument("subject", metavar="SUBJECT")
    parser.add_argument("law", metavar="LAW_ID")
    parser.add_argument("case", metavar="CASE")
    _common_options(parser)


def _common_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=int, help="default: 0, and a fresh one for deep and --fuzz")
    parser.add_argument(
        "--dtype", action="append", help="float32, float64, bfloat16, float16; repeat, or use commas"
    )
    parser.add_argument("--device", help="default: what the subject declares first, or cpu")
    parser.add_argument("--role", help="the role of a plain callable; default: attention")


def _whole(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is no number of processes; 1 is the least")
    return int(text)


def _seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < 1e9:
        raise argparse.ArgumentTypeError(f"{text} is no number of seconds above 0")
    return number


def _processes() -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, MOST_PROCESSES)


# The commands


def _plan(arguments: argparse.Namespace, **more: Any) -> Any:
    from headcheck.judging import make_plan
    from headcheck.roles import role

    if arguments.role:
        role(arguments.role)  # An unknown one is refused here.
    given = {name: getattr(arguments, name) for name in ("role", "seed", "dtype", "device")}
    return make_plan(arguments.subject, **given, **more)


def _verify(arguments: argparse.Namespace) -> int:
    from headcheck.console import Progress, plain_console, show, summary
    from headcheck.isolation import Workers
    from headcheck.judging import fresh_seed, judged_apart

    if arguments.fuzz and arguments.seed is None:
        arguments.seed = fresh_seed()
    _require_writable(arguments.json)
    plan = _plan(arguments, profile=arguments.profile)
    with (
        _terminable(),
        Progress(plain_console(sys.stderr), quiet=arguments.quiet) as progress,
        Workers(plan, arguments.n or _processes()) as workers,
    ):
        verdict = judged_apart(workers, arguments.law, progress, arguments.fuzz or 0.0)
    console = plain_console(sys.stderr if arguments.json == "-" else sys.stdout)
    if arguments.quiet:
        print(summary(verdict), file=console.file)
    else:
        show(verdict, console)
    for bug in workers.bugs:
        _say(f"headcheck: this is a bug in headcheck, please report it: {bug}")
    written = _write_json(arguments.json, verdict)
    return verdict.exit_code if written else 2


@contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM, which a time limit sends, does what Ctrl-C does: what was found is shown."""
    try:
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    except ValueError:  # Not the main thread: whoever called us there handles signals.
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _require_writable(path: str | None) -> None:
    """Find out before the work whether its result can be written."""
    if path in (None, "-"):
        return
    file = Path(str(path))
    existed = file.exists()
    try:
        with file.open("a", encoding="utf-8"):
            pass
    except OSError as problem:
        raise HeadcheckError(f"cannot write --json {path}: {problem.strerror}") from problem
    if not existed:
        file.unlink()


def _write_json(path: str | None, verdict: Any) -> bool:
    try:
        if path == "-":
            print(verdict.to_json())
        elif path is not None:
            Path(path).write_text(verdict.to_json() + "\n", encoding="utf-8")
    except OSError as problem:
        _say(f"headcheck: cannot write --json {path}: {problem.strerror}; the verdict stands above")
        return False
    return True


def _replay(arguments: argparse.Namespace) -> int:
    from headcheck.console import finding_lines, tensor_lines
    from headcheck.isolation import Workers
    from headcheck.judging import law_named
    from headcheck.roles import role

    law = law_named(arguments.law)
    role(law.role).parse(arguments.case)  # A case that cannot be read is refused before anything starts.
    with Workers(_plan(arguments)) as workers:
        row = workers.replay(law, arguments.case)
    print(f"{law.id}\n  {law.statement}")
    shown = row.counterexample
    if shown is None:
        print(f"not applicable: {row.reason}")
        return 2
    for line in tensor_lines(shown.inputs):
        print(f"  {line}")
    for line in finding_lines(shown) if shown.observed is not None else [shown.message]:
        print(f"  {line}")
    print("the law holds on this case" if row.outcome == "holds" else "the law is broken by this case")
    return 0 if row.outcome == "holds" else 1


def _probe(arguments: argparse.Namespace) -> int:
    from headcheck.judging import make_plan
    from headcheck.processes import answer_apart
    from headcheck.worker import try_out

    plan = make_plan(arguments.subject, role=arguments.role, device=arguments.device)
    print(answer_apart(plan, try_out, PROBING_S))
    return 0


def _laws(arguments: argparse.Namespace) -> int:
    from headcheck.laws import all_laws
    from headcheck.roles import role

    if arguments.role:
        role(arguments.role)
    chosen = [law for law in all_laws().values() if law.role == (arguments.role or law.role)]
    if arguments.id:
        exact = [law for law in chosen if law.id == arguments.id]
        chosen = exact or [law for law in chosen if arguments.id in law.id]
        if not chosen:
            raise HeadcheckError(f"there is no law {arguments.id!r}; `headcheck laws` lists them")
        if len(chosen) == 1:
            print(_law_in_full(chosen[0]))
            return 0
    family = ""
    for law in chosen:
        if law.family != family:
            family = law.family
            print(f"{family}")
        print(f"  {law.name}: {law.statement}")
    print(f"{len(chosen)} laws; `headcheck laws ID` shows one in full")
    return 0


def _law_in_full(law: Any) -> str:
    from headcheck.proofs import proofs_of

    proofs = ", ".join(proof.name for proof in proofs_of(law.id))
    rows = [
        ("formula", law.formula),
        ("source", law.source),
        ("guards against", law.guards),
        ("needs", ", ".join(law.needs)),
        ("proved", f"yes, by {proofs}" if proofs else ""),
    ]
    return "\n".join([law.id, f"  {law.statement}", *(f"  {name}: {text}" for name, text in rows if text)])


def _subjects(arguments: argparse.Namespace) -> int:
    from headcheck.subjects import builtins

    known = builtins()
    width = max(map(len, known), default=0)
    for name, each in known.items():
        state = f" [not installed; run: {each.install}]" if each.missing else ""
        print(f"{name:{width}}  {each.sentence}{state}")
    return 0
