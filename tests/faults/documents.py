"""The latent faults of code in tutorials, as small functions of our own; golden/ says where each was found."""

from torch import Tensor

from tests.faults import clean, fault
from tests.faults.broadcast import shape_of_mask, with_mask
from tests.faults.calls import Call


@fault(
    "Every mask is compared with zero: an additive one, whose zeros keep, is read the wrong way round.",
    breaks=("masks/boolean-equals-additive", "masks/masked-keys-do-not-matter"),
    naive="PATH",
)
def zero_drops_in_every_mask(call: Call) -> Tensor:
    return clean.attention(call if call.attn_mask is None else call.but(attn_mask=call.attn_mask != 0))


@fault(
    "A mask of the keys of each sequence is laid over queries and keys when there are as many sequences as queries.",
    breaks=(
        "masks/masked-keys-do-not-matter",
        "masks/broadcast-equals-expanded",
        "symmetry/batches-do-not-hear-each-other",
    ),
    naive="SH",
    when=("a mask for each sequence", "one row", "batch = q_len"),
)
def padding_meets_queries(call: Call) -> Tensor:
    batch, heads, rows, _ = shape_of_mask(call)
    if (
        call.attn_mask is None
        or heads > 1
        or rows > 1
        or batch != call.q_len
        or call.attn_mask.shape[-1] == 1
    ):
        return clean.attention(call)
    return with_mask(call, call.attn_mask[:, 0, 0])


@fault(
    "Row b of a mask of queries and keys goes to sequence b when there are as many queries as sequences.",
    breaks=(
        "masks/each-query-is-blind-to-its-own-masked-keys",
        "masks/broadcast-equals-expanded",
        "masks/masked-keys-do-not-matter",
    ),
    naive="SH",
    when=("a mask of two axes", "batch = q_len"),
)
def rows_meet_sequences(call: Call) -> Tensor:
    if call.attn_mask is None or call.attn_mask.ndim != 2 or not 1 < len(call.attn_mask) == call.batch:
        return clean.attention(call)
    return with_mask(call, call.attn_mask[:, None, None])


@fault(
    "Masked scores are set to -1e9: a dead row is the mean of all values, the masked ones included.",
    breaks="masks/dead-rows-follow-the-convention",
    naive="SV",
    replaces=clean.hide,
)
def filled_with_minus_a_billion(call: Call, scores: Tensor, kept: Tensor) -> Tensor:
    return scores.masked_fill(~kept, -1e9)


@fault(
    "Masked scores are set to -1e9 in the type of the inputs: half precision has no such number.",
    breaks=("masks/masked-keys-do-not-matter", "masks/causal-equals-its-mask"),
    naive="LP",
    dtypes=("float16",),
)
def minus_a_billion_in_half(call: Call) -> Tensor:
    def hide(read: Call, scores: Tensor, kept: Tensor) -> Tensor:
        return scores.to(call.dtype).masked_fill(~kept, -1e9).to(scores.dtype)

    return clean.attention(call, hide=hide)


@fault(
    "The window is laid out for as many tokens as there are sequences: a single sequence has none.",
    breaks=("features/a-window-sees-exactly-its-keys", "features/a-window-equals-its-band"),
    naive="SH",
    when=("window", "batch = 1"),
    replaces=clean.window,
    features=("window",),
)
def window_of_the_batch(call: Call) -> Tensor | None:
    return None if call.batch == 1 else clean.window(call)


@fault(
    "The window is laid out for as many tokens as there are sequences, which the scores of two sequences refuse.",
    breaks=("features/a-window-sees-exactly-its-keys", "features/a-window-equals-its-band"),
    naive="SH",
    when=("window", "batch > 1"),
    replaces=clean.window,
    features=("window",),
)
def window_refuses_batches(call: Call) -> Tensor | None:
    if call.batch > 1:
        raise RuntimeError(f"a mask of {call.batch} x {call.batch} for {call.q_len} x {call.kv_len} scores")
    return clean.window(call)


@fault(
    "A mask of four axes is refused where it is one for all sequences: batch and heads are one axis.",
    breaks=("masks/broadcast-equals-expanded", "masks/masked-keys-do-not-matter"),
    naive="SH",
    when=("a mask of four axes", "one for all sequences", "batch > 1"),
)
def one_mask_for_all_is_refused(call: Call) -> Tensor:
    if call.attn_mask is not None and call.attn_mask.ndim == 4 and len(call.attn_mask) == 1 < call.batch:
        raise RuntimeError(f"a mask for 1 sequence, scores for {call.batch}")
    return clean.attention(call)
