"""The role `layer_norm`: f(x, weight, bias, eps), (x - mean) / sqrt(variance + eps) x weight + bias."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from headcheck.functions.norm_modules import EPS
from headcheck.functions.norm_role import NormRole
from headcheck.functions.norms import WEIGHT, Norm, NormCase, NormInputs, NormSubject
from headcheck.recipes import option
from headcheck.reference.norms import layer_norm


@dataclass(frozen=True)
class LayerNorm(Norm):
    """A layer norm with its conventions.

    function: f(x, weight, bias, eps) -> a tensor like x, normalised along the last axis; or a module, or a class that
    makes one from a width, whose parameters are given in its calls.
    arithmetic in 16 bits: "wide" rounds the result, "flash" also the normalised row before the weight
    multiplies it, "opwise" each step; with rescale="input" the sums of the gradients over rows are kept in 16 bits.
    """

    bias: bool | None = None
    """Whether it takes a bias; None: read off the signature."""
    biasless: bool | None = None
    """Whether the bias may be None; None: tried."""

    role = "layer_norm"
    ARGUMENTS: ClassVar = {"weight": WEIGHT, "bias": ("bias", "beta", "b"), "eps": EPS}


@dataclass(frozen=True)
class LayerNormCase(NormCase):
    """Rows of numbers, what multiplies them and what is added to them, and eps."""

    AXES: ClassVar = {**NormCase.AXES, "bias": ("dim",)}

    bias: str = option("zeros", "normal", "normal", "normal", "none")


class LayerNormSubject(NormSubject):
    """A layer norm: the mean is taken out."""

    CENTRING = True

    def exact(self, x: NormInputs, tensors: Mapping[str, Tensor]) -> Tensor:
        return layer_norm(
            tensors["x"], self.factor(tensors.get("weight")), tensors.get("bias"), self.eps_of(x)
        )


class LayerNormRole(NormRole[LayerNormCase]):
    """Case, declaration and subject of a layer norm."""

    name = "layer_norm"
    plain_call = "f(x, weight, bias, eps)"
    case = LayerNormCase
    declaration = LayerNorm
    subject = LayerNormSubject
    aliases = ("layer_norm", "layernorm")
    other = "rows whose mean is not taken out", "rows whose mean is", "rms_norm"


role = LayerNormRole()
