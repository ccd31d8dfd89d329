"""The schedule, the smoothed loss and the clipped step are torch's, or differ by what is said."""

import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from headcheck.reference.training import (
    Batch,
    adam,
    clip_gradients,
    cross_entropy,
    shift,
    smallest_loss,
    smoothed_targets,
    teacher_forced,
    token_loss,
    train,
    train_step,
    warmup_schedule,
)

EPS = torch.finfo(torch.float64).eps
VOCABULARY = 7


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=generator(seed), dtype=torch.float64)


# The schedule


def test_the_schedule_of_the_paper() -> None:
    """d_model = 512, warm-up 4000: 1.75e-7 at step 1, about 7.0e-4 at the peak, half of it at step 16,000."""
    peak = (512 * 4000) ** -0.5
    assert warmup_schedule(4000, 512) == pytest.approx(peak, rel=4 * EPS)
    assert warmup_schedule(1, 512) == pytest.approx(peak / 4000, rel=8 * EPS)
    assert warmup_schedule(16_000, 512) == pytest.approx(peak / 2, rel=4 * EPS)
    assert f"{peak:.3g}" == "0.000699"


@pytest.mark.parametrize("warmup", [1, 2, 50])
def test_the_schedule_rises_to_the_warmup_and_falls_after(warmup: int) -> None:
    """Equal steps up to the peak, then falling as the inverse root."""
    rates = [warmup_schedule(step, 64, warmup) for step in range(1, 4 * warmup + 1)]
    peak = rates[warmup - 1]
    assert max(rates) == peak
    for step, rate in enumerate(rates, start=1):
        expected = peak * step / warmup if step <= warmup else peak * math.sqrt(warmup / step)
        assert rate == pytest.approx(expected, rel=8 * EPS)


def test_the_first_step_is_one() -> None:
    """Step 0 would have the rate 0, or an infinite one."""
    with pytest.raises(ValueError, match="step 0: the first step is 1"):
        warmup_schedule(0, 512)


def test_a_training_run_follows_the_schedule_as_lambda_lr_does() -> None:
    """The rate of the n-th update is that of torch's LambdaLR, whose first step is 0."""
    parameter = nn.Parameter(torch.zeros(2, 3))
    theirs = torch.optim.SGD([parameter], lr=1.0)
    scheduler = torch.optim.lr_scheduler.LambdaLR(theirs, lambda step: warmup_schedule(step + 1, 8, 3))
    expected = []
    for _ in range(7):
        expected.append(theirs.param_groups[0]["lr"])
        theirs.step()
        scheduler.step()
    ours, seen = torch.optim.SGD([parameter], lr=0.0), []
    ours.register_step_pre_hook(lambda optimizer, *_: seen.append(optimizer.param_groups[0]["lr"]))
    batch = Batch((), torch.tensor([0, 1]))
    train(lambda: parameter, ours, [batch] * 7, lambda step: warmup_schedule(step, 8, 3))
    assert seen == expected


# The loss


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("padding_id", [None, 0])
def test_the_loss_is_that_of_torch(smoothing: float, padding_id: int | None) -> None:
    """Values and gradients are those of CrossEntropyLoss with label_smoothing and ignore_index."""
    logits = (5 * normal(3, 4, VOCABULARY)).requires_grad_()
    targets = torch.randint(VOCABULARY, (3, 4), generator=generator(1))
    targets[0, 1:] = 0
    theirs = nn.CrossEntropyLoss(
        label_smoothing=smoothing, ignore_index=-100 if padding_id is None else padding_id
    )
    expected = theirs(logits.flatten(0, 1), targets.flatten())
    found = token_loss(logits, targets, smoothing=smoothing, padding_id=padding_id)
    # Sums of 7 terms of one sign, then of 12 rows.
    assert float(found.detach()) == pytest.approx(float(expected.detach()), rel=40 * EPS)
    grads = [torch.autograd.grad(loss, logits)[0] for loss in (found, expected)]
    assert ((grads[0] - grads[1]).abs() <= 40 * EPS).all()


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
def test_a_smoothed_target_is_a_distribution(smoothing: float) -> None:
    """It sums to 1; the target has 1 - e + e/V, every other entry e/V."""
    found = smoothed_targets(torch.tensor([[2, 0]]), 4, smoothing)
    assert found.shape == (1, 2, 4)
    assert ((found.sum(dim=-1) - 1).abs() <= 4 * EPS).all()
    assert found[0, 0].tolist() == pytest.approx(
        [smoothing / 4, smoothing / 4, 1 - smoothing + smoothing / 4, smoothing / 4]
    )


