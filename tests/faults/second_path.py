"""What a second reviewer who had read the laws got past them: a path for some calls, and one thing that it lacks."""

from typing import Any

import torch
from torch import Tensor

from tests.faults import clean, fault
from tests.faults.calls import NEVER, Call

TENSORS = ("query", "key", "value")


def _cut_off(call: Call) -> Call:
    """The same call, which no gradient comes back from."""
    given = {name: getattr(call, name) for name in (*TENSORS, "attn_mask", "sinks")}
    return call.but(**{name: each.detach() for name, each in given.items() if each is not None})


@fault(
    "Gradients are recorded where the query wants one: with frozen queries keys and values learn nothing.",
    breaks="gradients/each-gradient-can-be-asked-for-alone",
    naive="GR",
    when=("backward", "a frozen query"),
)
def frozen_queries_freeze_all(call: Call) -> Any:
    return clean.attention(call if call.query.requires_grad else _cut_off(call))


@fault(
    "The path for fewer key heads runs without gradients.",
    breaks="gradients/gradients-are-within-the-bound",
    naive="GR",
    when=("backward", "enable_gqa"),
)
def groups_learn_nothing(call: Call) -> Any:
    return clean.attention(_cut_off(call) if call.group > 1 else call)


@fault(
    "The path for bfloat16 runs without gradients.",
    breaks="gradients/gradients-are-within-the-bound",
    naive="GR",
    when=("backward", "bfloat16"),
    dtypes=("float32", "bfloat16"),
)
def bfloat16_learns_nothing(call: Call) -> Any:
    return clean.attention(_cut_off(call) if call.dtype == torch.bfloat16 else call)


@fault(
    "A mask gets its gradient where the query gets one: a bias that is tuned alone stays as it is.",
    breaks="gradients/the-bias-can-want-a-gradient-alone",
    naive="GR",
    when=("backward", "a bias that alone wants a gradient"),
)
def a_bias_beside_frozen_tensors(call: Call) -> Any:
    return clean.attention(
        call if any(getattr(call, each).requires_grad for each in TENSORS) else _cut_off(call)
    )


@fault(
    "The path for dropout is not handed the scale.",
    breaks="dropout/the-output-is-what-the-dropped-weights-make-of-the-values",
    naive="NO",
    when=("dropout_p", "scale"),
)
def dropout_at_the_default_scale(call: Call) -> Any:
    return clean.attention(call.but(scale=None) if call.dropout_p else call)


@fault(
    "Over more than 512 keys the parts are attended to without dropout.",
    breaks="dropout/the-output-is-what-the-dropped-weights-make-of-the-values",
    naive="NO",
    when=("dropout_p", "kv_len > 512"),
)
def many_keys_are_all_kept(call: Call) -> Any:
    return clean.attention(call.but(dropout_p=0.0) if call.kv_len > 512 else call)


@fault(
    "The path for dropout tiles the values of grouped heads, and interleaves the keys.",
    breaks="dropout/the-output-is-what-the-dropped-weights-make-of-the-values",
    naive="NO",
    when=("dropout_p", "enable_gqa", "two key heads"),
)
def dropout_reads_values_of_another_head(call: Call) -> Any:
    if not call.dropout_p or call.group == 1:
        return clean.attention(call)
    tiled = call.value.repeat(1, call.group, 1, 1)
    return clean.attention(call.but(key=clean.group(call, call.key), value=tiled, enable_gqa=False))


@fault(
    "Under autocast another kernel is called, which has no dropout.",
    breaks="dropout/the-rate-is-kept",
    naive="NO",
    when=("autocast", "dropout_p"),
)
def autocast_keeps_all(call: Call) -> Any:
    return clean.attention(call.but(dropout_p=0.0) if torch.is_autocast_enabled("cpu") else call)


_DESCRIPTOR: dict[str, Any] = {}
"""What the kernel was last called with."""


class _ScaledByTheDescriptor(torch.autograd.Function):
    """Scores times the scale, and on the way back times the scale of the last call."""

    @staticmethod
    def forward(context: Any, product: Tensor, scale: float) -> Tensor:
        _DESCRIPTOR["scale"] = context.scale = scale
        return product * scale

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0] * _DESCRIPTOR.get("scale", context.scale), None


@fault(
    "Backward reads the scale from a descriptor that each forward pass fills in.",
    breaks="state/the-next-call-leaves-the-graph-alone",
    naive="GR",
    when=("backward", "another call in between", "another scale"),
    replaces=clean.score,
)
def backward_by_the_last_descriptor(call: Call, key: Tensor, scale: float) -> Tensor:
    scores: Tensor = _ScaledByTheDescriptor.apply(call.query @ key.mT, scale)  # type: ignore[no-untyped-call]
    return scores


