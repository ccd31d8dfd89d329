"""torch's scaled_dot_product_attention on a CUDA device, one kernel forced; a call that it does not take is refused.

What each takes is not declared here but asked of the kernel: it says why it does not take a call, and such a
call is not applicable.
"""

from dataclasses import replace
from typing import Any

from headcheck.arithmetic import named
from headcheck.declarations import Attention
from headcheck.subjects import builtin
from headcheck.subjects.torch_sdpa import forced


@builtin("torch-cuda-flash", "torch's scaled_dot_product_attention on CUDA, its flash kernel forced.")
def torch_cuda_flash() -> Attention:
    """float16 and bfloat16 only; no attn_mask; is_causal for as many queries as keys."""
    return _on_cuda("FLASH_ATTENTION").but(
        name="torch-cuda-flash",
        masks=(),
        dtypes=("float16", "bfloat16"),
        operator="_scaled_dot_product_flash_attention",
    )


@builtin(
    "torch-cuda-efficient",
    "torch's scaled_dot_product_attention on CUDA, its memory-efficient kernel forced.",
)
def torch_cuda_efficient() -> Attention:
    """It takes float32 too, which it may compute on tensor cores as torch is set to."""
    return _on_cuda("EFFICIENT_ATTENTION").but(
        name="torch-cuda-efficient",
        dtypes=("float16", "bfloat16", "float32"),
        operator="_scaled_dot_product_efficient_attention",
    )


@builtin("torch-cuda-cudnn", "torch's scaled_dot_product_attention on CUDA, cuDNN's kernel forced.")
def torch_cuda_cudnn() -> Attention:
    """float16 and bfloat16 only. No mask is asked for: with one that is short, torch 2.11 leaves the device unusable."""
    kernel = _on_cuda("CUDNN_ATTENTION")

    def attention(*arguments: Any, attn_mask: Any = None, **keywords: Any) -> Any:
        if attn_mask is not None:
            raise NotImplementedError(
                "attn_mask is not asked of cuDNN: a short one leaves the device unusable"
            )
        return kernel.function(*arguments, **keywords)

    return kernel.but(
        function=attention,
        name="torch-cuda-cudnn",
        masks=(),
        dtypes=("float16", "bfloat16"),
        operator="_scaled_dot_product_cudnn_attention",
    )


@builtin("torch-cuda-tf32", "torch's math backend on CUDA, float32 products on tensor cores (TF32 allowed).")
def torch_cuda_tf32() -> Attention:
    """The inputs of each product are rounded to 11 bits; everything else is float32."""
    import torch

    forced_math = forced("MATH")

    def attention(*arguments: Any, **keywords: Any) -> Any:
        before = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = True
        try:
            return forced_math.function(*arguments, **keywords)
        finally:
            torch.backends.cuda.matmul.allow_tf32 = before

    rounds = replace(
        named("native"),
        inputs="tfloat32",
        scaled="tfloat32",
        accumulate="float32",
        scores="float32",
        softmax="float32",
        rescale="float32",
        probabilities="tfloat32",
        output="float32",
        accumulate_ulps=2,
    )
    return forced_math.but(
        function=attention,
        name="torch-cuda-tf32",
        mask_with_causal="refused",
        nan_scores="propagate",
        scale_with_causal="any",
        devices=("cuda",),
        dtypes=("float32",),
        arithmetic={"float32": rounds},
        operator="_scaled_dot_product_attention_math",
    )


def _on_cuda(backend: str) -> Attention:
    """Sums on tensor cores may truncate: two unit roundoffs for each addition."""
    rounds = replace(named("flash"), accumulate_ulps=2)
    return forced(backend).but(
        may_refuse=True,
        masks=None,
        gradients=None,
        dropout=None,
        grouped_heads=None,
        mask_gradient=False,
        scale_with_causal=None,
        devices=("cuda",),
        arithmetic={"float16": rounds, "bfloat16": rounds},
    )