@pytest.mark.parametrize("smoothing", [0.05, 0.1, 0.9, 1.0])
def test_the_loss_is_least_at_the_smoothed_target(smoothing: float) -> None:
    """Where the softmax is the target the loss is the entropy, its gradient 0, and everywhere else it is more."""
    target = smoothed_targets(torch.tensor(3), VOCABULARY, smoothing)
    best = target.log().requires_grad_()
    loss = cross_entropy(best, target)
    least = smallest_loss(VOCABULARY, smoothing)
    assert float(loss.detach()) == pytest.approx(least, rel=20 * EPS)
    assert (torch.autograd.grad(loss, best)[0].abs() <= 8 * EPS).all()
    for seed in range(20):
        moved = best.detach() + 0.1 * normal(VOCABULARY, seed=seed)
        assert cross_entropy(moved, target) > least


def test_the_smallest_loss_by_hand() -> None:
    """Without smoothing it is 0; with all of it, ln V; of two words with e = 1/2, that of (3/4, 1/4)."""
    assert smallest_loss(5, 0.0) == 0
    assert smallest_loss(5, 1.0) == pytest.approx(math.log(5), rel=8 * EPS)
    assert smallest_loss(2, 0.5) == pytest.approx(math.log(4) - 0.75 * math.log(3), rel=8 * EPS)


def test_equal_logits_cost_the_logarithm_of_the_vocabulary() -> None:
    """A model that knows nothing has the loss ln V, however the labels are smoothed."""
    targets = torch.tensor([[1, 2]])
    for smoothing in (0.0, 0.1):
        loss = token_loss(torch.zeros(1, 2, 9, dtype=torch.float64), targets, smoothing=smoothing)
        assert float(loss) == pytest.approx(math.log(9), rel=20 * EPS)


def test_what_the_model_says_at_padding_does_not_matter() -> None:
    """The logits of padded targets change neither the loss nor get a gradient, infinite ones included."""
    logits, targets = normal(2, 3, VOCABULARY), torch.tensor([[1, 2, 0], [3, 0, 0]])
    wild = logits.masked_fill((targets == 0)[..., None], torch.inf).requires_grad_()
    loss = token_loss(wild, targets, padding_id=0)
    assert torch.equal(loss.detach(), token_loss(logits, targets, padding_id=0))
    (gradient,) = torch.autograd.grad(loss, wild)
    assert not gradient[targets == 0].any()
    assert gradient[targets != 0].all()


def test_a_batch_of_padding_alone_is_refused() -> None:
    """Its mean would be 0 / 0."""
    with pytest.raises(ValueError, match="every target is the padding 0: there is nothing to learn"):
        token_loss(normal(1, 2, VOCABULARY), torch.zeros(1, 2, dtype=torch.long), padding_id=0)


# Batches and steps


def test_targets_are_the_inputs_one_token_later() -> None:
    """The input lacks the last token, the target the first; position i is to answer token i + 1."""
    tokens = torch.tensor([[1, 5, 6, 2]])
    inputs, targets = shift(tokens)
    assert (inputs.tolist(), targets.tolist()) == ([[1, 5, 6]], [[5, 6, 2]])
    assert torch.equal(inputs[:, 1:], targets[:, :-1])


def test_teacher_forcing_gives_the_true_past() -> None:
    """The model is called with the source, where there is one, and the target tokens but the last."""
    source, tokens = torch.tensor([[7, 8]]), torch.tensor([[1, 5, 2]])
    batch = teacher_forced(tokens, source)
    assert [each.tolist() for each in batch.inputs] == [[[7, 8]], [[1, 5]]]
    assert batch.targets.tolist() == [[5, 2]]
    assert len(teacher_forced(tokens).inputs) == 1


def with_gradients(scale: float) -> list[nn.Parameter]:
    parameters = [nn.Parameter(normal(3, 2)), nn.Parameter(normal(5)), nn.Parameter(normal(4))]
    for seed, parameter in enumerate(parameters[:2]):
        parameter.grad = scale * normal(*parameter.shape, seed=seed)
    return parameters


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_clipping_is_that_of_torch(scale: float) -> None:
    """The norm is torch's; gradients above it are those of clip_grad_norm_, times its (norm + 1e-6) / norm."""
    ours, theirs = with_gradients(scale), with_gradients(scale)
    norm = clip_gradients(ours, 1.0)
    total = float(nn.utils.clip_grad_norm_(theirs, 1.0))
    assert norm == pytest.approx(total, rel=20 * EPS)
    factor = (total + 1e-6) / total if total > 1 else 1.0
    for mine, other in zip(ours[:2], theirs[:2], strict=True):
        assert mine.grad is not None
        assert other.grad is not None
        assert ((mine.grad - other.grad * factor).abs() <= 20 * EPS * mine.grad.abs()).all()


