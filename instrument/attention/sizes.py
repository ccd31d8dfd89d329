"""Sizes within what a subject takes."""

from collections.abc import Sequence

from headcheck.attention.case import Case
from headcheck.attention.inputs import Inputs
from headcheck.declarations import NO_MORE_QUERIES, ONE_QUERY, ONLY_ONE_QUERY, PACKED, Attention

SQUARE = 257
"""The longest lengths of a subject whose queries and keys are equally many: a law that asks for 1025 keys gets these."""

DENSE = ("contiguous", "offset")
"""Layouts in memory of contiguous tensors."""


def sized(case: Case, declaration: Attention) -> Case:
    """The case in the nearest sizes that are taken, and with the features of every call."""
    head_dim, value_dim = case.head_dim, case.value_dim
    if dims := declaration.head_dims:
        head_dim, value_dim = _near(head_dim, dims), _near(value_dim, dims)
    if declaration.value_dim is False:
        value_dim = head_dim
    q_len, kv_len = _lengths(case.q_len, case.kv_len, declaration)
    case = case.but(head_dim=head_dim, value_dim=value_dim, q_len=q_len, kv_len=kv_len)
    return case.but(**declaration.always, **axes_of_one(declaration))


def _lengths(q_len: int, kv_len: int, declaration: Attention) -> tuple[int, int]:
    """The numbers of queries and keys that are nearest."""
    if equally_many(declaration, q_len):
        q_len = kv_len = min(max(q_len, kv_len), SQUARE)
    kv_len = _taken(kv_len, declaration)
    if is_one_query(declaration, q_len):
        return 1, kv_len
    q_len = _taken(q_len, declaration)
    return (min(q_len, kv_len) if declaration.rectangular == NO_MORE_QUERIES else q_len), kv_len


def equally_many(declaration: Attention, q_len: int) -> bool:
    """Whether so many queries need as many keys."""
    return declaration.rectangular is False or (declaration.rectangular == ONE_QUERY and q_len != 1)


def is_one_query(declaration: Attention, q_len: int) -> bool:
    """Whether a call has one query, of which no multiple is asked."""
    return declaration.rectangular == ONLY_ONE_QUERY or (declaration.rectangular == ONE_QUERY and q_len == 1)


def _taken(length: int, declaration: Attention) -> int:
    """The next length in whole multiples, up to the longest."""
    multiple = declaration.length_multiple or 1
    blocks = -(-length // multiple)
    if declaration.max_length is not None:
        blocks = min(blocks, max(1, declaration.max_length // multiple))
    return blocks * multiple


def limited(declaration: Attention) -> tuple[str, ...]:
    """The fields of a case of which the function takes some values only."""
    strides = ("strides",) if declaration.contiguous else ()
    return (
        "q_len",
        "kv_len",
        "head_dim",
        "value_dim",
        *strides,
        *axes_of_one(declaration),
        *declaration.always,
    )


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
    if declaration.contiguous and x.strides not in DENSE:
        return "takes contiguous tensors only"
    dims = declaration.head_dims
    if dims and not {x.query.shape[-1], x.value.shape[-1]} <= set(dims):
        return f"takes head_dims {listed(dims)} only"
    if why := _why_not_of_so_many_queries(x, declaration):
        return why
    multiple = declaration.length_multiple or 1
    if (x.q_len % multiple and not is_one_query(declaration, x.q_len)) or x.kv_len % multiple:
        return f"takes lengths that are multiples of {multiple} only"
    if declaration.max_length is not None and max(x.q_len, x.kv_len) > declaration.max_length:
        return f"takes lengths of at most {declaration.max_length}"
    return ""


def _why_not_of_so_many_queries(x: Inputs, declaration: Attention) -> str:
    """The same of what `rectangular` says; where it is False, the feature says so."""
    if declaration.rectangular == ONE_QUERY and x.q_len not in (1, x.kv_len):
        return "takes as many queries as keys only, or one"
    if declaration.rectangular == ONLY_ONE_QUERY and x.q_len != 1:
        return "takes one query only"
    if declaration.rectangular == NO_MORE_QUERIES and x.q_len > x.kv_len:
        return "takes no more queries than keys"
    return ""


def _near(wanted: int, taken: Sequence[int]) -> int:
    return max((each for each in taken if each <= wanted), default=min(taken))


def listed(dims: Sequence[int]) -> str:
    """Sizes in a sentence."""
    return ", ".join(map(str, dims))
