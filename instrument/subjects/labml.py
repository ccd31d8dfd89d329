"""labml_nn, annotated implementations of papers: length first everywhere."""

from functools import cache
from typing import Any

from headcheck.functions.layer_norm import LayerNorm
from headcheck.functions.rotary_inputs import Rotary
from headcheck.functions.sinusoidal_inputs import Sinusoidal
from headcheck.modules.multi_head.conventions import MultiHeadAttention
from headcheck.subjects import builtin

LABML: dict[str, Any] = {"needs": ("labml_nn",), "install": "pip install labml-nn"}
ROWS = 600
"""The longest sequence that is made for the rotary module, which turns rows."""


@builtin("labml-mha", "labml_nn's MultiHeadAttention.", **LABML)
def labml_mha() -> MultiHeadAttention:
    """True keeps in a mask (q_len, kv_len, batch), as its documentation says; keywords only."""
    from labml_nn.transformers.mha import MultiHeadAttention as Module
    from torch import Tensor, nn

    class BatchLast(nn.Module):
        def __init__(self, d_model: int, num_heads: int) -> None:
            super().__init__()
            self.attention = Module(num_heads, d_model, dropout_prob=0.0)

        def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Any:
            turned = None if mask is None else mask.permute(1, 2, 0)
            return self.attention(query=query, key=key, value=value, mask=turned)

    return MultiHeadAttention(
        BatchLast,
        name="labml-mha",
        batch_first=False,
        masks=("boolean",),
        mask_shapes=("bqk",),
        empty_rows="undefined",
        weights=False,
    )


@builtin("labml-rotary", "labml_nn's RotaryPositionalEmbeddings.", **LABML)
def labml_rotary() -> Rotary:
    """Rows only; pairs half of the dims apart."""
    from labml_nn.transformers.rope import RotaryPositionalEmbeddings
    from torch import Tensor

    from headcheck.subjects.rotary_libraries import by_rows

    made = cache(RotaryPositionalEmbeddings)

    def turn(x: Tensor) -> Any:
        return made(x.shape[-1])(x.permute(2, 0, 1, 3)).permute(1, 2, 0, 3).to(x.dtype)

    return Rotary(
        by_rows(turn),
        name="labml-rotary",
        pairing="half",
        max_position=ROWS - 1,
        fractional=False,
        negative=False,
        gradients=True,
        effort=0.3,
    )


@builtin("labml-sinusoidal", "labml_nn's get_positional_encoding.", **LABML)
def labml_sinusoidal() -> Sinusoidal:
    """Sines and cosines take turns."""
    from labml_nn.transformers.positional_encoding import get_positional_encoding
    from torch import Tensor

    def table(length: int, d_model: int) -> Tensor:
        rows: Tensor = get_positional_encoding(d_model, length)[:, 0]
        return rows

    return Sinusoidal(table, name="labml-sinusoidal")


@builtin("labml-layer-norm", "labml_nn's LayerNorm.", **LABML)
def labml_layer_norm() -> LayerNorm:
    """Its gain and bias are given as its parameters."""
    from labml_nn.normalization.layer_norm import LayerNorm as Module
    from torch import Tensor
    from torch.func import functional_call

    def norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Any:
        return functional_call(Module(x.shape[-1], eps=eps), {"gain": weight, "bias": bias}, (x,))

    return LayerNorm(norm, name="labml-layer-norm", weightless=False, gradients=True)
