"""A function whose mask may not be None: where no mask is asked for, it is given one that hides nothing."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial, wraps
from inspect import Signature, signature
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
from headcheck.forks import fate_apart
from headcheck.signatures import INPUTS

SHAPES = ("b1qk", "bqk", "qk", "bk", "bhqk")
"""The axes of such a mask that are tried, in this order."""
ZEROS = "zeros in the dtype of query"
FILLS: dict[str, Callable[[Tensor, list[int]], Tensor]] = {
    ZEROS: lambda query, shape: query.new_zeros(shape),
    "True": lambda query, shape: query.new_ones(shape, dtype=torch.bool),
    "False": lambda query, shape: query.new_zeros(shape, dtype=torch.bool),
    "ones in the dtype of query": lambda query, shape: query.new_ones(shape),
}
"""What it may hold. Zeros hide nothing where the mask is added; where it is read, they may hide all."""
EXACT, NEAR = 1e-5, 0.5
"""How far the numbers of a plain call may be from the oracle's; the second is for a function that is wrong."""
Question = Callable[[Attention], bool]


@dataclass(frozen=True)
class _Stand:
    """A mask that stands in for None."""

    parameter: str
    layout: str
    shape: str
    fill: str

    def around(self, function: Callable[..., Any], its_own: Signature) -> Callable[..., Any]:
        """The function; it is given this mask where it is called with None."""

        @wraps(function)
        def given(*placed: Any, **named: Any) -> Any:
            bound = its_own.bind_partial(*placed, **named)
            if bound.arguments.get(self.parameter) is None:
                bound.arguments[self.parameter] = self.mask(*_query_and_key(bound.arguments))
            return function(*bound.args, **bound.kwargs)

        return given

    def mask(self, query: Tensor, key: Tensor) -> Tensor:
        """Of the sizes of query and key, which are in the layout of the function."""
        sizes = dict(zip(self.layout, query.shape, strict=True))
        sizes |= {"q": sizes["s"], "k": key.shape[self.layout.index("s")], "1": 1}
        return FILLS[self.fill](query, [sizes[axis] for axis in self.shape])


def _query_and_key(given: Mapping[str, Any]) -> list[Tensor]:
    """The query and the key by their usual names, or by their places."""
    places = zip(("query", "key"), given.values(), strict=False)
    return [next((given[name] for name in INPUTS[what] if name in given), here) for what, here in places]


def as_given_a_mask(
    declaration: Attention, dtypes: Iterable[str], device: str = "cpu"
) -> tuple[Attention, list[str]]:
    """The declaration of a function that has to be given a mask, with one in place of None; and a note of it.

    Of a function that raises without a mask, and takes no packs. What hides nothing is told by the numbers of a plain
    call: they are the oracle's, or near, or of the right form at least. What hangs or crashes with a mask is left alone.
    """
    tried = tuple(dtypes)
    tried = ("float32",) if "float32" in tried else tried
    subject = AttentionSubject(declaration, dtypes=tried, device=device)
    if (
        "attn_mask" not in subject.always_given
        or isinstance(declaration.function, nn.Module)
        or declaration.layout == PACKED
    ):
        return declaration, []

    def answers(within: float, one: Attention) -> bool:
        return any(_answers(one, dtype, device, within) for dtype in tried)

    any_answer = partial(answers, float("inf"))
    if fate_apart(partial(any_answer, declaration), device) != "no":
        return declaration, []
    stands = [*_stands(declaration, subject.arguments["attn_mask"])]
    zeros_last = sorted(stands, key=lambda each: each[0].fill == ZEROS)
    if fate_apart(partial(_any, any_answer, stands), device) != "yes":
        return declaration, []
    for question, order in (
        (partial(answers, EXACT), stands),
        (partial(answers, NEAR), zeros_last),
        (any_answer, zeros_last),
    ):
        if fate_apart(partial(_any, question, order), device) == "yes":
            stand, other = next(
                each for each in order if fate_apart(partial(question, each[1]), device) == "yes"
            )
            what = f"{stand.fill}, of shape {stand.shape}"
            note = f"{stand.parameter} is given in every call: where none is asked for, {what}"
            return declaration.but(function=other.function), [note]
    return declaration, []


def _any(question: Question, stands: list[tuple[_Stand, Attention]]) -> bool:
    return any(question(other) for _, other in stands)


def _stands(declaration: Attention, parameter: str) -> Iterator[tuple[_Stand, Attention]]:
    """What may stand in, and the declaration of a function around it; none where no signature can be read."""
    try:
        its_own = signature(declaration.function)
    except (TypeError, ValueError):
        return
    layouts = (CANONICAL, "bshd", "bsd", "sd") if declaration.layout == CANONICAL else (declaration.layout,)
    for fill, layout, shape in product(FILLS, layouts, SHAPES):
        if not {*shape} <= {*layout, *"1qk"}:
            continue
        stand = _Stand(parameter, layout, shape, fill)
        yield stand, declaration.but(function=stand.around(declaration.function, its_own), layout=layout)


def _answers(declaration: Attention, dtype: str, device: str, within: float) -> bool:
    """Whether a plain call returns, in whatever layout, numbers that are so near to the oracle's."""
    subject = AttentionSubject(declaration, dtypes=(dtype,), device=device)
    x = built(subject, UNLIKE.but(dtype=dtype))
    try:
        with torch.no_grad():
            returned = subject.returned(x, subject.arguments_for(x))
    except (LawBroken, NotApplicable):
        return False
    exact = subject.expected(x).flatten().sort().values
    for part in returned if isinstance(returned, tuple | list) else (returned,):
        if isinstance(part, Tensor) and part.numel() == exact.numel() and part.ndim <= x.query.ndim:
            found = part.double().cpu().flatten().sort().values
            if within == float("inf") or (found - exact).abs().max() <= within:
                return True
    return False
