"""Rotary positions of models of transformers: the table of a model's RotaryEmbedding, applied by its function."""

from functools import cache, partial
from importlib import import_module
from typing import Any

from headcheck.functions.rotary_inputs import Rotary
from headcheck.subjects import builtin
from headcheck.subjects._rows import whole_rows

# Model: (name in class names, pairing, share of the dims that is turned)
MODELS: dict[str, tuple[str, Any, float]] = {
    "llama": ("Llama", "half", 1.0),
    "gemma2": ("Gemma2", "half", 1.0),
    "gpt_oss": ("GptOss", "half", 1.0),
    "olmo2": ("Olmo2", "half", 1.0),
    "nanochat": ("NanoChat", "half", 1.0),
    "gpt_neox": ("GPTNeoX", "half", 0.5),
    "phi3": ("Phi3", "half", 0.5),
    "cohere": ("Cohere", "interleaved", 1.0),
    "ernie4_5": ("Ernie4_5", "interleaved", 1.0),
    "helium": ("Helium", "interleaved", 1.0),
    "glm": ("Glm", "interleaved", 0.5),
    "deepseek_v3": ("DeepseekV3", "half", 1.0),
}
BACKWARDS = ("nanochat",)
"""Those that turn the other way, as their documentation says."""


def _rotary(model: str) -> Rotary:
    import torch
    from torch import Tensor

    title, pairing, share = MODELS[model]
    modeling = import_module(f"transformers.models.{model}.modeling_{model}")
    configuration = import_module(f"transformers.models.{model}.configuration_{model}")

    @cache
    def table(dim: int, base: float) -> Any:
        sizes = {"hidden_size": dim, "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": dim}
        parameters = {"rope_type": "default", "rope_theta": base, "partial_rotary_factor": share}
        made = getattr(configuration, f"{title}Config")
        config = made(
            **sizes, rope_parameters=parameters, **({"qk_rope_head_dim": dim} if "deepseek" in model else {})
        )
        return getattr(modeling, f"{title}RotaryEmbedding")(config)

    def turned(x: Tensor, positions: Tensor, *, base: float = 10000.0) -> Tensor:
        rows = positions if positions.ndim == 2 else positions[None]
        with torch.no_grad():
            cos, sin = table(x.shape[-1], base)(x, rows)
        output: Tensor = modeling.apply_rotary_pos_emb(x, x, cos, sin)[0]
        return output

    return Rotary(
        turned,
        name=f"hf-{model.replace('_', '-')}-rotary",
        pairing=pairing,
        backwards=model in BACKWARDS or None,
        rotary_dim=share if share < 1 else None,
        dims=(8, 16, 32, 64, 128) if share < 1 else None,
        gradients=True,
    )


for _model, (_title, _pairing, _share) in MODELS.items():
    builtin(
        f"hf-{_model.replace('_', '-')}-rotary",
        f"transformers' rotary positions of {_title}: pairs {_pairing}{', of half of the dims' if _share < 1 else ''}.",
        needs=("transformers",),
        install="pip install transformers",
    )(partial(_rotary, _model))


@builtin(
    "hf-gptj-rotary",
    "transformers' rotary positions of GPT-J: pairs interleaved, by a table of sines and cosines.",
    needs=("transformers",),
    install="pip install transformers",
)
def gptj_rotary() -> Rotary:
    """BLHD; positions below 4,096, as its table has."""
    import torch
    from torch import Tensor
    from transformers.models.gptj.modeling_gptj import apply_rotary_pos_emb, create_sinusoidal_positions

    table = cache(lambda dim: create_sinusoidal_positions(4096, dim))

    def turned(x: Tensor, positions: Tensor) -> Tensor:
        rows = whole_rows(positions, 1)
        sin, cos = torch.split(table(x.shape[-1])[rows], x.shape[-1] // 2, dim=-1)
        output: Tensor = apply_rotary_pos_emb(x, sin, cos)
        return output.to(x.dtype)

    return Rotary(
        turned,
        name="hf-gptj-rotary",
        layout="bshd",
        pairing="interleaved",
        max_position=4095,
        gradients=True,
        fractional=False,
        negative=False,
    )
