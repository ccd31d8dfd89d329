"""A module of multi-head attention made for a case, and given its weights."""

import copy
import inspect
from functools import cached_property
from itertools import product
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from headcheck.calling import REFUSALS, SubjectRaised, kind_of, refused_on_purpose
from headcheck.comparison import LawBroken, NotApplicable
from headcheck.errors import SubjectError
from headcheck.modules.copying import copy_of, in_format
from headcheck.modules.masks import COUNTS
from headcheck.modules.multi_head.cases import MultiHeadCase, MultiHeadInputs
from headcheck.modules.multi_head.conventions import MultiHeadAttention
from headcheck.modules.multi_head.projections import Layout, Place, fits, found_projections
from headcheck.modules.subject import ModuleSubject, constructed
from headcheck.signatures import parameters_of

D_MODEL = (
    *("d_model", "embed_dim", "dim", "hidden_size", "n_embd", "emb_dim", "embedding_dim", "model_dim"),
    *("n_feat", "n_state", "n_embed", "embed_size", "hidden_dim", "num_hiddens", "model_size", "dim_model"),
)
NUM_HEADS = (
    *("num_heads", "n_heads", "nhead", "n_head", "heads", "h", "num_attention_heads", "head_num"),
    *("nheads", "num_head", "nb_heads", "attention_heads", "n_attn_heads"),
)
TRIED = (4, 2), (16, 2), (64, 4), (512, 8)
"""d_model and num_heads of the module that is looked at to begin with: the first that are not refused."""
MULTIPLES = 2, 4, 8, 16, 32, 64
"""Of what the head dims are that most makers take which refuse some."""


