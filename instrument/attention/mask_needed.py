"""A function whose mask cannot be None: where no mask is asked for, it is given one that hides nothing."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, wraps
from inspect import signature
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from headcheck.attention.forms import CANONICAL
from headcheck.attention.mask_shapes_shown import UNLIKE
from headcheck.attention.subject import AttentionSubject
from headcheck.attention.trying import built
from headcheck.comparison import LawBroken, NotApplicable
from headcheck.declarations import PACKED, Attention
from headcheck.forks import Fate, fate_apart
from headcheck.signatures import INPUTS

SHAPES = {
    "(1, 1, q_len, kv_len)": lambda batch, q_len, kv_len: (1, 1, q_len, kv_len),
    "(1, q_len, kv_len)": lambda batch, q_len, kv_len: (1, q_len, kv_len),
    "(q_len, kv_len)": lambda batch, q_len, kv_len: (q_len, kv_len),
    "(batch, kv_len)": lambda batch, q_len, kv_len: (batch, kv_len),
}
"""The forms of such a mask that are tried, in this order."""
NEAR = (1e-2, 0.1, 0.5)
"""How far the answer of a plain call may be from the oracle's, the nearest first: laws say the rest."""
Shape = Callable[[int, int, int], tuple[int, ...]]
_Question = Callable[[Attention, tuple[str, ...], str], bool]


@dataclass(frozen=True)
class _Given:
    """A mask that hides nothing, and how a function is called with it."""

    parameter: str
    shape: str
    layout: str
    said: bool | None
    """What it holds everywhere: a boolean, or, as what is added, zeros in the dtype of the query."""

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, with None for its mask where the caller gives none."""

        @wraps(function)
        def given(*placed: Any, **named: Any) -> Any:
            bound = its_own.bind_partial(*placed, **named)
            if bound.arguments.get(self.parameter) is None:
                bound.arguments[self.parameter] = self.mask(*_query_and_key(bound.arguments))
            return function(*bound.args, **bound.kwargs)

        its_own = signature(function)
        taken = [
            each.replace(default=None) if each.name == self.parameter else each
            for each in its_own.parameters.values()
        ]
        vars(given)["__signature__"] = its_own.replace(parameters=taken)
        return given

    def mask(self, query: Tensor, key: Tensor) -> Tensor:
        place = self.layout.index("s")
        batch = query.shape[self.layout.index("b")] if "b" in self.layout else 1
        shape: Shape = SHAPES[self.shape]
        sizes = shape(batch, query.shape[place], key.shape[place])
        if self.said is None:
            return query.new_zeros(sizes)
        return torch.full(sizes, self.said, dtype=torch.bool, device=query.device)


def _query_and_key(given: Mapping[str, Any]) -> list[Tensor]:
    """The query and the key by their usual names, or by their places."""
    places = zip(("query", "key"), given.values(), strict=False)
    return [next((given[name] for name in INPUTS[what] if name in given), here) for what, here in places]


def as_given_a_mask(
    declaration: Attention, dtypes: Iterable[str], device: str = "cpu"
) -> tuple[Attention, list[str]]:
    """The declaration of a function that has to be given a mask, with one in every call; and a note of it.

    Of a function that is right with such a mask, or at least answers, where it raises without one.
    """
    function, tried = declaration.function, tuple(dtypes)
    if declaration.layout == PACKED or isinstance(function, nn.Module):
        return declaration, []
    subject = AttentionSubject(declaration, dtypes=tried, device=device)
    parameter = subject.arguments.get("attn_mask", "")
    if "attn_mask" not in subject.always_given or _fate(_answers, declaration, tried, device) != "no":
        return declaration, []
    others = [*_others(declaration, parameter)]
    # Zeros hide all from those who read them as booleans: what is right with them only by far is not.
    added_first = sorted(others, key=lambda each: each[0].said is not None)
    steps: list[tuple[_Question, Sequence[tuple[_Given, Attention]]]] = [
        (partial(_is_near, NEAR[0]), added_first),
        *((partial(_is_near, near), others) for near in NEAR[1:]),
        (_answers, others),
    ]
    for asked, tried_here in steps:
        for given, other in tried_here:
            if _fate(asked, other, tried, device) == "yes":
                what = "zeros in the dtype of query" if given.said is None else given.said
                note = f"{parameter} is given in every call: where none is asked for, {what}, of shape {given.shape}"
                return declaration.but(function=other.function), [note]
    return declaration, []


def _others(declaration: Attention, parameter: str) -> Iterator[tuple[_Given, Attention]]:
    """What may be given."""
    kept = declaration.true_means != "block"
    layouts = (CANONICAL, "bshd") if declaration.layout == CANONICAL else (declaration.layout,)
    for said, layout, shape in product((kept, not kept, None), layouts, SHAPES):
        given = _Given(parameter, shape, layout, said)
        yield given, declaration.but(function=given.around(declaration.function), layout=layout)


def _fate(asked: _Question, declaration: Attention, dtypes: tuple[str, ...], device: str) -> Fate:
    return fate_apart(partial(asked, declaration, dtypes, device), device)


def _answers(declaration: Attention, dtypes: tuple[str, ...], device: str) -> bool:
    """Whether a plain call returns anything, in one dtype at least."""
    return any(_returned(declaration, dtype, device) is not None for dtype in dtypes)


def _is_near(near: float, declaration: Attention, dtypes: tuple[str, ...], device: str) -> bool:
    """Whether a plain call returns about the oracle's numbers, in whatever layout, in one dtype at least."""
    for dtype in dtypes:
        subject = AttentionSubject(declaration, dtypes=(dtype,), device=device)
        expected = subject.expected(built(subject, UNLIKE.but(dtype=dtype)))
        returned = _returned(declaration, dtype, device)
        for part in returned if isinstance(returned, tuple | list) else (returned,):
            if not isinstance(part, Tensor) or part.numel() != expected.numel() or part.ndim > expected.ndim:
                continue
            found, exact = (each.double().cpu().flatten().sort().values for each in (part, expected))
            if (found - exact).abs().max() <= near:
                return True
    return False


def _returned(declaration: Attention, dtype: str, device: str) -> Any:
    subject = AttentionSubject(declaration, dtypes=(dtype,), device=device)
    x = built(subject, UNLIKE.but(dtype=dtype))
    try:
        with torch.no_grad():
            return subject.returned(x, subject.arguments_for(x))
    except (LawBroken, NotApplicable):
        return None
