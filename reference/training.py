"""How the transformer is trained: schedule, smoothed labels, shifted targets, clipped steps.

Vaswani et al. 2017, section 5; document 003, lines 896 to 1037. `vocabulary` is the axis of the logits,
a target is an index of it, and `padding_id` marks targets that do not count.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor


def warmup_schedule(step: int, d_model: int, warmup: int = 4000) -> float:
    """d_model^(-1/2) min(step^(-1/2), step warmup^(-3/2)): the learning rate of step 1, 2, ...

    It rises linearly, peaks at `warmup` with (d_model warmup)^(-1/2), and falls as the inverse root.
    Vaswani et al. 2017, section 5.3, equation (3). ValueError: a step below 1.
    """
    if step < 1:
        raise ValueError(f"step {step}: the first step is 1")
    return float(d_model**-0.5 * min(step**-0.5, step * warmup**-1.5))


# The loss


def smoothed_targets(
    targets: Int[Tensor, "*rows"], vocabulary: int, smoothing: float, dtype: torch.dtype = torch.float64
) -> Float[Tensor, "*rows vocabulary"]:
    """(1 - smoothing) one-hot + smoothing / vocabulary: the target keeps its uniform share.

    Szegedy et al. 2016, section 7; Vaswani et al. 2017, section 5.4, with smoothing = 0.1.
    """
    hot = torch.nn.functional.one_hot(targets, vocabulary).to(dtype)
    return (1 - smoothing) * hot + smoothing / vocabulary


def cross_entropy(
    logits: Float[Tensor, "*rows vocabulary"], distribution: Float[Tensor, "*rows vocabulary"]
) -> Float[Tensor, "*rows"]:
    """-sum_w q(w) log p(w), p = softmax(logits); least, for a given q, where p = q."""
    return -(distribution * torch.log_softmax(logits, dim=-1)).sum(dim=-1)


def smallest_loss(vocabulary: int, smoothing: float) -> float:
    """The entropy of a smoothed target: no logits have a smaller loss."""
    target = smoothed_targets(torch.tensor(0), vocabulary, smoothing)
    return float(-torch.special.xlogy(target, target).sum())


def token_loss(
    logits: Float[Tensor, "*rows vocabulary"],
    targets: Int[Tensor, "*rows"],
    *,
    smoothing: float = 0.0,
    padding_id: int | None = None,
) -> Float[Tensor, ""]:
    """The mean cross-entropy over the targets that are no padding.  ValueError: all of them are."""
    counts = torch.ones_like(targets, dtype=torch.bool) if padding_id is None else targets != padding_id
    if not counts.any():
        raise ValueError(f"every target is the padding {padding_id}: there is nothing to learn")
    distribution = smoothed_targets(targets[counts], logits.shape[-1], smoothing, logits.dtype)
    return cross_entropy(logits[counts], distribution).mean()


# Batches and steps


class Batch(NamedTuple):
    """What the model is called with, and what it should have answered."""

    inputs: tuple[Tensor, ...]
    targets: Int[Tensor, "*rows"]


def shift(
    tokens: Int[Tensor, "batch length"],
) -> tuple[Int[Tensor, "batch length-1"], Int[Tensor, "batch length-1"]]:
    """The input without the last token, the target without the first: each position predicts the next token.

    Document 003, line 995; document 002, line 243.
    """
    return tokens[:, :-1], tokens[:, 1:]


def teacher_forced(tokens: Int[Tensor, "batch length"], *source: Tensor) -> Batch:
    """The true tokens as the model's input, after the source if there is one, and the same shifted as targets."""
    inputs, targets = shift(tokens)
    return Batch((*source, inputs), targets)


def clip_gradients(parameters: Iterable[Tensor], max_norm: float) -> float:
    """g <- g max_norm / ||g|| where ||g|| > max_norm, over all gradients as one vector; returns ||g|| before.

    Pascanu et al. 2013, algorithm 1. torch's `clip_grad_norm_` adds 1e-6 to the norm that it divides by.
    """
    gradients = [p.grad for p in parameters if p.grad is not None]
    norm = float(torch.stack([g.norm() for g in gradients]).norm()) if gradients else 0.0
    if norm > max_norm:
        for gradient in gradients:
            gradient.mul_(max_norm / norm)
    return norm


def adam(parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
    """Adam as in section 5.3; its learning rate is set at each step."""
    return torch.optim.Adam(parameters, lr=0.0, betas=(0.9, 0.98), eps=1e-9)


def train_step(
    model: Callable[..., Tensor],
    optimizer: torch.optim.Optimizer,
    batch: Batch,
    learning_rate: float,
    *,
    max_norm: float = 1.0,
    **loss: Any,
) -> float:
    """One update; returns the loss before it.  `loss` are the keywords of `token_loss`.

    The learning rate is set before the update. Document 003, lines 977, 1015 and 1016, set it after, so that its first
    update is made with the rate 0.
    """
    optimizer.zero_grad()
    found = token_loss(model(*batch.inputs), batch.targets, **loss)
    found.backward()  # type: ignore[no-untyped-call]  # torch does not type it
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
    clip_gradients([p for group in optimizer.param_groups for p in group["params"]], max_norm)
    optimizer.step()
    return float(found.detach())


def train(
    model: Callable[..., Tensor],
    optimizer: torch.optim.Optimizer,
    batches: Iterable[Batch],
    schedule: Callable[[int], float],
    *,
    seed: int = 0,
    **loss: Any,
) -> list[float]:
    """One step for each batch, with the rate schedule(1), schedule(2), ...; returns the losses.

    The model's own chance (dropout) follows the seed, and the global generator is left as it was.
    Train mode is the caller's to set.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return [
            train_step(model, optimizer, batch, schedule(step), **loss)
            for step, batch in enumerate(batches, start=1)
        ]
