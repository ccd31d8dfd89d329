"""Document 003, lines 950 to 1028: the training loop."""

from collections.abc import Callable

import mpmath
import sympy
import torch
from torch import nn

from headcheck.golden.d003_schedule import rate
from headcheck.golden.derived import Derived, counted, holds, same
from headcheck.golden.exact import widely
from headcheck.golden.ledger import Run, Section
from headcheck.golden.stated import EPSILON, HOLDS, all_near, exactly, shape
from headcheck.reference import clip_gradients, shift, teacher_forced, token_loss, warmup_schedule

LOOP = Section("003", "training-loop")

TENTH = sympy.Rational(1, 10)
PROBABILITIES = [sympy.Rational(1, 4), sympy.Rational(3, 4)]
LOGITS = torch.tensor([[1.0, 3.0], [1.0, 3.0]], dtype=torch.float64).log()
"""Two positions with the probabilities 1/4 and 3/4."""

WATCHED = """
import torch
import torch.nn as nn
import torch.optim as optim
rates = []
class Watched(optim.Adam):
    def step(self):
        rates.append(self.param_groups[0]["lr"])
        return super().step()
optim.Adam = Watched
class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(3, 3)
    def forward(self, src, tgt):
        return self.table(tgt)
def batches(*targets):
    return [(torch.ones(len(rows), 1).long(), torch.tensor(rows)) for rows in targets]
"""
"""A model of three words that predicts each from the one before it, and an optimizer that keeps its rates."""
PARTS = ("003/schedule/class", "003/training-loop/function")


def _smoothed_loss(target: int) -> sympy.Expr:
    """-sum q ln p with 1/10 spread over two words, by algebra."""
    shares = [(1 - TENTH) * int(word == target) + TENTH / 2 for word in range(2)]
    return -sum(share * sympy.log(p) for share, p in zip(shares, PROBABILITIES, strict=True))


def _smoothed_loss_again() -> mpmath.mpf:
    """For target 1: nine tenths of its own loss, and a tenth of the mean of both."""
    own, other = mpmath.log(4) - mpmath.log(3), mpmath.log(4)
    return own * 9 / 10 + (own + other) / 20


def _mean_of_real(losses: list[tuple[sympy.Expr, bool]]) -> sympy.Expr:
    return sum(loss for loss, real in losses if real) / sum(real for _, real in losses)


def _clipped(gradient: list[float]) -> torch.Tensor:
    parameter = torch.zeros(2, dtype=torch.float64)
    parameter.grad = torch.tensor(gradient, dtype=torch.float64)
    clip_gradients([parameter], 1.0)
    return parameter.grad


def _flat(rows: bool) -> Callable[[], torch.Size]:
    """What the loss is given, of 2 targets of 4 words in a vocabulary of 5."""
    logits, targets = torch.empty(2, 3, 5), torch.empty(2, 4)[:, 1:]
    return lambda: (logits.reshape(-1, logits.size(-1)) if rows else targets.reshape(-1)).shape


def _rates_of(updates: int) -> list[sympy.Expr]:
    """The rate of each update where the scheduler steps after the optimizer, which starts at 0."""
    used, current = [], sympy.Integer(0)
    for step in range(1, updates + 1):
        used.append(current)
        current = rate(step)
    return used


# Lines 952 to 1037

