"""What is to be judged and how: everything a process needs to start judging, and nothing that it makes."""

import os
import shlex
import sys
import sysconfig
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headcheck.declarations import DTYPES
from headcheck.engine import PROFILES, Profile
from headcheck.errors import HeadcheckError
from headcheck.laws import Law

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
