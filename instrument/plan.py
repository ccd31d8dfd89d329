"""What is to be judged and how: everything a process needs to start judging, and nothing that it makes."""

import os
import platform
import shlex
import sys
import sysconfig
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headcheck import __version__, heard
from headcheck.calling import Patience, impatient
from headcheck.comparison import LawBroken
from headcheck.declarations import DTYPES
from headcheck.declaring import declaring
from headcheck.engine import PROFILES, Engine, Profile, describe
from headcheck.errors import CaseError, HeadcheckError, SubjectError
from headcheck.laws import Law
from headcheck.loading import load
from headcheck.recipes import Recipe
from headcheck.recognising import is_declaration, made, role_name
from headcheck.roles import role as role_named
from headcheck.verdict import LawResult

SLOW_S = 10.0
"""Seconds inside of the subject before its first law."""
SLOW = "calls are slow ({:.0f} s before the first law): a subject of fewer layers, or a narrower one, is judged sooner"
SHORT = {
    "half": "float16",
    "fp16": "float16",
    "bf16": "bfloat16",
    "float": "float32",
    "fp32": "float32",
    "double": "float64",
    "fp64": "float64",
}
"""What else a dtype is called -> its name."""
OPTIONS = ("role", "dtype", "device", "declare", "timeout", "seed")
"""What `verify` and `replay` take that says how a subject is called."""
OF_PROBE = ("role", "device", "declare", "timeout")
"""What `probe` takes of it."""


@dataclass(frozen=True)
class Introduction:
    """What is known of a subject before its first law: plain data that travels between processes."""

    name: str
    role: str
    declaration: dict[str, Any]
    notes: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()

    @property
    def is_slow(self) -> bool:
        """Whether its calls took long."""
        return any(each.startswith(SLOW.partition("(")[0]) for each in self.notes)


@dataclass(frozen=True)
class Plan:
    """One subject, and how it is to be judged.

    subject: a SUBJECT as typed, a callable, or a declaration. dtypes: () for what the subject supports.
    device: None for the first that the subject declares. declared: FIELD=VALUE, as on the command line.
    timeout_s: seconds that one example may take, where the user says so; `profile.limit_s` is the same then.
    """

    subject: Any
    profile: Profile = PROFILES["gate"]
    seed: int = 0
    role: str | None = None
    dtypes: tuple[str, ...] = ()
    device: str | None = None
    declared: tuple[str, ...] = ()
    timeout_s: float | None = None

    def loaded(self) -> "Loaded":
        """The subject, imported and declared, but not called yet."""
        attribute, name = load(self.subject) if isinstance(self.subject, str) else (self.subject, "")
        if not callable(attribute) and not is_declaration(attribute):
            raise SubjectError(
                f"what is of type {type(attribute).__name__} is neither a callable nor a declaration"
            )
        attribute = made(attribute, self.role)
        role = role_name(attribute, self.role)
        declaration = declaring(role_named(role).declare(attribute, name), self.declared)
        function = "" if is_declaration(attribute) else name.rpartition(":")[2]
        return Loaded(self, role, declaration, name or declaration.name, function)

    @property
    def spec(self) -> str | None:
        """How the command line names the subject; None if it cannot."""
        return self.subject if isinstance(self.subject, str) else _importable_as(self.subject)

    def but(self, seed: int | None) -> "Plan":
        """The same plan with another seed."""
        return self if seed is None else replace(self, seed=seed)

    def of(self, subject: Any) -> "Plan":
        """The same plan for another subject; None for its own."""
        return self if subject is None else replace(self, subject=subject)

    def command(self, word: str, *arguments: str, takes: Collection[str] = OPTIONS) -> str:
        """A headcheck command line on this subject; '' if the command line cannot name it.

        takes: the options that the subcommand has.
        """
        if self.spec is None:
            return ""
        options = [("role", self.role), ("dtype", ",".join(self.dtypes)), ("device", self.device)]
        options += [("declare", each) for each in self.declared]
        options += [("timeout", f"{self.timeout_s:g}")] if self.timeout_s else []
        options += [("seed", str(self.seed))] if self._says_its_seed else []
        given = [part for name, value in options if value and name in takes for part in (f"--{name}", value)]
        return shlex.join(["headcheck", word, self.spec, *arguments, *given])

    @property
    def _says_its_seed(self) -> bool:
        """Whether a line has to: left out, it is 0, or a fresh one where the profile is deep."""
        return self.seed != 0 or self.profile.name == "deep"

    def replay(self, law: Law, case: object) -> str:
        """The line that shows exactly this case."""
        line = self.command("replay", law.id, str(case))
        return line or f"headcheck.replay(subject, {law.id!r}, {str(case)!r}{self._keywords()})"

    def only(self, law_id: str) -> str:
        """The line that judges one law only."""
        name = self.profile.name
        line = self.command("verify", "--law", law_id, *([] if name == "gate" else ["--profile", name]))
        if line and name in PROFILES:
            return line
        subject = "subject" if self.spec is None else repr(self.spec)
        profile = name if name in PROFILES else self.profile
        return f"headcheck.verify({subject}, laws={law_id!r}, profile={profile!r}{self._keywords()})"

    @property
    def probe(self) -> str:
        """The line that finds the conventions out."""
        line = self.command("probe", takes=OF_PROBE)
        return f"`{line}`" if line else f"headcheck.probe(subject{self._keywords(OF_PROBE)})"

    def _keywords(self, takes: Collection[str] = OPTIONS) -> str:
        """What is not at its default, as Python. takes: the keywords that the function has."""
        given: dict[str, Any] = {
            "dtype": self.dtypes,
            "device": self.device,
            "role": self.role,
            "declare": self.declared,
            "timeout": self.timeout_s,
        }
        said = {name: value for name, value in given.items() if value}
        said |= {"seed": self.seed} if self._says_its_seed else {}
        return "".join(f", {name}={value!r}" for name, value in said.items() if name in takes)


