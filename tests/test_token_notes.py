"""Models that read tokens: what the verdict says of padding and of parameters that nothing is given to."""

import pytest
import torch
from torch import Tensor, nn

import headcheck
from headcheck.errors import SubjectError
from headcheck.roles import role
from tests.roles import RIGHT
from tests.roles.causal_lm import Small


def test_a_token_whose_mask_the_module_makes_is_taken_for_padding() -> None:
    """It alone changes nothing behind a source; a module that reads every token has none."""
    pads = {}
    for name in ("seq2seq/masks-of-its-tokens", "seq2seq/written-out"):
        subject, notes = role("seq2seq").prepare(RIGHT[name].declaration(), dtypes=(), device="cpu", seed=0)
        pads[name] = subject.pad
        told = any(note.startswith("token 0 is taken for padding") for note in notes)
        assert told == (subject.pad == 0)
    assert [*pads.values()] == [0, None]


def test_a_parameter_that_nothing_is_given_to_is_told() -> None:
    """A cache that is reached by it is not judged."""

    class FromAPlace(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = Small()

        def forward(self, tokens: Tensor, start_pos: int = 0) -> Tensor:
            logits: Tensor = self.model(tokens)
            return logits

    _, notes = role("causal_lm").prepare(headcheck.CausalLM(FromAPlace), dtypes=(), device="cpu", seed=0)
    assert (
        "parameters not recognised, left at their defaults: start_pos; if one is of a cache, declare step "
        "(docs/adapting.md)" in notes
    )


def test_a_model_with_targets_that_refuses_gradients_is_judged() -> None:
    """As with an attention that has no backward pass on a CPU; what asks for gradients is not applicable."""

    class ForInference(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = Small()

        def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Tensor:
            if torch.is_grad_enabled():
                raise NotImplementedError("no backward pass here")
            logits: Tensor = self.model(tokens)
            return logits

    laws = ("same-call", "no-gradient-comes-from-later")
    verdict = headcheck.verify(headcheck.CausalLM(ForInference), profile="quick", laws=laws)
    assert [row.outcome for row in verdict.laws] == ["not-applicable", "holds"]


def test_a_scripted_function_says_what_went_wrong_inside() -> None:
    """The message of TorchScript begins with its own words, and ends with the cause."""

    @torch.jit.script
    def narrow(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return query.reshape(7, 7) + key + value

    with pytest.raises(SubjectError, match=r"RuntimeError: shape '\[7, 7\]' is invalid"):
        headcheck.verify(narrow, profile="quick")
