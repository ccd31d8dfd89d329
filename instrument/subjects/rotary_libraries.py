"""Rotary positions of libraries: torchtune, x-transformers, rotary-embedding-torch, litgpt, diffusers, timm and more.

Some libraries turn rows 0, 1, 2, ... only: a token then stands in its row of a longer sequence.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

from headcheck.functions.rotary_inputs import Rotary
from headcheck.subjects import builtin
from headcheck.subjects._rows import whole_rows

ROWS = 600
"""The longest sequence that is made for those that turn rows."""


def by_rows(turn: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    """f(x, positions) by a function that turns (batch, heads, length, dim) as if positions were 0, 1, 2, ..."""
    import torch
    from torch import Tensor

    def turned(x: Tensor, positions: Tensor) -> Tensor:
        rows = whole_rows(positions, x.shape[0])
        length = int(rows.max()) + 1 if rows.numel() else 1
        outputs = []
        for number in range(x.shape[2]):  # One token at a time: positions may be repeated.
            row = rows[:, number, None, None, None].expand(-1, x.shape[1], 1, x.shape[3])
            whole = x.new_zeros((x.shape[0], x.shape[1], length, x.shape[3]))
            whole = whole.scatter(2, row, x[:, :, number, None])
            outputs.append(turn(whole).gather(2, row))
        return torch.cat(outputs, dim=2) if outputs else x.clone()

    return turned


def _rowed(name: str, turn: Callable[[Any], Any], **more: Any) -> Rotary:
    given = {"gradients": True, "effort": 0.3} | more
    return Rotary(by_rows(turn), name=name, max_position=ROWS - 1, fractional=False, negative=False, **given)


@builtin(
    "torchtune-rotary",
    "torchtune's RotaryPositionalEmbeddings.",
    needs=("torchtune", "torchao"),
    install="pip install torchtune torchao==0.9.0",
)
def torchtune_rotary() -> Rotary:
    """BLHD, a table of 4,096 positions."""
    from torch import Tensor
    from torchtune.modules import RotaryPositionalEmbeddings

    table = cache(lambda dim, base: RotaryPositionalEmbeddings(dim, max_seq_len=4096, base=base))

    def turned(x: Tensor, positions: Tensor, *, base: float = 10000.0) -> Any:
        return table(x.shape[-1], base)(x, input_pos=whole_rows(positions, 1))

    return Rotary(
        turned,
        name="torchtune-rotary",
        layout="bshd",
        pairing="interleaved",
        max_position=4095,
        gradients=True,
        fractional=False,
        negative=False,
    )


@builtin(
    "x-transformers-rotary",
    "x_transformers' RotaryEmbedding and apply_rotary_pos_emb.",
    needs=("x_transformers",),
    install="pip install x-transformers",
)
def x_transformers_rotary() -> Rotary:
    """Pairs interleaved."""
    from torch import Tensor
    from x_transformers.x_transformers import RotaryEmbedding, apply_rotary_pos_emb

    made = cache(lambda dim, base: RotaryEmbedding(dim, base=base))

    def turned(x: Tensor, positions: Tensor, *, base: float = 10000.0) -> Any:
        angles, scale = made(x.shape[-1], base)(positions)
        return apply_rotary_pos_emb(x, angles, scale)

    return Rotary(turned, name="x-transformers-rotary", pairing="interleaved", gradients=True)


@builtin(
    "rotary-embedding-torch",
    "rotary_embedding_torch's RotaryEmbedding.rotate_queries_or_keys.",
    needs=("rotary_embedding_torch",),
    install="pip install rotary-embedding-torch",
)
def rotary_embedding_torch() -> Rotary:
    """Rows only; the positions are made in the dtype of x, and the angles are kept from call to call."""
    from rotary_embedding_torch import RotaryEmbedding
    from torch import Tensor

    made = cache(RotaryEmbedding)

    def turn(x: Tensor) -> Any:
        return made(x.shape[-1]).rotate_queries_or_keys(x)

    return _rowed("rotary-embedding-torch", turn, pairing="interleaved")


@builtin(
    "litgpt-rotary",
    "litgpt's build_rope_cache and apply_rope.",
    needs=("litgpt",),
    install="pip install litgpt",
)
def litgpt_rotary() -> Rotary:
    """Pairs half of the dims apart."""
    from litgpt.model import apply_rope, build_rope_cache
    from torch import Tensor

    table = cache(lambda dim, base: build_rope_cache(4096, dim, base=base))

    def turned(x: Tensor, positions: Tensor, *, base: float = 10000.0) -> Any:
        rows = whole_rows(positions, 1)
        cos, sin = (each[rows] for each in table(x.shape[-1], base))
        return apply_rope(x, cos, sin)

    return Rotary(
        turned,
        name="litgpt-rotary",
        pairing="half",
        max_position=4095,
        gradients=True,
        fractional=False,
        negative=False,
    )


@builtin(
    "diffusers-rotary",
    "diffusers' get_1d_rotary_pos_embed and apply_rotary_emb, as in Flux.",
    needs=("diffusers",),
    install="pip install diffusers",
)
def diffusers_rotary() -> Rotary:
    """Pairs interleaved; x is turned in float32."""
    return _diffusers("diffusers-rotary", repeat=True, axis=-1).but(pairing="interleaved")


@builtin(
    "diffusers-rotary-half",
    "diffusers' get_1d_rotary_pos_embed and apply_rotary_emb, as in Stable Audio.",
    needs=("diffusers",),
    install="pip install diffusers",
)
def diffusers_rotary_half() -> Rotary:
    """Pairs half of the dims apart; x is turned in float32."""
    return _diffusers("diffusers-rotary-half", repeat=False, axis=-2).but(pairing="half")


def _diffusers(name: str, *, repeat: bool, axis: int) -> Rotary:
    from diffusers.models.embeddings import apply_rotary_emb, get_1d_rotary_pos_embed
    from torch import Tensor

    def turned(x: Tensor, positions: Tensor, *, base: float = 10000.0) -> Any:
        table = get_1d_rotary_pos_embed(
            x.shape[-1], positions, theta=base, use_real=True, repeat_interleave_real=repeat
        )
        return apply_rotary_emb(x, table, use_real_unbind_dim=axis)

    return Rotary(turned, name=name, gradients=True, batched_positions=False)


@builtin(
    "timm-rotary",
    "timm's apply_rot_embed.",
    needs=("timm", "torchvision"),
    install="pip install timm torchvision",
)
def timm_rotary() -> Rotary:
    """Pairs interleaved; its table, of images, is made here of positions in a row."""
    return _timm("timm-rotary", half=False).but(pairing="interleaved")


@builtin(
    "timm-rotary-half",
    "timm's apply_rot_embed with half=True.",
    needs=("timm", "torchvision"),
    install="pip install timm torchvision",
)
def timm_rotary_half() -> Rotary:
    """Pairs half of the dims apart."""
    return _timm("timm-rotary-half", half=True).but(pairing="half")


def _timm(name: str, *, half: bool) -> Rotary:
    import torch
    from timm.layers.pos_embed_sincos import apply_rot_embed, freq_bands
    from torch import Tensor

    def turned(x: Tensor, positions: Tensor) -> Any:
        rows = positions if positions.ndim == 2 else positions[None]
        angles = rows[:, None, :, None].float() * freq_bands(x.shape[-1] // 2, step=1)
        angles = torch.cat([angles, angles], dim=-1) if half else angles.repeat_interleave(2, dim=-1)
        return apply_rot_embed(x, angles.sin(), angles.cos(), half=half)

    return Rotary(turned, name=name, gradients=True)


@builtin(
    "curated-transformers-rotary",
    "curated_transformers' RotaryEmbeddings.",
    needs=("curated_transformers",),
    install="pip install curated-transformers",
)
def curated_rotary() -> Rotary:
    """Pairs half of the dims apart; the table grows with the positions that come."""
    from curated_transformers.layers.embeddings import RotaryEmbeddings
    from torch import Tensor

    made = cache(RotaryEmbeddings)

    def turned(x: Tensor, positions: Tensor) -> Any:
        rows = whole_rows(positions, x.shape[0])
        return made(x.shape[-1])(x, positions=rows)

    return Rotary(
        turned,
        name="curated-transformers-rotary",
        pairing="half",
        max_position=4095,
        gradients=True,
        fractional=False,
        negative=False,
    )


@builtin(
    "local-attention-rotary",
    "local_attention's SinusoidalEmbeddings and apply_rotary_pos_emb.",
    needs=("local_attention",),
    install="pip install local-attention",
)
def local_attention_rotary() -> Rotary:
    """Rows only; pairs half of the dims apart."""
    from local_attention.rotary import SinusoidalEmbeddings, apply_rotary_pos_emb
    from torch import Tensor

    made = cache(SinusoidalEmbeddings)

    def turn(x: Tensor) -> Any:
        angles, scale = made(x.shape[-1])(x)
        return apply_rotary_pos_emb(x, x, angles, scale)[0].to(x.dtype)

    return _rowed("local-attention-rotary", turn, pairing="half")


@builtin(
    "equinox-rotary",
    "equinox's RotaryPositionalEmbedding, mapped over batch and heads.",
    needs=("jax", "equinox"),
    install="pip install jax equinox",
)
def equinox_rotary() -> Rotary:
    """Rows only; pairs half of the dims apart; its base is `theta`."""
    import equinox
    import jax
    from torch import Tensor

    from headcheck.subjects._arrays import array, tensor

    def turned(x: Tensor, positions: Tensor, *, base: float = 10000.0) -> Tensor:
        def turn(whole: Tensor) -> Tensor:
            made = equinox.nn.RotaryPositionalEmbedding(whole.shape[-1], theta=base)
            output = jax.vmap(jax.vmap(made))(jax.numpy.asarray(array(whole)))
            return tensor(output, whole.dtype)

        return by_rows(turn)(x, positions)  # type: ignore[no-any-return]

    return Rotary(
        turned,
        name="equinox-rotary",
        pairing="half",
        max_position=99,
        gradients=False,
        fractional=False,
        negative=False,
        dtypes=("float32",),
        effort=0.1,
    )


@builtin(
    "mlx-rotary",
    "MLX's fast.rope on the CPU, traditional=False.",
    needs=("mlx",),
    install="pip install 'mlx[cpu]'",
)
def mlx_rotary() -> Rotary:
    """Positions by an offset; pairs half of the dims apart."""
    return _mlx("mlx-rotary", traditional=False).but(pairing="half")


@builtin(
    "mlx-rotary-traditional",
    "MLX's fast.rope on the CPU, traditional=True.",
    needs=("mlx",),
    install="pip install 'mlx[cpu]'",
)
def mlx_rotary_traditional() -> Rotary:
    """Positions by an offset; pairs interleaved."""
    return _mlx("mlx-rotary-traditional", traditional=True).but(pairing="interleaved")


def _mlx(name: str, *, traditional: bool) -> Rotary:
    import mlx.core as mx
    import torch
    from torch import Tensor

    from headcheck.subjects._arrays import array, tensor

    def turned(x: Tensor, positions: Tensor, *, base: float = 10000.0) -> Tensor:
        """One token at a time, each with its offset."""
        rows = whole_rows(positions, x.shape[0])
        output = torch.empty_like(x)
        for batch, number in torch.cartesian_prod(*map(torch.arange, (x.shape[0], x.shape[2]))).tolist():
            token = mx.array(array(x[batch, None, :, number, None]))
            token = token.astype(mx.bfloat16) if x.dtype == torch.bfloat16 else token
            found = mx.fast.rope(
                token,
                x.shape[-1],
                traditional=traditional,
                base=base,
                scale=1.0,
                offset=int(rows[batch, number]),
                stream=mx.cpu,
            )
            output[batch, :, number] = tensor(found.astype(mx.float32), x.dtype)[0, :, 0]
        return output

    return Rotary(
        turned,
        name=name,
        gradients=False,
        fractional=False,
        negative=False,
        dtypes=("float32", "float16", "bfloat16"),
    )
