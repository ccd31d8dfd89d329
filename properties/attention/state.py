"""Nothing is remembered from call to call, and nothing outside the call is touched."""

from collections.abc import Iterator

import torch

from headcheck.attention import watching
from headcheck.attention.given import at_least
from headcheck.attention.inputs import Inputs
from headcheck.attention.subject import AttentionSubject
from headcheck.comparison import Comparison, LawBroken, same, within
from headcheck.laws import law

PURE = "the canonical call is a function of its arguments"


@law(
    source=PURE,
    formula="f(x) = f(x), bit for bit unless declared otherwise",
    guards="Uninitialised memory, a race, state that grows with each call (diffusers 8610).",
)
def same_call_same_answer(attention: AttentionSubject, x: Inputs) -> Comparison:
    """The same call twice gives the same bits."""
    return attention.identical(x, x)


@law(
    source=PURE,
    formula="f(x), f(x'), f(x) again: each as if it were alone, x' differing in one argument",
    guards="A memo whose key lacks the scale, the mask, the causal flag or the lengths (flashinfer 4014, xformers 660).",
    share=1.5,
)
def one_thing_changed_is_noticed(attention: AttentionSubject, x: Inputs) -> Iterator[Comparison]:
    """Two calls that differ in one argument do not answer for each other, in either order."""
    for other in _one_thing_changed(attention, x):
        for one, two in ((x, other), (other, x)):
            attention(one)
            yield within(attention(two), attention.expected(two), attention.bound(two))


def _one_thing_changed(attention: AttentionSubject, x: Inputs) -> Iterator[Inputs]:
    which = x.case.seed % 5
    if which == 0 and attention.has("scale"):
        yield x.but(scale=2 * x.resolved_scale)
    if which == 1:
        yield x.but(value=-x.value.roll(1, dims=-1), generic=False)
    if which == 2:
        yield x.but(key=-x.key, generic=False)
    if which == 3 and x.attn_mask is not None:
        yield x.but(attn_mask=None)
    if which == 3 and x.attn_mask is None and attention.has("is_causal"):
        yield x.but(is_causal=not x.is_causal)
    if which == 4 and attention.declaration.rectangular:
        mask = x.attn_mask[..., -1:, :] if x.attn_mask is not None else None
        yield x.but(query=x.query[:, :, -1:], attn_mask=mask, is_causal=False, window=None, alibi_slopes=None)


@law(
    source=PURE,
    formula="x changed in place between two calls: the second answers for what it is given",
    guards="Answers cached by address, by shape or by the first few numbers.",
    share=0.5,
)
def inputs_changed_in_place_are_read_again(attention: AttentionSubject, x: Inputs) -> Comparison:
    """Numbers changed in place, in the same tensors, give the answer for the new numbers."""
    new = x.but(
        query=x.query.flip(2),
        key=-x.key.flip(2),
        value=(x.value.flip(2) + 1).to(x.dtype),
        layout="contiguous",
        mask_layout="contiguous",
        generic=False,
    )
    old = x.but(layout="contiguous", mask_layout="contiguous")
    second = watching.after_change_in_place(attention, old, new)
    return within(second, attention.expected(new), attention.bound(new))


@law(
    source=PURE,
    formula="the state of torch's generator is the same before and after",
    guards="A kernel that seeds the global generator, or draws from it without dropout.",
    share=0.5,
)
def the_global_generator_is_untouched(attention: AttentionSubject, x: Inputs) -> Comparison:
    """Without dropout, the call neither seeds nor uses the global random generator."""
    before = torch.get_rng_state()
    try:
        attention(x)
        after = torch.get_rng_state()
    finally:
        torch.set_rng_state(before)
    return same(after.double(), before.double(), "state of the global generator")


@law(
    source="C and torch.empty: fresh memory holds whatever was there",
    formula="f(x) with freed memory full of one junk or another: the same bits",
    guards="Rows that are never written, read back from torch.empty (flashinfer 1533).",
    given=(at_least(q_len=2),),
    share=0.5,
)
def stale_memory_does_not_matter(attention: AttentionSubject, x: Inputs) -> Comparison:
    """What was left in freed memory does not reach the output."""
    outputs = []
    for junk in (float("nan"), 3.0):
        _leave_behind(x, junk)
        outputs.append(attention(x))
    limit = 0.0 if attention.declaration.deterministic else 2 * attention.bound(x)
    return within(outputs[0], outputs[1], limit)


def _leave_behind(x: Inputs, junk: float) -> None:
    """Fill and free blocks of the sizes that an output, its scores and its accumulators would take."""
    sizes = {x.batch * x.heads * x.q_len * width for width in (1, x.value_dim, x.kv_len, x.head_dim)}
    for dtype in {x.dtype, torch.float32}:
        blocks = [torch.full((size,), junk, dtype=dtype) for size in sizes for _ in range(3)]
        del blocks


@law(
    source=PURE,
    formula="torch's functions and settings are the same objects before and after",
    guards="Generated kernels that patch the function they are compared with, or loosen a global setting.",
    share=0.3,
)
def the_library_is_left_alone(attention: AttentionSubject, x: Inputs) -> Comparison:
    """The call patches no function of torch and leaves its global settings as they were."""
    before = _library()
    attention(x)
    changed = [name for name, value in _library().items() if before[name] != value]
    if changed:
        _restore(before)
        raise LawBroken(f"the call changed {', '.join(changed)}")
    return same(torch.zeros(()), torch.zeros(()))


_FUNCTIONS = [
    (torch, "matmul"), (torch, "softmax"), (torch, "allclose"), (torch, "isclose"), (torch, "where"),
    (torch, "equal"), (torch, "einsum"), (torch, "bmm"), (torch, "exp"), (torch, "no_grad"),
    (torch.nn.functional, "scaled_dot_product_attention"), (torch.nn.functional, "softmax"),
    (torch.testing, "assert_close"), (torch.autograd, "grad"), (torch.Tensor, "__sub__"),
    (torch.Tensor, "__matmul__"), (torch.Tensor, "abs"), (torch.Tensor, "max"), (torch.Tensor, "softmax"),
    (torch.Tensor, "double"), (torch.Tensor, "__eq__"), (torch.Tensor, "clone"), (torch.Tensor, "to"),
]  # fmt: skip


def _library() -> dict[str, object]:
    """Functions and settings by name."""
    functions: dict[str, object] = {
        f"{getattr(place, '__name__', place)}.{name}": getattr(place, name) for place, name in _FUNCTIONS
    }
    return functions | {
        "torch.get_default_dtype()": torch.get_default_dtype(),
        "torch.get_num_threads()": torch.get_num_threads(),
        "torch.is_grad_enabled()": torch.is_grad_enabled(),
        "torch.are_deterministic_algorithms_enabled()": torch.are_deterministic_algorithms_enabled(),
        "torch.get_float32_matmul_precision()": torch.get_float32_matmul_precision(),
    }


def _restore(before: dict[str, object]) -> None:
    """Put the functions back, so that the other laws are not judged by patched ones."""
    for place, name in _FUNCTIONS:
        setattr(place, name, before[f"{getattr(place, '__name__', place)}.{name}"])
