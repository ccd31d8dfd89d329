"""Calls on which the faults of the corpus show themselves, one line each."""

from collections.abc import Iterator

import torch
from torch import Tensor

from tests.faults.calls import NEVER, Call

HALF = (torch.bfloat16, torch.float16)


def draw(
    dtype: torch.dtype = torch.float64,
    *,
    batch: int = 2,
    heads: int = 4,
    kv_heads: int | None = None,
    q_len: int = 5,
    kv_len: int = 7,
    head_dim: int = 3,
    value_dim: int = 2,
    gain: float = 1.0,
    slope: float = 0.0,
    mask: str = "",
    seed: int = 0,
    **options: object,
) -> Call:
    """Normal inputs; `slope` makes the scores rise by that much from key to key."""
    torch.manual_seed(seed)
    query = torch.randn(batch, heads, q_len, head_dim) * gain
    key = torch.randn(batch, kv_heads or heads, kv_len, head_dim) * gain
    value = torch.randn(batch, kv_heads or heads, kv_len, value_dim)
    if slope:
        query[..., 0], key[..., 0] = 1.0, torch.arange(kv_len) * slope * head_dim**0.5
    attn_mask = draw_mask(mask, batch, heads, q_len, kv_len, dtype) if mask else None
    grouped = kv_heads is not None and kv_heads != heads
    tensors = (query.to(dtype), key.to(dtype), value.to(dtype), attn_mask)
    return Call(*tensors, enable_gqa=grouped, **options)  # type: ignore[arg-type]


def draw_mask(kind: str, batch: int, heads: int, q_len: int, kv_len: int, dtype: torch.dtype) -> Tensor:
    """A mask by name: its shape, then what it holds."""
    shape_name, _, content = kind.partition(" ")
    shape = {
        "full": (batch, heads, q_len, kv_len),
        "sequences": (batch, 1, q_len, kv_len),
        "heads": (1, heads, q_len, kv_len),
        "three": (heads, q_len, kv_len),
        "two": (q_len, kv_len),
        "keys": (batch, 1, 1, kv_len),
        "column": (batch, 1, q_len, 1),
        "row": (1, 1, 1, kv_len),
    }[shape_name]
    if content == "bias":
        return torch.randn(shape).to(dtype)
    kept = torch.rand(shape) > 0.4
    if content == "bias with infinities":
        return torch.randn(shape).masked_fill(~kept, NEVER).to(dtype)
    kept = kept_as(content.removeprefix("additive").strip(), kept)
    return (
        torch.zeros(shape, dtype=dtype).masked_fill(~kept, NEVER) if content.startswith("additive") else kept
    )


def kept_as(content: str, kept: Tensor) -> Tensor:
    """A random boolean mask, brought to what its name says."""
    q_len, kv_len = kept.shape[-2:]
    match content:
        case "dead":
            kept[..., -1, :] = False
        case "true":
            kept.fill_(True)
        case "single":
            kept = torch.arange(kv_len) == torch.arange(q_len)[:, None] % kv_len
        case "first sequence true":
            kept[0] = True
        case "first row true":
            kept.view(-1, kv_len)[0] = True
        case "prefix dead":
            kept[..., :16] = False
        case "corners":
            kept[..., [0, 0, -1, -1], [0, -1, 0, -1]] = True
        case "first head dead":
            kept[:, 0, 0] = False
    return kept


def calls(dtype: torch.dtype) -> Iterator[Call]:
    """From the ordinary to the rare."""
    yield draw(dtype)
    yield draw(dtype, kv_len=5, value_dim=3)
    yield draw(dtype, is_causal=True)
    yield draw(dtype, q_len=7, kv_len=5, is_causal=True)
    yield draw(dtype, mask="full")
    yield draw(dtype, kv_heads=2, is_causal=True)
    yield draw(dtype, scale=0.3)
    yield from masked(dtype)
    yield from shaped(dtype)
    yield from numeric(dtype)
    yield from laid_out(dtype)


def masked(dtype: torch.dtype) -> Iterator[Call]:
    for shape in ("full", "sequences", "heads", "three", "two", "keys", "column", "row"):
        yield draw(dtype, mask=shape)
        yield draw(dtype, mask=f"{shape} bias")
    for content in ("dead", "single", "additive", "additive dead", "bias with infinities", "first head dead"):
        yield draw(dtype, mask=f"full {content}")
    yield draw(dtype, mask="two true")
    yield draw(dtype, q_len=2, mask="two")
    yield draw(dtype, q_len=2, mask="keys")
    yield draw(dtype, batch=4, mask="sequences")
    yield draw(dtype, batch=4, mask="three")
    yield draw(dtype, kv_len=5, mask="keys")
    yield draw(dtype, kv_len=5, mask="two")
    yield draw(dtype, mask="sequences first sequence true")
    yield draw(dtype, mask="full first row true")
    yield draw(dtype, mask="full", is_causal=True)
    yield draw(dtype, mask="full dead", is_causal=True)
    yield draw(dtype, mask="full bias", is_causal=True)
    yield draw(dtype, mask="full bias", scale=0.3)
    yield draw(dtype, q_len=1, mask="full")
    yield draw(dtype, q_len=1, mask="full bias")
    yield draw(dtype, kv_heads=2, mask="full")
    yield draw(dtype, kv_len=40, mask="full prefix dead")
    yield draw(dtype, kv_len=40, mask="full")
    yield draw(dtype, kv_len=40, mask="full bias")
    yield draw(dtype, q_len=4, kv_len=4, mask="full corners")
    towering = draw(dtype, mask="full", gain=1.0)
    yield towering.but(key=towering.key * 1e4, query=towering.query.abs(), value=towering.value)
    yield with_huge_masked_key(draw(dtype))
    yield draw(dtype, dropout_p=0.3)
    yield draw(dtype, dropout_p=0.3, is_causal=True)
    yield draw(dtype, dropout_p=0.3, mask="full")
    yield draw(dtype, dropout_p=0.3, kv_len=40)
    yield draw(dtype, dropout_p=1.0)


