"""torch.nn.attention.flex_attention: masks and biases as functions, eager and compiled.

Eager, it computes in float32 or wider and rounds once; on a CPU it has no backward either way.
"""

import functools
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from headcheck.arithmetic import named
from headcheck.declarations import Attention
from headcheck.errors import SubjectError
from headcheck.subjects import builtin

Window = tuple[int | None, int | None]
FLEX_ON_GPU = 16
"""The least head_dim of flex_attention's kernel for a GPU (torch 2.11)."""


@builtin("torch-flex", "torch's flex_attention, eager: masks and biases as a function of the scores.")
def torch_flex() -> Attention:
    """Every mask is minus infinity in score_mod."""
    return _declared(_flex(blocks=False)).but(name="torch-flex")


@builtin("torch-flex-block", "torch's flex_attention, eager: masks as a BlockMask, biases as score_mod.")
def torch_flex_block() -> Attention:
    """Causal, window and boolean mask are a mask_mod, of which create_block_mask makes the blocks."""
    return _declared(_flex(blocks=True)).but(name="torch-flex-block")


@builtin(
    "torch-flex-compiled", "torch's flex_attention under torch.compile, dynamic shapes: causal or nothing."
)
def torch_flex_compiled() -> Attention:
    """Without tensors in its score_mod: with one of another length its C++ does not compile. No log-sum-exp on a CPU."""
    require_compiler()
    return _declared(_compiled_flex()).but(
        name="torch-flex-compiled",
        autocast=False,
        operator="Torch-Compiled Region",
        masks=(),
        grouped_heads=False,
        log_sum_exp=False,
        window=False,
        softcap=False,
        alibi=False,
        nan_scores="may-vanish",
        dtypes=("float32", "bfloat16"),
        arithmetic={"bfloat16": replace(named("flash"), scaled="input")},
        may_refuse=True,
        effort=0.1,
    )


def require_compiler() -> None:
    """SubjectError: torch.compile finds no C++ compiler here."""
    from torch._inductor.cpp_builder import get_cpp_compiler

    try:
        get_cpp_compiler()
    except Exception as problem:
        raise SubjectError(f"torch.compile needs a C++ compiler, and none was found ({problem})") from problem


def as_one_graph(compiled: Callable[..., Any], least_on_gpu: int = 2) -> Callable[..., Any]:
    """The compiled function for sizes of 2 and more in one dtype, which are one graph; NotImplementedError for others.

    To the compiler a size of 0 or 1 is another function, and so are two axes that happen to be equal, unless told
    otherwise; each takes seconds, and after eight of them it silently runs without being compiled.
    least_on_gpu: the least head_dim that is compiled there.
    """
    from torch.fx.experimental import _config

    def call(*tensors: Any, **options: Any) -> Any:
        if any(size < 2 for tensor in tensors for size in tensor.shape):
            raise NotImplementedError("an axis of 0 or 1 is a graph of its own, which is not compiled here")
        if len({tensor.dtype for tensor in tensors[:3]}) > 1:
            raise NotImplementedError("several dtypes are a graph of their own, which is not compiled here")
        if tensors[0].is_cuda and min(tensor.shape[-1] for tensor in tensors[:3]) < least_on_gpu:
            raise NotImplementedError(
                f"on a GPU heads of fewer than {least_on_gpu} dimensions are not compiled"
            )
        with _config.patch(use_duck_shape=False):  # type: ignore[attr-defined]  # made when it is imported
            return compiled(*tensors, **options)

    return call


def _declared(function: Any) -> Attention:
    return Attention(
        function,
        causal="top-left",
        masks=("boolean", "additive"),
        mask_with_causal="and",
        scale_with_causal="any",
        grouped_heads="interleaved",
        scale=True,
        window=True,
        softcap=True,
        alibi=True,
        log_sum_exp=True,
        gradients=False,
        effort=0.5,
        dtypes=("float32", "float64", "bfloat16", "float16"),
        arithmetic={"bfloat16": "flash", "float16": "flash"},
    )


def _flex(*, blocks: bool) -> Any:
    import torch
    from torch import Tensor
    from torch.nn.attention.flex_attention import create_block_mask

    def attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
        window: Window | None = None,
        softcap: float | None = None,
        alibi_slopes: Tensor | None = None,
        return_lse: bool = False,
    ) -> Any:
        shape = (query.shape[0], query.shape[1], query.shape[2], key.shape[2])
        mask = None if attn_mask is None else attn_mask.expand(shape)
        keeps = mask is not None and mask.dtype == torch.bool
        kept = _kept(mask if keeps else None, window, is_causal=is_causal)

        def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            if softcap is not None:
                s = softcap * torch.tanh(s / softcap)
            if alibi_slopes is not None:
                s = s - alibi_slopes[h].to(s.dtype) * (i - j).abs()
            if mask is not None and not keeps:
                s = s + mask[b, h, i, j]
            return s if kept is None or blocks else torch.where(kept(b, h, i, j), s, -float("inf"))

        options: dict[str, Any] = {"scale": scale, "enable_gqa": enable_gqa, "return_lse": return_lse}
        if kept is not None and blocks:
            options["block_mask"] = create_block_mask(kept, *shape, device=query.device.type)
        return eager_flex(query, key, value, score_mod=score, **options)

    return attention


def _kept(mask: Any, window: Window | None, *, is_causal: bool) -> Callable[..., Any] | None:
    """A mask_mod: whether query i of head h in sequence b may attend to key j; None where each may to all."""
    if mask is None and window is None and not is_causal:
        return None
    left, right = (None, None) if window is None else window

    def keeps(b: Any, h: Any, i: Any, j: Any) -> Any:
        seen = (i == i) & (j == j) if mask is None else mask[b, h, i, j]  # noqa: PLR0124 - true, as a tensor
        if is_causal:
            seen = seen & (j <= i)
        if left is not None:
            seen = seen & (j >= i - left)
        return seen if right is None else seen & (j <= i + right)

    return keeps


def eager_flex(*arguments: Any, **options: Any) -> Any:
    """Without the tracing that torch does around an eager call: it takes a second for each new function."""
    from torch.nn.attention import flex_attention as home

    before = getattr(home, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", None)
    try:
        if before is not None:
            home._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = True  # noqa: SLF001 - the only way to say so
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return home.flex_attention(*arguments, **options)
    finally:
        if before is not None:
            home._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = before  # noqa: SLF001


@functools.cache
def _compiled_flex() -> Any:
    import torch
    from torch import Tensor
    from torch.nn.attention.flex_attention import flex_attention

    def past_only(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return torch.where(j <= i, s, -float("inf"))

    def plain(query: Tensor, key: Tensor, value: Tensor, factor: Tensor) -> Any:
        return flex_attention(query * factor[0], key, value, scale=1.0)

    def causal(query: Tensor, key: Tensor, value: Tensor, factor: Tensor) -> Any:
        return flex_attention(query * factor[0], key, value, score_mod=past_only, scale=1.0)

    compiled = [as_one_graph(torch.compile(each, dynamic=True), FLEX_ON_GPU) for each in (plain, causal)]

    def attention(
        query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False, scale: float | None = None
    ) -> Any:
        factor = query.shape[-1] ** -0.5 if scale is None else scale
        return compiled[is_causal](query, key, value, query.new_full((2,), factor))

    return attention
