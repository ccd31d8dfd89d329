"""Norms that are modules, or classes that make them, as nearly all code has them."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import headcheck
from headcheck.errors import SubjectError
from headcheck.functions.norm_modules import as_function


class LlamaRMSNorm(nn.Module):
    """The weight multiplies what was cast back."""

    def __init__(self, hidden_size: int, variance_epsilon: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.epsilon = variance_epsilon

    def forward(self, hidden_states: Tensor) -> Tensor:
        wide = hidden_states if hidden_states.dtype == torch.float64 else hidden_states.float()
        row = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.epsilon)
        return self.weight * row.to(hidden_states.dtype)


class GemmaRMSNorm(nn.Module):
    """A new weight is zeros, to which 1 is added."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor) -> Tensor:
        wide = x if x.dtype == torch.float64 else x.float()
        row = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)
        return (row * (1.0 + self.weight.to(row))).to(x.dtype)


class Unweighted(LlamaRMSNorm):
    """The weight is kept, and forgotten."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        return super().forward(hidden_states) / self.weight


class WithBias(nn.Module):
    """As nanoGPT: whether there is a bias has to be said."""

    def __init__(self, ndim: int, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(ndim))
        self.bias = nn.Parameter(torch.zeros(ndim)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.layer_norm(x, self.weight.shape, self.weight, self.bias, 1e-5)


class BuiltAtTheFirstCall(nn.Module):
    """As Keras': what comes first is an axis, and the width is that of the first rows."""

    def __init__(self, axis: int = -1, epsilon: float = 1e-3) -> None:
        super().__init__()
        self.axis, self.epsilon, self.gamma = axis, epsilon, None

    def forward(self, inputs: Tensor) -> Tensor:
        if self.gamma is None:
            self.gamma = nn.Parameter(torch.ones(inputs.shape[self.axis]))
        if inputs.shape[self.axis] != len(self.gamma):
            raise ValueError(f"expected axis {self.axis} to have value {len(self.gamma)}")
        return nn.functional.rms_norm(inputs, self.gamma.shape, self.gamma, self.epsilon)


def test_an_axis_is_given_no_width() -> None:
    """The module learns it from the first rows that it is called with."""
    assert verdict_of(BuiltAtTheFirstCall, "rms_norm").conforms


def verdict_of(subject: Any, role: str) -> headcheck.Verdict:
    return headcheck.verify(subject, role=role, profile="quick", dtype="float32")


@pytest.mark.parametrize(
    ("subject", "role"),
    [
        (nn.LayerNorm, "layer_norm"),
        (nn.RMSNorm, "rms_norm"),
        (LlamaRMSNorm, "rms_norm"),
        (GemmaRMSNorm, "rms_norm"),
        (WithBias, "layer_norm"),
        (nn.LayerNorm(24), "layer_norm"),
        (WithBias(8, bias=True), "layer_norm"),
        (headcheck.RMSNorm(LlamaRMSNorm(8)), None),
    ],
)
def test_right_modules_conform(subject: Any, role: str | None) -> None:
    """Made or to be made, with eps or without, their weights are those that the laws give."""
    verdict = headcheck.verify(subject, role=role, profile="quick", dtype="float32")
    assert verdict.conforms, repr(verdict)


def test_a_weight_that_is_not_used_is_found() -> None:
    """The weights of a new module are ones, and hide it."""
    verdict = verdict_of(Unweighted, "rms_norm")
    assert any(row.name_in_role.startswith("affine/") for row in verdict.broken)


def test_weights_of_a_module_are_left_alone() -> None:
    """What is judged is a copy."""
    module = nn.LayerNorm(8)
    before = {name: each.clone() for name, each in module.named_parameters()}
    assert verdict_of(module, "layer_norm").conforms
    assert all(torch.equal(each, before[name]) for name, each in module.named_parameters())


def test_parameters_of_other_names_are_not_guessed() -> None:
    """Of three parameters nobody knows which is the weight."""

    class Three(nn.Module):
        def __init__(self, dim: int) -> None:
            super().__init__()
            self.one, self.two, self.three = (nn.Parameter(torch.ones(dim)) for _ in range(3))

    with pytest.raises(
        SubjectError, match="which parameters are weight and bias is not known: one, two, three"
    ):
        as_function(headcheck.LayerNorm(Three))


def test_a_bias_is_none_of_an_rms_norms() -> None:
    """Another role is meant."""
    with pytest.raises(SubjectError, match="has a bias, and a norm of the role rms_norm has none"):
        as_function(headcheck.RMSNorm(nn.LayerNorm(8)))


def test_a_weight_of_one_number_is_no_weight_of_a_row() -> None:
    """A module that has one for rows of any width is judged by a function around it."""

    class Scalar(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gain = nn.Parameter(torch.ones(1))

    with pytest.raises(SubjectError, match=r"name a function \(x, eps\) around it"):
        as_function(headcheck.RMSNorm(Scalar()))


def test_a_class_that_wants_more_than_a_width_is_named() -> None:
    """One line says what it raised, and what to name."""

    class Wants(nn.Module):
        def __init__(self, dim: int, other: int) -> None:
            super().__init__()

    with pytest.raises(SubjectError, match=r"Wants\(16\) raised TypeError"):
        as_function(headcheck.LayerNorm(Wants))
