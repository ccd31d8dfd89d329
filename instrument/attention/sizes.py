"""Sizes within what a subject takes."""

from collections.abc import Sequence

from headcheck.attention.case import Case
from headcheck.attention.inputs import Inputs
from headcheck.declarations import Attention


def sized(case: Case, declaration: Attention) -> Case:
    """The case in the nearest sizes that are taken."""
    changes: dict[str, int] = {}
    if dims := declaration.head_dims:
        changes["head_dim"], changes["value_dim"] = _near(case.head_dim, dims), _near(case.value_dim, dims)
    if multiple := declaration.length_multiple or 0:
        changes["q_len"], changes["kv_len"] = (
            -(-each // multiple) * multiple for each in (case.q_len, case.kv_len)
        )
    if declaration.value_dim is False:
        changes["value_dim"] = changes.get("head_dim", case.head_dim)
    return case.but(**changes) if changes else case


def why_not(x: Inputs, declaration: Attention) -> str:
    """Why such sizes are not asked for; '' where they are."""
    dims = declaration.head_dims
    if dims and not {x.query.shape[-1], x.value.shape[-1]} <= set(dims):
        return f"takes head_dims {listed(dims)} only"
    multiple = declaration.length_multiple or 1
    if x.q_len % multiple or x.kv_len % multiple:
        return f"takes lengths that are multiples of {multiple} only"
    return ""


def _near(wanted: int, taken: Sequence[int]) -> int:
    return max((each for each in taken if each <= wanted), default=min(taken))


def listed(dims: Sequence[int]) -> str:
    """Sizes in a sentence."""
    return ", ".join(map(str, dims))
