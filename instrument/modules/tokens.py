"""What roles whose modules read tokens have in common: tables, masks of what is padding, the length that fits."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from inspect import Parameter
from itertools import chain, product
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from headcheck.comparison import Comparison, LawBroken, NotApplicable, within
from headcheck.declarations import Declaration
from headcheck.errors import SubjectError
from headcheck.modules.lengths import Cropped, OfSomeLength
from headcheck.modules.masks import (
    CAUSAL,
    CAUSAL_ALONE,
    RANKS,
    SIDES,
    SQUARE,
    DeclaredKind,
    MaskForm,
    forms_to_try,
    tried_with,
)
from headcheck.modules.noise import measured
from headcheck.modules.own_causal import OwnCausal, taken_forms
from headcheck.modules.returned import tensor_in
from headcheck.modules.stacks import Stacked
from headcheck.modules.subject import AnyInputs, problem_of
from headcheck.signatures import parameters_of

FOUND = {"table", "_read"}
"""What is found out once, and holds parts of a module."""
PAD_NAMES = ("trg_pad_idx", "tgt_pad_idx", "src_pad_idx", "pad_idx", "pad_token_id", "pad_id")
"""Attributes of modules that say which token is padding."""


def beside(side: str) -> str:
    """On which side padding stands, in words, with what declares that it never stands on the left."""
    return f"on the {side}" + (
        " (where none is meant to stand there, declare padding=right)" if side == "left" else ""
    )


def missing_tokens(rows: int, length: int, generator: torch.Generator) -> Tensor:
    """How many tokens (rows,) each row of a batch lacks, at most three, and all but one: in any order.

    Most orders of four lengths are not put back by the order that sorted them, in either direction; all of two are.
    """
    most = min(4, length)
    return torch.randperm(max(rows, most), generator=generator)[:rows] % most


def ends_of(vocab: int, rows: int, seed: int) -> Tensor:
    """(rows,): tokens by turns of the first three, the last one and any one: those that a program has a meaning for."""
    some = [0, min(1, vocab - 1), min(2, vocab - 1), vocab - 1, seed % vocab]
    return torch.tensor([some[(seed + row) % len(some)] for row in range(rows)])


def exchanged(tokens: Tensor, first: int, second: int) -> Tensor:
    """The tokens (batch, length), two of them in each other's place."""
    order = torch.arange(tokens.shape[1])
    order[first], order[second] = second, first
    return tokens[:, order]


def two_places(seed: int, length: int, behind: int) -> tuple[int, int]:
    """The places of two tokens, `behind` at least stand behind both.

    The first two, the last two, or two that are a power of two apart: where a table of positions begins anew, they have
    the same.
    """
    last = length - behind - 1
    if seed % 3 < 2:
        return (0, 1) if seed % 3 else (last - 1, last)
    return 0, 2 ** (last.bit_length() - 1)


UNDECLARED = {
    "fresh": "is not declared as fresh, as fresh=True says",
    "variants": "has one way of computing, as far as is declared",
}
"""What a subject lacks where the field of that name does not say that it has it."""


@dataclass(frozen=True)
class TokenDeclaration(Stacked):
    """The conventions of a module that reads tokens."""

    vocab: int | None = None
    """How many tokens there are; None: as many as the module's embedding and its logits have."""
    padding: tuple[str, ...] = SIDES
    """On which sides a batch may be padded, where the module takes a mask of it, or knows it by its token: right alone
    where positions count from the first token, padding or not."""
    pad_token: int | None = None
    """The token by which the module knows padding, where it takes no mask; it stands in no sequence."""
    true_means: Literal["real", "padding"] | None = None
    """What True says in a mask; None: padding where its name ends in key_padding_mask, as is found where it ends in
    padding_mask or pad_mask, otherwise real."""
    mask_rank: Literal[2, 3, 4] | None = None
    """How many axes a mask has: (batch, length) with axes of one between; None: as the module takes it."""
    mask_kind: DeclaredKind | None = None
    """What a mask is made of: booleans, the numbers 1 and 0, or numbers to be added; None: one of the first two."""
    max_length: int | None = None
    """The most tokens that a sequence may have; None: found by trying."""
    variants: Mapping[str, Callable[[Any], AbstractContextManager[object]]] = field(default_factory=dict)
    """Other ways in which the module computes the same: a name, and a context manager of the module that has it so."""
    fresh: bool = False
    """Whether the module is as it was made, before any training: one law speaks of the first loss."""

    EACH: ClassVar = {"padding": SIDES}

    def summary(self) -> dict[str, Any]:
        """As plain data: variants by their names."""
        plain = super().summary()
        return plain | ({"variants": list(self.variants)} if self.variants else {})


