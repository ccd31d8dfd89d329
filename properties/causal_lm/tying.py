"""One table for what goes in and for what comes out has the gradients of both."""

from dataclasses import dataclass

import torch
from torch import Tensor

from headcheck.comparison import Comparison, LawBroken, NotApplicable, none, within
from headcheck.given import at_most
from headcheck.laws import law
from headcheck.modules.causal_lm import CausalLMSubject, TokenInputs

TIED = "Press and Wolf 2017, section 3; Vaswani et al. 2017, section 3.4"
STEP = 2.0**-10
"""How far a row is moved, in its own length: the logits of its token are nearly linear in it."""


@law(
    source=TIED,
    formula="of a token v that is not read: d logits[v] / d table[v] = (f(table[v] + h) - f(table[v] - h)) / 2h",
    guards="The table detached where it serves as the output layer, so that it learns from one of its uses only.",
    needs=("table",),
    given=(at_most(batch=1, length=6),),
    share=0.5,
)
def a_tied_table_has_the_gradient_of_the_output(model: CausalLMSubject, x: TokenInputs) -> Comparison:
    """Where the output layer reads the embedding's table, the gradient of the table has the output's part."""
    unread = sorted(set(range(min(model.vocab, model.classes))) - set(x.tokens.flatten().tolist()))
    if not unread:
        raise NotApplicable("every token is read: the output's part of the gradient cannot be told apart")
    row = _row(model, x, unread[x.case.seed % len(unread)])
    slope, finer = (_slope(model, x, row, step) for step in (STEP, STEP / 2))
    noise = 2 * model.bound(x) / STEP * float(row.cotangent.abs().sum())
    if abs(float(slope)) <= noise:
        raise NotApplicable("the output layer has a weight of its own")
    curved = 2 * abs(float(slope - finer))
    return within(_gradient(model, x, row), slope, noise + curved, "slope along a row of the table")


@law(
    source=TIED,
    formula="two weights with the same memory are one parameter",
    guards="weight.data shared by two parameters: an optimizer steps twice, each with half the gradient, and a move "
    "to another device or dtype unties them (entrenar 314, transformers 42612).",
    share=0.1,
)
def weights_that_share_memory_are_one_parameter(model: CausalLMSubject, x: TokenInputs) -> Comparison:
    """No two parameters of the module as it was made hold the same numbers in the same memory."""
    if model.aliased:
        raise LawBroken(f"{model.aliased} are two parameters of one memory")
    return none("parameters of one memory")


@dataclass(frozen=True, eq=False)
class _Row:
    """A row of the table, of one token: where it is moved, and how the logits of the token are weighed."""

    token: int
    direction: Tensor
    cotangent: Tensor


def _row(model: CausalLMSubject, x: TokenInputs, token: int) -> _Row:
    """A row with a random direction, as long as the rows are on average."""
    assert model.table is not None
    generator = x.generator("row")
    direction = torch.randn(model.table.embedding_dim, generator=generator, dtype=torch.float64)
    size = float(model.table.weight.detach().double().square().mean().sqrt())
    cotangent = torch.randn(x.tokens.shape, generator=generator, dtype=torch.float64)
    return _Row(int(model.given(torch.tensor(token))), size * direction, cotangent)


def _slope(model: CausalLMSubject, x: TokenInputs, row: _Row, step: float) -> Tensor:
    """Of the logits of a token, weighed, along a direction of its row in the table: by finite differences."""
    assert model.table is not None
    weight, kept = model.table.weight, model.table.weight.detach().clone()
    logits = []
    with torch.no_grad():
        for sign in (1, -1):
            try:
                weight[row.token] += sign * step * row.direction.to(weight)
                logits.append(model(x)[..., row.token].double())
            finally:
                weight.copy_(kept)
    return ((logits[0] - logits[1]) * row.cotangent).sum() / (2 * step)


def _gradient(model: CausalLMSubject, x: TokenInputs, row: _Row) -> Tensor:
    """The same, by the gradient."""
    assert model.table is not None
    output = (model.output(x)[..., row.token] * row.cotangent.to(model.device)).sum()
    if not model.table.weight.requires_grad or not output.requires_grad:
        raise NotApplicable("the table has no gradient")
    gradient: Tensor
    (gradient,) = model.clock.call(torch.autograd.grad, output, [model.table.weight], materialize_grads=True)
    return (gradient[row.token].double().cpu() * row.direction).sum()
