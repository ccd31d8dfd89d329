"""What is read off the very calls of a subject: whether it computes again from its inputs as they are by then."""

import cProfile
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from headcheck import Attention
from headcheck.arithmetic import named
from headcheck.attention import watching
from headcheck.attention.subject import AttentionSubject
from headcheck.attention.trying import PLAIN, built
from headcheck.engine import PROFILES
from headcheck.laws import all_laws
from tests.engines import engine_of

NOTICED = all_laws()["attention/state/an-input-changed-before-backward-is-noticed"]


def plain(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return torch.softmax(query @ key.mT * query.shape[-1] ** -0.5, dim=-1) @ value


def computed_again(query: Tensor, key: Tensor, value: Tensor) -> Any:
    return checkpoint(plain, query, key, value, use_reentrant=False)


class _KeptAsAnAttribute(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        ctx.kept = query, key, value
        return plain(query, key, value)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        with torch.enable_grad():
            inputs = [each.detach().requires_grad_() for each in ctx.kept]
            return torch.autograd.grad(plain(*inputs), inputs, cotangent)


def kept_as_an_attribute(query: Tensor, key: Tensor, value: Tensor) -> Any:
    return _KeptAsAnAttribute.apply(query, key, value)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize(
    ("function", "outcome"),
    [(plain, "holds"), (computed_again, "holds"), (kept_as_an_attribute, "breaks")],
)
def test_a_checkpoint_is_not_asked_what_became_of_its_inputs(function: Any, outcome: str) -> None:
    """As torch documents it; a function of one's own is, though it computes again, too."""
    assert engine_of(Attention(function), PROFILES["quick"]).judge(NOTICED).outcome == outcome


def test_a_checkpoint_is_seen_and_no_profiler_is_lost() -> None:
    """One of C cannot be put back by Python: then nothing is watched."""
    for function, seen in ((plain, False), (computed_again, True)):
        model = {"float32": named("native")}
        subject = AttentionSubject(Attention(function), dtypes=("float32",), arithmetic=model, device="cpu")
        x = built(subject, PLAIN)
        assert watching.checkpointed(subject, x) is seen
        with cProfile.Profile():
            assert not watching.checkpointed(subject, x)
