"""Small computations that the claims of several documents share."""

import sympy
import torch
from torch import nn

from headcheck.reference import attention

# Counts


def parameters(*modules: nn.Module) -> int:
    """How many numbers modules learn."""
    return sum(each.numel() for module in modules for each in module.parameters())


def attention_parameters(width: int) -> int:
    """Of four projections with biases."""
    return 4 * (width**2 + width)


def feed_forward_parameters(width: int, d_ff: int) -> int:
    """Of two layers with biases."""
    return 2 * width * d_ff + d_ff + width


def stack_parameters(width: int, d_ff: int, layers: int) -> int:
    """Of so many layers of an encoder and as many of a decoder, with their norms."""
    ours = 3 * attention_parameters(width) + 2 * feed_forward_parameters(width, d_ff)
    return layers * (ours + (2 + 3) * 2 * width)


# Tensors


def random_tensor(*axes: int) -> torch.Tensor:
    """Standard normal numbers, the same at each call."""
    return torch.randn(axes, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def random_tensors(*axes: int) -> list[torch.Tensor]:
    """Query, key and value of one shape, the same at each call."""
    return list(random_tensor(3, *axes))


def random_weights(may_attend: torch.Tensor) -> torch.Tensor:
    """The reference's weights of three random sequences under a mask (length, length): (3, length, length)."""
    query, key, value = random_tensors(3, 1, may_attend.shape[-1], 2)
    return attention(query, key, value, may_attend=may_attend).weights[:, 0]


def are_near(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Within 64 roundings of numbers near one."""
    return bool((left - right).abs().max() <= 64 * 2**-53)


def each_head(x: torch.Tensor, heads: int) -> torch.Tensor:
    """(batch, seq, d_model) -> (batch, heads, seq, d_k)."""
    return x.view(len(x), -1, heads, x.shape[-1] // heads).transpose(1, 2)


# Algebra


def variance_of_product() -> sympy.Expr:
    """E[(q k)^2] = E[q^2] E[k^2] of standard normal numbers, by integration."""
    x = sympy.Symbol("x", real=True)
    density = sympy.exp(-(x**2) / 2) / sympy.sqrt(2 * sympy.pi)
    return sympy.integrate(x**2 * density, (x, -sympy.oo, sympy.oo)) ** 2


def turn_is_linear() -> bool:
    """One rotation takes sine and cosine of p to those of p + k, whatever p."""
    p, k, frequency = sympy.symbols("p k omega", real=True)
    after = (sympy.sin(frequency * (p + k)), sympy.cos(frequency * (p + k)))
    cos, sin = sympy.cos(frequency * k), sympy.sin(frequency * k)
    now = sympy.Matrix([sympy.sin(frequency * p), sympy.cos(frequency * p)])
    moved = sympy.Matrix([[cos, sin], [-sin, cos]]) * now
    return all(sympy.simplify(sympy.expand_trig(a - b)) == 0 for a, b in zip(after, moved, strict=True))
