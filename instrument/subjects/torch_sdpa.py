"""torch.nn.functional.scaled_dot_product_attention: as torch dispatches it, and one backend forced.

What its CPU flash kernel does otherwise is declared, and shown by `headcheck` as not applicable:
a query all of whose scores are NaN may give zeros, and is_causal needs a scale above zero.
"""

import re
import warnings
from dataclasses import replace
from typing import Any

from headcheck.declarations import FOUR_AXES, Attention
from headcheck.errors import first_line_of
from headcheck.subjects import builtin

NOT_TAKEN = re.compile(
    "No available kernel|No viable backend|must be contiguous|not correctly aligned|should not be set when",
    re.IGNORECASE,
)
"""What torch raises where a backend that is forced does not take a call, as a RuntimeError of no class of its own."""
FLASH = {"bfloat16": "flash", "float16": "flash"}
WIDE = {"bfloat16": "wide", "float16": "wide"}


@builtin("torch-sdpa", "torch's scaled_dot_product_attention, dispatched as torch likes.")
def torch_sdpa() -> Attention:
    """On a CPU: the flash kernel, or the math path where that kernel does not take the call."""
    return declared()


def declared() -> Attention:
    """What holds for every backend."""
    from torch.nn.functional import scaled_dot_product_attention

    return Attention(
        scaled_dot_product_attention,
        name="torch-sdpa",
        causal="top-left",
        masks=("boolean", "additive"),
        grouped_heads="interleaved",
        scale=True,
        dropout=True,
        gradients=True,
        nan_scores="may-vanish",
        scale_with_causal="positive",
        dtypes=("float32", "float64", "bfloat16", "float16"),
        arithmetic=FLASH,
    )


@builtin("torch-sdpa-math", "torch's scaled_dot_product_attention, its math backend forced.")
def torch_sdpa_math() -> Attention:
    """The composite of matmul, softmax, matmul; it refuses attn_mask with is_causal."""
    return forced("MATH").but(
        name="torch-sdpa-math",
        mask_with_causal="refused",
        dropout=True,
        nan_scores="propagate",
        scale_with_causal="any",
        operator="aten::_scaled_dot_product_attention_math",
        arithmetic=WIDE,
    )


@builtin("torch-sdpa-flash", "torch's scaled_dot_product_attention, its CPU flash kernel forced.")
def torch_sdpa_flash() -> Attention:
    """It takes no dropout, no gradient of the mask and no value_dim other than head_dim."""
    return forced("FLASH_ATTENTION").but(
        name="torch-sdpa-flash",
        mask_with_causal="and",
        dropout=False,
        value_dim=False,
        any_strides=False,
        mask_shapes=(*FOUR_AXES, "qk"),
        mask_gradient=False,
        operator="aten::_scaled_dot_product_flash_attention_for_cpu",
    )


def forced(backend: str) -> Attention:
    """The function under one backend and no other: what that backend cannot do raises, with its reasons."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    only = getattr(SDPBackend, backend)

    def attention(*arguments: Any, **keywords: Any) -> Any:
        with sdpa_kernel(only), warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            try:
                return scaled_dot_product_attention(*arguments, **keywords)
            except RuntimeError as problem:
                if not NOT_TAKEN.search(str(problem)):
                    raise
                said = [str(each.message).partition(" (Triggered")[0] for each in told]
                reasons = "; ".join(said) or first_line_of(problem)
                raise NotImplementedError(f"{backend} does not take this call: {reasons}") from problem

    return replace(declared(), function=attention)