@dataclass
class Traced:
    """What came out of the embeddings in one call, in order, each a leaf of its own, and what they had read."""

    seen: list[Tensor] = field(default_factory=list)
    read: list[Any] = field(default_factory=list)

    def hook(self, module: nn.Module, given: Any, embedded: Tensor) -> Tensor:
        """To be registered as a forward hook."""
        self.seen.append(embedded.detach().requires_grad_())
        self.read.append(given[0] if given else None)
        return self.seen[-1].clone()  # A module may go on with it in place, which a leaf refuses.

    def of(self, tokens: Tensor) -> tuple[Tensor, bool] | None:
        """The last vectors of these tokens (batch, length), and whether they are (length, batch, width).

        Where a table read something made of them, those of their shape. None: there are none, or it cannot be told.
        """
        turned = tokens.t()
        if torch.equal(tokens, turned) and len(tokens) > 1:
            return None
        upright = [isinstance(each, Tensor) and torch.equal(each, tokens) for each in self.read]
        askew = [isinstance(each, Tensor) and torch.equal(each, turned) for each in self.read]
        shaped = [tuple(each.shape[:-1]) == tuple(tokens.shape) for each in self.seen]
        for found, is_turned in ((upright, False), (askew, True), (shaped, False)):
            if any(found):
                return next(
                    each for each, one in zip(self.seen[::-1], found[::-1], strict=True) if one
                ), is_turned
        return None


