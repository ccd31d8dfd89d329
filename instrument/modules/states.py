"""What the roles `encoder` and `decoder` share: modules from states (batch, length, d_model) to states."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar, Literal, Self, TypeVar

import torch
from torch import Tensor, nn

from headcheck.calling import SubjectRaised, is_refused
from headcheck.comparison import Failure, LawBroken, NotApplicable
from headcheck.declarations import Declaration
from headcheck.errors import SubjectError
from headcheck.modules.lengths import OfSomeLength
from headcheck.modules.masks import CAUSAL, ROWS, SIDES, DeclaredKind, MaskForm, forms_to_try, tried_with
from headcheck.modules.own_causal import OwnCausal, taken_forms
from headcheck.modules.returned import tensor_in
from headcheck.modules.stacks import Stacked
from headcheck.modules.subject import ModuleCase, ModuleInputs, problem_of
from headcheck.modules.weights import NormCall, norms_of, norms_watched, widths_of
from headcheck.recipes import option

STATES = ("encoder", "decoder")
"""The roles that share the laws of properties/states."""
NAMES = ("last_hidden_state",)
FLAGS = ("norm_first", "normalize_before", "pre_norm", "prenorm")
"""Attributes by which modules say that their norms come first."""
OF_PADDING = ("is_real", "padding_mask", "pad_mask")
"""Endings of the names of arguments that can be nothing but a mask of padding."""
OF_ONE_FORM = ("is_real", "key_padding_mask")
"""Those of them that are (batch, length) everywhere: what raises with one is a slip, if it is no refusal."""
LONGEST = 48


@dataclass(frozen=True)
class States(Stacked):
    """A module from states to states with its conventions.

    function: the module, a function without parameters that makes one, or the canonical call itself.
    """

    d_model: int | None = None
    """How wide a state is; None: as its norms, attentions and linear layers have it."""
    batch_first: bool | None = None
    """Whether states are (batch, length, d_model), or (length, batch, d_model); None: as torch's own modules
    say of themselves, and True for any other. Masks are (batch, length) in either case."""
    true_means: Literal["real", "padding"] | None = None
    """What True says in a mask; None: padding where its name ends in key_padding_mask, as is found where it ends in
    padding_mask or pad_mask, otherwise real."""
    mask_rank: Literal[2, 3, 4] | None = None
    """How many axes a mask has: (batch, length) with axes of one between; None: as the module takes it."""
    mask_kind: DeclaredKind | None = None
    """What a mask is made of: booleans, the numbers 1 and 0, or numbers to be added; None: one of the first two."""
    padding: tuple[str, ...] = SIDES
    """On which sides a sequence may be padded, where the module takes a mask."""
    empty_rows: bool = True
    """Whether a batch may hold a sequence of nothing but padding."""
    nan_in_padding: bool = False
    """Whether NaN in padding is kept from the other states; 0 x NaN leaks in most."""
    positions: bool = False
    """Whether the module itself has positions, so that the order of its input counts."""
    max_length: int | None = None
    """The most states that a sequence may have; None: any, but for what plain calls refuse in so many words."""
    full_context: bool = True
    """Whether every state has an influence on those that may see it: not so in a window."""
    skip_path: bool = True
    """Whether states are carried past all that has weights: not so where a projection comes first, as in ALBERT."""
    norm_order: Literal["pre", "post"] | None = None
    """pre: x + f(norm(x)). post: norm(x + f(x)). None: as an attribute such as norm_first says, if there is one."""

    EACH: ClassVar = {"padding": SIDES}


@dataclass(frozen=True)
class StatesCase(ModuleCase):
    """A batch of sequences of states, with padding or without."""

    SIZES: ClassVar[tuple[str, ...]] = ("batch", "length")

    length: int = option(2, 1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 17, 33, rarely=(LONGEST,))
    padding: str = option("none", "none", "right", "left")
    """On which side the shorter sequences are padded."""
    spread: float = option(1.0, 1.0, 1.0, 0.1, 10.0)
    """The standard deviation of the numbers."""
    split: int = option(1, 1, 2, 3, 4, 7)
    """Where a sequence is cut, for laws that cut it."""


@dataclass(frozen=True, eq=False)
class StateInputs(ModuleInputs):
    """x (batch, length, d_model); is_real (batch, length) or None, True at what is no padding."""

    x: Tensor
    is_real: Tensor | None = None

    @property
    def length(self) -> int:
        return self.x.shape[1]

    @property
    def real(self) -> Tensor:
        """Which states are real, as a tensor in any case."""
        everywhere = torch.ones(self.x.shape[:2], dtype=torch.bool)
        return everywhere if self.is_real is None else self.is_real

    @property
    def cut(self) -> int:
        """A place inside the sequence: a state stands before it and, where there are two, one behind it."""
        return max(1, min(int(self.case.split), self.length - 1))

    def noise(self, purpose: str, like: Tensor) -> Tensor:
        """Normal numbers of the shape of a tensor, spread as those of the case."""
        drawn = torch.randn(like.shape, generator=self.generator(purpose), dtype=torch.float64)
        return (float(self.case.spread) * drawn).to(like)

    def replaced(self, at: Tensor | int | slice, purpose: str = "other") -> Self:
        """Other states at some places of each sequence."""
        other = self.x.clone()
        other[:, at] = self.noise(purpose, self.x)[:, at]
        return self.but(x=other)

    def padded(self, filling: Tensor, side: str) -> Self:
        """The sequences with `filling` (batch, more, d_model) beside them, which is padding."""
        more = torch.zeros(filling.shape[:2], dtype=torch.bool)
        states, real = [self.x, filling], [self.real, more]
        order = slice(None) if side == "right" else slice(None, None, -1)
        return self.but(x=torch.cat(states[order], dim=1), is_real=torch.cat(real[order], dim=1))


AnyCase = TypeVar("AnyCase", bound=StatesCase)
AnyStates = TypeVar("AnyStates", bound=StateInputs)


class StatesSubject(OfSomeLength, OwnCausal[AnyStates]):
    """Laws see states; what a module gives at padding is nobody's concern and stands as zeros."""

    FEATURES: ClassVar = {
        "is_real": "takes no mask of what is padding",
        "left_padding": "is not padded on the left",
        "right_padding": "is not padded on the right",
        "no_mask": "is given a mask in every call",
        "empty_rows": "takes no sequence of nothing but padding",
        "nan_in_padding": "lets NaN through from padding",
        "positions": "has no positions of its own",
        "no_positions": "has positions",
        "full_context": "does not see the whole sequence",
        "skip_path": "has no path past its weights",
        "weights": "is no module whose weights could be set",
        "pre_norm": "does not say where its norms stand; declare norm_order",
        "post_norm": "does not say where its norms stand; declare norm_order",
    }
    TORCH: ClassVar[tuple[type[nn.Module], ...]] = ()
    """torch's modules of this role: they say themselves whether the batch comes first."""

    def __init__(self, declaration: Declaration, *, dtypes: tuple[str, ...], device: str = "cpu") -> None:
        super().__init__(declaration, dtypes=dtypes, device=device)
        self.place_masks()
        self.forms = {name: self._first_form(name) for name, place in self.places.items() if place}
        self.always: frozenset[str] = frozenset()
        """The masks that are given in every call, hiding nothing where nothing is hidden: None does not work."""
        self.max_length = self.declaration.max_length
        self.d_model = self._width()

    @property
    def dtype(self) -> torch.dtype:
        found: torch.dtype = getattr(torch, self.dtypes[0])
        return found

    @property
    def batch_first(self) -> bool:
        declared: bool | None = self.declaration.batch_first
        if declared is not None or not isinstance(self.module, self.TORCH):
            return declared is not False
        said = (each.batch_first for each in self.parts() if isinstance(each, nn.MultiheadAttention))
        return next(said, True)

    @property
    def norm_order(self) -> str | None:
        """pre or post: as declared, or as the module's own attributes say; None if nothing does."""
        if self.declaration.norm_order is not None:
            declared: str = self.declaration.norm_order
            return declared
        for part in self.parts():
            said = getattr(part, "norm_order", None)
            if said in ("pre", "post"):
                return str(said)
            flags = [flag for name in FLAGS if isinstance(flag := getattr(part, name, None), bool)]
            if flags:
                return "pre" if flags[0] else "post"
        return None

    def parts(self) -> list[nn.Module]:
        """The module and all that is in it; nothing where the subject is a function."""
        return list(self.module.modules()) if self.module is not None else []

    def lacks(self, feature: str) -> str | None:
        side, _, rest = feature.partition("_")
        absent = self.FEATURES.get(feature, "")
        if rest == "padding" and side in SIDES:
            by_length = side == "left" and getattr(self.forms.get("is_real"), "kind", "") == "lengths"
            taken = side in self.declaration.padding and not by_length
            return self.lacks("is_real") or (None if taken else absent)
        if feature == "empty_rows" and self.lacks("is_real"):
            return self.lacks("is_real")
        if feature == "no_positions":
            return f"{absent}, as declared" if self.declaration.positions else None
        if feature in (gone := {"weights": self.module is None, "no_mask": "is_real" in self.always}):
            return absent if gone[feature] else None
        if feature in ("pre_norm", "post_norm"):
            known = f"is {self.norm_order}-norm" if self.norm_order else absent
            return self.lacks("weights") or (None if self.norm_order == side else known)
        return super().lacks(feature)

    def masked(self, name: str, is_real: Tensor | None, states: Tensor) -> Tensor | None:
        """A mask in the form in which the module takes it, of what is padding in states (batch, length, d_model)."""
        if is_real is None and name in self.always:
            is_real = torch.ones(states.shape[:2], dtype=torch.bool)
        if is_real is None or self.places[name] is None:
            return None
        return self.forms[name].of(is_real, self.dtype).to(self.device).contiguous()

    def arranged(self, states: Tensor) -> Tensor:
        """States as the module takes them, in its dtype, with its order of axes, and contiguous, so that view works."""
        states = states.to(self.device, self.dtype)
        return (states if self.batch_first else states.transpose(0, 1)).contiguous()

    def call(self, *arguments: Any, plain: Mapping[str, Any] | None = None, **masks: Any) -> Any:
        """One call; a mask that is None is left out, or given as None where the module asks for it.

        plain: further arguments, by the names by which the module takes them.
        """
        keywords = {
            str(place): masks[name]
            for name, place in self.places.items()
            if place and (masks[name] is not None or str(place) in self.needed)
        }
        return self.called(*arguments, **keywords, **(plain or {}))

    def states_in(self, returned: Any, x: AnyStates) -> Tensor:
        """The states (batch, length, d_model) that the module returned, zeros at padding."""
        states = tensor_in(returned, NAMES)
        expected = tuple(self.arranged(x.x).shape)
        if tuple(states.shape) != expected:
            raise LawBroken(f"states have shape {tuple(states.shape)}, expected {expected}")
        states = states if self.batch_first else states.transpose(0, 1)
        return torch.where(x.real[..., None].to(states.device), states, 0.0)

    def output_as_returned(self, x: AnyStates) -> tuple[Tensor, Tensor]:
        """The output, gradients wanted, and the states as the module returned them: the output is zeros at padding."""
        assert self.module is not None
        returned: list[Tensor] = []
        keep = self.module.register_forward_hook(lambda *call: returned.append(tensor_in(call[-1], NAMES)))
        try:
            with torch.enable_grad():
                return self.output(x), returned[0]
        finally:
            keep.remove()

    def norm_calls(self, x: AnyStates) -> tuple[list[NormCall], Tensor]:
        """The calls of the norms of states, and the output; a fused path, which skips them, is not taken."""
        assert self.module is not None
        if not norms_of(self.module):
            raise NotApplicable("it has no norm that is a module, by the name of its class")
        with norms_watched(self.module) as calls:
            _, returned = self.output_as_returned(x)
        if returned.isnan().any():
            raise NotApplicable("the output is NaN where its norms are watched")
        of_states = [each for each in calls if each.given.shape == returned.shape]
        of_parts = [each for each in calls if _is_a_part(each.given, returned)]
        often = len({id(each.norm) for each in of_parts}) < len(of_parts)
        if (calls and not of_states) or often:
            raise NotApplicable("its norms are given parts of the states, such as one token at a time")
        return of_states, returned

    def gradient(self, x: AnyStates, keep: Tensor, of: str = "x") -> Tensor:
        """Of a random combination of the states at `keep` (batch, length), with respect to the input `of`."""
        leaf = getattr(x, of).detach().clone().to(self.device, self.dtype).requires_grad_()
        states = self.output(x.but(**{of: leaf}))
        self.require_a_graph(states)
        cotangent = torch.randn(states.shape, generator=x.generator("cotangent"), dtype=torch.float64)
        kept = torch.where(keep[..., None], cotangent, 0.0).to(states)
        (found,) = self.clock.call(torch.autograd.grad, states, [leaf], kept, materialize_grads=True)
        gradient: Tensor = found.cpu()
        return gradient

    def find_forms(self, name: str, *calls: AnyStates) -> Iterator[str]:
        """The form of a mask is the first that the module takes in one of these calls; a note on it.

        Several calls are for a module that takes the mask at some lengths only, which is for laws to judge.
        """
        keyword = self.places[name]
        if keyword is None:
            return
        problems: list[Failure] = []
        tried = [each for x in calls for each in tried_with(self, x, x.but(**{name: None}))]
        for x, form in product(tried, self._forms(name)):
            self.forms[name] = form
            problem = form.problem(self, x, name)
            if problem is None:
                yield f"{keyword} is given as {form}{', in every call' if name in self.always else ''}"
                return
            problems.append(problem)
        if keyword.endswith(OF_PADDING) and any(self._answers(name, x) for x in calls):
            yield f"{keyword} is given as {self.forms[name]}, with which the output is of a wrong form"
            return
        if keyword.endswith(OF_ONE_FORM) and not any(map(is_refused, problems)):
            self.forms[name] = self._first_form(name)
            yield f"{keyword} is given as {self.forms[name]}, with which each call raises: {problem}"
            return
        if name in self.declaration.arguments or self.declaration.mask_rank or name in self.always:
            raise SubjectError(f"the mask {keyword} does not work ({problem})")
        self.places[name] = None
        self.left_at_none |= {keyword: None} if keyword in self.needed else {}
        yield f"{keyword} is taken for no mask of padding ({problem}); declare mask_rank and mask_kind"

    def _answers(self, name: str, x: AnyStates) -> bool:
        """Whether some form of a mask raises nothing; the first such form is left in place, for laws to judge."""
        for form in self._forms(name):
            self.forms[name] = form
            try:
                self(x)
            except SubjectRaised:
                continue
            except LawBroken:
                return True
        return False

    def _forms(self, name: str) -> Iterator[MaskForm]:
        return taken_forms() if name == CAUSAL else forms_to_try(self.declaration, str(self.places[name]))

    def _first_form(self, name: str) -> MaskForm:
        return next(self._forms(name))

    def _width(self) -> int:
        """As declared, or the first of the widths in the module that works."""
        if self.declaration.d_model is not None:
            declared: int = self.declaration.d_model
            self._settle_masks(self.plain(2, 3, declared))
            return declared
        found = widths_of(self.parts())
        failures = []
        for width in found:
            failures.append(self._settle_masks(self.plain(2, 3, width)))
            if failures[-1] is None:
                return width
        if found and (asked := self._asked):
            places = " and ".join(str(self.places[name]) for name in asked)
            missing = "required positional" in str(failures[0])
            raise SubjectError(
                f"the module requires {places}, and no plain call works in any form that is tried ({failures[0]}); name "
                f"a module around it, {'that gives them' if missing else 'or declare mask_rank and mask_kind'}"
            )
        if not found:
            raise SubjectError(
                "how wide a state is is not known: --declare d_model=N, or, where tokens are read, put a module "
                "around it that is given states (docs/adapting.md)"
            )
        return found[0]

    @property
    def _asked(self) -> list[str]:
        """The masks that the module asks for."""
        return [name for name in self.forms if self.places[name] in self.needed]

    def _settle_masks(self, x: AnyStates) -> Failure | None:
        """Settle the forms of the masks that are asked for, where None will not do; why no plain call works, or None."""
        problem, asked = problem_of(self, x), self._asked
        if problem is None or not asked:
            return problem
        self.always = frozenset(asked)
        # Two sequences may be as many as there are heads, along which a mask would be broadcast.
        for call in (self.plain(ROWS, x.length, x.x.shape[-1]), x):
            for forms in product(*(self._forms(name) for name in asked)):
                self.forms.update(zip(asked, forms, strict=True))
                problem = problem_of(self, call)
                if problem is None:
                    return None
        self.always = frozenset()
        self.forms.update((name, self._first_form(name)) for name in asked)
        return problem

    def plain(self, batch: int, length: int, width: int) -> AnyStates:
        """A plain call of that size."""
        raise NotImplementedError


def _is_a_part(given: Tensor, states: Tensor) -> bool:
    """Whether it may be some of the states: as wide, and fewer."""
    return given.shape[-1] == states.shape[-1] and 0 < given.numel() < states.numel()
