"""Known deviations: a file of them, and what a verdict says beside it.

    [[deviation]]
    subject = "memory-efficient-flash"              # a name, or a pattern with * in it
    law = "attention/masks/the-future-does-not-matter"  # one id or pattern, or several
    reason = "causal is aligned by the wrong sign"
    kind = "bug"                                    # one of KINDS
    versions = "memory-efficient-attention-pytorch >=0.1.0, <0.2"
    reference = "none found"
    intermittent = true                             # may be left out: it shows at some seeds only

An entry is one deviation, which may break several laws, not all of them in every run. It is fixed when all laws of its
were asked, some are judged and none of them breaks, unless it is intermittent; never by a run that was not finished, or
was asked for some dtypes only. Outside of its versions it says nothing: then what breaks is new. A file is the same by
every path to it, from the working directory.
"""

import json
import operator
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from glob import escape
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from headcheck.errors import HeadcheckError
from headcheck.laws import all_laws, choose
from headcheck.loading import is_path
from headcheck.subjects import named
from headcheck.verdict import LawResult, Verdict

KINDS = {
    "bug": "against the documentation, or against what its sister function does",
    "convention": "documented",
    "choice": "neither documented nor wrong in itself",
    "precision": "a limit of precision",
}
FIELDS = ("subject", "law", "reason", "kind", "versions", "reference")
OPTIONAL = ("intermittent",)
WIDE = 10
"""Of more laws that patterns of one entry cover, the run says so: they mute what is not known yet."""
_CLAUSE = r"(>=|<=|==|>|<)\s*(\d[\w.]*)"
_RANGE = re.compile(rf"(?P<name>[A-Za-z0-9](?:[\w.-]*\w)?)(?P<clauses>\s*{_CLAUSE}(?:\s*,\s*{_CLAUSE})*)?\s*")
_COMPARE = {">=": operator.ge, "<=": operator.le, "==": operator.eq, ">": operator.gt, "<": operator.lt}


@dataclass(frozen=True)
class Known:
    """One known deviation."""

    subject: str
    laws: tuple[str, ...]
    reason: str
    kind: str
    versions: str
    reference: str
    intermittent: bool = False
    """Whether it may not show, and not be fixed for that."""

    def speaks_of(self, law: str) -> bool:
        """Whether a law is one of those that it may break."""
        return any(fnmatchcase(law, each) for each in self.laws)

    def covers(self, row: LawResult) -> bool:
        """Whether a broken law is no news; a process that ended at no case of the law is more than a deviation."""
        shown = row.counterexample
        return self.speaks_of(row.id) and (shown is None or shown.case is not None)

    @property
    def told_as_fixed(self) -> str:
        return f"baseline: {self.subject} now keeps {', '.join(self.laws)}"


@dataclass(frozen=True)
class Compared:
    """A verdict beside the known deviations."""

    verdict: Verdict
    new: list[LawResult]
    """Broken laws that nothing in the file covers."""
    known: list[LawResult]
    reasons: dict[str, str]
    """Of each that is known, why it is broken."""
    fixed: list[Known]
    """Entries whose laws were judged in all that the subject supports, and none of them breaks."""
    file: str = "the baseline"
    remarks: tuple[str, ...] = ()
    """What the way in which the file is written means for this run, a line each."""

    @property
    def exit_code(self) -> int:
        """0 where only what is listed breaks; 1 for what is new and for what is listed and holds; 2 untested."""
        if self.new or self.fixed:
            return 1
        if self.known:
            return 2 if self.verdict.unfinished else 0
        return self.verdict.exit_code

    def as_dict(self) -> dict[str, Any]:
        """What the file says of the verdict, as plain data."""
        return {
            "file": self.file,
            "exit_code": self.exit_code,
            "new": [row.id for row in self.new],
            "known": self.reasons,
            "fixed": [each.reason for each in self.fixed],
            "remarks": list(self.remarks),
        }

    def lines(self) -> list[str]:
        """What to tell, a line each."""
        known = len(self.known)
        laws = "broken law is a known deviation" if known == 1 else "broken laws are known deviations"
        return [*([f"baseline: {known} {laws}"] if known else []), *self.news()]

    def news(self) -> list[str]:
        """What is not as the file says, a line each."""
        new = [f"baseline: new: {row.id}" for row in self.new]
        return new + [f"{each.told_as_fixed}: take it out of {self.file}" for each in self.fixed]