class WeightedModule(ModuleSubject[MultiHeadInputs]):
    """The module of the case at hand; what is called and compared stands in `subject`."""

    def __init__(
        self, declaration: MultiHeadAttention, *, dtypes: tuple[str, ...], device: str = "cpu"
    ) -> None:
        self.maker: Any = None
        self._made: dict[tuple[int, int], str] = {}
        super().__init__(declaration, dtypes=dtypes, device=device)
        self.places = {name: self._keyword(name) for name in self.places}
        if self.places["key_mask"] in (None, self.places["lengths"]):
            self.places["key_mask"], self.places["lengths"] = self.places["lengths"], None
        self._pristine = self.module
        self._begun: MultiHeadInputs | None = None
        self._loaded: dict[str, Tensor] | None = None
        self._places: dict[str, Place] | None = None
        self._key_rows: dict[tuple[int, int], int] = {}
        self.layouts = self._layouts()
        self.layout = self.layouts[0]

    def _layouts(self) -> list[Layout]:
        """The layouts that are declared, or that the shapes of the weights leave open."""
        declared = self.declaration
        fused = [declared.fused] if declared.fused else ["by-part", "by-head"]
        bare = [declared.bare] if declared.bare else ["in-out", "out-in"]
        layouts = [Layout(*both) for both in product(fused, bare)]
        if declared.load is not None or self._pristine is None:
            return layouts[:1]
        heads = self.heads or declared.num_heads or TRIED[0][1]
        return [each for each in layouts if fits(self._pristine, heads, each)] or layouts[:1]

    def _keyword(self, argument: str) -> str | None:
        """How an argument is called: as declared, or by a name that the module's own signature has."""
        target = self.module.forward if self.module is not None else self.function
        takes, names = parameters_of(target) or {}, self.declaration.ARGUMENTS[argument]
        declared: str | None = self.declaration.arguments.get(argument)
        return declared or next((name for name in names if name in takes), None)

    def made(self, given: Any) -> Any:
        """The module itself, or one of small sizes made by what was given."""
        takes = parameters_of(given) or {}
        sizes = any(
            each.default is each.empty or name in (*D_MODEL, *NUM_HEADS) for name, each in takes.items()
        )
        if isinstance(given, nn.Module) or not sizes:
            return super().made(given)
        self.maker = given
        declared = self.declaration.d_model, self.declaration.num_heads
        tried = [(declared[0] or d_model, declared[1] or num_heads) for d_model, num_heads in TRIED]
        d_model, num_heads = next((each for each in tried if self._is_made(*each)), tried[0])
        return constructed(given, f"{d_model}, {num_heads}", lambda: self._new(d_model, num_heads))

    def newly_made(self, seed: int = 0) -> Self:
        """The same subject, whose next call is made with a module straight from its maker."""
        if self.maker is None:
            raise NotApplicable("it is given made: laws have a copy of it")
        other = copy.copy(self)
        other._loaded = other._places = None  # noqa: SLF001  # of the same class
        return other

    def in_float32(self) -> Self:
        other = super().in_float32()
        other._pristine, other._loaded, other._places = other.module, None, None  # noqa: SLF001  # of the same class
        return other

    def _new(self, d_model: int, num_heads: int) -> nn.Module:
        named = sizes_by_name(self.maker, d_model, num_heads)
        with torch.random.fork_rng([]):
            torch.default_generator.manual_seed(0)
            given = () if named else (d_model, num_heads)
            made = self.clock.call(self.maker, *given, **named)
            if not isinstance(made, nn.Module):
                raise LawBroken(f"(d_model, num_heads) gave {kind_of(made)}, expected a module")
            self._initialise(made.eval(), d_model)
        return in_format(made, self.device, getattr(torch, self.dtypes[0]))

    def _initialise(self, module: nn.Module, d_model: int) -> None:
        """Give lazy layers their weights, as the first call does. SubjectError: it raises."""
        if not any(map(is_lazy, module.parameters())):
            return
        names, takes = self.declaration.ARGUMENTS, parameters_of(module.forward) or {}
        known = {*names["key"], *names["value"], *self.declaration.arguments.values()}
        given = [name for number, name in enumerate(takes) if number == 0 or name in known]
        needed = [name for name in given if takes[name].default is inspect.Parameter.empty]
        with torch.no_grad():
            try:
                self.clock.call(module, *[torch.zeros(1, 1, d_model)] * len(needed))
            except SubjectRaised as raised:
                raise SubjectError(
                    f"its lazy layers have no weights before the first call, and that {raised}; name a function "
                    "of (d_model, num_heads) that makes the module and calls it once under torch.no_grad()"
                ) from raised

    def _sized(self, d_model: int, num_heads: int) -> nn.Module:
        """A module of these sizes. NotApplicable: its maker refuses them, as it may."""
        try:
            return self._new(d_model, num_heads)
        except SubjectRaised as raised:
            problems = [each for each in (raised.problem, raised.problem.__cause__) if each is not None]
            if not any(isinstance(each, REFUSALS) or refused_on_purpose(each) for each in problems):
                raise
            sizes = f"d_model = {d_model}, num_heads = {num_heads}"
            raise NotApplicable(f"is not made with {sizes}: {raised}") from raised

    def _is_made(self, d_model: int, num_heads: int) -> bool:
        """Whether the maker does not refuse these sizes, and makes a module with all projections: a single head may do
        without the last.
        """
        sizes = d_model, num_heads
        if sizes not in self._made:
            self._made[sizes] = ""
            try:
                module = self._sized(*sizes)
                if self.declaration.load is None:
                    found_projections(module, num_heads, Layout())
            except NotApplicable as refused:
                self._made[sizes] = str(refused)
            except SubjectError as problem:
                why = str(problem).partition(";")[0]
                self._made[sizes] = f"is not judged with d_model = {d_model}, num_heads = {num_heads}: {why}"
            except LawBroken:
                pass  # No refusal, and for laws to tell.
        return not self._made[sizes]

    def made_near(self, heads: int, head_dim: int) -> tuple[int, int]:
        """Heads and head_dim, or the next ones up that the maker does not refuse; themselves where it refuses all."""
        if self.maker is None:
            return heads, head_dim
        of_heads, of_dims = (
            dict.fromkeys([size, *(-(-size // multiple) * multiple for multiple in MULTIPLES)])
            for size in (heads, head_dim)
        )
        near = ((h, d) for h in of_heads for d in of_dims if self._is_made(h * d, h))
        return next(near, (heads, head_dim))

    def refused_sizes(self) -> list[str]:
        """A note of the first sizes that the maker refused, if any."""
        return [f"it {why}; others are tried" for why in self._made.values() if why][:1]

    def of_sizes(self, d_model: int, num_heads: int, x: MultiHeadInputs) -> Self:
        """The same subject with a module of these sizes, which has its own weights in calls with those of `x`."""
        other = copy.copy(self)
        other.module = other.function = self._new(d_model, num_heads)
        other._loaded, other._places = x.weights, None  # noqa: SLF001  # of the same class
        return other

    @cached_property
    def heads(self) -> int | None:
        """How many heads there are, where that is fixed: declared, or an attribute of a module that was given."""
        declared: int | None = self.declaration.num_heads
        if declared is not None or self.maker is not None:
            return declared
        for name in NUM_HEADS:
            if type(value := getattr(self._pristine, name, None)) is int:
                return value
        raise SubjectError("how many heads the module has is not known: --declare num_heads=N")

    @cached_property
    def d_model(self) -> int | None:
        """The width, where it is fixed: declared, or the length of a row of w_q in a module that was given."""
        declared: int | None = self.declaration.d_model
        if declared is not None or self.maker is not None:
            return declared
        if self.declaration.load is not None:
            raise SubjectError("with load the width is not known: --declare d_model=N")
        assert self._pristine is not None
        w_q = found_projections(self._pristine, self.heads or 1, self.layout)["w_q"]
        return w_q.read(lambda parameter: parameter.detach()).shape[-1]

    def begin(self, x: MultiHeadInputs) -> None:
        """These inputs, and all that laws make of them, are given to a module of their own."""
        self._begun, self._loaded, self._places = x, None, None

    @property
    def counts_keys(self) -> bool:
        """Whether it is told how many keys of each sequence are real, and not which."""
        return self.places["key_mask"] in COUNTS

    def anchor(self, case: MultiHeadCase) -> int:
        """A key that every query of a case sees."""
        first = self.declaration.causal or self.counts_keys or case.mask in ("causal", "banded")
        return 0 if first else case.seed % case.kv_len

    def _ready(self, x: MultiHeadInputs) -> None:
        """The module of the case, holding the weights of these inputs."""
        if self._loaded is None:
            case: MultiHeadCase = x.case
            fresh = self._sized(case.d_model, case.heads) if self.maker else copy_of(self._pristine)
            self.module = self.function = fresh
        if self._loaded is x.weights:
            return
        with torch.no_grad():
            if self.declaration.load is not None:
                self._load(x)
            else:
                for name, place in self.places_of(x.heads).items():
                    place.write(x.weights[name].to(self.device))
        self._loaded = x.weights

    def _load(self, x: MultiHeadInputs) -> None:
        """Give the weights to the function that is declared to put them in their places."""
        try:
            self.clock.call(self.declaration.load, self.module, dict(x.weights))
        except SubjectRaised as raised:
            sizes = f"{x.heads} heads, {x.kv_heads} of key and value"
            cure = f"in the declared load, for {sizes}; kv_heads says how many those are"
            raise SubjectRaised(raised.problem, cure) from raised

    def places_of(self, heads: int) -> dict[str, Place]:
        """Where the module keeps its weights."""
        assert self.module is not None
        if self._places is None:
            self._places = found_projections(self.module, heads, self.layout)
        return self._places

    def shapes(self, case: MultiHeadCase) -> dict[str, tuple[int, ...]]:
        """The shapes of the canonical weights of a case."""
        narrow = self._kv_heads(case) * case.head_dim
        width = {"q": case.d_model, "k": narrow, "v": narrow, "o": case.d_model}
        shapes: dict[str, tuple[int, ...]] = {
            f"w_{letter}": (out, case.d_model) for letter, out in width.items()
        }
        return shapes | {
            f"b_{letter}": (out,) for letter, out in width.items() if f"b_{letter}" in self.biases
        }

    def _kv_heads(self, case: MultiHeadCase) -> int:
        declared: int | None = self.declaration.kv_heads
        if declared is not None or self.declaration.load is not None:
            return declared or case.heads
        sizes = case.d_model, case.heads
        if sizes not in self._key_rows:
            module = self._sized(*sizes) if self.maker else self._pristine
            assert module is not None
            place = found_projections(module, case.heads, self.layout)["w_k"]
            self._key_rows[sizes] = place.read(lambda parameter: parameter.detach()).shape[0]
        return self._key_rows[sizes] // case.head_dim

    @cached_property
    def biases(self) -> tuple[str, ...]:
        """The biases that there are."""
        if self.declaration.load is not None:
            return ("b_q", "b_k", "b_v", "b_o") if self.declaration.bias else ()
        assert self._pristine is not None
        heads = self.heads or TRIED[0][1]
        return tuple(name for name in found_projections(self._pristine, heads, Layout()) if name[0] == "b")


def sizes_by_name(maker: Any, d_model: int, num_heads: int) -> dict[str, int]:
    """The sizes by the names of a maker's parameters, where one of the two is known: the other is first of the rest."""
    takes = parameters_of(maker) or {}
    plain = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    names = [name for name, each in takes.items() if each.kind in plain]
    width, heads = (next((name for name in known if name in names), None) for known in (D_MODEL, NUM_HEADS))
    if width is None and heads is None:
        return {}
    rest = (name for name in names if name not in (width, heads))
    width, heads = width or next(rest, None), heads or next(rest, None)
    return {width: d_model, heads: num_heads} if width and heads else {}


def require_whole_heads(subject: WeightedModule) -> None:
    """SubjectError: the width of a module of one size is not its number of heads times a head_dim."""
    if subject.d_model and subject.heads and subject.d_model % subject.heads:
        raise SubjectError(f"d_model = {subject.d_model} is not num_heads = {subject.heads} times a head_dim")
