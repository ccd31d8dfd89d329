"""How the inputs lie in memory does not matter."""

from collections.abc import Iterator

from torch import Tensor

from headcheck.comparison import Comparison, NotApplicable, same
from headcheck.given import at_least, having, one_in, one_of
from headcheck.laws import law
from headcheck.modules.multi_head.cases import MultiHeadInputs
from headcheck.modules.multi_head.finding import without_keys
from headcheck.modules.multi_head.oracle import GIVEN
from headcheck.modules.multi_head.subject import MultiHeadSubject


def _strided(x: Tensor, way: int) -> Tensor:
    """The same numbers with other strides: length before batch, the last axis first, or every second element.

    Or the first sequence for all, with a stride of zero.
    """
    if way == 0:
        return x.transpose(0, 1).contiguous().transpose(0, 1)
    if way == 1:
        return x.permute(2, 0, 1).contiguous().permute(1, 2, 0)
    if way == 2:
        return x.repeat_interleave(2, dim=-1)[..., ::2]
    return x[:1].expand(x.shape)


@law(
    source="a tensor is its numbers",
    formula="f(x strided) = f(x contiguous)",
    guards="A view of a tensor taken to be contiguous: an error, or the wrong numbers (pytorch 181133).",
    given=(one_in(4, at_least(batch=2)),),
)
def strided_inputs_change_nothing(attention: MultiHeadSubject, x: MultiHeadInputs) -> Comparison:
    """Inputs with other strides, and those that are expanded over the batch, give the same output."""
    given = {name: each for name in GIVEN if (each := getattr(x, name)) is not None}
    strided = x.but(**{name: _strided(each, (3 + x.case.seed // 11) % 4) for name, each in given.items()})
    plain = strided.but(**{name: getattr(strided, name).contiguous() for name in given})
    return attention.close(attention(strided), attention(plain), plain)


@law(
    source="a tensor is its numbers",
    formula="f(X, X[:, :n]) and f(X, X[:, :1] for all): as of copies of the keys",
    guards="Self-attention told by the address: keys that are a view of the query's first tokens are not read.",
    needs=("cross",),
    given=(having(mode="cross", mask="none", padding=False), at_least(q_len=3)),
    share=0.5,
)
def keys_that_begin_where_the_query_does_are_keys(
    attention: MultiHeadSubject, x: MultiHeadInputs
) -> Iterator[Comparison]:
    """Keys that are a view of the query, of its first tokens or of one for all, are what their copies are."""
    x = x.masked(None).but(is_real=None)
    first, one = x.query[:, : x.query.shape[1] // 2 + 1], x.query[:, :1].expand_as(x.query)
    for keys in (first, one):
        plain = x.but(key=keys.clone(), value=None)
        yield attention.close(attention(plain.but(key=keys)), attention(plain), plain)


@law(
    source="a tensor is its numbers",
    formula="f(x; M[:n, :n]) = f(x; its copy)",
    guards="A mask that is cut out of a buffer for the longest sequence, and read as if it were contiguous.",
    given=(one_of("mask", "causal", "random", "by-head", "keys"), at_least(q_len=2, kv_len=2)),
    share=0.5,
)
def a_sliced_mask_changes_nothing(attention: MultiHeadSubject, x: MultiHeadInputs) -> Comparison:
    """Masks that are slices of larger ones mask what their copies mask."""
    if x.may_attend is None and x.is_real is None:
        raise NotApplicable("takes no mask")
    return attention.close(attention(x.but(sliced_masks=True)), attention(x), x)


@law(
    source="a tensor is its numbers",
    formula="f(x; M), M <- M' in place, f(x; M) = f(x; M')",
    guards="A mask that was inverted or expanded once, and is kept as long as the same tensor comes.",
    given=(one_of("mask", "causal", "random", "by-head", "keys"), having(flag=False), at_least(kv_len=2)),
    share=0.5,
)
def a_mask_changed_in_place_is_read_again(attention: MultiHeadSubject, x: MultiHeadInputs) -> Comparison:
    """A mask that is changed in place between two calls, in the same tensor, hides what it says then."""
    other = x.but(
        may_attend=None if x.may_attend is None else x.may_attend.flip(-1),
        is_real=None if x.is_real is None else attention.turned(x.is_real),
    )
    given, new = attention.masks_for(x), attention.masks_for(other)
    mine = {name: each.clone() for name, each in given.items() if isinstance(each, Tensor)}
    if not mine:
        raise NotApplicable("takes no mask")
    with attention.giving({**given, **mine}):
        attention(x)
        for name, mask in mine.items():
            mask.copy_(new[name])
        found = attention(x)
    return attention.close(found, attention(other), other, "output under masks that were changed in place")


@law(
    source="a call changes nothing that it is given",
    formula="each mask after f(x; M) = before, be there a query without keys or not",
    guards="Rows without keys opened in the caller's own mask, padding written into it: the next layer is given it too.",
    given=(
        one_in(
            2, having(padding=True, mask="random", mask_kind="additive", mask_shape="b1qk"), at_least(batch=2)
        ),
    ),
)
def masks_are_not_changed(attention: MultiHeadSubject, x: MultiHeadInputs) -> Iterator[Comparison]:
    """Every mask holds after the call what it held before, that of a query without keys too."""
    dead = without_keys(attention, x)
    if dead is None and not attention.counts_keys:
        raise NotApplicable("takes no mask")
    for call in (x, dead) if dead is not None else (x,):
        masks = attention.masks_for(call).items()
        before = {name: each.clone() for name, each in masks if isinstance(each, Tensor)}
        attention(call)
        for name, each in before.items():
            yield same(attention.masks_given[name], each, f"{name} after the call")