class TokenSubject(OfSomeLength, OwnCausal[AnyInputs]):
    """Laws see tokens and logits."""

    MASKS: ClassVar[tuple[str, ...]] = ()
    """The arguments that are masks of what is padding."""
    MAY_HOLD_CAUSAL: ClassVar[str] = ""
    """That of them which may hold the causal mask, too."""

    @property
    def with_causal(self) -> bool:
        """Whether that mask holds the causal one."""
        return False

    def __init__(self, declaration: Declaration, *, dtypes: tuple[str, ...], device: str = "cpu") -> None:
        super().__init__(declaration, dtypes=dtypes, device=device)
        self.max_length = self.declaration.max_length
        self.place_masks()
        self.unseen: int | None = None
        """The token that was found to be padding to the module, by what it changes."""
        asked = parameters_of(self.function) or {}
        self.required = frozenset(
            argument
            for argument, place in self.places.items()
            if place is not None and place in asked and asked[place].default is Parameter.empty
        )
        """The arguments that the module does not do without."""
        masks = [
            name
            for name, place in self.places.items()
            if place and (name == CAUSAL or name.endswith("is_real"))
        ]
        self.forms = {name: next(self._forms(name)) for name in masks}

    def unused(self) -> Self:
        """With the tables of its own module in place of those that were found in this one."""
        other = super().unused()
        if self.module is None or other.module is None:
            return other
        names = {id(part): name for name, part in self.module.named_modules()}
        parts = dict(other.module.named_modules())
        for found in FOUND & vars(self).keys():
            held = vars(self)[found]
            own = [
                parts.get(names.get(id(each), "")) for each in (held if isinstance(held, list) else [held])
            ]
            vars(other)[found] = own if isinstance(held, list) else own[0]
        return other

    @property
    def tables(self) -> list[nn.Embedding]:
        """The embeddings of the module."""
        parts = self.module.modules() if self.module is not None else ()
        return [each for each in parts if isinstance(each, nn.Embedding)]

    @property
    def pad(self) -> int | None:
        """The token that is padding to the module, and stands in no sequence of a case."""
        declared: int | None = self.declaration.pad_token
        return next(iter(self._marked), self.unseen) if declared is None else declared

    @cached_property
    def _marked(self) -> list[int]:
        """What its tables and its attributes say is padding."""
        said = (getattr(self.module, name, None) for name in PAD_NAMES)
        return [each for each in (*(table.padding_idx for table in self.tables), *said) if type(each) is int]

    def pad_notes(self) -> list[str]:
        """A note on a token that is padding to the module, where no mask is given and it is not declared."""
        pad = self.pad
        if pad is None or self.declaration.pad_token is not None or any(map(self.has, self.MASKS)):
            return []
        asked = f"with --declare pad_token={pad} the laws of padding are asked"
        return [f"token {pad} is taken for padding, and stands in no sequence; {asked}"]

    @property
    def sides(self) -> tuple[str, ...]:
        """On which sides a batch may be padded."""
        declared: tuple[str, ...] = self.declaration.padding
        return declared

    def lacks(self, feature: str) -> str | None:
        side, _, rest = feature.partition("_")
        if feature == self.MAY_HOLD_CAUSAL and self.with_causal and self.forms[feature].rank == min(SQUARE):
            return CAUSAL_ALONE
        if feature in self.MASKS and not self.sides:
            return f"{self.FEATURES[feature]}, as declared"
        if feature in self.MASKS and self.declaration.pad_token is not None:
            return None
        if feature == "pad" or feature in UNDECLARED:
            there = self.pad is not None if feature == "pad" else getattr(self.declaration, feature)
            return None if there else {**UNDECLARED, **self.FEATURES}[feature]
        if rest == "padding" and side in SIDES:
            absent = next((reason for mask in self.MASKS if (reason := self.lacks(mask))), None)
            return absent or (None if side in self.sides else self.FEATURES[feature])
        return super().lacks(feature)

    def mask(self, argument: str, is_real: Tensor | None) -> Tensor | None:
        """A mask in the form in which the module takes it, None where it takes none."""
        if is_real is None or not self.places[argument]:
            return None
        dtype: torch.dtype = getattr(torch, self.dtypes[0])
        return self.forms[argument].of(is_real, dtype).to(self.device).contiguous()

    def given(self, tokens: Tensor, is_real: Tensor | None = None) -> Tensor:
        """Tokens as the module gets them: those of a case skip the one that is padding. Contiguous, for `view`."""
        pad = self.pad
        if pad is not None:
            tokens = tokens + (tokens >= pad)
            tokens = tokens if is_real is None else torch.where(is_real, tokens, pad)
        return tokens.to(self.device).contiguous()

    def find_form(self, argument: str, padded: AnyInputs) -> list[str]:
        """The form of a mask is the first that the module takes. SubjectError: none, and it does not do without."""
        place = self.places[argument]
        if not place:
            return []
        calls = tried_with(self, padded, padded.but(**dict.fromkeys(self.MASKS)))
        for x, form in product(calls, self._forms(argument)):
            self.forms[argument] = form
            failed = form.problem(self, x, argument)
            if failed is None:
                return [f"{place} is given as {form}"]
        if argument in self.required:
            raise SubjectError(
                f"the module requires {place}, which works in no form that is tried ({failed}); "
                "declare mask_rank and mask_kind, or name a module around it"
            )
        self.places[argument] = None
        return [f"{place} is taken for no mask of padding ({failed}); declare mask_rank and mask_kind"]

    def _forms(self, argument: str) -> Iterator[MaskForm]:
        if argument == CAUSAL:
            return taken_forms()
        place = str(self.places[argument])
        others = [each for name, each in self.places.items() if each and name.endswith("is_real")]
        # One with more axes may be added to the scores.
        ranks = (2,) if place == "mask" and argument not in self.required else RANKS
        if argument == self.MAY_HOLD_CAUSAL and self.with_causal:
            ranks = SQUARE
        return forms_to_try(self.declaration, place, ranks, others)

    def form_what_is_required(self, plain: AnyInputs) -> bool:
        """Masks that are always given have the first forms in which a plain call works, if need be not all one form.

        Whether one works, or none is always given.
        """
        masks = [name for name in self.required if name in self.forms]
        forms_of = [[*self._forms(name)] for name in masks]
        for x in (plain, plain.picked(torch.arange(2))) if masks else ():
            for forms in chain(zip(*forms_of, strict=False), product(*forms_of)):
                self.forms.update(zip(masks, forms, strict=True))
                if problem_of(self, x) is None:
                    return True
        return not masks

    def logits_in(self, returned: Any, shape: tuple[int, ...]) -> Tensor:
        """The logits of a call, of which the first axes are known."""
        logits = tensor_in(returned, ("logits",))
        if tuple(logits.shape[:-1]) != shape:
            sizes = ", ".join(map(str, shape))
            wrong = f"logits have shape {tuple(logits.shape)}, expected ({sizes}, vocab)"
            if logits.ndim == len(shape) + 1 and logits.shape[-2] < shape[-1]:
                raise Cropped(wrong, logits.shape[-2])
            raise LawBroken(wrong)
        return logits

    def gradient_of_table(
        self,
        logits: Callable[[], Tensor],
        tables: list[nn.Embedding],
        tokens: Tensor,
        cotangent: Tensor,
    ) -> Tensor:
        """Of the logits, weighed by `cotangent`, with respect to the vector of each of these tokens (batch, length)."""
        traced = Traced()
        handles = [table.register_forward_hook(traced.hook) for table in tables]
        try:
            found = logits()
        finally:
            for handle in handles:
                handle.remove()
        vectors = traced.of(tokens)
        if vectors is None or not found.requires_grad:
            raise NotApplicable("the embedding gives no vector for each token, or carries no gradient")
        gradient: Tensor
        (gradient,) = self.clock.call(
            torch.autograd.grad, found, [vectors[0]], cotangent.to(found), materialize_grads=True
        )
        return (gradient.transpose(0, 1) if vectors[1] else gradient).cpu()

    def by_variants(self, call: Callable[[], Tensor]) -> Iterator[Comparison]:
        """What `call` gives, by each variant of the module against the module as it is, but for the noise of both."""
        plain, noise = call(), self.noise_of(call)
        for name, variant in self.declaration.variants.items():
            with variant(self.function):
                yield within(call(), plain, noise + self.noise_of(call), f"logits by {name}")

    def noise_of(self, call: Callable[[], Tensor]) -> float:
        """The largest difference in what `call` gives that rounding explains."""
        return measured(call, self.weights(), self.module).bound


def other_tokens(tokens: Tensor, vocab: int, generator: torch.Generator) -> Tensor:
    """Tokens of the same shape that differ from these everywhere."""
    if vocab < 2:
        raise NotApplicable("there is one token only")
    return (tokens + torch.randint(1, vocab, tokens.shape, generator=generator)) % vocab
