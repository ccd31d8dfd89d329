"""A flash kernel in Triton, of the size of a tutorial: tiles of keys, a running maximum, one division at the end.

Forward only; causal top-left; head_dim a power of two from 16 on. Dao 2023 (FlashAttention-2), algorithm 1.
"""

import functools
import math
from typing import Any

from headcheck.declarations import Attention
from headcheck.subjects import builtin

BLOCK = 32


@builtin(
    "triton-flash",
    "A flash kernel in Triton as a user would write it: forward, causal, no mask.",
    needs=("torch", "triton"),
    install="pip install triton",
)
def triton_flash() -> Attention:
    """Where there is no CUDA device, TRITON_INTERPRET=1 and --device cpu run it in Triton's interpreter."""
    return Attention(
        _attention,
        name="triton-flash",
        causal="top-left",
        scale_with_causal="any",
        masks=(),
        grouped_heads=False,
        value_dim=False,
        scale=True,
        dropout=False,
        gradients=False,
        may_refuse=True,
        devices=("cuda",),
        dtypes=("float16", "float32"),
        head_dims=(16, 32, 64, 128),
        effort=0.1,
    )


def _attention(query: Any, key: Any, value: Any, is_causal: bool = False, scale: float | None = None) -> Any:
    import torch

    batch, heads, q_len, head_dim = query.shape
    if head_dim < 16 or head_dim & (head_dim - 1) or not q_len * key.shape[2]:
        raise NotImplementedError("head_dim is a power of two from 16 on, and no axis is empty")
    query, key, value = (x.contiguous() for x in (query, key, value))
    output = torch.empty_like(query)
    factor = head_dim**-0.5 if scale is None else scale
    grid = (math.ceil(q_len / BLOCK), batch * heads)
    _kernel()[grid](
        query, key, value, output, factor, q_len, key.shape[2], CAUSAL=is_causal, DIM=head_dim, BLOCK=BLOCK
    )
    return output


@functools.cache
def _kernel() -> Any:
    import triton
    import triton.language as tl

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def kernel(  # type: ignore[no-untyped-def]
        query,  # noqa: ANN001 - of Triton's kinds: its compiler refuses other annotations
        key,  # noqa: ANN001
        value,  # noqa: ANN001
        output,  # noqa: ANN001
        factor,  # noqa: ANN001
        q_len,  # noqa: ANN001
        kv_len,  # noqa: ANN001
        CAUSAL: tl.constexpr,  # noqa: N803 - constants of the compiler, as Triton's own kernels write them
        DIM: tl.constexpr,  # noqa: N803
        BLOCK: tl.constexpr,  # noqa: N803
    ) -> None:
        head = tl.program_id(1).to(tl.int64)
        rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        dims = tl.arange(0, DIM)
        place = head * q_len * DIM + rows[:, None] * DIM + dims[None, :]
        q = tl.load(query + place, mask=rows[:, None] < q_len, other=0.0)
        top = tl.full((BLOCK,), -float("inf"), tl.float32)
        total = tl.zeros((BLOCK,), tl.float32)
        acc = tl.zeros((BLOCK, DIM), tl.float32)
        for start in range(0, kv_len, BLOCK):
            columns = start + tl.arange(0, BLOCK)
            there = head * kv_len * DIM + columns[:, None] * DIM + dims[None, :]
            k = tl.load(key + there, mask=columns[:, None] < kv_len, other=0.0)
            v = tl.load(value + there, mask=columns[:, None] < kv_len, other=0.0)
            scores = tl.dot(q, tl.trans(k), input_precision="ieee") * factor
            keep = (columns < kv_len)[None, :]
            if CAUSAL:
                keep = keep & (columns[None, :] <= rows[:, None])
            scores = tl.where(keep, scores, -float("inf"))
            new_top = tl.maximum(top, tl.max(scores, 1))
            shift = tl.where(new_top == -float("inf"), 0.0, new_top)
            weights = tl.exp(scores - shift[:, None])
            rescale = tl.exp(top - shift)
            total = total * rescale + tl.sum(weights, 1)
            acc = acc * rescale[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
            top = new_top
        acc = acc / total[:, None]
        tl.store(output + place, acc.to(output.dtype.element_ty), mask=rows[:, None] < q_len)

    return kernel
