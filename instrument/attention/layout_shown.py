"""In which layout a function takes its tensors and gives its output, as plain calls of equal scores show it.

Equal scores average the values over the axis that is the sequence, whatever the scale is.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor

from headcheck.attention.forms import CANONICAL
from headcheck.attention.inputs import Inputs
from headcheck.attention.returning import NEAR, as_returned
from headcheck.attention.subject import AttentionSubject
from headcheck.attention.trying import PLAIN, built
from headcheck.comparison import LawBroken, NotApplicable
from headcheck.declarations import MERGED, PACKED, Attention
from headcheck.forks import Fate, fate_apart
from headcheck.verdict import Hint

OTHER_ORDERS = ("bshd", "sbhd", "bhds")
"""What is tried where calls as declared are wrong; in each, batch and heads may change places."""
FEWER_AXES = ("bsd", "shd", "sd")
"""What is tried where no call gives a tensor of four axes: one head, one sequence, then both."""
TRIED = ((3, 4), (4, 16), (1, 16), (16, 64), (128, 128))
"""Length and dim of the calls: the first that returns anything tells."""


def as_laid_out(
    declaration: Attention, dtypes: Iterable[str], device: str = "cpu", *, though_answered: bool = False
) -> tuple[Attention, list[str]]:
    """The declaration with the layout in which plain calls are right; and a note of it.

    Where they are answered as declared, and wrong, that is a hint alone: a bug may look like another layout.
    though_answered: it is taken all the same.
    """
    tried = tuple(dtypes)
    # What is right is not looked at further; what hangs or ends the process is for others.
    if declaration.layout == PACKED or _fate(_is_right, declaration, tried, device) != "no":
        return declaration, []
    answered = _fate(_is_answered, declaration, tried, device) != "no"
    found = _found(declaration, tried, device, () if answered else FEWER_AXES)
    if found is None:
        return declaration, []
    of_output_alone = found.layout == declaration.layout
    answered = answered or (of_output_alone and _fate(_is_a_tensor, declaration, tried, device) != "no")
    if answered and not though_answered:
        return declaration, [
            Hint(f"the shapes are those of another layout: {_written(found, declaration, '--declare ')}")
        ]
    axes = "takes no tensors of four axes" if found.layout in FEWER_AXES else "the shapes of plain calls show"
    return found, [f"{axes}: as if declared, {_written(found, declaration)}"]


def is_turned(declaration: Attention, dtypes: Sequence[str], device: str) -> bool:
    """Whether plain calls are wrong as declared, and right with the axes in another order."""
    if _fate(_is_right, declaration, dtypes, device) != "no":
        return False
    found = _found(declaration, dtypes, device)
    return found is not None and found.layout != declaration.layout


def _fate(
    question: Callable[[Attention, Sequence[str], str], bool],
    declaration: Attention,
    dtypes: Sequence[str],
    device: str,
) -> Fate:
    return fate_apart(partial(question, declaration, dtypes, device), device)


def _found(
    declaration: Attention, dtypes: Sequence[str], device: str, fewer: Sequence[str] = ()
) -> Attention | None:
    """The first declaration of another layout in which calls are right, else the first of fewer axes that is answered."""
    others = [*_others(declaration, fewer)]
    ask = partial(_fate, dtypes=dtypes, device=device)
    if fate_apart(lambda: any(_is_right(each, dtypes, device) for each in others), device) != "no":
        for each in others:
            if ask(_is_right, each) == "yes":
                return each
    of_fewer = (each for each in others if each.layout in fewer and not each.output_layout)
    return next((each for each in of_fewer if ask(_is_answered, each) == "yes"), None)


def _others(declaration: Attention, fewer: Sequence[str]) -> Iterator[Attention]:
    """The declaration in other layouts; of a declared layout, only with all heads on one axis of the output."""
    if declaration.output_layout:
        return
    usual = declaration.layout == CANONICAL
    for layout in (CANONICAL, *OTHER_ORDERS, *fewer) if usual else (declaration.layout,):
        other = declaration.but(layout=layout)
        if layout != declaration.layout:
            yield other
        if "h" in layout:
            yield other.but(output_layout=layout.replace("h", "").replace("d", "") + MERGED)
    if usual:
        yield declaration.but(output_layout="bshd")


def _written(found: Attention, declared: Attention, before: str = "") -> str:
    """What is to be declared of it."""
    fields = {"layout": found.layout} if found.layout != declared.layout else {}
    fields |= {"output_layout": found.output_layout} if found.output_layout else {}
    return " ".join(f"{before}{name}={value}" for name, value in fields.items())


def _is_right(declaration: Attention, dtypes: Sequence[str], device: str) -> bool:
    """Whether equal scores average the values over the sequence, or over all of the past."""
    called = _first_call(declaration, dtypes, device)
    if called is None:
        return False
    subject, x, _ = called
    try:
        output = subject(x).cpu().double()
    except (LawBroken, NotApplicable):
        return False
    meant = (subject.expected(each) for each in (x, x.but(is_causal=True)))
    return any(bool(((output - each).abs() <= NEAR).all()) for each in meant)


def _is_a_tensor(declaration: Attention, dtypes: Sequence[str], device: str) -> bool:
    """Whether a call gives a tensor, of whatever shape."""
    called = _first_call(declaration, dtypes, device)
    return called is not None and isinstance(called[2], Tensor)


def _is_answered(declaration: Attention, dtypes: Sequence[str], device: str) -> bool:
    """Whether a call gives a tensor of as many axes as it is given."""
    called = _first_call(declaration, dtypes, device)
    return called is not None and isinstance(called[2], Tensor) and called[2].ndim == len(declaration.layout)


def _first_call(
    declaration: Attention, dtypes: Sequence[str], device: str
) -> tuple[AttentionSubject, Inputs, Any] | None:
    """The subject and the inputs of the first call that returns anything, and its output."""
    for dtype, (length, dim) in product(dtypes, TRIED):
        sizes = {
            "head_dims": declaration.head_dims or (dim,),
            "length_multiple": declaration.length_multiple or length,
            "max_length": declaration.max_length or length,
            "rectangular": False,
        }
        sized, _ = as_returned(declaration.but(**sizes), (dtype,), device)
        subject = AttentionSubject(sized, dtypes=(dtype,), device=device)
        x = built(subject, PLAIN.but(dtype=dtype))
        x = x.but(query=torch.zeros_like(x.query))
        try:
            with torch.no_grad():
                returned = subject.returned(x, subject.arguments_for(x))
            return subject, x, subject.parts(returned)["output"]
        except (LawBroken, NotApplicable):
            continue
    return None