def test_clipped_gradients_have_the_largest_norm_allowed() -> None:
    """Above the limit the norm becomes the limit and the direction stays; below it nothing changes."""
    parameters, before = with_gradients(1.0), with_gradients(1.0)
    norm = clip_gradients(parameters, 0.5)
    assert norm > 0.5
    gradients = [p.grad for p in parameters if p.grad is not None]
    assert float(torch.cat([g.flatten() for g in gradients]).norm()) == pytest.approx(0.5, rel=20 * EPS)
    clip_gradients(before, 2 * norm)
    assert torch.equal(before[0].grad, with_gradients(1.0)[0].grad)
    assert clip_gradients([nn.Parameter(torch.zeros(2))], 1.0) == 0


def test_one_step_is_that_of_torch() -> None:
    """Loss, clipping and Adam at the given rate move the parameters where torch's own moves them."""
    tokens = torch.randint(VOCABULARY, (4, 6), generator=generator(2))
    models = [little_model() for _ in range(2)]
    optimizers = [adam(model.parameters()) for model in models]
    batch = teacher_forced(tokens)
    for _ in range(3):
        train_step(models[0], optimizers[0], batch, 0.01, max_norm=1e9, smoothing=0.1)
        optimizers[1].param_groups[0]["lr"] = 0.01
        optimizers[1].zero_grad()
        logits = models[1](tokens[:, :-1])
        nn.functional.cross_entropy(logits.mT, tokens[:, 1:], label_smoothing=0.1).backward()
        optimizers[1].step()
    for mine, other in zip(*(model.parameters() for model in models), strict=True):
        # Adam divides a gradient by its own size: entries near zero turn last digits into larger shares.
        torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-9)


def test_the_first_update_is_made_with_the_first_rate() -> None:
    """The rate is set before the update: one step moves the parameters."""
    model = little_model()
    before = [p.detach().clone() for p in model.parameters()]
    train(model, adam(model.parameters()), batches(1), lambda step: 0.01)
    assert not any(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))


def test_the_gradient_of_a_step_is_clipped() -> None:
    """With plain descent at rate 1, no step is longer than the norm allowed."""
    model = little_model()
    before = torch.cat([p.detach().flatten() for p in model.parameters()])
    train_step(model, torch.optim.SGD(model.parameters()), next(batches(1)), 1.0, max_norm=1e-3)
    after = torch.cat([p.detach().flatten() for p in model.parameters()])
    assert float((after - before).norm()) == pytest.approx(1e-3, rel=1e-9)


# The loop


def little_model(dropout: float = 0.0) -> nn.Module:
    """A table of the next token's logits behind an embedding: the smallest language model."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return nn.Sequential(
            nn.Embedding(VOCABULARY, 16), nn.Dropout(dropout), nn.Linear(16, VOCABULARY)
        ).double()


def batches(count: int, offset: int = 1) -> Iterator[Batch]:
    """Counting in a circle, from a random start."""
    for seed in range(count):
        start = torch.randint(VOCABULARY, (8, 1), generator=generator(seed))
        tokens = (start + torch.arange(6)) % VOCABULARY
        yield Batch((tokens[:, :-1],), tokens[:, offset:][:, :5] if offset else tokens[:, :-1])


def test_training_learns_the_next_token() -> None:
    """The loss falls from near ln V to the least that smoothing allows, and the most likely token is the next."""
    model = little_model()
    losses = train(
        model,
        adam(model.parameters()),
        batches(120),
        lambda step: 30 * warmup_schedule(step, 16, 100),
        smoothing=0.1,
    )
    least = smallest_loss(VOCABULARY, 0.1)
    assert losses[0] > math.log(VOCABULARY) - 0.5
    assert least < losses[-1] < least + 0.05
    tokens = torch.arange(VOCABULARY)
    assert torch.equal(model(tokens).argmax(dim=-1), (tokens + 1) % VOCABULARY)


def test_training_on_unshifted_labels_learns_to_copy() -> None:
    """With the labels not shifted the same loop learns the token itself: the test above would see it."""
    model = little_model()
    train(model, adam(model.parameters()), batches(120, offset=0), lambda step: 0.05)
    tokens = torch.arange(VOCABULARY)
    assert torch.equal(model(tokens).argmax(dim=-1), tokens)


def test_the_seed_decides_a_training_run() -> None:
    """With dropout, the same seed gives the same losses bit for bit, another seed others."""
    runs = []
    for seed in (0, 0, 1):
        model = little_model(dropout=0.5)
        runs.append(train(model, adam(model.parameters()), batches(10), lambda step: 0.01, seed=seed))
    assert runs[0] == runs[1] != runs[2]


def test_training_leaves_the_global_generator_as_it_was() -> None:
    """Dropout follows the run's own seed."""
    before = torch.random.get_rng_state()
    model = little_model(dropout=0.5)
    train(model, adam(model.parameters()), batches(3), lambda step: 0.01)
    assert torch.equal(torch.random.get_rng_state(), before)
