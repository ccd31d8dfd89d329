"""A function behind its declaration: what it gives, what it should give, and how far the two may be apart."""

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import copy
from functools import partial
from typing import Any, ClassVar, Self, TypeVar

import torch
from torch import Tensor

from headcheck.arithmetic import Arithmetic
from headcheck.calling import NAMES_STRIDES, Clock, NoAnswer, SubjectRaised, plain_tensor, require_willing
from headcheck.checkpoints import is_checkpointed
from headcheck.comparison import (
    LawBroken,
    NotApplicable,
    forward_only,
    require_a_graph,
    require_gradients,
)
from headcheck.declarations import Declaration
from headcheck.functions.inputs import Inputs
from headcheck.oracle import HeldToAnOracle
from headcheck.signatures import keyword_for, parameters_of, require_parameters
from headcheck.strides import STRIDES, moved

AnyInputs = TypeVar("AnyInputs", bound=Inputs)
Gradients = dict[str, Tensor | None]


class FunctionSubject(HeldToAnOracle[AnyInputs]):
    """What laws call. A role says what the exact answer is, and what rounding explains."""

    FEATURES: ClassVar[Mapping[str, str]] = {}
    """What not every function of the role has: the name, and the words for its absence.

    A feature with the name of an optional argument is there if the signature takes that argument, and one
    with the name of a field of the declaration is absent if that says False.
    """

    def __init__(
        self,
        declaration: Declaration,
        *,
        dtypes: tuple[str, ...],
        arithmetic: Mapping[str, Arithmetic],
        device: str = "cpu",
    ) -> None:
        self.declaration: Any = declaration
        self.dtypes = dtypes
        self.arithmetic = arithmetic
        self.device = device
        self.as_given: Callable[..., Any] = declaration.function
        """The function before what it holds was moved to a device."""
        self.effort = declaration.effort
        self.clock = Clock(device)
        self.refused: dict[str, str] = {}
        """Feature -> why it is not there, found out by trying."""
        self.answered_otherwise: Mapping[str, str] = {}
        """Dtypes that are not judged, since a plain call in them is answered in another one: a law of its own says so."""
        self.takes_doubles = False
        """Whether a plain call in float64 works."""
        self.carries_gradients = False
        """Whether the output of some plain call does."""
        require_parameters(declaration.function, declaration.arguments)
        self.places = {
            argument: declaration.arguments.get(argument)
            or keyword_for(declaration.function, aliases, 1 + number)
            for number, (argument, aliases) in enumerate(declaration.ARGUMENTS.items())
        }
        """Each optional argument: its keyword, its place, or None."""
        named = [*(parameters_of(declaration.function) or ())]
        taken = [named.index(place) for place in self.places.values() if place in named]
        self.places = {name: None if place in taken else place for name, place in self.places.items()}

    # What a role says

    @abstractmethod
    def exact(self, x: AnyInputs, tensors: Mapping[str, Tensor]) -> Tensor:
        """The right answer for these tensors, which are in float64 and may want gradients."""

    @abstractmethod
    def gradient_bounds(self, x: AnyInputs, cotangent: Tensor) -> dict[str, Tensor]:
        """How far each element of each gradient may be from the exact one, for a cotangent in float64."""

    @abstractmethod
    def plain(self, x: AnyInputs) -> dict[str, Any]:
        """The optional arguments of the call that are not tensors wanting gradients; None is left out."""

    # What it can do

    @property
    def seconds(self) -> float:
        """Wall time spent inside the implementation so far."""
        return self.clock.seconds

    def lacks(self, feature: str) -> str | None:
        """Why the subject does not have a feature, or None if it has."""
        if feature in self.refused:
            return self.refused[feature]
        declared = getattr(self.declaration, feature, None)
        if declared is False:
            return f"{self.FEATURES[feature]}, as declared"
        if declared is None and self.places.get(feature, 0) is None:
            return self.FEATURES[feature]
        return None

    def has(self, feature: str) -> bool:
        return self.lacks(feature) is None

    def arithmetic_for(self, dtype: torch.dtype) -> Arithmetic:
        """How the subject rounds in this dtype."""
        return self.arithmetic[str(dtype).removeprefix("torch.")]

    def held_to(self, arithmetic: Mapping[str, Arithmetic]) -> Self:
        """The same subject, in these dtypes held to another arithmetic than its own."""
        other = copy(self)
        other.arithmetic = {**self.arithmetic, **arithmetic}
        return other

    # What it gives

    def __call__(self, x: AnyInputs) -> Tensor:
        """The output, copied, on the CPU."""
        with torch.no_grad():
            return self.run(x, self.tensors_for(x)).detach().to("cpu", copy=True)

    def in_inference_mode(self, x: AnyInputs) -> Tensor:
        """The output of a call in torch.inference_mode, copied; its tensors are made there too."""
        with torch.inference_mode():
            output = self.run(x, self.tensors_for(x))
        return output.to("cpu", copy=True)

    def under_autocast(self, x: AnyInputs) -> Tensor:
        """The output of a call under autocast to bfloat16. NotApplicable: it refuses."""
        try:
            with torch.autocast(torch.device(self.device).type, torch.bfloat16):
                return self(x)
        except SubjectRaised as refusal:
            if getattr(self.declaration, "autocast", None):
                raise
            raise NotApplicable(f"refuses a call under autocast: {refusal}") from refusal

    def around(self, function: Callable[..., Any]) -> Self:
        """The same with another function, which is called with the same arguments."""
        other = copy(self)
        other.declaration = self.declaration.but(function=function)
        return other

    def on_the_cpu(self) -> Self:
        """The same with the function as it was given, for what nothing but a CPU survives."""
        here = copy(self)
        here.declaration = self.declaration.but(function=self.as_given)
        here.device, here.clock = "cpu", Clock()
        return here

    def tensors_for(self, x: AnyInputs) -> dict[str, Tensor]:
        """Fresh copies of the tensors, laid out as the case says: the subject may do what it likes to them."""
        lay_out = STRIDES[x.strides]
        return {name: lay_out(each.to(self.device)) for name, each in x.tensors.items()}

    def run(self, x: AnyInputs, tensors: Mapping[str, Tensor]) -> Tensor:
        """One call. LawBroken: what comes back is no tensor of the right shape and dtype."""
        return self.received(x, self.called(x, tensors))

    def received(self, x: AnyInputs, returned: Any) -> Tensor:
        """The output as laws see it; under autocast it may come in the lower dtype."""
        kind = torch.device(self.device).type
        lower = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        if isinstance(returned, Tensor) and returned.dtype == lower:
            returned = returned.to(x.dtype)
        return plain_tensor(returned, x.output_shape, x.dtype, self.device)

    def called(self, x: AnyInputs, tensors: Mapping[str, Tensor]) -> Any:
        """Whatever comes back. NotApplicable: it refuses, with NotImplementedError, what it never promised."""
        positional, keywords = self.arguments_of(x, tensors)
        try:
            return self.clock.call(self.declaration.function, *positional, **keywords)
        except SubjectRaised as raised:
            require_willing(raised.problem, may_refuse=self.declaration.may_refuse)
            if x.strides != "contiguous" and self.refuses_strides(raised.problem):
                raise NotApplicable(f"refuses tensors that are {x.strides}: {raised}") from raised.problem
            undeclared = self.declaration.dtypes is None and x.dtype != torch.float32
            if undeclared and isinstance(raised.problem, NotImplementedError):
                raise NotApplicable(f"refuses {x.dtype}: {raised}") from raised.problem
            raise

    def arguments_of(self, x: AnyInputs, tensors: Mapping[str, Tensor]) -> tuple[list[Any], dict[str, Any]]:
        """The arguments of a call, by place and by keyword. NoAnswer: there is no such call."""
        given = dict(tensors)
        positional: list[Any] = [given.pop("x")] if "x" in given else []
        plain = {name: value for name, value in self.plain(x).items() if value is not None}
        keywords: dict[str, Any] = {}
        for name in self.places:
            if name not in given and name not in plain:
                continue
            value = given[name] if name in given else plain[name]
            place = self.places[name]
            if isinstance(place, str):
                keywords[place] = value
            elif place is not None and place == len(positional):
                positional.append(value)
            elif place is None:
                raise NoAnswer(f"takes no {name}")
            else:
                raise NoAnswer(f"takes {name} only after what it is not given here")
        return positional, keywords

    def refuses_strides(self, problem: BaseException) -> bool:
        """Whether what is raised for a tensor that is not contiguous says that it is refused for that."""
        return bool(NAMES_STRIDES.search(str(problem)))

    def gradients(self, x: AnyInputs, cotangent: Tensor, wanted: Collection[str] | None = None) -> Gradients:
        """The gradient of sum(output x cotangent) for every tensor, or for those wanted, the others frozen."""
        return self.gradients_asked_for(1, x, cotangent, wanted)[0]

    def gradients_asked_for(
        self, times: int, x: AnyInputs, cotangent: Tensor, wanted: Collection[str] | None = None
    ) -> list[Gradients]:
        """These gradients, asked for so many times in one graph; copies, taken at once."""
        tensors = self.tensors_for(x)
        asked = {name: each.requires_grad_() for name, each in tensors.items() if name in (wanted or tensors)}
        output = self._with_a_graph(x, tensors)
        cotangent = moved(self.sent_back(x, cotangent), output)
        found: list[Gradients] = []
        for time in range(times):
            gradients = self.clock.call(
                torch.autograd.grad,
                output,
                [*asked.values()],
                cotangent,
                retain_graph=time < times - 1,
                allow_unused=True,
            )
            copies = (
                None if each is None else self.as_seen(x, each).to("cpu", copy=True) for each in gradients
            )
            found.append(dict(zip(asked, copies, strict=True)))
        return found

    def gradients_after_a_change(self, x: AnyInputs, changed: str) -> Gradients | None:
        """The gradients of sum(output x cotangent), where an input or the output is changed in place before backward.

        None: that is refused.
        """
        tensors = {name: each.clone().requires_grad_() for name, each in self.tensors_for(x).items()}
        whole = {name: each for name, each in self.plain(x).items() if isinstance(each, Tensor)}
        output = self._with_a_graph(x, {**tensors, **whole})
        sent = moved(self.sent_back(x, x.cotangent), output)
        try:
            if changed == "output":
                output.add_(1.0)
            elif changed in whole:
                whole[changed].add_(1)
            else:
                with torch.no_grad():
                    tensors[changed].mul_(-3)
        except RuntimeError:  # As of a view that autograd does not let anybody write to.
            return None
        try:
            found = self.clock.call(torch.autograd.grad, output, [*tensors.values()], sent, allow_unused=True)
        except SubjectRaised:  # As autograd does where a saved tensor is of another version.
            return None
        seen = (None if each is None else self.as_seen(x, each).to("cpu", copy=True) for each in found)
        return dict(zip(tensors, seen, strict=True))

    def is_checkpointed(self, x: AnyInputs) -> bool:
        """Whether a call that wants gradients is computed again on the way back, from its inputs as they are by then."""
        tensors = {name: each.requires_grad_() for name, each in self.tensors_for(x).items()}
        return is_checkpointed(lambda: self._with_a_graph(x, tensors))

    def around_backward(self, x: AnyInputs) -> Iterator[tuple[str, Tensor, Tensor]]:
        """The output and its gradient, which is sent back: a copy, and what each holds after the backward pass."""
        tensors = {name: each.requires_grad_() for name, each in self.tensors_for(x).items()}
        output = self._with_a_graph(x, tensors)
        sent = moved(self.sent_back(x, x.cotangent), output)
        kept = [
            ("gradient of the output", sent.clone(), sent),
            ("output", output.detach().clone(), output.detach()),
        ]
        self.clock.call(torch.autograd.grad, output, [*tensors.values()], sent, allow_unused=True)
        yield from kept

    def recorded(self, x: AnyInputs) -> Tensor:
        """The output of a call whose tensors want gradients; one without where it has none."""
        require_gradients(self.declaration.gradients)
        tensors = {name: each.requires_grad_() for name, each in self.tensors_for(x).items()}
        return self.run(x, tensors).detach().to("cpu", copy=True)

    def as_seen(self, x: AnyInputs, gradient: Tensor) -> Tensor:
        """The gradient of a tensor in the order of axes in which laws see it."""
        return gradient

    def sent_back(self, x: AnyInputs, cotangent: Tensor) -> Tensor:
        """The cotangent; one that is contiguous is so in the order of axes that the subject has."""
        return cotangent

    @property
    def forward_only(self) -> str:
        """Why no call has gradients, as declared or as found; '' where some have."""
        return forward_only(declared=self.declaration.gradients, shown=self.carries_gradients)

    def _with_a_graph(self, x: AnyInputs, tensors: Mapping[str, Tensor]) -> Tensor:
        """The output. NotApplicable, or LawBroken where gradients are declared: it carries none."""
        require_gradients(self.declaration.gradients)
        output = self.run(x, tensors)
        asked = [name for name, each in tensors.items() if each.requires_grad]
        require_a_graph(
            output,
            declared=self.declaration.gradients,
            elsewhere=self.carries_gradients,
            of=asked,
            exact=lambda: map(self.exact_gradients(x, x.cotangent).get, asked),
        )
        return output

    def mapped(self, calls: Sequence[AnyInputs], axis: int) -> Tensor:
        """The outputs of calls that differ in their tensors only, by one call under torch.func.vmap.

        axis: along which the tensors of all calls are stacked; the outputs are along the first.
        NotApplicable: it refuses.
        """
        each = [self.tensors_for(call) for call in calls]
        stacks = {name: torch.stack([tensors[name] for tensors in each], dim=axis) for name in each[0]}
        try:
            with torch.no_grad():
                outputs: Tensor = torch.func.vmap(partial(self.run, calls[0]), in_dims=axis)(stacks)
        except SubjectRaised as refusal:
            raise NotApplicable(f"refuses torch.func.vmap: {refusal}") from refusal
        return outputs

    # What it should give

    def expected(self, x: AnyInputs) -> Tensor:
        """The right answer, in float64."""
        return self.exact(x, {name: each.double() for name, each in x.tensors.items()})

    @torch.enable_grad()  # A call before may have left them off, which another law tells.
    def exact_gradients(self, x: AnyInputs, cotangent: Tensor) -> dict[str, Tensor]:
        """The gradients of the reference, in float64."""
        tensors = {name: each.double().requires_grad_() for name, each in x.tensors.items()}
        found = torch.autograd.grad(
            self.exact(x, tensors), [*tensors.values()], cotangent.double(), materialize_grads=True
        )
        return dict(zip(tensors, found, strict=True))

    def is_right(self, x: AnyInputs) -> bool:
        """Whether a call is answered, and within the rounding of its arithmetic."""
        try:
            return not self.against_the_oracle(x).broken
        except (LawBroken, NotApplicable):
            return False
