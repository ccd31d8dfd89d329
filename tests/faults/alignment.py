"""Where the causal diagonal stands."""

import torch
from torch import Tensor

from tests.faults import clean, fault
from tests.faults.calls import Call


def diagonal(call: Call, offset: int) -> Tensor | None:
    """Query i sees the keys up to i + offset."""
    return call.distance() <= offset if call.is_causal else None


@fault(
    "A query does not see its own position.",
    breaks="masks/causal-equals-its-mask",
    naive="T",
    replaces=clean.causal,
)
def itself_excluded(call: Call) -> Tensor | None:
    return diagonal(call, -1)


@fault(
    "A query sees one key of its future.",
    breaks="masks/the-future-does-not-matter",
    naive="T",
    replaces=clean.causal,
)
def one_key_ahead(call: Call) -> Tensor | None:
    return diagonal(call, 1)


@fault(
    "The diagonal ends at the last key when the lengths differ: bottom-right, not top-left.",
    breaks="masks/causal-equals-its-mask",
    real="https://github.com/pytorch/executorch/issues/22426",
    naive="SH",
    replaces=clean.causal,
)
def bottom_right(call: Call) -> Tensor | None:
    return diagonal(call, call.kv_len - call.q_len)


@fault(
    "The diagonal is bottom-right when there are more keys than queries, top-left otherwise.",
    breaks="masks/causal-equals-its-mask",
    naive="SH",
    when=("causal", "q_len < kv_len"),
    replaces=clean.causal,
)
def bottom_right_with_more_keys(call: Call) -> Tensor | None:
    return diagonal(call, max(call.kv_len - call.q_len, 0))


@fault(
    "The diagonal is bottom-right in float32 and top-left in the other types.",
    breaks="masks/causal-equals-its-mask",
    real="https://github.com/microsoft/onnxruntime/issues/29020",
    naive="SH",
    when=("causal", "q_len != kv_len", "float32"),
    dtypes=("float32",),
)
def bottom_right_in_single_precision(call: Call) -> Tensor:
    offset = call.kv_len - call.q_len if call.dtype == torch.float32 else 0
    return clean.attention(call, causal=lambda call: diagonal(call, offset))


@fault(
    "The limit kv_len - q_len + i is unsigned: with more queries than keys it wraps to see everything.",
    breaks="masks/causal-equals-its-mask",
    real="flashinfer 7adc8cf01 (#353)",
    naive="SH",
    when=("causal", "q_len > kv_len"),
    replaces=clean.causal,
)
def unsigned_limit(call: Call) -> Tensor | None:
    if not call.is_causal or call.q_len <= call.kv_len:
        return clean.causal(call)
    limit = torch.arange(call.q_len)[:, None] + call.kv_len - call.q_len
    return torch.arange(call.kv_len) <= torch.where(limit < 0, 2**32 + limit, limit)


@fault(
    "A single query is taken for a decoding step: it sees every key although the call is causal.",
    breaks=("masks/causal-equals-its-mask", "masks/the-future-does-not-matter"),
    real="https://github.com/pytorch/pytorch/issues/103082",
    naive="SH",
    when=("causal", "one query"),
    replaces=clean.causal,
)
def single_query_sees_everything(call: Call) -> Tensor | None:
    return None if call.q_len == 1 else clean.causal(call)


@fault(
    "Time is turned round: a query sees itself and its future.",
    breaks="masks/the-future-does-not-matter",
    naive="T",
    replaces=clean.causal,
)
def the_past_is_hidden(call: Call) -> Tensor | None:
    return call.distance() >= 0 if call.is_causal else None


@fault(
    "The diagonal runs from corner to corner when the lengths differ.",
    breaks="masks/causal-equals-its-mask",
    naive="SH",
    replaces=clean.causal,
)
def corner_to_corner(call: Call) -> Tensor | None:
    if not call.is_causal:
        return None
    i, j = torch.arange(call.q_len)[:, None], torch.arange(call.kv_len)
    return j * call.q_len <= i * call.kv_len


