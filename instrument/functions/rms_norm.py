"""The role `rms_norm`: f(x, weight, eps), x / sqrt(mean of x^2 + eps) x weight."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from headcheck.functions.norm_modules import EPS
from headcheck.functions.norm_role import NormRole
from headcheck.functions.norms import WEIGHT, Norm, NormCase, NormInputs, NormSubject
from headcheck.reference.norms import rms_norm


@dataclass(frozen=True)
class RMSNorm(Norm):
    """An RMS norm with its conventions.

    function: f(x, weight, eps) -> a tensor like x, normalised along the last axis; or a module, or a class that makes
    one from a width, whose parameter is given in its calls.
    arithmetic in 16 bits: "wide" rounds the result, "flash" also the normalised row before the weight multiplies
    it (Llama), "opwise" each step; with rescale="input" the sums of the gradients over rows are kept in 16 bits.
    """

    role = "rms_norm"
    ARGUMENTS: ClassVar = {"weight": WEIGHT, "eps": EPS}


class RMSNormSubject(NormSubject):
    """An RMS norm: no mean is taken out."""

    CENTRING = False

    def exact(self, x: NormInputs, tensors: Mapping[str, Tensor]) -> Tensor:
        return rms_norm(tensors["x"], self.factor(tensors.get("weight")), self.eps_of(x))


class RMSNormRole(NormRole[NormCase]):
    """Case, declaration and subject of an RMS norm."""

    name = "rms_norm"
    plain_call = "f(x, weight, eps)"
    case = NormCase
    declaration = RMSNorm
    subject = RMSNormSubject
    aliases = ("rms_norm", "rmsnorm")
    other = "rows whose mean is taken out", "rows whose mean is not", "layer_norm"


role = RMSNormRole()
