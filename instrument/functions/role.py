"""What the engine asks of a role, for functions of a few tensors: drawn, built and simplified by their fields."""

import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from random import Random
from typing import Any, Generic, TypeVar

import torch

from headcheck import inference
from headcheck.arithmetic import MODELS, Arithmetic, named
from headcheck.calling import OtherDtype, impatient, is_for_laws, require_callable
from headcheck.casework import CaseRole
from headcheck.comparison import Failure, LawBroken, NotApplicable, failure_of, within
from headcheck.declarations import DTYPES, LOW_PRECISION, Declaration
from headcheck.errors import SubjectError
from headcheck.formats import formats_of
from headcheck.functions.inputs import FunctionCase, Inputs
from headcheck.functions.subject import FunctionSubject
from headcheck.modules.copying import on_device
from headcheck.signatures import left_at_defaults, not_recognised, parameters_of
from headcheck.verdict import IF_MEANT, Hint

AnyCase = TypeVar("AnyCase", bound=FunctionCase)
AnyInputs = TypeVar("AnyInputs", bound=Inputs)

CALLS = 4
"""So many calls of drawn sizes, beside the plain one, before a subject counts as one that cannot be called."""


TELLING_SIZE = 5
"""The length of each axis of a call that shows rounding: of one number many functions round nothing."""
IN_FLOAT32_NOTE = (
    "float64 is computed in float32, or in part: the law dtypes/doubles-are-computed-as-doubles says so, the others ask "
    "for the other dtypes; where it is meant, declare dtypes without float64: --declare dtypes={}"
)


IN_NATIVE = (
    "a plain call in {0}, held to {1}, is right with --declare arithmetic.{0}=native, by which sums too are kept in {0}, "
    + IF_MEANT
)
"""What is said where all errors that no model explains are explained by the widest."""