def read_baseline(file: str) -> tuple[Known, ...]:
    """The known deviations of a file. HeadcheckError: it cannot be read."""
    try:
        content = tomllib.loads(Path(file).read_text(encoding="utf-8"))
    except OSError as problem:
        raise HeadcheckError(f"cannot read the baseline {file}: {problem.strerror}") from problem
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise HeadcheckError(f"the baseline {file} is no TOML: {problem}") from problem
    entries = content.get("deviation", [])
    if set(content) - {"deviation"} or not isinstance(entries, list):
        raise HeadcheckError(f"the baseline {file} holds more than tables called [[deviation]]")
    return tuple(_known(entry, f"{file}, deviation {number}") for number, entry in enumerate(entries, 1))


def add_to(file: str, verdict: Verdict) -> int:
    """List in a file, which need not be there, what breaks and is not listed yet, as one entry: how many laws.

    HeadcheckError: the file cannot be read or written.
    """
    place = Path(file)
    known = read_baseline(file) if place.exists() else ()
    new = compare(verdict, known).new
    laws = [json.dumps(row.id) for row in new if Known("", (row.id,), "", "", "", "").covers(row)]
    if not laws and place.exists():
        return 0
    lines = "".join(f"    {law},\n" for law in laws)
    kinds = ", ".join(kind for kind in KINDS if kind != "bug")
    entry = f"""[[deviation]]
subject = {json.dumps(verdict.subject)}
law = [
{lines}]
reason = "TODO: say why"
kind = "bug"  # or {kinds}
versions = ""  # of a package, such as "torch >=2.9, <3"; empty: of all
reference = "none yet"
"""
    before = (
        place.read_text(encoding="utf-8").rstrip()
        if place.exists()
        else "# Known deviations of `headcheck --baseline`."
    )
    try:
        place.write_text(f"{before}\n\n{entry}" if laws else f"{before}\n", encoding="utf-8")
    except OSError as problem:
        raise HeadcheckError(f"cannot write the baseline {file}: {problem.strerror}") from problem
    return len(laws)


def known_of(subject: str, known: Iterable[Known]) -> tuple[Known, ...]:
    """Those of one subject, in the versions that are installed."""
    return tuple(each for each in known if names(each.subject, subject) and in_range(each.versions))


def entry_of(row: LawResult, known: Iterable[Known]) -> Known | None:
    """The first entry that says why a broken law is no news."""
    return next((each for each in known if each.covers(row)), None)


def names(pattern: str, subject: str) -> bool:
    """Whether the subject of an entry is this one: of a file by any path to it, of a pair in either order."""
    either = {subject, "==".join(reversed(subject.split("==")))}
    if _placed(pattern) in map(_placed, either):
        return True
    wanted = (pattern, _placed(pattern, escape(Path.cwd().as_posix())))
    return any(fnmatchcase(one, each) for one in (*either, *map(_placed, either)) for each in wanted)


def _placed(subject: str, here: str = "") -> str:
    """A subject, or a pair ONE==OTHER, its files by whole paths; here: how the working directory is written."""
    sides = [each.rpartition(":") for each in subject.split("==")]
    places = [Path(place).resolve().as_posix() if is_path(place) else place for place, _, _ in sides]
    if here:
        places = [place.replace(Path.cwd().as_posix(), here, 1) for place in places]
    return "==".join(f"{place}{colon}{name}" for place, (_, colon, name) in zip(places, sides, strict=True))


def remarks(known: Iterable[Known], subject: str, role: str, run: Sequence[str] = ()) -> tuple[str, ...]:
    """Entries that may be meant for a subject and are not, and those that mute many laws of its role, a line each.

    run: all subjects that are judged; an entry for any of them is meant for that one.
    """
    known = tuple(known)
    elsewhere = [
        each.subject for each in known if not any(names(each.subject, one) for one in (subject, *run))
    ]
    alike = list(dict.fromkeys(each for each in elsewhere if _look_alike(each, subject)))
    told = []
    if alike:
        more = f" (and {len(alike) - 1} more)" if alike[1:] else ""
        told.append(
            f"baseline: {alike[0]}{more} names no subject of this run, but looks like {subject}: "
            f'where that is meant, write subject = "{subject}"'
        )
    for each in known_of(subject, known):
        patterns = [pattern for pattern in each.laws if pattern not in all_laws()]
        covered = sum(any(fnmatchcase(law.id, pattern) for pattern in patterns) for law in choose(role))
        if covered > WIDE:
            what = f"{', '.join(patterns)} mutes {covered} laws of {subject}, and any that comes later"
            told.append(f"baseline: {what}: exact ids mute what is known only")
    return tuple(told)


def _look_alike(one: str, other: str) -> bool:
    """Whether two names of an attribute may be meant for one subject: not two files that there are, nor built-ins."""
    if ("==" in one) != ("==" in other):
        return False  # A pair, and a side of it.
    (place, _, name), (elsewhere, _, its_name) = one.rpartition(":"), other.rpartition(":")
    two_files = all(is_path(each) and Path(each).is_file() for each in (place, elsewhere))
    return name == its_name and not two_files and not (named(one) or named(other))