@dataclass(frozen=True)
class Loaded:
    """A subject that could be imported."""

    plan: Plan
    role: str
    declaration: Any
    name: str
    function: str = ""
    """What was typed for the function itself; nothing where that names a declaration around it."""

    @property
    def device(self) -> str:
        declared: tuple[str, ...] = self.declaration.devices
        return self.plan.device or declared[0]

    def introduction(self, notes: tuple[str, ...] = ()) -> Introduction:
        environment = tuple(_environment(self.device).items())
        return Introduction(self.name, self.role, self.declaration.summary(), notes, environment)

    def prepared(self) -> "Prepared":
        """The subject, tried on small cases and ready to be judged."""
        require_device(self.device)
        role = role_named(self.role)
        with impatient(timeout_s=self.plan.timeout_s, least_s=Patience.FIRST_S):
            subject, notes = role.prepare(
                self.declaration, dtypes=self.plan.dtypes, device=self.device, seed=self.plan.seed
            )
        engine = Engine(role, subject, self.plan.profile, self.plan.seed, self.plan.replay)
        slow = [SLOW.format(subject.seconds)] if subject.seconds > SLOW_S else []
        return Prepared(self.introduction((*slow, *notes)), engine)


@dataclass(frozen=True)
class Prepared:
    """A subject that can be judged."""

    introduction: Introduction
    engine: Engine

    def replayed(self, law: Law, text: str) -> LawResult:
        """One law on one case as it was printed; the row shows what was compared even where the law holds."""
        self._require_role(law)
        engine, case = self.engine, self.engine.role.parse(text)
        if why := self._unspoken(law, case):
            return law.not_applicable(why)
        try:
            engine.role.build(case, engine.subject)
        except LawBroken:
            pass  # It is what the subject does with the case: the example will say so.
        except Exception as problem:
            raise CaseError(f"cannot build the case: {type(problem).__name__}: {problem}") from problem
        with heard.listening() as calls:
            judged = engine.example(law, case)
        if not judged.broken and judged.comparison is None:
            return law.not_applicable(judged.reason or "the law says nothing about this case")
        shown = describe(engine.role, engine.subject, judged, engine.replay(law, case), 1, calls)
        return LawResult(
            law.id,
            law.statement,
            "breaks" if judged.broken else "holds",
            reason=shown.message if judged.broken else "",
            examples=1,
            worst_error_over_bound=judged.comparison.ratio if judged.comparison else float("inf"),
            dtypes=[case.dtype],
            counterexample=shown,
        )

    def _require_role(self, law: Law) -> None:
        """CaseError: it is a law of another role, which says nothing of this subject as it is called."""
        judged = self.engine.role.name
        if law.role != judged:
            cure = f"--role {law.role} (role= in Python) judges it as that"
            raise CaseError(
                f"{law.id} is a law of the role {law.role}, the subject is judged as {judged}; {cure}"
            )

    def _unspoken(self, law: Law, case: Recipe) -> str:
        """Why the law does not speak of a case, which may have been edited; '' where it does."""
        lacking = [why for feature in law.needs if (why := self.engine.subject.lacks(feature))]
        if lacking:
            return "; ".join(lacking)
        spoken: Recipe = self.engine.nearest(law, case)
        return (
            f"the law does not speak of this case; it needs {case.changes(spoken)}" if spoken != case else ""
        )


