"""Attention over sequences of several lengths that are packed on one axis, with cu_seqlens."""

import functools
from dataclasses import replace
from typing import Any

from headcheck.arithmetic import named
from headcheck.declarations import DTYPES, Attention
from headcheck.signatures import parameters_of
from headcheck.subjects import builtin
from headcheck.subjects.torch_flex import FLEX_ON_GPU, as_one_graph, eager_flex, require_compiler

BLOCK = 128
"""Queries and keys of one block of a BlockMask."""
LONGEST = 16384
"""Tokens that the tables of a document mask hold."""


@builtin("reference-packed", "The reference's attention over packed sequences, one after another.")
def reference_packed() -> Attention:
    """Half types are computed in float32."""
    import torch
    from torch import Tensor

    from headcheck.reference.masks import Alignment
    from headcheck.reference.packed import packed_attention

    def attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        is_causal: bool = False,
        scale: float | None = None,
    ) -> Any:
        q, k, v = (x.to(torch.promote_types(x.dtype, torch.float32)) for x in (query, key, value))
        causal: Alignment | None = "bottom-right" if is_causal else None
        output = packed_attention(q, k, v, cu_seqlens_q, cu_seqlens_k, causal=causal, scale=scale)
        return output.to(query.dtype)

    return _declared(attention).but(
        name="reference-packed",
        grouped_heads="interleaved",
        gradients=True,
        dtypes=DTYPES,
        arithmetic={"bfloat16": "wide", "float16": "wide"},
    )


