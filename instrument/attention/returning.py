"""What an undeclared function returns in every call: the output alone, or a tuple of several things."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from headcheck.attention.answers import told_apart
from headcheck.attention.case import Case
from headcheck.attention.inputs import Inputs
from headcheck.attention.subject import AttentionSubject
from headcheck.attention.trying import built
from headcheck.comparison import LawBroken, NotApplicable
from headcheck.declarations import BASE_2, PACKED, Attention

NEAR = 0.05
"""How far the weights or the log-sum-exp may be from the oracle's to be taken for them: laws say the rest."""


def as_returned(
    declaration: Attention, dtypes: Iterable[str], device: str = "cpu"
) -> tuple[Attention, list[str]]:
    """The declaration with `returns`, where a plain call returns a tuple and nothing is declared; and a note of it.

    Not so of an output beside nothing but None, where the rest is there when it is asked for.
    """
    if declaration.returns is not None or declaration.layout == PACKED:
        return declaration, []
    for dtype in dtypes:
        case = Case(
            dtype=dtype, batch=1, heads=2, kv_heads=2, q_len=3, kv_len=3, head_dim=4, value_dim=4, seed=1
        )
        subject = AttentionSubject(declaration, dtypes=(dtype,), device=device)
        x = built(subject, case)
        try:
            with torch.no_grad():
                returned = subject.returned(x, subject.arguments_for(x))
        except (LawBroken, NotApplicable):
            continue
        alone = subject.returns_more_if_asked and len(told_apart(returned)) == 1
        if alone or not isinstance(returned, tuple | list):
            return declaration, []
        names = tuple(_name(x, subject, part) for part in returned)
        if names.count("output") != 1:
            return declaration, []
        return declaration.but(returns=names), [_note(names)]
    return declaration, []


def _name(x: Inputs, subject: AttentionSubject, part: Any) -> str:
    """What one of the returned things is: that is told by its numbers, or by its shape where it is declared."""
    if not isinstance(part, Tensor) or not part.is_floating_point():
        return "other"
    exact, declaration, forms = x.problem.attended, subject.declaration, subject.forms(x)
    unit = math.log(2) if declaration.log_sum_exp == BASE_2 else 1.0
    for name, wanted in (("weights", exact.weights), ("log_sum_exp", exact.log_sum_exp / unit)):
        if tuple(part.shape) == forms[name]:
            numbers = subject.rows_in_order(part.detach().cpu().double(), name)
            distance = (numbers.reshape(wanted.shape) - wanted).abs().max()
            if distance <= NEAR or getattr(declaration, name):
                return name
    is_output = part.ndim == len(forms["output"]) and part.shape[-1] == forms["output"][-1]
    return "output" if is_output else "other"


def _note(names: tuple[str, ...]) -> str:
    judged = ", of which the others are not judged" if "other" in names else ""
    return f"every call returns ({', '.join(names)}){judged}: as if declared, returns={names!r}"