def profile_named(profile: str | Profile) -> Profile:
    """The profile of that name."""
    if isinstance(profile, Profile):
        return profile
    if profile not in PROFILES:
        raise HeadcheckError(f"there is no profile {profile!r}; there are: {', '.join(PROFILES)}")
    return PROFILES[profile]


def dtype_names(dtypes: Any) -> tuple[str, ...]:
    """'float16', 'fp16,bf16', torch.float16 or several of them -> their names."""
    several = dtypes if isinstance(dtypes, tuple | list) else (() if dtypes is None else (dtypes,))
    given = [name.strip().removeprefix("torch.") for each in several for name in str(each).split(",")]
    names = [SHORT.get(name, name) for name in given]
    for name in names:
        if name not in DTYPES:
            raise HeadcheckError(f"cannot judge dtype {name!r}; there are: {', '.join(DTYPES)}")
    return tuple(dict.fromkeys(names))


def require_device(device: str) -> None:
    """HeadcheckError: torch cannot compute there."""
    import torch

    cure = "--device cpu works everywhere"
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise HeadcheckError(f"torch cannot compute on {device!r} here: no CUDA device; {cure}")
    try:
        float(torch.zeros(1, device=device))  # A device may have sizes, and no numbers.
    except (RuntimeError, AssertionError, ValueError) as problem:
        raise HeadcheckError(f"torch cannot compute on {device!r} here; {cure}") from problem


def _environment(device: str) -> dict[str, str]:
    import hypothesis
    import torch

    chip = platform.processor() or platform.machine()
    if device.startswith("cuda") and torch.cuda.is_available():
        chip = torch.cuda.get_device_name(device)
    return {
        "headcheck": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "hypothesis": hypothesis.__version__,
        "platform": platform.platform(),
        "device": f"{device} ({chip})",
    }


def _importable_as(subject: Any) -> str | None:
    """package.module:attribute for a callable that is found there."""
    module, name = getattr(subject, "__module__", None), getattr(subject, "__qualname__", None)
    if not module or not name or module == "__main__" or module not in sys.modules:
        return None
    found: Any = sys.modules[module]
    for part in name.split("."):
        found = getattr(found, part, None)
    return f"{_place_of(module)}:{name}" if found is subject else None


def _place_of(module: str) -> str:
    """The module's name; of one that only who runs has on the path, as pytest does, its file as seen from here."""
    file = getattr(sys.modules[module], "__file__", None)
    if "." in module or not file or not file.endswith(".py"):
        return module
    folder = Path(file).resolve().parent
    installed = {Path(each).resolve() for each in sysconfig.get_paths().values()}
    return module if folder == Path.cwd() or folder in installed else os.path.relpath(file)