@builtin("torch-varlen", "torch.nn.attention.varlen.varlen_attn: packed sequences on CUDA.")
def torch_varlen() -> Attention:
    """Its kernels are those of FlashAttention; on a CPU there is none."""
    from torch.nn.attention.varlen import varlen_attn

    takes = parameters_of(varlen_attn) or {}  # Of torch 2.10 to 2.13, each takes more than the one before.

    def attention(
        query: Any,
        key: Any,
        value: Any,
        cu_seqlens_q: Any,
        cu_seqlens_k: Any,
        max_seqlen_q: int,
        max_seqlen_k: int,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Any:
        lengths = (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
        options: dict[str, Any] = {"scale": scale} if "scale" in takes else {}
        options |= {"enable_gqa": enable_gqa} if "enable_gqa" in takes else {}
        if "window_size" in takes:
            options["window_size"] = (-1, 0) if is_causal else (-1, -1)
        else:
            options["is_causal"] = is_causal
        return varlen_attn(query, key, value, *lengths, **options)

    return _declared(attention).but(
        name="torch-varlen",
        grouped_heads="interleaved" if "enable_gqa" in takes else False,
        scale="scale" in takes,
        value_dim=False,
        devices=("cuda",),
        any_strides=False,
        scale_with_causal="positive",
        head_dims=(8, 16, 32, 40, 64, 80, 96, 128, 192, 256),
        dtypes=("bfloat16", "float16"),
        arithmetic="flash",
        nan_scores="may-vanish",
        may_refuse=True,
    )


@builtin(
    "torch-flex-document", "torch's flex_attention, eager: packed sequences by a BlockMask of documents."
)
def torch_flex_document() -> Attention:
    """A query sees the keys of its own document; the mask is made anew for each call."""

    def attention(
        query: Any,
        key: Any,
        value: Any,
        cu_seqlens_q: Any,
        cu_seqlens_k: Any,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Any:
        mask = _documents(cu_seqlens_q, cu_seqlens_k, len(query), len(key), is_causal=is_causal)
        q, k, v = (x.transpose(0, 1)[None] for x in (query, key, value))
        output = eager_flex(q, k, v, block_mask=mask, scale=scale, enable_gqa=enable_gqa)
        return output[0].transpose(0, 1)

    return _declared(attention).but(
        name="torch-flex-document",
        grouped_heads="interleaved",
        gradients=False,
        dtypes=DTYPES,
        arithmetic={"bfloat16": "flash", "float16": "flash"},
        effort=0.2,
    )


@builtin("torch-flex-document-compiled", "The same under torch.compile, dynamic shapes.")
def torch_flex_document_compiled() -> Attention:
    """The tokens are padded to more than one block, so that all packs are one graph."""
    require_compiler()
    compiled = _compiled_flex()

    def attention(
        query: Any,
        key: Any,
        value: Any,
        cu_seqlens_q: Any,
        cu_seqlens_k: Any,
        is_causal: bool = False,
        scale: float | None = None,
    ) -> Any:
        padded = [_padded(x) for x in (query, key, value)]
        lengths = len(padded[0]), len(padded[1])
        mask = _documents(cu_seqlens_q, cu_seqlens_k, *lengths, is_causal=is_causal)
        q, k, v = (x.transpose(0, 1)[None].expand(2, -1, -1, -1) for x in padded)
        factor = query.shape[-1] ** -0.5 if scale is None else scale
        output = compiled(q, k, v, query.new_full((2,), factor), mask=mask)
        return output[0].transpose(0, 1)[: len(query)]

    return _declared(attention).but(
        name="torch-flex-document-compiled",
        grouped_heads=False,
        gradients=False,
        nan_scores="may-vanish",
        autocast=False,
        operator="Torch-Compiled Region",
        dtypes=("float32", "bfloat16"),
        arithmetic={"bfloat16": replace(named("flash"), scaled="input")},
        may_refuse=True,
        effort=0.1,
    )


@functools.cache
def _compiled_flex() -> Any:
    import torch
    from torch.nn.attention.flex_attention import flex_attention

    def flex(query: Any, key: Any, value: Any, factor: Any, mask: Any) -> Any:
        return flex_attention(query * factor[0], key, value, block_mask=mask, scale=1.0)

    return as_one_graph(torch.compile(flex, dynamic=True), FLEX_ON_GPU)


def _padded(tokens: Any) -> Any:
    """With zeros behind the last token, up to more than one block of a BlockMask."""
    from torch import nn

    return nn.functional.pad(tokens, (0, 0, 0, 0, 0, max(0, BLOCK + 1 - len(tokens))))


def _documents(query_starts: Any, key_starts: Any, q_len: int, kv_len: int, *, is_causal: bool) -> Any:
    """The BlockMask in which query i sees key j of its own document, if causal those that are no later.

    How late a token is counts from its document's end. The tables that the mask reads are of one length: with one of
    another length for each call the compiled C++ does not compile.
    """
    import torch
    from torch.nn.attention.flex_attention import create_block_mask

    def table(starts: Any, other: int, *, placed: bool) -> Any:
        """A number for each token: its document (`other` behind the last) x LONGEST, plus its place from the end."""
        tokens = torch.arange(LONGEST, device=starts.device)
        document = torch.searchsorted(starts[1:].contiguous(), tokens, right=True)
        place = LONGEST + tokens - starts[1:][document.clamp(max=len(starts) - 2)]
        document = torch.where(document < len(starts) - 1, document, other)
        return document * LONGEST + (place.clamp(0, LONGEST - 1) if placed else 0)

    of_query = table(query_starts, -1, placed=True)
    of_key = table(key_starts, -2, placed=is_causal)

    def keeps(b: Any, h: Any, i: Any, j: Any) -> Any:
        q, k = of_query[i], of_key[j]
        return (q // LONGEST == k // LONGEST) & (k <= q)

    for each in (of_query, of_key):
        torch._dynamo.mark_static(each)  # noqa: SLF001 - the documented way to say so
    return create_block_mask(keeps, None, None, q_len, kv_len, device=query_starts.device.type)


def _declared(function: Any) -> Attention:
    return Attention(
        function,
        layout="thd",
        causal="bottom-right",
        scale_with_causal="any",
        scale=True,
        dropout=False,
        empty_rows="zeros",
    )
