"""Hugging Face transformers: the attention functions that its models choose among, tensors in BHLD, output in BLHD.

Their contract is that of `AttentionInterface` in the library's documentation: the mask is additive or None (boolean
too for sdpa), and causality comes as a mask, except in sdpa. Minus infinity in a whole row gives NaN in the eager ones;
the library itself masks by the smallest number of the dtype.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from headcheck.arithmetic import named
from headcheck.declarations import FOUR_AXES, Attention
from headcheck.subjects import builtin

NEEDS = ("transformers",)
INSTALL = "pip install transformers"

EAGER = {
    "llama": "softmax in float32; 170 models share it word for word",
    "bert": "softmax in the dtype of the inputs; no grouped heads; 80 models share it",
    "gpt2": "softmax in the dtype of the inputs, weights cast to that of the values",
    "gpt_neox": "softmax in float32; no grouped heads",
    "gemma2": "with a softcap",
    "gemma3": "with a softcap, the keys grouped",
    "llama4": "softmax in the dtype of the inputs, the keys grouped",
    "vit": "softmax in float32, of the vision models",
    "clip": "softmax in float32, of CLIP and its family",
    "t5": "unscaled unless told, with a bias of positions",
    "gpt_oss": "with a sink for each head",
    "granite_swa": "with a sink for each head, as a factor of the output",
}
"""The model that an eager attention is taken from, and what is its own."""
FEATURES = {"gemma2": ("softcap",), "gemma3": ("softcap",), "gpt_oss": ("sinks",), "granite_swa": ("sinks",)}
SINGLE_HEADS = ("bert", "gpt2", "gpt_neox", "vit", "clip", "t5")
NARROW_SOFTMAX = ("bert", "gpt2", "llama4", "t5", "gpt_oss", "granite_swa")


def _called(forward: Callable[..., Any], *features: str) -> Callable[..., Any]:
    """The canonical call of an attention function that takes a module first and transposes what it returns."""
    import torch
    from torch import Tensor

    def attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        scale: float | None = None,
        softcap: float | None = None,
        sinks: Tensor | None = None,
        return_weights: bool = False,
    ) -> Any:
        if sinks is not None and "sinks" not in features:
            raise NotImplementedError("it has no sinks")  # It would not look at them.
        if softcap is not None and "softcap" not in features:
            raise NotImplementedError("it has no softcap")
        if sinks is None and "sinks" in features:
            # These always have some: this one takes nothing.
            sinks = query.new_full((query.shape[1],), -torch.inf)
        module = SimpleNamespace(
            num_key_value_groups=query.shape[1] // key.shape[1],
            head_dim=query.shape[-1],
            sinks=sinks,
            training=dropout_p > 0,
            is_causal=False,
        )
        given = {"softcap": softcap} if softcap is not None else {}
        scaling = query.shape[-1] ** -0.5 if scale is None else scale
        output, weights = forward(
            module, query, key, value, attn_mask, scaling=scaling, dropout=dropout_p, is_causal=False, **given
        )
        output = output.transpose(1, 2)
        return (output, weights) if return_weights else output

    return attention


def _eager(model: str) -> Attention:
    module = import_module(f"transformers.models.{model}.modeling_{model}")
    features = FEATURES.get(model, ())
    rounds = named("opwise" if model in NARROW_SOFTMAX else "eager")
    in_float32 = replace(named("native"), softmax="float32", accumulate="float32")
    wide = named("native") if model in NARROW_SOFTMAX and model != "granite_swa" else in_float32
    return Attention(
        _called(module.eager_attention_forward, *features),
        name=f"hf-{model.replace('_', '-')}-eager",
        masks=("additive",),
        causal=False,
        empty_rows="nan",
        grouped_heads=False if model in SINGLE_HEADS else "interleaved",
        scale=True,
        dropout=True,
        softcap="softcap" in features,
        sinks="sinks" in features,
        weights=True,
        # Of granite_swa autograd adds up two parts, by the weights and by their log-sum-exp, which round more.
        gradients=model != "granite_swa",
        dtypes=("float32", "float64", "bfloat16", "float16"),
        arithmetic={"float32": "native", "float64": wide, "bfloat16": rounds, "float16": rounds},
    )


for _model, _own in EAGER.items():
    builtin(
        f"hf-{_model.replace('_', '-')}-eager",
        f"transformers' eager attention of {_model}: {_own}.",
        needs=NEEDS,
        install=INSTALL,
    )(partial(_eager, _model))


@builtin("hf-sdpa", "transformers' sdpa attention, of all its models.", needs=NEEDS, install=INSTALL)
def hf_sdpa() -> Attention:
    """torch's function behind a repetition of the key heads.

    Its is_causal is a hint for whole prompts: dropped beside a mask and for one query, as its comments say. It is
    not judged.
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    return Attention(
        _called(sdpa_attention_forward),
        name="hf-sdpa",
        masks=("boolean", "additive"),
        causal=False,
        mask_shapes=FOUR_AXES,
        grouped_heads="interleaved",
        scale=True,
        dropout=True,
        softcap=False,
        sinks=False,
        weights=False,
        gradients=True,
        nan_scores="may-vanish",
        dtypes=("float32", "float64", "bfloat16", "float16"),
        arithmetic={"bfloat16": "flash", "float16": "flash"},
    )
