"""Windows at their edges, decode steps, caches, packed documents and blocks of a mask."""

import math

import torch
from torch import Tensor

from tests.faults import clean, fault
from tests.faults.calls import Call
from tests.faults.features import WINDOW, between, sides


@fault(
    "The window is a penalty of 30 on the scores, not a mask.",
    breaks="windows/a-key-one-step-outside-does-not-matter",
    naive="SV",
    features=WINDOW,
)
def window_as_a_penalty(call: Call) -> Tensor:
    def bias(call: Call, scores: Tensor) -> Tensor:
        kept = clean.window(call)
        scores = clean.bias(call, scores)
        return scores if kept is None else scores - 30.0 * ~kept

    return clean.attention(call, window=lambda call: None, bias=bias)


@fault(
    "The outermost key on the right is left out of a window.",
    breaks="windows/the-outermost-key-of-a-window-counts",
    real="https://github.com/huggingface/transformers/issues/39408",
    naive="PATH",
    replaces=clean.window,
    features=WINDOW,
)
def window_without_its_right_edge(call: Call) -> Tensor:
    left, right = sides(call)
    return between(call, left, max(right - 1, 0))


@fault(
    "A side as long as the keys or longer is cut to two less.",
    breaks="windows/a-window-wider-than-the-keys-is-none",
    naive="SV",
    when=("window", "window >= kv_len"),
    replaces=clean.window,
    features=WINDOW,
)
def window_cut_to_the_keys(call: Call) -> Tensor:
    longest = max(call.q_len, call.kv_len) - 2
    return between(call, *(longest if longest < side < math.inf else side for side in sides(call)))


@fault(
    "The causal flag is dropped when there is a window.",
    breaks="windows/a-causal-window-has-no-right-side",
    naive="PATH",
    when=("window", "causal"),
    replaces=clean.causal,
    features=WINDOW,
)
def causal_dropped_for_a_window(call: Call) -> Tensor | None:
    return clean.causal(call) if call.window is None else None


@fault(
    "A key is kept where the window or the mask keeps it.",
    breaks="windows/a-window-and-a-mask-compose",
    naive="PATH",
    when=("window", "mask"),
    replaces=clean.compose,
    features=WINDOW,
)
def window_or_mask(
    call: Call, mask: Tensor | None, causal: Tensor | None, window: Tensor | None
) -> Tensor | None:
    if mask is not None and window is not None:
        mask, window = mask | window, None
    return clean.compose(call, mask, causal, window)


@fault(
    "A single query loses the keys after the last whole block of four.",
    breaks="caches/decoding-one-query-equals-the-last-row",
    real="https://github.com/vllm-project/vllm/issues/26042",
    naive="SH",
    when=("one query", "kv_len % 4"),
    replaces=clean.causal,
)
def decode_loses_its_tail(call: Call) -> Tensor | None:
    if call.q_len > 1 or call.kv_len < 4:
        return clean.causal(call)
    return (torch.arange(call.kv_len) < call.kv_len // 4 * 4).expand(1, call.kv_len)


@fault(
    "A mask with more keys than queries is read from one key too early.",
    breaks="caches/prefill-in-chunks-equals-one-pass",
    naive="SH",
    when=("mask", "1 < q_len < kv_len"),
    replaces=clean.mask,
)
def mask_of_a_chunk_moved(call: Call) -> Tensor | None:
    mask = call.mask
    return mask.roll(1, -1) if mask is not None and 1 < call.q_len < call.kv_len else mask


@fault(
    "Every sequence reads the cache up to the longest length of the batch.",
    breaks="caches/unused-slots-of-a-cache-do-not-matter",
    naive="PATH",
    when=("mask", "batch > 1"),
    replaces=clean.mask,
)
def longest_length_for_all(call: Call) -> Tensor | None:
    mask = call.mask
    return mask.any(dim=0, keepdim=True) if mask is not None and mask.ndim == 4 else mask


@fault(
    "Each document sees the first key of the next one.",
    breaks="packed/packed-documents-equal-each-alone",
    naive="PATH",
    when=("mask",),
    replaces=clean.mask,
)
def next_document_seen(call: Call) -> Tensor | None:
    mask = call.mask
    if mask is None or mask.shape[-1] < 2:
        return mask
    return torch.cat([mask[..., :1], mask[..., 1:] | mask[..., :-1]], dim=-1)


@fault(
    "A block of four keys is skipped where its first key is masked.",
    breaks="packed/blocks-without-a-key-may-be-left-out",
    naive="PATH",
    when=("mask",),
    replaces=clean.mask,
)
def block_skipped_for_its_first_key(call: Call) -> Tensor | None:
    mask = call.mask
    if mask is None or mask.shape[-1] < 2:
        return mask
    first = torch.arange(mask.shape[-1]) // 4 * 4
    return mask & mask[..., first]