class FunctionRole(CaseRole[AnyCase], Generic[AnyCase, AnyInputs]):
    """A role is this class with a case, a declaration and a subject of its own, and one method, `build`."""

    declaration: type[Declaration]
    subject: type[FunctionSubject[AnyInputs]]
    plain_call: str
    """The canonical call, as a user would write it."""
    cure = "or say its role with --role"
    """What else to name where no plain call works."""
    aliases: tuple[str, ...] = ()
    """Words in the name of a plain callable by which it is recognised as one of this role."""
    inferred: tuple[Arithmetic, ...] = (named("wide"), named("opwise"))
    """The models that an undeclared low-precision function is fitted to, the narrowest first."""

    asks_for_doubles = False
    """Whether a law of the role asks how float64 is computed; tables of positions may be of float32."""

    @abstractmethod
    def build(self, case: AnyCase, subject: Any) -> AnyInputs:
        """The inputs that a case describes."""

    def find_out(self, subject: Any) -> list[str]:
        """Which conventions a new subject has, where it does not declare them: notes, and the subject changed."""
        return []

    def notes(self, subject: Any) -> list[str]:
        """What else the preparation finds out, at its end; it may change the subject."""
        return []

    def conventions(self, subject: Any) -> dict[str, Any]:
        """What the preparation settled of the declaration's fields."""
        return {}

    def found(self, subject: FunctionSubject[AnyInputs]) -> dict[str, Any]:
        """What a declaration of this subject would say."""
        models = {each: subject.arithmetic[each] for each in subject.dtypes if each in LOW_PRECISION}
        rounding = {each: str(model) if str(model) in MODELS else model for each, model in models.items()}
        return {"dtypes": subject.dtypes, "arithmetic": rounding or None, **self.conventions(subject)}

    def cure_of(self, subject: Any) -> str:
        """What else to name where no plain call of this subject works."""
        return self.cure

    def telling(self, case: AnyCase) -> AnyCase:
        """The case, made to tell apart the models of arithmetic."""
        return case

    # Subjects

    def recognises(self, attribute: Any) -> bool:
        """Whether a plain callable is one of this role, by its name."""
        name = getattr(attribute, "__name__", type(attribute).__name__).lower()
        return any(alias in name for alias in self.aliases)

    def declare(self, attribute: Any, name: str) -> Declaration:
        return (
            attribute if isinstance(attribute, self.declaration) else self.declaration(attribute, name=name)
        )

    def prepare(
        self, declaration: Declaration, *, dtypes: tuple[str, ...], device: str, seed: int
    ) -> tuple[FunctionSubject[AnyInputs], list[str]]:
        """Which dtypes it takes, and how it rounds."""
        wanted = dtypes or declaration.dtypes or DTYPES
        native = {dtype: named("native") for dtype in wanted}
        as_given = declaration.function
        function, notes_of_copy = on_device(as_given, device)
        declaration = declaration.but(function=function)
        subject = self.subject(declaration, dtypes=wanted, arithmetic=native, device=device)
        subject.as_given = as_given
        found = self.find_out(subject)
        problems = {dtype: self._failure(subject, self._plain(subject, dtype)) for dtype in wanted}
        declared = declaration.dtypes or ()
        taken = tuple(
            dtype for dtype in wanted if dtype in declared or is_for_laws(problems[dtype], problems)
        )
        if not taken and "float32" not in wanted and self._works_in_float32(subject):
            raise SubjectError(f"the subject does not work in {', '.join(wanted)}: {problems[wanted[0]]}")
        if None not in problems.values():
            require_callable(self._few_calls(subject, wanted), self.plain_call, self.cure_of(subject))
        subject.dtypes = taken or wanted[:1]
        subject.answered_otherwise = {
            dtype: str(problem)
            for dtype, problem in problems.items()
            if isinstance(problem, OtherDtype) and dtype not in subject.dtypes
        }
        notes = [f"{dtype}: not supported ({problems[dtype]})" for dtype in wanted if dtype not in taken]
        notes = notes if taken else [f"no plain call, {self.plain_call}, works: {problems[wanted[0]]}"]
        subject.takes_doubles = "float64" in taken
        if (
            len(taken) > 1
            and subject.takes_doubles
            and self.asks_for_doubles
            and self._computes_doubles_in_float32(subject)
        ):
            subject.dtypes = tuple(dtype for dtype in taken if dtype != "float64")
            notes.append(Hint(IN_FLOAT32_NOTE.format(",".join(subject.dtypes))))
        subject.arithmetic = arithmetic = dict(native)
        with impatient(subject.seconds):
            subject.carries_gradients = self._carries_gradients(subject)
            for dtype in subject.dtypes:
                arithmetic[dtype], note = self._arithmetic(subject, dtype, seed)
                notes += [note] if note else []
            return subject, [
                *notes_of_copy,
                *found,
                *notes,
                *self.notes(subject),
                *_left_at_defaults(subject),
            ]

    def _carries_gradients(self, subject: FunctionSubject[AnyInputs]) -> bool:
        """Whether the output of some call does."""
        taking = _Taking(subject, subject.dtypes[0])
        randoms = (Random(f"gradients/{number}") for number in range(CALLS))
        return any(self._carries_one(subject, self.draw(random, taking)) for random in randoms)

    def _carries_one(self, subject: FunctionSubject[AnyInputs], case: AnyCase) -> bool:
        x = self.build(case, subject)
        return failure_of(subject.gradients, x, x.cotangent) is None

    def _computes_doubles_in_float32(self, subject: FunctionSubject[AnyInputs]) -> bool:
        """Whether float64, of which nothing is declared, is answered by what is right in float32 only.

        A last step in float64, by a weight or a bias, shows nothing where those are ones and zeros.
        """
        if subject.declaration.dtypes or subject.declaration.arithmetic:
            return False
        taking = _Taking(subject, "float64")
        trial = subject.held_to(dict.fromkeys(("float32", "float64"), named("native")))
        case = self.case(dtype="float64").but(**dict.fromkeys(self.case.sizes(), TELLING_SIZE))
        calls = [plainly(self.build(self.fit(case.but(seed=seed), taking), taking)) for seed in range(3)]
        try:
            return all(self._is_of_float32(trial, x) for x in calls)
        except (LawBroken, NotApplicable):
            return False

    def _is_of_float32(self, trial: FunctionSubject[AnyInputs], x: AnyInputs) -> bool:
        """Whether an answer in float64 is off, is computed in float32 or in part, and right for inputs rounded to it."""
        found, single = trial(x), x.cast(torch.float32)
        if not within(found, trial.expected(x), trial.bound(x)).broken:
            return False
        rounded = torch.equal(found.float().double(), found)
        in_part = rounded or torch.float32 in formats_of(lambda: trial(x))
        return in_part and not within(found, trial.expected(single), trial.bound(single)).broken

    def _plain(self, subject: FunctionSubject[AnyInputs], dtype: str) -> AnyCase:
        return self.fit(self.case(dtype=dtype, seed=1), _Taking(subject, dtype))

    def _works_in_float32(self, subject: FunctionSubject[AnyInputs]) -> bool:
        return self._failure(subject, self._plain(subject, "float32")) is None

    def _few_calls(
        self, subject: FunctionSubject[AnyInputs], dtypes: tuple[str, ...]
    ) -> Iterator[Failure | None]:
        """Why each of a few calls does not work, or None if it does: the plain one, and some of other sizes."""
        for dtype in dtypes:
            yield self._failure(subject, self._plain(subject, dtype))
            for number in range(CALLS):
                case = self.draw(Random(f"call/{number}"), _Taking(subject, dtype))
                yield self._failure(subject, case)

    def _failure(self, subject: FunctionSubject[AnyInputs], case: AnyCase) -> Failure | None:
        return failure_of(subject, self.build(case, subject))

    def _arithmetic(
        self, subject: FunctionSubject[AnyInputs], dtype: str, seed: int
    ) -> tuple[Arithmetic, str]:
        declared = subject.declaration.arithmetic
        if isinstance(declared, Mapping):
            declared = declared.get(dtype)
        if declared is not None:
            return (named(declared) if isinstance(declared, str) else declared), ""
        if dtype not in LOW_PRECISION:
            return named("native"), ""
        randoms = (Random(f"{seed}/arithmetic/{dtype}/{number}") for number in range(inference.TRIES))
        drawn = (self.draw(random, subject).but(dtype=dtype) for random in randoms)
        # Every second one is contiguous: of strided ones, where they are refused, nothing is learnt.
        lying = (case.but(strides="contiguous") if number % 2 else case for number, case in enumerate(drawn))
        cases = [self.fit(self.telling(case), subject) for case in lying]
        smallest = [math.inf] * len(cases)
        """The error over bound of each case under the models that were tried on it."""

        def ratio_of(number: int, model: Arithmetic) -> float:
            found = self._ratio(subject, cases[number], model)
            smallest[number] = min(smallest[number], found)
            return found

        model, ratio = inference.narrowest(self.inferred, range(len(cases)), ratio_of)
        beyond = [case for case, found in zip(cases, smallest, strict=True) if found > 1]
        if beyond and all(self._ratio(subject, case, named("native")) <= 1 for case in beyond):
            return model, Hint(IN_NATIVE.format(dtype, model))
        return model, inference.told(dtype, model, ratio)

    def _ratio(self, subject: FunctionSubject[AnyInputs], case: AnyCase, model: Arithmetic) -> float:
        """The largest error over bound of one case under a model; 0 where a law will say what is wrong."""
        trial = subject.held_to({case.dtype: model})
        trial.dtypes = (case.dtype,)
        x = self.build(case, trial)
        ratios = [0.0]
        try:
            ratios = [within(trial(x), trial.expected(x), trial.bound(x)).ratio]
            g = x.cotangent
            exact, bounds = trial.exact_gradients(x, g), trial.gradient_bounds(x, g.double())
            # Where one tensor alone wants a gradient, another path may be taken.
            ways = [trial.gradients(x, g), *(trial.gradients(x, g, wanted=(name,)) for name in exact)]
            ratios += [
                within(found, exact[name], bounds[name]).ratio
                for way in ways
                for name, found in way.items()
                if found is not None
            ]
        except (LawBroken, NotApplicable):
            pass
        return max(ratios)


def plainly(x: AnyInputs) -> AnyInputs:
    """The inputs with a weight of ones, and a bias of zeros, where there are any."""
    plain = {"weight": torch.ones_like, "bias": torch.zeros_like}
    return x.but(**{name: plain[name](each) for name, each in x.tensors.items() if name in plain})


def _left_at_defaults(subject: FunctionSubject[Any]) -> list[str]:
    """Which parameters nothing is given to, as neither the role nor the declaration knows them."""
    function = subject.declaration.function
    parameters = [*(parameters_of(function) or {}).values()]
    by_place = [
        parameters[place].name
        for place in subject.places.values()
        if isinstance(place, int) and place < len(parameters)
    ]
    unknown = not_recognised(function, [*by_place, *subject.places.values()], 1)
    unknown = [each for each in unknown if each.default is not each.empty]
    return [f"{left_at_defaults(unknown)}; what they do is not judged"] if unknown else []


class _Taking:
    """A subject as if it took one dtype only."""

    def __init__(self, subject: Any, dtype: str) -> None:
        self._subject, self.dtypes = subject, (dtype,)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._subject, name)
