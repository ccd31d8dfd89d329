"""How a language model is given what it keeps of earlier tokens: as is declared, as its signature shows, as is found."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from headcheck.calling import SubjectRaised
from headcheck.comparison import LawBroken, NotApplicable
from headcheck.modules.returned import named_in
from headcheck.signatures import POSITIONAL, parameters_of

if TYPE_CHECKING:  # It imports this module.
    from headcheck.modules.causal_lm import CausalLMSubject, TokenInputs

Step = Callable[["CausalLMSubject", Tensor, Any, "Tensor | None"], tuple[Any, Any]]
"""(model, tokens, cache, is_real of all tokens so far) -> (what was returned, the cache with these tokens)."""
KEPT = (
    "past_key_values",
    "past_key_value",
    "past_kvs",
    "past_kv",
    "kv_caches",
    "kv_cache",
    "caches",
    "cache",
    "layer_past",
    "past",
)
"""Names of arguments that are given what a call before has returned of its keys and values."""
FLAGS = ("use_cache", "use_kv_cache", "return_cache", "return_kv_cache", "return_past")
"""Names of flags that ask for it."""
OTHER_LOGITS = "other logits"
OF_OTHER_THINGS = re.compile(
    "label|target|return|output|embed|train|drop|temperature|top_|token_type|segment|head_mask|loss|ignore|generator|eos"
)
"""What stands in the names of arguments that do not say where new tokens stand."""


def in_turn(model: CausalLMSubject, one: Tensor, two: Tensor, sizes: list[int]) -> tuple[Tensor, Tensor]:
    """The logits of two sequences (batch, length), each in pieces of these sizes, the pieces given in turn."""
    caches: list[Any] = [None, None]
    found: tuple[list[Tensor], list[Tensor]] = [], []
    seen = 0
    for pair in zip(torch.split(one, sizes, dim=1), torch.split(two, sizes, dim=1), strict=True):
        seen += pair[0].shape[1]
        for number, piece in enumerate(pair):
            real = model.all_real(len(piece), seen)
            logits, caches[number] = model.stepped(piece, caches[number], real)
            found[number].append(logits)
    return torch.cat(found[0], dim=1), torch.cat(found[1], dim=1)


def forked(model: CausalLMSubject, begun: Tensor, ways: list[Tensor]) -> list[Tensor]:
    """The logits of what follows one cache: of each way on, token by token, the ways in turn.

    begun (batch, length), ways (batch, as many as each other): tokens.
    """
    rows, length = begun.shape
    caches = [model.stepped(begun, None, model.all_real(rows, length))[1]] * len(ways)
    found: list[list[Tensor]] = [[] for _ in ways]
    for place in range(ways[0].shape[1]):
        for number, way in enumerate(ways):
            real = model.all_real(rows, length + place + 1)
            logits, caches[number] = model.stepped(way[:, place : place + 1], caches[number], real)
            found[number].append(logits)
    return [torch.cat(each, dim=1) for each in found]


def shown(model: CausalLMSubject) -> Step | None:
    """What is declared, or what the signature shows: new_cache() beside `cache`, or the names of transformers."""
    if model.declaration.step is not None:
        return _declared
    if model.module is None:
        return None
    if callable(getattr(model.module, "new_cache", None)) and model.places["cache"]:
        return _in_place
    named = all(
        name in model.declaration.arguments or model.places[name] == name
        for name in ("past_key_values", "use_cache")
    )
    return _returned if named else None


def masks_when_padded(model: CausalLMSubject) -> bool:
    """Whether steps may be given a mask of what is padding."""
    if isinstance(model.step, Found):
        return model.step.mask_of is not None
    declared = model.declaration.step
    return declared is None or len(parameters_of(declared) or ()) > MASK


MASK = 3
"""The place of the mask among the parameters of a declared step."""


def needs_a_mask(model: CausalLMSubject) -> bool:
    """Whether a declared step cannot do without one."""
    declared = model.declaration.step
    asked = [*(parameters_of(declared) or {}).values()][MASK : MASK + 1] if declared else []
    return any(each.default is each.empty and each.kind in POSITIONAL for each in asked)


@dataclass(frozen=True)
class Found:
    """A cache that the module returns last, or by name, and takes again; by names of its own."""

    mask_of: Literal["all", "new"] | None = None
    """Of which tokens a mask is, of all so far or of the new ones; None: no mask works beside a cache."""

    def __call__(
        self, model: CausalLMSubject, tokens: Tensor, cache: Any, is_real: Tensor | None
    ) -> tuple[Any, Any]:
        """One call. NotApplicable: several tokens after a cache, and it raises: one at a time may be meant."""
        new = tokens.shape[1]
        masks = model.masks(is_real, new)
        if self.mask_of == "new" and is_real is not None:
            masks["is_real"] = model.mask("is_real", is_real[:, -new:])
        asked = {"use_cache": True} if model.places["use_cache"] else {}
        try:
            returned = model.call(tokens, past_key_values=cache, **asked, **masks)
        except SubjectRaised as why:
            if cache is None or new == 1:
                raise
            raise NotApplicable(f"takes one token at a time after a cache, as is found: {why}") from why
        return returned, _kept_in(returned, str(model.places["past_key_values"]))


def find(model: CausalLMSubject, x: TokenInputs, padded: TokenInputs) -> list[str]:
    """Take what has the name of a cache for one, where two tokens and then one with it are right; a note on it.

    x, padded: sequences of three tokens, without and with padding on the left. A copy is asked: a module may keep what
    it counts in itself.
    """
    tried = model.unused()
    notes = _found(tried, x, padded)
    model.step = tried.step
    return notes


def _found(model: CausalLMSubject, x: TokenInputs, padded: TokenInputs) -> list[str]:
    place = model.places["past_key_values"]
    if model.step is not None or model.module is None or place is None:
        return []
    why = _wrong(model, x, Found())
    if why == OTHER_LOGITS and _is_called_in_no_other_way(model, x):
        return [f"{place} is judged as a cache that was returned last; declare step where it is another"]
    if why:
        told = ", and is where it is told position_ids" if _is_right_if_told(model, x) else ""
        model.step = None
        return [
            f"{place} is not judged: as a cache that was returned last, it is not right ({why}){told}; declare step"
        ]
    forms = [Found("all"), Found("new")] if model.has("left_padding") else []
    said = {form: _wrong(model, padded, form) for form in forms}
    # Where none is right, the first that gives logits is left in place, for laws to judge.
    right = [form for form in forms if not said[form]] or [
        form for form in forms if said[form] == OTHER_LOGITS
    ]
    model.step = next(iter(right), Found())
    return [f"{place} is taken for a cache that is returned last; declare step where it is another"]


def _wrong(model: CausalLMSubject, x: TokenInputs, step: Found) -> str:
    """Why two tokens and then one, with a cache in between, do not give what all at once do; '' if they do."""
    model.step = step
    real = slice(None) if x.is_real is None else x.is_real
    try:
        with_cache, at_once = model.in_steps(x, [2, 1])[real], model(x)[real]
        return OTHER_LOGITS if model.close(with_cache, at_once, x).broken else ""
    except (LawBroken, NotApplicable) as problem:
        return str(problem)


def _is_right_if_told(model: CausalLMSubject, x: TokenInputs) -> bool:
    """Whether a cache is right where the caller says at which positions new tokens stand."""
    if not model.places["position_ids"]:
        return False
    before, told = model.step, x.but(is_real=torch.ones_like(x.tokens, dtype=torch.bool))
    right = not all(_wrong(model, told, Found(of)) for of in ("all", "new"))
    model.step = before
    return right


def _is_called_in_no_other_way(model: CausalLMSubject, x: TokenInputs) -> bool:
    """Whether no parameter could say where new tokens stand, and giving all tokens again beside a cache is not right."""
    _, *others = parameters_of(model.function) or ("",)
    known = {
        model.places[name] for name in ("is_real", "targets", "past_key_values", "use_cache", "position_ids")
    }
    if not all(name in known or OF_OTHER_THINGS.search(name) for name in others):
        return False
    if _is_right_if_told(model, x):
        return False
    try:
        _, cache = Found()(model, model.given(x.tokens[:, :-1]), None, None)
        again, _ = Found()(model, model.given(x.tokens), cache, None)
        shape = tuple(x.tokens.shape)
        return bool(model.close(model.logits_in(again, shape), model(x), x).broken)
    except (LawBroken, NotApplicable):
        return True


def _kept_in(returned: Any, place: str) -> Any:
    """The cache in what was returned: under a name that says so, or the first in a tuple behind the logits that is no
    tensor, as a loss and states are, or else the last.
    """
    named = (named_in(returned, name) for name in (place, *KEPT))
    kept = next((each for each in named if each is not None), None)
    if kept is None and isinstance(returned, tuple | list) and len(returned) > 1:
        others = (each for each in returned[1:] if each is not None and not isinstance(each, Tensor))
        kept = next(others, returned[-1])
    if kept is None:
        raise LawBroken("no cache is returned")
    return kept


def _declared(model: CausalLMSubject, tokens: Tensor, cache: Any, is_real: Tensor | None) -> tuple[Any, Any]:
    masked = () if is_real is None else (is_real.to(model.device).contiguous(),)
    stepped: tuple[Any, Any] = model.clock.call(
        model.declaration.step, model.function, tokens, cache, *masked
    )
    return stepped


def _in_place(model: CausalLMSubject, tokens: Tensor, cache: Any, is_real: Tensor | None) -> tuple[Any, Any]:
    """A cache that the module makes and that grows; the mask is of the new tokens."""
    cache = model.function.new_cache() if cache is None else cache
    masks = model.masks(is_real, tokens.shape[1])
    if is_real is not None:
        masks["is_real"] = model.mask("is_real", is_real[:, -tokens.shape[1] :])
    return model.call(tokens, cache=cache, **masks), cache


def _returned(model: CausalLMSubject, tokens: Tensor, cache: Any, is_real: Tensor | None) -> tuple[Any, Any]:
    """A cache that comes back with the logits, as in transformers; the mask is of all tokens so far."""
    masks = model.masks(is_real, tokens.shape[1])
    returned = model.call(tokens, past_key_values=cache, use_cache=True, **masks)
    return returned, _kept_in(returned, "past_key_values")


@contextmanager
def positions_left_out(model: CausalLMSubject) -> Iterator[None]:
    """The model counts positions itself inside. NotApplicable: nobody else does, or it is always told."""
    told = model.places["position_ids"]
    if told is None:
        raise NotApplicable("is told no positions")
    if "position_ids" in model.required:
        raise NotApplicable("is always told positions")
    model.places["position_ids"] = None
    try:
        yield
    finally:
        model.places["position_ids"] = told