class _HiddenByTheDescriptor(torch.autograd.Function):
    """Scores of hidden keys set to -inf, and on the way back the gradients of those that the last call hid to zero."""

    @staticmethod
    def forward(context: Any, scores: Tensor, kept: Tensor) -> Tensor:
        _DESCRIPTOR["kept"] = context.kept = kept.expand(scores.shape)
        return scores.masked_fill(~kept, NEVER)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        last = _DESCRIPTOR["kept"]
        kept = last if last.shape == gradients[0].shape else context.kept
        return gradients[0].masked_fill(~kept, 0.0), None


@fault(
    "Backward reads the mask from a workspace that the next call of the same shapes fills in.",
    breaks="state/the-next-call-leaves-the-graph-alone",
    naive="GR",
    when=("backward", "another call in between", "another mask"),
    replaces=clean.hide,
)
def backward_by_the_last_mask(call: Call, scores: Tensor, kept: Tensor) -> Tensor:
    hidden: Tensor = _HiddenByTheDescriptor.apply(scores, kept)  # type: ignore[no-untyped-call]
    return hidden


@fault(
    "Backward of wide heads lacks the term rowsum(P dP) from the second tile of queries on.",
    breaks="sizes/sizes-of-real-models-have-their-gradients",
    naive="GR",
    when=("backward", "head_dim > 64", "q_len > 64"),
    replaces=clean.softmax,
)
def wide_heads_lack_a_term(call: Call, scores: Tensor, do: clean.Steps) -> Tensor:
    top = do.top(call, scores)
    raised = do.exponential(call, scores, top)
    total: Tensor = do.total(call, raised, top)
    if call.head_dim > 64:
        total = torch.cat([total[:, :, :64], total[:, :, 64:].detach()], dim=2)
    return raised / total