def is_fixed(entry: Known, outcomes: Mapping[str, str]) -> bool:
    """Whether all laws of an entry that shows in every run were asked, and none breaks; outcomes: law -> what it was.

    Of some of them alone, as `--law` chooses them, nothing follows.
    """
    roles = {law.partition("/")[0] for law in outcomes}
    mine = [law for law in all_laws() if entry.speaks_of(law) and law.partition("/")[0] in roles]
    found = {outcomes.get(law, "not asked") for law in mine}
    return not entry.intermittent and "holds" in found and not found & {"breaks", "not asked"}


def compare(
    verdict: Verdict,
    known: Iterable[Known],
    *,
    file: str = "the baseline",
    narrowed: bool = False,
    run: Sequence[str] = (),
) -> Compared:
    """Which broken laws are new, which are known, and which entries are fixed.

    file: where they are listed. narrowed: only some of the subject's dtypes were asked for; in the others an entry may
    still show. run: all subjects that are judged beside it.
    """
    known = tuple(known)
    whole = not (verdict.unfinished or narrowed)
    mine = known_of(verdict.subject, known)
    outcomes = {row.id: row.outcome for row in verdict.laws}
    covered = {row.id: entry.reason for row in verdict.broken if (entry := entry_of(row, mine))}
    return Compared(
        verdict,
        new=[row for row in verdict.broken if row.id not in covered],
        known=[row for row in verdict.broken if row.id in covered],
        reasons=covered,
        fixed=[each for each in mine if whole and is_fixed(each, outcomes)],
        file=file,
        remarks=remarks(known, verdict.subject, verdict.role, run),
    )


def in_range(versions: str) -> bool:
    """Whether the installed version of a package is within the range: 'name >=1.2, <2'; '' is always."""
    if not versions:
        return True
    name, clauses = _range(versions)
    try:
        installed = _numbers(version(name))
    except PackageNotFoundError:
        return False
    return all(_COMPARE[sign](installed, _numbers(bound)) for sign, bound in clauses)


def _range(versions: str) -> tuple[str, list[tuple[str, str]]]:
    """A package, and what is asked of its version."""
    read = _RANGE.fullmatch(versions)
    if read is None:
        raise HeadcheckError(f"cannot read the versions {versions!r}; write 'package >=1.2, <2'")
    return read["name"], re.findall(_CLAUSE, read["clauses"] or "")


def _numbers(version_text: str) -> tuple[int, ...]:
    """1.10.0+cpu -> (1, 10): zeros at the end say nothing."""
    numbers = [int(part) for part in re.findall(r"\d+", version_text.partition("+")[0])]
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)


def _known(entry: Any, where: str) -> Known:
    _require_texts(entry, where)
    if entry["kind"] not in KINDS:
        raise HeadcheckError(f"{where}: the kind {entry['kind']!r} is none of {', '.join(KINDS)}")
    if entry["versions"]:
        _range(entry["versions"])
    laws = (entry["law"],) if isinstance(entry["law"], str) else tuple(entry["law"])
    for pattern in laws:
        if not any(fnmatchcase(law, pattern) for law in all_laws()):
            raise HeadcheckError(f"{where}: no law matches {pattern!r}; `headcheck laws` lists them")
    if not isinstance(intermittent := entry.get("intermittent", False), bool):
        raise HeadcheckError(f"{where}: intermittent is true or false, not {intermittent!r}")
    texts = {name: entry[name] for name in FIELDS if name != "law"}
    return Known(laws=laws, intermittent=intermittent, **texts)


def _require_texts(entry: Any, where: str) -> None:
    """HeadcheckError: the entry is no table of the fields that there are, each a text."""
    if not isinstance(entry, Mapping):
        raise HeadcheckError(f"{where}: {entry!r} is no table; write [[deviation]] above its fields")
    for what, names in (
        ("missing", set(FIELDS) - set(entry)),
        ("unknown", set(entry) - {*FIELDS, *OPTIONAL}),
    ):
        if names:
            fields = f"the fields are {', '.join(FIELDS)}, and {', '.join(OPTIONAL)} where it applies"
            told = f"{fields}; {what}: {', '.join(sorted(names))}"
            raise HeadcheckError(f"{where}: {told}")
    for name in FIELDS:
        given = entry[name] if name == "law" and isinstance(entry[name], list) else [entry[name]]
        if not all(isinstance(each, str) for each in given):
            raise HeadcheckError(f"{where}: {name} is {entry[name]!r}, which is no text")
