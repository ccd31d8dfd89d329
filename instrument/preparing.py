"""A subject on its way to being judged: imported and declared, then tried on small cases and given an engine."""

import platform
from dataclasses import dataclass
from typing import Any

from headcheck import __version__, heard
from headcheck.calling import Patience, impatient
from headcheck.comparison import LawBroken
from headcheck.declaring import declaring
from headcheck.engine import Engine, describe
from headcheck.errors import CaseError, HeadcheckError, SubjectError
from headcheck.laws import Law
from headcheck.loading import load
from headcheck.plan import Plan
from headcheck.recipes import Recipe
from headcheck.recognising import is_declaration, made, role_name
from headcheck.roles import role as role_named
from headcheck.verdict import LawResult

SLOW_S = 10.0
"""Seconds inside of the subject before its first law."""
SLOW = "calls are slow ({:.0f} s before the first law): a subject of fewer layers, or a narrower one, is judged sooner"


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


def subject_of(plan: Plan) -> "Loaded":
    """The subject of a plan, imported and declared, but not called yet."""
    attribute, name = load(plan.subject) if isinstance(plan.subject, str) else (plan.subject, "")
    if not callable(attribute) and not is_declaration(attribute):
        raise SubjectError(
            f"what is of type {type(attribute).__name__} is neither a callable nor a declaration"
        )
    attribute = made(attribute, plan.role)
    role = role_name(attribute, plan.role)
    declaration = declaring(role_named(role).declare(attribute, name), plan.declared)
    function = "" if is_declaration(attribute) else name.rpartition(":")[2]
    return Loaded(plan, role, declaration, name or declaration.name, function)


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
