"""What the engine asks of a role whose subject is a module."""

from contextlib import suppress
from itertools import combinations
from random import Random
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor, nn

from headcheck.casework import CaseRole
from headcheck.comparison import Failure, LawBroken, NotApplicable
from headcheck.declarations import Declaration
from headcheck.errors import SubjectError
from headcheck.formats import MIXED, mixes_masks
from headcheck.modules.copying import in_format, parts_run
from headcheck.modules.subject import ModuleCase, ModuleInputs, ModuleSubject, problem_of
from headcheck.verdict import Hint

AnyCase = TypeVar("AnyCase", bound=ModuleCase)
AnyInputs = TypeVar("AnyInputs", bound=ModuleInputs)


CALLS = 3
"""So many calls show whether any carries a gradient."""
SHOWN = 6
"""So many weights are named in a note."""
OTHERS_LAYERS = (
    "a copy of the module runs layers of the original, as they were made and in their mode ({}): a function that is an "
    "attribute holds them, as in self.f = lambda x: m(x); make it a method"
)


class ModuleRole(CaseRole[AnyCase], Generic[AnyCase, AnyInputs]):
    """A role is this class with a case, a declaration and a subject of its own, and one method, `build`."""

    declaration: type[Declaration]
    subject: type[ModuleSubject[AnyInputs]]
    kinds: tuple[type[nn.Module], ...] = ()
    """Modules of these classes are recognised as subjects of this role."""
    plain_call: str = "f(x)"
    """The canonical call with nothing optional, as a user would write it."""
    aliases: tuple[str, ...] = ()
    """Words in the name of a class or function by which it is recognised."""
    moves: ClassVar[bool] = True
    """Whether what is found out of a module on the CPU holds elsewhere, once its weights are moved there."""
    classes = True
    """A class may be named in place of an instance: it is made without arguments, unless the role says otherwise."""

    def to_try(self, subject: Any) -> Any:
        """The subject with a module that laws will not see, where a call may leave something behind."""
        return subject.unused()

    def limits(self, subject: Any) -> list[str]:
        """Which sizes the module does not take, as the preparation finds out first; it is written into the subject."""
        return []

    def notes(self, subject: Any) -> list[str]:
        """What else the preparation finds out; it may change the subject."""
        return []

    def found(self, subject: Any) -> dict[str, Any]:
        """What a declaration of this subject would say."""
        return {}

    def sound(self, subject: Any) -> bool:
        """Whether the calls of laws give numbers: in float64 the least number is -inf to a part in float32."""
        return True

    def recognises(self, attribute: Any) -> bool:
        """Whether it is a module of one of the role's classes, or has one of its words in its name or its class's."""
        name = getattr(attribute, "__name__", type(attribute).__name__)
        return isinstance(attribute, self.kinds) or any(_says(name, alias) for alias in self.aliases)

    def declare(self, attribute: Any, name: str) -> Declaration:
        return (
            attribute if isinstance(attribute, self.declaration) else self.declaration(attribute, name=name)
        )

    def _plain_problem(self, subject: ModuleSubject[AnyInputs], batch: int) -> Failure | None:
        """Why a plain call does not work. Where one of two sizes works, what is wrong with the other is for laws."""
        case = self.case(seed=1, batch=batch)
        return problem_of(subject, self.build(self.fit(case, subject), subject))

    def _carries_gradients(self, subject: ModuleSubject[AnyInputs]) -> bool:
        """Whether the output of some call does."""
        if subject.declaration.gradients is False:
            return False
        return any(self._carries_one(subject, Random(f"gradients/{number}")) for number in range(CALLS))

    def _carries_one(self, subject: ModuleSubject[AnyInputs], random: Random) -> bool:
        try:
            x = self.build(self.draw(random, subject), subject)
            with torch.enable_grad():
                output: Tensor = self.to_try(subject).output(x)
        except (LawBroken, NotApplicable):
            return False
        return output.requires_grad

    def _unused(self, subject: ModuleSubject[AnyInputs]) -> list[str]:
        """A note of the weights that no output of a few calls hangs on, as autograd shows; it may be meant."""
        unused: set[str] | None = None
        for number in range(CALLS if subject.carries_gradients and subject.module is not None else 0):
            try:
                case = self.draw(Random(f"unused/{number}"), subject)
                found = self._without_gradient(self.to_try(subject), case)
            except (LawBroken, NotApplicable):  # Laws will meet it.
                continue
            unused = found if unused is None else unused & found
        if not unused:
            return []
        names = [*sorted(unused)[:SHOWN], *(["..."] if len(unused) > SHOWN else [])]
        return [f"no output of {CALLS} calls depends on the weights {', '.join(names)}"]

    def _others_layers(self, subject: ModuleSubject[AnyInputs]) -> list[str]:
        """A hint where the copy that is judged runs layers of the module that it was made of, in whatever mode."""
        original, tried = subject.original, self.to_try(subject)
        if original is None:
            return []
        x = self.build(self.fit(self.case(seed=1), tried), tried)
        names = parts_run(original, lambda: tried(x))
        return [Hint(OTHERS_LAYERS.format(", ".join(names[:SHOWN])))] if names else []

    def _without_gradient(self, tried: ModuleSubject[AnyInputs], case: Any) -> set[str]:
        """The names of the weights that are no part of the graph of an output."""
        with torch.enable_grad():
            output = tried.output(self.build(case, tried))
        tried.require_a_graph(output)
        assert tried.module is not None
        named = tried.module.named_parameters()
        weights = {name: each for name, each in named if each.requires_grad and each.is_floating_point()}
        if not weights:
            return set()
        found = tried.clock.call(torch.autograd.grad, output.sum(), [*weights.values()], allow_unused=True)
        return {name for name, each in zip(weights, found, strict=True) if each is None}

    def _found_out(self, subject: ModuleSubject[AnyInputs]) -> list[str]:
        """Notes on what the module shows by itself. What breaks on the way is for laws, and the rest is as usual."""
        notes: list[str] = []
        try:
            notes += self.limits(subject)
            subject.carries_gradients = self._carries_gradients(subject)
            notes += self.notes(subject)
            notes += self._unused(subject)
            notes += self._others_layers(subject)
        except (LawBroken, NotApplicable) as why:
            notes.append(f"not all conventions were found out: {why}")
        return notes

    def _moved(
        self, declaration: Declaration, dtypes: tuple[str, ...], device: str, seed: int
    ) -> tuple[ModuleSubject[AnyInputs], list[str]] | None:
        """A module that was tried on the CPU, and notes; None where it does not work on both.

        On a GPU one token or position beyond what it takes would leave the device unusable for the whole process.
        """
        if not self.moves:
            return None
        try:
            subject, notes = self.prepare(declaration, dtypes=dtypes, device="cpu", seed=seed)
            if subject.module is None or subject.as_made is None:
                return None
            subject.device = subject.clock.device = device
            for module in (subject.module, subject.as_made):
                in_format(module, device, getattr(torch, subject.dtypes[0]))
            if self._plain_problem(subject, 1) and self._plain_problem(subject, 2):
                return None
        except (SubjectError, LawBroken, NotApplicable):
            return None
        return subject, notes

    def prepare(
        self, declaration: Declaration, *, dtypes: tuple[str, ...], device: str, seed: int
    ) -> tuple[ModuleSubject[AnyInputs], list[str]]:
        """In float64 where the module works in it, otherwise in float32."""
        if device != "cpu" and (elsewhere := self._moved(declaration, dtypes, device, seed)) is not None:
            return elsewhere
        wanted = dtypes or declaration.dtypes or ("float64", "float32")
        problems, unsound, advice = [], None, "where it is called otherwise, name a module around it"
        said: list[str] = []
        for dtype in wanted:
            subject = None
            try:
                subject = self.subject(declaration, dtypes=(dtype,), device=device)
                problem = self._plain_problem(subject, 1) and self._plain_problem(subject, 2)
            except (LawBroken, NotApplicable) as raised:
                problem = raised
            except SubjectError:
                if dtype == wanted[-1]:
                    raise
                continue
            if problem is not None or subject is None:
                none = ", ".join(subject.left_at_none if subject is not None else ())
                problems.append(f"{dtype}: {problem}{f', {none} given as None' if none else ''}")
                advice = (self.advice(subject) if subject is not None else "") or advice
                continue
            if dtype != wanted[-1] and self._mixes_masks(subject):
                said.append(MIXED)
                continue
            prepared = subject, [*said, f"judged in {dtype}", *self._found_out(subject)]
            if self.sound(subject):
                return prepared
            unsound = unsound or prepared
        if unsound is not None:
            return unsound
        raise SubjectError(
            f"the module does not work on a plain call, {self.plain_call} ({problems[-1]}); {advice}"
        )

    def _mixes_masks(self, subject: ModuleSubject[AnyInputs]) -> bool:
        """Whether a call, with padding or without, gives torch's attention a mask of another format."""
        tried = self.to_try(subject)

        def calls() -> None:
            for number in range(CALLS):
                with suppress(LawBroken, NotApplicable):
                    x = self.build(self.draw(Random(f"masks/{number}"), tried), tried)
                    tried(x)
                    tried(tried.padded(x))
                    for each in tried.other_calls(x):
                        each()

        return subject.device == "cpu" and mixes_masks(calls)

    def advice(self, subject: Any) -> str:
        """What may help where no plain call works; empty where nothing tells."""
        return ""


def _says(name: str, alias: str) -> bool:
    """Whether a name has an alias in one of its words, or as several whole ones: gemm_half does not say MHA."""
    words = name.lower().split("_")
    runs = ("".join(words[a:b]) for a, b in combinations(range(len(words) + 1), 2))
    return any(alias in word for word in words) or alias in runs
