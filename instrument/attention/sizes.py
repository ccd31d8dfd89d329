"""Sizes within what a subject takes."""

from collections.abc import Sequence

from headcheck.attention.case import Case
from headcheck.attention.inputs import Inputs
from headcheck.declarations import ONE_QUERY, PACKED, Attention

SQUARE = 257
"""The longest lengths of a subject whose queries and keys are equally many: a law that asks for 1025 keys gets these."""

DENSE = ("contiguous", "offset")
"""Layouts in memory of contiguous tensors."""


def sized(case: Case, declaration: Attention) -> Case:
    """The case in the nearest sizes that are taken, and with the features of every call."""
    head_dim, value_dim, q_len, kv_len = case.head_dim, case.value_dim, case.q_len, case.kv_len
    if dims := declaration.head_dims:
        head_dim, value_dim = _near(head_dim, dims), _near(value_dim, dims)
    if declaration.value_dim is False:
        value_dim = head_dim
    if declaration.rectangular is False or (declaration.rectangular == ONE_QUERY and q_len != 1):
        q_len = kv_len = min(max(q_len, kv_len), SQUARE)
    one_query = declaration.rectangular == ONE_QUERY and q_len == 1
    q_len, kv_len = (1 if one_query else _taken(q_len, declaration)), _taken(kv_len, declaration)
    case = case.but(head_dim=head_dim, value_dim=value_dim, q_len=q_len, kv_len=kv_len)
    return case.but(**declaration.always, **axes_of_one(declaration))


def _taken(length: int, declaration: Attention) -> int:
    """The next length in whole multiples, up to the longest."""
    multiple = declaration.length_multiple or 1
    blocks = -(-length // multiple)
    if declaration.max_length is not None:
        blocks = min(blocks, max(1, declaration.max_length // multiple))
    return blocks * multiple


def limited(declaration: Attention) -> tuple[str, ...]:
    """The fields of a case of which the function takes some values only."""
    layout = ("layout",) if declaration.contiguous else ()
    return "q_len", "kv_len", "head_dim", "value_dim", *layout, *axes_of_one(declaration), *declaration.always


def axes_of_one(declaration: Attention) -> dict[str, int]:
    """The sizes that are one, as the layout has no axis for them."""
    layout = declaration.layout
    of_batch = () if "b" in layout or layout == PACKED else ("batch",)
    return dict.fromkeys((*of_batch, *(() if "h" in layout else ("heads", "kv_heads"))), 1)


def why_not(x: Inputs, declaration: Attention) -> str:
    """Why such sizes are not asked for; '' where they are."""
    for axis in axes_of_one(declaration):
        if getattr(x, axis) != 1:
            return f"has no axis for {axis}: layout={declaration.layout}"
    for name, value in declaration.always.items():
        if getattr(x, name) != value:
            return f"{name} is always {value}, as declared"
    return _why_not_of_tensors(x, declaration)


def _why_not_of_tensors(x: Inputs, declaration: Attention) -> str:
    """The same of what the declaration says of their shapes and their memory."""
    if declaration.contiguous and x.layout not in DENSE:
        return "takes contiguous tensors only"
    dims = declaration.head_dims
    if dims and not {x.query.shape[-1], x.value.shape[-1]} <= set(dims):
        return f"takes head_dims {listed(dims)} only"
    if declaration.rectangular == ONE_QUERY and x.q_len not in (1, x.kv_len):
        return "takes as many queries as keys only, or one"
    multiple = declaration.length_multiple or 1
    one_query = declaration.rectangular == ONE_QUERY and x.q_len == 1
    if (x.q_len % multiple and not one_query) or x.kv_len % multiple:
        return f"takes lengths that are multiples of {multiple} only"
    if declaration.max_length is not None and max(x.q_len, x.kv_len) > declaration.max_length:
        return f"takes lengths of at most {declaration.max_length}"
    return ""


def _near(wanted: int, taken: Sequence[int]) -> int:
    return max((each for each in taken if each <= wanted), default=min(taken))


def listed(dims: Sequence[int]) -> str:
    """Sizes in a sentence."""
    return ", ".join(map(str, dims))
