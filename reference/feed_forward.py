"""What a layer does to each token by itself, between two rounds of attention."""

import math
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headcheck.reference.choices import require_choice

Activation = Literal["relu", "gelu", "swiglu"]


def relu(x: Float[Tensor, "*rows"]) -> Float[Tensor, "*rows"]:
    """max(0, x).  Vaswani et al. 2017, equation (2)."""
    return torch.relu(x)


def gelu(x: Float[Tensor, "*rows"]) -> Float[Tensor, "*rows"]:
    """x Phi(x), Phi the normal distribution function, by erfc: exact, also where Phi is tiny.

    Hendrycks and Gimpel 2016, section 2.
    """
    return 0.5 * x * torch.erfc(-x / math.sqrt(2))


def swish(x: Float[Tensor, "*rows"]) -> Float[Tensor, "*rows"]:
    """x sigmoid(x).  Ramachandran et al. 2017, section 4, with beta = 1."""
    return x * torch.sigmoid(x)


class FeedForward(nn.Module):
    """activation(x W_1 + b_1) W_2 + b_2, or with a gate (swish(x W_gate) * x W_1) W_2.

    Vaswani et al. 2017, section 3.3; the gate: Shazeer 2020 (GLU variants), equation (6).
    """

    def __init__(
        self, d_model: int, d_ff: int, activation: Activation, *, bias: bool = True, dropout: float = 0.0
    ) -> None:
        super().__init__()
        require_choice("activation", activation, Activation)
        self.activation = activation
        self.w_1 = nn.Linear(d_model, d_ff, bias=bias)
        self.w_gate = nn.Linear(d_model, d_ff, bias=bias) if activation == "swiglu" else None
        self.w_2 = nn.Linear(d_ff, d_model, bias=bias)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Float[Tensor, "*rows d_model"]) -> Float[Tensor, "*rows d_model"]:
        return self.w_2(self.dropout(self._hidden(x)))

    def _hidden(self, x: Tensor) -> Tensor:
        if self.w_gate is not None:
            return swish(self.w_gate(x)) * self.w_1(x)
        return relu(self.w_1(x)) if self.activation == "relu" else gelu(self.w_1(x))
