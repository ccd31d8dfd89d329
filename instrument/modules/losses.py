"""What a language model makes of targets: the logits and the loss that it returns beside each other."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from headcheck.comparison import LawBroken, NotApplicable
from headcheck.modules.causal_lm import CausalLMSubject, TokenInputs
from headcheck.modules.returned import named_in

LEFT_OUT = (-100, -1)
"""What a target is that does not count: in torch, and in nanoGPT."""


@dataclass(frozen=True, eq=False)
class Scored:
    """One call with targets. loss: a number; surprise (batch, length, vocab): -log softmax of the logits, in float64."""

    loss: Tensor
    surprise: Tensor


def last_logits(model: CausalLMSubject, x: TokenInputs, *, with_targets: bool) -> Tensor:
    """Those of the last position (batch, 1, vocab), with and without targets.

    NotApplicable: there are none of the usual shape.
    """
    returned = _returned(model, x, model.given(x.tokens, x.is_real) if with_targets else None)
    alone = () if with_targets else ((len(x.tokens), 1, model.classes),)
    logits = _logits_in(returned, _shapes(model, x) + alone)
    if logits is None:
        raise NotApplicable(f"{'with' if with_targets else 'without'} targets it returns no logits")
    return logits.view(len(x.tokens), -1, model.classes)[:, -1:].cpu().clone()


def scored(model: CausalLMSubject, x: TokenInputs, targets: Tensor) -> Scored:
    """What the model gives for targets (batch, length), as it takes them.

    NotApplicable: it does not return a number, and logits of each position, by themselves or one after the other.
    """
    returned = _returned(model, x, targets.clone().to(model.device))  # Some write -100 where padding is.
    loss = _loss_in(returned)
    logits = _logits_in(returned, _shapes(model, x))
    if loss is None or logits is None:
        raise NotApplicable("with targets it returns no loss beside its logits")
    surprise = -logits.double().cpu().view(*x.tokens.shape, -1).log_softmax(dim=-1)
    return Scored(loss.double().cpu().reshape(()), surprise)


def loss_of(model: CausalLMSubject, x: TokenInputs, targets: Tensor) -> Tensor:
    """The loss, a number, with the graph that it carries. NotApplicable: none is returned."""
    loss = _loss_in(model.returned(x, targets.to(model.device)))
    if loss is None:
        raise NotApplicable("with targets it returns no loss")
    return loss.reshape(())


def without(model: CausalLMSubject, x: TokenInputs, targets: Tensor, where: Tensor) -> Tensor:
    """The targets with those left out at which `where` (batch, length) is True, in a way that the model knows.

    NotApplicable: it knows none; it refuses such numbers, or reads them from the end of its vocabulary.
    """
    for number in LEFT_OUT:
        marked, wrapped = (targets.masked_fill(where, each) for each in (number, number % model.classes))
        try:
            if not torch.equal(scored(model, x, marked).loss, scored(model, x, wrapped).loss):
                return marked
        except LawBroken:
            continue
    raise NotApplicable("it leaves out no targets of -100 or -1")


def _returned(model: CausalLMSubject, x: TokenInputs, targets: Tensor | None) -> object:
    with torch.no_grad():
        return model.returned(x, targets)


def _loss_in(returned: object) -> Tensor | None:
    return next((each for each in _parts(returned, "loss") if each.numel() == 1 and each.ndim <= 1), None)


def _shapes(model: CausalLMSubject, x: TokenInputs) -> tuple[tuple[int, ...], ...]:
    """Of logits at all positions; one after the other, they are as a loss takes them."""
    return (*x.tokens.shape, model.classes), (x.tokens.numel(), model.classes)


def _logits_in(returned: object, shapes: tuple[tuple[int, ...], ...]) -> Tensor | None:
    return next((each for each in _parts(returned, "logits") if tuple(each.shape) in shapes), None)


def _parts(returned: object, name: str) -> Iterator[Tensor]:
    """The tensors of numbers in what was returned: the one of that name, or of a tuple each, or it itself."""
    named = named_in(returned, name)
    each_of = returned if named is None and isinstance(returned, tuple | list) else [named, returned]
    yield from (each for each in each_of if isinstance(each, Tensor) and each.is_floating_point())