@fault(
    "The triangle has the size of the queries; the keys beyond it are visible to all.",
    breaks="masks/the-future-does-not-matter",
    naive="SH",
    when=("causal", "q_len < kv_len"),
    replaces=clean.causal,
)
def keys_beyond_the_square_visible(call: Call) -> Tensor | None:
    return clean.causal(call) | (torch.arange(call.kv_len) >= call.q_len) if call.is_causal else None


@fault(
    "The triangle has the size of the keys; the queries beyond it see nothing.",
    breaks="masks/causal-equals-its-mask",
    naive="SH",
    when=("causal", "q_len > kv_len"),
    replaces=clean.causal,
)
def queries_beyond_the_square_dead(call: Call) -> Tensor | None:
    if not call.is_causal:
        return None
    return clean.causal(call) & (torch.arange(call.q_len)[:, None] < call.kv_len)


@fault(
    "The causal mask is as coarse as its tiles of 8: a query sees its whole tile.",
    breaks="masks/the-future-does-not-matter",
    naive="T",
    replaces=clean.causal,
)
def as_coarse_as_its_tiles(call: Call) -> Tensor | None:
    if not call.is_causal:
        return None
    return torch.arange(call.kv_len) // 8 <= torch.arange(call.q_len)[:, None] // 8


@fault(
    "The last query of each tile of 16 sees one key of the next tile.",
    breaks=("masks/causal-equals-its-mask", "masks/the-future-does-not-matter"),
    naive="SH",
    when=("causal", "kv_len > 16"),
    replaces=clean.causal,
)
def one_key_of_the_next_tile(call: Call) -> Tensor | None:
    if not call.is_causal:
        return None
    last_of_tile = torch.arange(call.q_len)[:, None] % 16 == 15
    return call.distance() <= last_of_tile.to(torch.int64)


@fault(
    "The last query does not see its own position.",
    breaks="masks/causal-equals-its-mask",
    naive="T",
    replaces=clean.causal,
)
def last_query_does_not_see_itself(call: Call) -> Tensor | None:
    if not call.is_causal:
        return None
    last = torch.arange(call.q_len)[:, None] == call.q_len - 1
    return call.distance() <= -last.to(torch.int64)


@fault(
    "Positions are kept in eight bits: from key 128 on they are negative, hence past.",
    breaks="masks/the-future-does-not-matter",
    real="facebookresearch/xformers 68dce697",
    naive="SH",
    when=("causal", "kv_len > 128"),
    replaces=clean.causal,
)
def positions_in_eight_bits(call: Call) -> Tensor | None:
    if not call.is_causal:
        return None
    return torch.arange(call.kv_len).to(torch.int8) <= torch.arange(call.q_len).to(torch.int8)[:, None]


@fault(
    "With grouped heads the queries of a group are packed, and a query is placed by its packed index.",
    breaks=("masks/the-future-does-not-matter", "heads/grouped-heads-equal-repeated-heads"),
    real="flashinfer ff6808cc1 (#1148)",
    naive="PATH",
    when=("causal", "grouped heads"),
    replaces=clean.causal,
)
def placed_by_the_packed_index(call: Call) -> Tensor | None:
    if not call.is_causal:
        return None
    member = torch.arange(call.heads)[:, None, None] % call.group
    packed = torch.arange(call.q_len)[:, None] + member
    return torch.arange(call.kv_len) <= packed


@fault(
    "With grouped heads the causal end of a tile of packed queries is rounded down: the last keys are lost.",
    breaks=("masks/causal-equals-its-mask", "heads/grouped-heads-equal-repeated-heads"),
    real="flashinfer ff6808cc1 (#1148)",
    naive="SH",
    when=("causal", "a group that does not divide the tile", "the query in the middle of a tile"),
    replaces=clean.causal,
)
def packed_tile_end_rounded_down(call: Call) -> Tensor | None:
    if not call.is_causal or call.group == 1:
        return clean.causal(call)
    member = torch.arange(call.heads)[:, None, None] % call.group
    packed = torch.arange(call.q_len)[:, None] * call.group + member
    end = (packed // 4 + 1) * 4 // call.group
    return clean.causal(call) & (torch.arange(call.kv_len) < end)
