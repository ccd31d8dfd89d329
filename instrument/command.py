"""The command `headcheck`: a thin front of the engine. It returns 0, 1 or 2, and shows no traceback."""

import argparse
import errno
import os
import re
import sys
import traceback
from collections.abc import Sequence
from difflib import get_close_matches
from typing import NoReturn

from headcheck import __version__
from headcheck.commands import all_commands
from headcheck.commands._shared import say, terminable
from headcheck.errors import HeadcheckError


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, as everything here does."""

    given: Sequence[str] = ()
    """All words of the command line, the command first: of what no command takes."""
    of_command: argparse.ArgumentParser | None = None
    """The parser of that command."""

    def error(self, message: str) -> NoReturn:
        if self.given and (cure := _of_a_declaration(self.given)):
            raise HeadcheckError(cure)
        prog = " ".join([self.prog, *self.given[:1]])
        meant = _similar_option(message, self.of_command.format_help() if self.of_command else "")
        raise HeadcheckError(f"{message}{meant}; `{prog} --help` shows what there is")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the exit code: 0 conforms, 1 breaks, 2 untested or could not run."""
    given = list(sys.argv[1:] if argv is None else argv)
    commands, meant = all_commands(), ""
    if not given or given[0] not in (*commands, "-h", "--help", "--version"):
        meant = _similar_command(given)
        given.insert(0, "verify")
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    arguments = argparse.Namespace()
    try:
        arguments = _parser(given).parse_args(given)
        with terminable():
            return commands[arguments.command].run(arguments)
    except HeadcheckError as problem:
        return say(f"headcheck: {problem}{meant}")
    except KeyboardInterrupt:
        return say(f"headcheck: interrupted before the end{_kept(arguments)}")
    except BrokenPipeError:
        _write_no_more()
        return 2
    except Exception as problem:  # noqa: BLE001 - whatever it is, it is told in one way.
        if isinstance(problem, OSError) and problem.errno in (errno.ENOSPC, errno.EDQUOT):
            _write_no_more()
            return say(f"headcheck: cannot write: {problem.strerror}")
        what = f"{type(problem).__name__}: {problem}"
        return say(
            f"headcheck: this is a bug in headcheck, please report it: {what}\n{traceback.format_exc()}"
        )


def _write_no_more() -> None:
    """What is still to be written when the process ends goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _kept(arguments: argparse.Namespace) -> str:
    """Where what was found until then is kept, if it is."""
    file = getattr(arguments, "resume", None) or getattr(arguments, "results", None)
    return f"; what was found is kept in {file}" if file else ""


def _similar_command(words: Sequence[str]) -> str:
    """What is added to a complaint where the first word looks like a command, and so was taken for a subject."""
    close = get_close_matches(words[0], all_commands(), n=1, cutoff=0.7) if words else []
    return f"; did you mean the command `headcheck {close[0]}`?" if close else ""


def _similar_option(message: str, known: str) -> str:
    """What is added to a complaint of an option that looks like one of those that the help names."""
    options = re.compile(r"(?<!\S)--[a-z][\w-]*")
    unknown = options.findall(message.partition("unrecognized arguments")[2])
    close = [
        match
        for word in unknown
        for match in get_close_matches(word, options.findall(known), n=1, cutoff=0.7)
    ]
    return f" (did you mean {' and '.join(dict.fromkeys(close))}?)" if close else ""


def _of_a_declaration(words: Sequence[str]) -> str:
    """How a declaration is written, where it was written otherwise."""
    if words[0] == "agree" and any(word.startswith("--declare") for word in words):
        return "agree takes no --declare: name declarations, such as file.py:subject with headcheck.Attention(...)"
    for option, field, value in zip(words, words[1:], words[2:], strict=False):
        if option == "--declare" and "=" not in field and not value.startswith("-"):
            return f"a declaration is FIELD=VALUE: --declare {field}={value}"
    return ""


def _parser(given: Sequence[str] = ()) -> argparse.ArgumentParser:
    parser = _Parser(
        prog="headcheck",
        description="Tests attention functions and transformer modules against laws that every correct one obeys, "
        "and shows the smallest input that breaks one.",
        epilog="`headcheck SUBJECT` is `headcheck verify SUBJECT`; "
        "`headcheck` alone judges torch's own attention. "
        "SUBJECT: a built-in name, package.module:attribute, or path/to/file.py:attribute. "
        "Exit codes: 0 all laws hold, 1 a law is broken, 2 not all could be judged.",
        allow_abbrev=False,
    )
    parser.given = given
    parser.add_argument("--version", action="version", version=f"headcheck {__version__}")
    subparsers = parser.add_subparsers(metavar="COMMAND", dest="command", required=True)
    for name, command in all_commands().items():
        sentence = command.SENTENCE
        added = subparsers.add_parser(
            name, help=sentence, description=f"{sentence[0].upper()}{sentence[1:]}.", allow_abbrev=False
        )
        command.add_arguments(added)
        if given[:1] == [name]:
            parser.of_command = added
    return parser