LOOP.confirmed(
    "teacher-forcing",
    952,
    "feeding ground truth tokens during training",
    "The model is called with the true tokens, all but the last: of 7, 8, 9 with 7 and 8.",
    exactly("7 8"),
    Derived(
        lambda: [7, 8, 9][:-1],
        lambda: torch.tensor([7, 8, 9]).narrow(0, 0, 2),
        lambda: teacher_forced(torch.tensor([[7, 8, 9]])).inputs[0][0],
    ),
)
LOOP.confirmed(
    "cross-entropy",
    952,
    "cross-entropy loss computation",
    "Without smoothing the loss is -ln of the target's probability, here of 3/4.",
    HOLDS,
    same(
        lambda: -sympy.log(PROBABILITIES[1]),
        lambda: mpmath.log(4) - mpmath.log(3),
        lambda: token_loss(LOGITS, torch.tensor([1, 1])),
    ),
    formula=r"-\ln p_{target}",
)
LOOP.confirmed(
    "clipping-shortens",
    952,
    "gradient clipping to prevent exploding gradients",
    "A gradient (3, 4), clipped to the norm 1 of the defaults, is (3/5, 4/5).",
    exactly("0.6 0.8"),
    Derived(
        lambda: [each / sympy.sqrt(3**2 + 4**2) for each in (sympy.Integer(3), sympy.Integer(4))],
        widely(lambda: [mpmath.cos(mpmath.atan2(4, 3)), mpmath.sin(mpmath.atan2(4, 3))]),
        lambda: _clipped([3.0, 4.0]),
    ),
    formula=r"g / \lVert g \rVert",
)
LOOP.confirmed(
    "clipping-keeps-the-small",
    952,
    "gradient clipping",
    "One whose norm is below 1 is left as it is: (3/8, 1/2).",
    exactly("0.375 0.5"),
    Derived(
        lambda: [
            each / max(sympy.Integer(1), sympy.Rational(5, 8)) for each in sympy.sympify(["3/8", "1/2"])
        ],
        None,
        lambda: _clipped([0.375, 0.5]),
    ),
)
LOOP.not_checkable(
    "exploding-is-common",
    952,
    "a common issue in deep networks",
    "Exploding gradients are common.",
    reason="A statement about practice.",
)
LOOP.block(
    "function",
    954,
    1028,
    "The training loop. It is only defined; the scheduler that it names stands in the block before.",
    alone=Run(),
)
LOOP.confirmed(
    "padding-does-not-count",
    970,
    "Padding token",
    "The mean of the losses of one word and one padding is the loss of the word.",
    HOLDS,
    same(
        lambda: _mean_of_real([(_smoothed_loss(1), True), (_smoothed_loss(0), False)]),
        _smoothed_loss_again,
        lambda: token_loss(LOGITS, torch.tensor([1, 0]), smoothing=0.1, padding_id=0),
    ),
)
LOOP.confirmed(
    "label-smoothing",
    968,
    "Loss with label smoothing",
    "Smoothing 1/10 takes a tenth of the target's loss and adds a tenth of the mean of all: here of 1/4 and 3/4.",
    HOLDS,
    same(
        lambda: _smoothed_loss(1),
        _smoothed_loss_again,
        lambda: token_loss(LOGITS[:1], torch.tensor([1]), smoothing=0.1),
    ),
    formula=r"-\sum_v ((1 - \epsilon) [v = t] + \epsilon / V) \ln p_v",
)
LOOP.confirmed(
    "set-by-the-scheduler",
    977,
    "Will be set by scheduler",
    "From the second update on the rate is one of the schedule; of the first it is 0, see first-update-does-nothing.",
    HOLDS,
    holds(
        lambda: _rates_of(4)[1:] == [*map(rate, (1, 2, 3))] and min(_rates_of(4)[1:]) > 0,
        None,
        lambda: all_near(_rates_of(4)[1:], [warmup_schedule(step, 512) for step in (1, 2, 3)], 64 * EPSILON),
    ),
    formula=r"0, \eta(1), \eta(2), \dots",
)
for name, line, place, row in (
    ("input", 995, "Remove last token", 0),
    ("output", 996, "Remove first token", 1),
):
    LOOP.confirmed(
        f"shifted-{name}",
        line,
        place,
        f"Of the words 0 to 4: the {name}. Each position predicts the next.",
        exactly(("0 1 2 3", "1 2 3 4")[row]),
        Derived(
            lambda row=row: [position + row for position in range(4)],  # type: ignore[misc]
            lambda row=row: torch.arange(5).unfold(0, 4, 1)[row],  # type: ignore[misc]
            lambda row=row: shift(torch.arange(5)[None])[row][0],  # type: ignore[misc]
        ),
    )
for name, line, place, axes, derived in (
    (
        "logits",
        1000,
        "(batch, seq_len, vocab_size)",
        (2, 3, 5),
        counted(
            lambda: (2, 4 - 1, 5),
            lambda: nn.Embedding(5, 5)(shift(torch.zeros(2, 4, dtype=torch.long))[0]).shape,
        ),
    ),
    ("flat-logits", 1004, "(batch*seq, vocab)", (6, 5), counted(lambda: (2 * 3, 5), _flat(rows=True))),
    ("flat-targets", 1005, "(batch*seq,)", (6,), counted(lambda: (2 * 3,), _flat(rows=False))),
):
    LOOP.confirmed(
        f"shape-{name}",
        line,
        place,
        "Of 2 targets of 4 words, 3 of them predicted, and a vocabulary of 5: the shape.",
        shape(*axes),
        derived,
    )
