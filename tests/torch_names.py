"""Torch's transformer in the names of `headcheck.reference`, so that weights and gradients can be compared."""

import re
from collections.abc import Mapping

import torch
from torch import Tensor, nn

NAMES = (
    (r"\bself_attn\b", "self_attention"),
    (r"\bmultihead_attn\b", "cross_attention"),
    (r"\bout_proj\b", "w_o"),
    (r"\blinear(\d)\b", r"feed_forward.w_\1"),
)


def in_our_names(theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Values by torch's names -> the same values by ours; the packed projection becomes three."""
    ours: dict[str, Tensor] = {}
    for name, value in theirs.items():
        new = re.sub(r"\bnorm(\d)\b", lambda match: f"residuals.{int(match[1]) - 1}.norm", name)
        for pattern, replacement in NAMES:
            new = re.sub(pattern, replacement, new)
        stem, packed, kind = new.partition("in_proj_")
        if packed:
            for letter, part in zip("qkv", value.chunk(3), strict=True):
                ours[f"{stem}w_{letter}.{kind}"] = part
        else:
            ours[new] = value
    return ours


def scrambled(module: nn.Module) -> nn.Module:
    """The module in float64, each parameter drawn anew: no bias is 0 and no gain is 1."""
    module.double()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(0.4 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return module


def load(ours: nn.Module, theirs: nn.Module) -> nn.Module:
    """Our module in float64 with the weights of torch's; every parameter must find its counterpart."""
    ours.double().load_state_dict(in_our_names(theirs.state_dict()))
    return ours


def gradients(module: nn.Module) -> dict[str, Tensor]:
    """The gradient of each parameter, by its name."""
    found = {name: parameter.grad for name, parameter in module.named_parameters()}
    assert all(each is not None for each in found.values())
    return {name: each for name, each in found.items() if each is not None}


def require_close(got: Tensor, want: Tensor, what: str = "output") -> None:
    """Equal in float64 but for rounding.

    A number here comes out of a chain of a few thousand additions and products, and each rounds by eps relative
    to the largest number around: 4096 eps is 1e-12. A wrong formula differs in the first digits.
    """
    assert got.dtype == want.dtype == torch.float64
    bound = 4096 * torch.finfo(torch.float64).eps * max(1.0, want.abs().max().item())
    assert got.shape == want.shape
    assert (got - want).abs().max().item() <= bound, what
