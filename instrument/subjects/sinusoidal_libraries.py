"""Sinusoidal tables of libraries: transformers, openai-whisper, diffusers, curated-transformers, x-transformers."""

from typing import Any

from headcheck.functions.sinusoidal_inputs import Sinusoidal
from headcheck.subjects import builtin

TRANSFORMERS: dict[str, Any] = {"needs": ("transformers",), "install": "pip install transformers"}
DIFFUSERS: dict[str, Any] = {"needs": ("diffusers",), "install": "pip install diffusers"}


def _even(d_model: int) -> None:
    """Refuse an odd width, for those that add a column of zeros."""
    if d_model % 2:
        raise NotImplementedError("an odd table has a column of zeros")


@builtin(
    "hf-m2m100-sinusoidal", "transformers' sinusoidal table of M2M100, as of tensor2tensor.", **TRANSFORMERS
)
def m2m100() -> Sinusoidal:
    """All sines first; the last wave is the base itself."""
    from transformers.models.m2m_100.modeling_m2m_100 import M2M100SinusoidalPositionalEmbedding

    def table(length: int, d_model: int) -> Any:
        _even(d_model)
        return M2M100SinusoidalPositionalEmbedding.get_embedding(length, d_model)

    return Sinusoidal(
        table, name="hf-m2m100-sinusoidal", layout="concatenated", last_wave="base", odd="refused"
    )


@builtin("hf-roformer-sinusoidal", "transformers' sinusoidal table of RoFormer and Marian.", **TRANSFORMERS)
def roformer() -> Sinusoidal:
    """All sines first, by NumPy in float64."""
    import torch
    from transformers.models.roformer.modeling_roformer import RoFormerSinusoidalPositionalEmbedding

    def table(length: int, d_model: int) -> Any:
        with torch.random.fork_rng(devices=()):
            module = RoFormerSinusoidalPositionalEmbedding(length, d_model)
        return module.create_weight()

    return Sinusoidal(
        table, name="hf-roformer-sinusoidal", layout="concatenated", effort=0.3, max_length=1500
    )


@builtin("hf-gptj-sinusoidal", "transformers' sinusoidal table of GPT-J and CodeGen.", **TRANSFORMERS)
def gptj() -> Sinusoidal:
    """All sines first."""
    from transformers.models.gptj.modeling_gptj import create_sinusoidal_positions

    def table(length: int, d_model: int) -> Any:
        return create_sinusoidal_positions(length, d_model)[:, :d_model]

    return Sinusoidal(table, name="hf-gptj-sinusoidal", layout="concatenated")


@builtin(
    "whisper-sinusoidal",
    "openai-whisper's sinusoids.",
    needs=("whisper",),
    install="pip install openai-whisper",
)
def whisper() -> Sinusoidal:
    """All sines first; the last wave is the base itself."""
    from whisper.model import sinusoids

    return Sinusoidal(
        sinusoids,
        name="whisper-sinusoidal",
        layout="concatenated",
        last_wave="base",
        odd="refused",
        arguments={"d_model": "channels"},
    )


@builtin("diffusers-timesteps", "diffusers' get_timestep_embedding, downscale_freq_shift=1.", **DIFFUSERS)
def diffusers_timesteps() -> Sinusoidal:
    """As it is by default: all sines first; the last wave is the base itself."""
    return _timesteps("diffusers-timesteps", 1).but(last_wave="base")


@builtin(
    "diffusers-timesteps-unshifted",
    "diffusers' get_timestep_embedding, downscale_freq_shift=0.",
    **DIFFUSERS,
)
def diffusers_timesteps_unshifted() -> Sinusoidal:
    """As its models call it: all sines first."""
    return _timesteps("diffusers-timesteps-unshifted", 0)


def _timesteps(name: str, shift: float) -> Sinusoidal:
    import torch
    from diffusers.models.embeddings import get_timestep_embedding

    def table(length: int, d_model: int) -> Any:
        _even(d_model)
        return get_timestep_embedding(torch.arange(length), d_model, downscale_freq_shift=shift)

    return Sinusoidal(table, name=name, layout="concatenated", odd="refused")


@builtin("diffusers-sincos", "diffusers' get_1d_sincos_pos_embed_from_grid.", **DIFFUSERS)
def diffusers_sincos() -> Sinusoidal:
    """All sines first, in float64."""
    import torch
    from diffusers.models.embeddings import get_1d_sincos_pos_embed_from_grid

    def table(length: int, d_model: int) -> Any:
        return get_1d_sincos_pos_embed_from_grid(d_model, torch.arange(length), output_type="pt")

    return Sinusoidal(table, name="diffusers-sincos", layout="concatenated", odd="refused")


@builtin("diffusers-sinusoidal", "diffusers' SinusoidalPositionalEmbedding.", **DIFFUSERS)
def diffusers_sinusoidal() -> Sinusoidal:
    """Sine and cosine side by side."""
    from diffusers.models.embeddings import SinusoidalPositionalEmbedding

    def table(length: int, d_model: int) -> Any:
        return SinusoidalPositionalEmbedding(d_model, max_seq_length=length).pe

    return Sinusoidal(table, name="diffusers-sinusoidal", layout="interleaved", odd="refused")


@builtin(
    "curated-transformers-sinusoidal",
    "curated_transformers' SinusoidalPositionalEmbedding, normalize=False.",
    needs=("curated_transformers",),
    install="pip install curated-transformers",
)
def curated() -> Sinusoidal:
    """Sine and cosine side by side."""
    from curated_transformers.layers.embeddings import SinusoidalPositionalEmbedding

    def table(length: int, d_model: int) -> Any:
        return SinusoidalPositionalEmbedding(width=d_model, max_len=length, normalize=False).pe

    return Sinusoidal(table, name="curated-transformers-sinusoidal", layout="interleaved", odd="refused")


@builtin(
    "x-transformers-sinusoidal",
    "x_transformers' ScaledSinusoidalEmbedding, its scale one.",
    needs=("x_transformers",),
    install="pip install x-transformers",
)
def x_transformers() -> Sinusoidal:
    """All sines first."""
    import torch
    from x_transformers.x_transformers import ScaledSinusoidalEmbedding

    def table(length: int, d_model: int) -> Any:
        module = ScaledSinusoidalEmbedding(d_model)
        module.scale = torch.nn.Parameter(torch.ones(1), requires_grad=False)
        return module(torch.empty(1, length, 0))

    return Sinusoidal(table, name="x-transformers-sinusoidal", layout="concatenated", odd="refused")