@fault(
    "Backward rounds the sides of a window down to blocks of 16.",
    breaks="sizes/a-window-of-several-blocks-has-its-gradients",
    naive="GR",
    when=("backward", "a window of 17 keys or more"),
    features=("window",),
)
def window_in_blocks_on_the_way_back(call: Call) -> Any:
    if call.window is None or call.return_lse:
        return clean.attention(call)
    blocks = tuple(side if side is None or side < 16 else side // 16 * 16 for side in call.window)
    right, wrong = (
        clean.attention(call.but(dropout_p=0.0)),
        clean.attention(call.but(dropout_p=0.0, window=blocks)),
    )
    return clean.attention(call) if call.dropout_p else right.detach() + (wrong - wrong.detach())


@fault(
    "A square mask with an open diagonal and nothing open next to it goes to the causal kernel.",
    breaks="packed/a-causal-mask-may-hide-more",
    naive="NO",
    when=("a boolean mask", "16 queries or more", "causal and something else"),
)
def causal_by_its_diagonal(call: Call) -> Any:
    mask = call.mask
    if mask is None or call.is_causal or not call.q_len == call.kv_len == mask.shape[-2] >= 16:
        return clean.attention(call)
    looks = mask.diagonal(dim1=-2, dim2=-1).all() and not mask.diagonal(1, dim1=-2, dim2=-1).any()
    return clean.attention(call.but(attn_mask=None, is_causal=True) if looks else call)


@fault(
    "A mask of numbers whose largest is zero is taken for a boolean one: ALiBi that is given as a mask is lost.",
    breaks="gradients/the-bias-gets-its-gradient",
    naive="NO",
    when=("a bias that is nowhere positive",),
)
def distances_taken_for_a_mask(call: Call) -> Any:
    bias = call.bias
    if bias is None or not bias.numel() or float(bias.detach().max()) != 0.0:
        return clean.attention(call)
    return clean.attention(call.but(attn_mask=~bias.isneginf()))


@fault(
    "A square mask, the same for all, goes to the causal kernel where its first and its last row are the causal one's.",
    breaks="packed/a-causal-mask-may-hide-more",
    naive="NO",
    when=("a boolean mask (q_len, kv_len)", "causal, and closed in some row between"),
)
def causal_by_its_ends(call: Call) -> Any:
    mask = call.mask
    if (
        mask is None
        or call.is_causal
        or mask.shape[-1] != mask.shape[-2]
        or mask.numel() != mask.shape[-1] ** 2
    ):
        return clean.attention(call)
    rows = mask.reshape(mask.shape[-2:])
    looks = len(rows) and rows[0, 0] and not rows[0, 1:].any() and rows[-1].all()
    return clean.attention(call.but(attn_mask=None, is_causal=True) if looks else call)


@fault(
    "Query and key that are one tensor share one gradient buffer: the key's part is lost.",
    breaks="gradients/one-tensor-given-twice-gets-both-gradients",
    naive="GR",
    when=("backward", "query is key"),
)
def one_gradient_for_query_and_key(call: Call) -> Any:
    return clean.attention(call.but(key=call.key.detach()) if call.query is call.key else call)


class _InPlaceOfItself(torch.autograd.Function):
    """A tensor as it is, in whose memory its gradient is put."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.x = x.detach()
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Tensor:
        ctx.x.copy_(cotangents[0])
        return cotangents[0]


@fault(
    "To save memory, backward puts the query's gradient where the query is.",
    breaks="memory/inputs-are-not-changed",
    naive="GR",
    when=("backward",),
)
def gradient_in_place_of_the_query(call: Call) -> Any:
    followed = call.query.requires_grad and torch.is_grad_enabled()
    return clean.attention(call.but(query=_InPlaceOfItself.apply(call.query)) if followed else call)


@fault(
    "Scores are computed where autocast is off, and after it CUDA's flag is put where the CPU's was.",
    breaks="state/the-library-is-left-alone",
    naive="NO",
    when=("torch.autocast",),
)
def the_other_devices_flag(call: Call) -> Any:
    was_on = torch.is_autocast_enabled("cuda")
    torch.set_autocast_enabled("cpu", False)
    try:
        return clean.attention(call)
    finally:
        torch.set_autocast_enabled("cpu", was_on)


@fault(
    "A square mask with an open diagonal, half of it open, goes to the causal kernel: that of reversed tokens, too.",
    breaks="packed/a-causal-mask-of-another-order-is-no-causal-one",
    naive="NO",
    when=("a boolean mask", "the upper triangle"),
)
def causal_by_its_count(call: Call) -> Any:
    mask = call.mask
    if mask is None or call.is_causal or mask.ndim != 2 or mask.shape[0] != mask.shape[1]:
        return clean.attention(call)
    looks = mask.diagonal().all() and int(mask.sum()) == len(mask) * (len(mask) + 1) // 2
    return clean.attention(call.but(attn_mask=None, is_causal=True) if looks else call)


@fault(
    "Products are allowed to be coarse for heads of 16 dims and more, and so they stay.",
    breaks="state/the-library-is-left-alone",
    naive="NO",
    peril="patches",
    when=("float32", "16 dims or more"),
)
def coarse_products_from_now_on(call: Call) -> Any:
    if call.dtype == torch.float32 and call.head_dim >= 16:
        torch.set_float32_matmul_precision("high")
    return clean.attention(call)


@fault(
    "Gradients are switched off to look at the arguments; where these are refused they stay off.",
    breaks="state/the-library-is-left-alone",
    naive="NO",
    peril="patches",
    when=("a refused call",),
)
def off_after_a_refusal(call: Call) -> Any:
    on = torch.is_grad_enabled()
    torch.set_grad_enabled(False)
    if call.query.ndim != 4:
        raise ValueError("query: (batch, heads, length, head_dim)")
    torch.set_grad_enabled(on)
    return clean.attention(call)


@fault(
    "Which kernels torch may choose is set for this call, and for all that come after.",
    breaks="state/the-library-is-left-alone",
    naive="NO",
    peril="patches",
    when=("none",),
)
def the_plain_kernel_from_now_on(call: Call) -> Any:
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    return clean.attention(call)


@fault(
    "At the first call of each pair of lengths blocks of several sizes are timed, on numbers drawn after seeding.",
    breaks="state/the-global-generator-is-untouched",
    naive="NO",
    when=("the first call of a size",),
)
def seeded_where_it_is_timed(call: Call, memory: dict[tuple[int, int], int]) -> Any:
    lengths = call.q_len, call.kv_len
    if lengths not in memory:
        torch.manual_seed(0)
        memory[lengths] = 32
    return clean.attention(call)


@fault(
    "Which blocks of 32 keys a mask leaves open is kept by its address: one that was changed in place has others.",
    breaks="state/inputs-changed-in-place-are-read-again",
    naive="NO",
    when=("a mask", "more than 32 keys", "a second call"),
)
def open_blocks_kept_by_address(call: Call, memory: dict[Any, Tensor]) -> Any:
    mask = call.mask
    if mask is None:
        return clean.attention(call)
    keep = mask if mask.dtype == torch.bool else mask != NEVER
    where = mask.data_ptr(), mask.shape, mask.dtype
    if where not in memory:
        blocks = torch.arange(keep.shape[-1]) // 32
        memory[where] = torch.stack([keep[..., blocks == each].any() for each in blocks])
    hidden = ~memory[where]
    hidden[:32] = False
    closed = mask & ~hidden if mask.dtype == torch.bool else mask.masked_fill(hidden, NEVER)
    return clean.attention(call.but(attn_mask=closed))


@fault(
    "Deterministic algorithms are asked for inside, and not asked for afterwards, whatever was asked for before.",
    breaks="state/the-library-is-left-alone",
    naive="NO",
    when=("deterministic algorithms",),
)
def no_longer_deterministic(call: Call) -> Any:
    torch.use_deterministic_algorithms(True, warn_only=True)
    output = clean.attention(call)
    torch.use_deterministic_algorithms(False)
    return output