def with_huge_masked_key(call: Call) -> Call:
    key = call.key.clone()
    key[:, :, 0] = 1e15 if call.dtype == torch.float64 else 1e4
    return call.but(key=key, attn_mask=torch.arange(call.kv_len) > 0)


def shaped(dtype: torch.dtype) -> Iterator[Call]:
    yield draw(dtype, q_len=1)
    yield draw(dtype, q_len=1, is_causal=True)
    yield draw(dtype, kv_len=1)
    yield draw(dtype, q_len=1, kv_len=1)
    yield draw(dtype, batch=1)
    yield draw(dtype, batch=5)
    yield draw(dtype, batch=4)
    yield draw(dtype, heads=3)
    yield draw(dtype, heads=1)
    yield draw(dtype, kv_len=4)
    yield draw(dtype, kv_len=0)
    yield draw(dtype, kv_len=3)
    yield draw(dtype, value_dim=5)
    yield draw(dtype, head_dim=9)
    yield draw(dtype, head_dim=40)
    yield draw(dtype, heads=6, kv_heads=2, is_causal=True, q_len=9, kv_len=9)
    yield draw(dtype, heads=6, kv_heads=2, scale=0.3)
    yield draw(dtype, heads=6, kv_heads=1)
    yield draw(dtype, heads=6, kv_heads=1, q_len=1)
    yield draw(dtype, heads=6, kv_heads=3)
    for length in (16, 17, 20, 32, 33, 40, 129):
        yield draw(dtype, q_len=length, kv_len=length)
        yield draw(dtype, q_len=length, kv_len=length, is_causal=True)
    yield draw(dtype, q_len=70, kv_len=70)
    yield draw(dtype, q_len=3, kv_len=300)


def numeric(dtype: torch.dtype) -> Iterator[Call]:
    yield draw(dtype, gain=40.0)
    yield draw(dtype, gain=0.0)
    yield draw(dtype, gain=0.0, kv_len=300)
    yield draw(dtype, scale=0.0)
    yield draw(dtype, scale=-0.3)
    yield draw(dtype, is_causal=True, scale=0.3)
    for slope in (0.72, -0.72, 30.0, -30.0):
        yield draw(dtype, kv_len=40, slope=slope)
    yield draw(dtype, kv_len=24, slope=30.0, mask="full").but(scale=-1.0)
    yield draw(dtype, kv_len=24, gain=30.0, mask="full")
    for bottom in (-120.0, -2000.0):
        hidden_first = torch.full((5, 24), bottom).masked_fill(torch.arange(24) < 18, NEVER)
        yield draw(dtype, kv_len=24).but(attn_mask=hidden_first.to(dtype))
        low = draw(dtype, kv_len=24, mask="two")
        yield low.but(query=torch.ones_like(low.query), key=low.key + bottom / 3**0.5)
    yield draw(dtype, q_len=2, kv_len=1100, slope=3.0)
    yield draw(dtype, q_len=2, kv_len=1100, slope=-0.005)
    for name in ("key", "value"):
        nan = draw(dtype)
        getattr(nan, name)[0, 0, 0, 0] = float("nan")
        yield nan
    light = draw(dtype, q_len=2, kv_len=1100, gain=0.0)
    light.query[..., 0] = 1.0
    light.key[:, :, 0, 0] = 9.0 * 3**0.5
    yield light
    if dtype.itemsize == 2:
        yield draw(dtype, head_dim=64, gain=150.0, scale=1e-5)


def pairs(dtype: torch.dtype) -> Iterator[tuple[Call, Call]]:
    """Two calls after each other, one thing changed."""
    call = draw(dtype)
    yield call, call
    yield call, call.but(scale=0.3)
    yield call.but(scale=0.3), call
    yield call, call.but(is_causal=True)
    yield draw(dtype, mask="full"), call
    yield draw(dtype, mask="full"), call.but(attn_mask=draw(dtype, mask="full", seed=1).attn_mask)
    yield draw(dtype, is_causal=True), draw(dtype, q_len=9, kv_len=11, is_causal=True)
    yield call, call.but(key=call.key[:, :1].expand_as(call.key))
    yield draw(torch.float32), call
    yield call, draw(dtype, gain=40.0)
    yield draw(dtype, gain=40.0), call
    yield call, call.but(query=call.query.flip(2))
    yield call, draw(dtype, seed=1)
    yield draw(dtype), draw(dtype, mask="full dead")


def laid_out(dtype: torch.dtype) -> Iterator[Call]:
    """The same values, otherwise in memory."""
    call = draw(dtype, kv_len=33, value_dim=3, mask="full")
    for name in ("query", "key", "value", "attn_mask"):
        x = getattr(call, name)
        yield call.but(**{name: x.transpose(1, 2).contiguous().transpose(1, 2)})
        yield call.but(**{name: x.repeat_interleave(2, dim=-1)[..., ::2]})
        yield call.but(**{name: torch.cat([x, x.roll(1, 0)], dim=2)[:, :, x.shape[2] :]})
        yield call.but(**{name: torch.cat([x, x.roll(1, 0)], dim=2)[:, :, : x.shape[2]]})
        yield call.but(**{name: x[:, :1].expand_as(x)})