LOOP.confirmed(
    "average-loss",
    1024,
    "avg_loss = total_loss",
    "The average of losses 3 and 1 of two batches; it is that of the words only where all batches have as many of them, "
    "see mean-of-means.",
    exactly("2"),
    Derived(lambda: sympy.Rational(3 + 1, 2), lambda: torch.tensor([3, 1]).double().mean()),
    formula=r"\frac{3 + 1}{2}",
)
LOOP.behaviour(
    "runs-with-a-loader-and-a-model",
    1027,
    "With a list of batches and a small model the loop runs, and prints what it says.",
    setting=WATCHED,
    blocks=PARTS,
    probe="""
import contextlib, io
with contextlib.redirect_stdout(io.StringIO()) as printed:
    train_transformer(Words(), batches([[1, 2]], [[2, 1]]), 2, 3)
print([line.split(",")[0].split(".")[0] for line in printed.getvalue().splitlines()])
""",
    prints="['Epoch 1', 'Epoch 1 complete', 'Epoch 2', 'Epoch 2 complete']",
)

# Latent faults

QUIET = "import contextlib, io\nwith contextlib.redirect_stdout(io.StringIO()) as printed:\n    "
LOOP.latent_fault(
    "first-update-does-nothing",
    1015,
    "The optimizer steps before the scheduler: the first update has rate 0 and changes no weight.",
    setting=WATCHED,
    blocks=PARTS,
    probe=f"""
model = Words()
before = model.table.weight.detach().clone()
{QUIET}train_transformer(model, batches([[1, 2]]), 1, 3)
print(rates, torch.equal(before, model.table.weight.cpu()))
""",
    prints="[0] True",
    why_no_fault="No role is a training loop.",
)
LOOP.latent_fault(
    "rates-lag-by-a-step",
    1016,
    "The rates of three updates are 0 and those of steps 1 and 2.",
    setting=WATCHED,
    blocks=PARTS,
    probe=f"""
{QUIET}train_transformer(Words(), batches([[1, 2]]), 3, 3)
schedule = TransformerLRScheduler(None, 3, 4000)
print(rates == [0, schedule.compute_lr(1), schedule.compute_lr(2)])
""",
    prints="True",
    why_no_fault="No role is a training loop.",
)
LOOP.latent_fault(
    "printed-rate",
    1022,
    "The printed rate is that of the next update, with too few digits: 0.000000 for the first step of 512 dims.",
    setting=WATCHED,
    blocks=PARTS,
    probe=f"""
{QUIET}train_transformer(Words(), batches([[1, 2]]), 1, 512)
print(printed.getvalue().splitlines()[0].split("LR: ")[1], TransformerLRScheduler(None, 512).compute_lr(1) > 0)
""",
    prints="0.000000 True",
    why_no_fault="It lies in what is printed.",
)
LOOP.latent_fault(
    "nothing-but-padding",
    1003,
    "A batch whose targets are all padding has the loss NaN, a mean over nothing, and the epoch's average with it.",
    setting=WATCHED,
    blocks=PARTS,
    probe=f"""
{QUIET}train_transformer(Words(), batches([[1, 2]], [[1, 0]]), 1, 3)
print(printed.getvalue().splitlines()[-1])
""",
    prints="Epoch 1 complete. Average loss: nan",
    why_no_fault="No role is a loss.",
)
LOOP.latent_fault(
    "mean-of-means",
    1024,
    "The average counts batches, not words: one of loss ln 3 in one batch and two of loss 0 in another give (ln 3) / 2 "
    "and not (ln 3) / 3.",
    setting=WATCHED,
    blocks=PARTS,
    probe=f"""
model = Words()
model.table.weight.data = torch.diag(torch.tensor([0.0, 20.0, 0.0]))
{QUIET}train_transformer(model, batches([[2, 1]], [[1, 1, 1]]), 1, 3, label_smoothing=0.0)
print(printed.getvalue().splitlines()[-1])
""",
    prints="Epoch 1 complete. Average loss: 0.5493",
    why_no_fault="It lies in what is printed.",
)
LOOP.latent_fault(
    "source-padding-is-not-masked",
    1000,
    "The model is called with tokens alone: padding in the source, which the loss knows as 0, is attended to.",
    setting=WATCHED,
    blocks=PARTS,
    probe=f"""
class Asked(Words):
    def forward(self, src, tgt, src_mask=None):
        given.append(src_mask)
        return super().forward(src, tgt)
given = []
{QUIET}train_transformer(Asked(), [(torch.tensor([[1, 0]]), torch.tensor([[1, 2]]))], 1, 3)
print(given)
""",
    prints="[None]",
    fault="seq2seq/padding-is-read",
)
LOOP.latent_fault(
    "loader-without-length",
    1024,
    "A generator of batches, which has no length, fails after the epoch.",
    setting=WATCHED,
    blocks=PARTS,
    probe=f"""
try:
    {QUIET.replace(chr(10), chr(10) + "    ")}    train_transformer(Words(), iter(batches([[1, 2]])), 1, 3)
except TypeError:
    print("TypeError", len(rates))
""",
    prints="TypeError 1",
    why_no_fault="No role is a training loop.",
)
