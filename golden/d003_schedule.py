"""Document 003, lines 890 to 948: what cross-attention reads, and the schedule of the learning rate."""

from typing import Any

import mpmath
import sympy
import torch

from headcheck.golden.derived import Derived, Worked, counted, holds, same
from headcheck.golden.exact import contracted, widely
from headcheck.golden.ledger import Run, Section
from headcheck.golden.stated import EPSILON, HOLDS, all_near, count, exactly, shape
from headcheck.reference import attention, token_probabilities, warmup_schedule

BRIDGE = Section("003", "cross-attention")
SCHEDULE = Section("003", "schedule")

READING = Worked("2 0; 0 2", "1 0; 0 1; 1 1", "1 2; 3 4; 5 5")
"""Two tokens of a decoder and three of an encoder, of our own."""
SOME_STEPS = (1, 2, 1000, 3999, 4000, 4001, 16000, 99999)


def rate(step: int, d_model: int = 512, warmup: int = 4000) -> sympy.Expr:
    """The formula of line 909, in roots."""
    d, s, w = (sympy.Integer(each) for each in (d_model, step, warmup))
    return sympy.Min(1 / sympy.sqrt(s), s / sympy.sqrt(w) ** 3) / sympy.sqrt(d)


def rate_again(step: int, d_model: int = 512, warmup: int = 4000) -> Any:
    """The same in two pieces: a line up to the end of the warmup, then an inverse root; within `widely`."""
    peak = mpmath.sqrt(mpmath.mpf(1) / (d_model * warmup))
    return peak * step / warmup if step <= warmup else peak * mpmath.sqrt(mpmath.mpf(warmup) / step)


def _rates(*steps: int) -> Derived:
    return Derived(
        lambda: [rate(step) for step in steps],
        widely(lambda: [rate_again(step) for step in steps]),
        lambda: [warmup_schedule(step, 512) for step in steps],
        inputs={
            "operation": "warmup schedule",
            "steps": " ".join(map(str, steps)),
            "d_model": "512",
            "warmup": "4000",
        },
    )


def _ratio(step: int, other: int) -> Derived:
    """The rate at a step over that at another."""
    return _rates(step, other).map(lambda rates: rates[0] / rates[1])


def _peak() -> int:
    """Where the rate is largest, of all steps that the picture shows."""
    return max(range(1, 100_000), key=lambda step: warmup_schedule(step, 512))


# Lines 882 to 892

for name, line, place, axes in (
    ("targets", 882, "batch=4, tgt_len=15", (4, 15)),
    ("memory", 883, "torch.randn(4, 20, 512)", (4, 20, 512)),
    ("probabilities", 888, "Next token probabilities", (4, 30000)),
):
    BRIDGE.confirmed(
        f"shape-{name}",
        line,
        place,
        f"The shape of the decoder example's {name}.",
        shape(*axes),
        counted(
            lambda axes=axes: axes,  # type: ignore[misc]
            lambda axes=axes: torch.empty(axes, device="meta").softmax(dim=-1).shape,  # type: ignore[misc]
        ),
    )
BRIDGE.confirmed(
    "probabilities-sum-to-one",
    888,
    "F.softmax(logits[:, -1, :], dim=-1)",
    "The probabilities of one sequence sum to one: here of three words with logits 0, ln 2 and ln 5.",
    exactly("1"),
    Derived(
        lambda: sum(sympy.Rational(each, 8) for each in (1, 2, 5)),
        None,
        lambda: token_probabilities(torch.tensor([[1.0, 2.0, 5.0]], dtype=torch.float64).log(), 1.0).sum(),
    ),
    formula=r"\sum_v \text{softmax}(z)_v = 1",
)
BRIDGE.confirmed(
    "queries-attend-to-the-encoder",
    892,
    "queries attend to the encoder's keys and values",
    "Two queries of the decoder and three keys of the encoder: the shape of the weights.",
    shape(2, 3),
    READING.weights.axes(),
)
BRIDGE.confirmed(
    "each-position-reads-for-itself",
    892,
    "each decoder position to selectively access",
    "Two queries read different mixtures of the same three values.",
    HOLDS,
    holds(
        lambda: READING.weights.exact().row(0) != READING.weights.exact().row(1),
        None,
        lambda: not all_near(READING.weights.reference()[0], READING.weights.reference()[1], EPSILON),  # type: ignore[misc]
    ),
)
BRIDGE.confirmed(
    "output-has-a-row-per-query",
    892,
    "Cross-attention connects encoder and decoder",
    "The output has the length of the target, whatever that of the source: here 2 queries, 3 keys, 2 dims.",
    shape(2, 2),
    Derived(
        lambda: contracted("qk,kd->qd", (2, 3), (3, 2)),
        lambda: (torch.zeros(2, 3) @ torch.zeros(3, 2)).shape,
        lambda: attention(*[torch.zeros(1, 1, n, 2) for n in (2, 3, 3)]).output[0, 0].shape,
    ),
)
BRIDGE.not_checkable(
    "what-it-finds",
    892,
    "link a German noun to its English translation",
    "Translation links nouns, summarization finds salient sentences.",
    reason="It depends on trained models that are not given.",
)

# Lines 894 to 898: the text

SCHEDULE.not_checkable(
    "what-the-paper-used",
    896,
    "dropout applied to attention weights, residual connections, and embeddings",
    "The paper trained with Adam, a schedule, smoothed labels and dropout in three places.",
    reason="A fact about a paper that is not given: its section 5.4 has dropout on sub-layers' outputs and on the sums "
    "of embeddings and positions; it does not name the attention weights.",
)
SCHEDULE.confirmed(
    "starts-very-small",
    898,
    "starting with a very small learning rate",
    "The rate of step 1 is a 4000th of the largest.",
    exactly("4000"),
    _ratio(4000, 1),
    formula=r"\eta(w) / \eta(1) = w",
)
for name, line, place in (
    ("warms-up-linearly", 898, "warming up linearly"),
    ("warmup-in-the-title", 944, "warmup + inverse sqrt decay"),
):
    SCHEDULE.confirmed(
        name,
        line,
        place,
        "Up to step 4000 the rate over the step is the same: at steps 1000, 2000, 3000 and 4000, relative to step 1.",
        exactly("1000 2000 3000 4000"),
        _rates(1, 1000, 2000, 3000, 4000).map(lambda rates: [each / rates[0] for each in rates[1:]]),
        formula=r"\eta(s) = s \, \eta(1), \quad s \le w",
    )
for name, line, place in (
    ("decays-as-inverse-root", 898, "proportionally to the inverse square root of the step number"),
    ("decay-in-the-title", 944, "inverse sqrt decay"),
):
    SCHEDULE.confirmed(
        name,
        line,
        place,
        "After the warmup four times the step is half the rate: 4000 against 16,000, and 20,000 against 80,000.",
        exactly("2 2"),
        _rates(4000, 16000, 20000, 80000).map(lambda rates: [rates[0] / rates[1], rates[2] / rates[3]]),
        formula=r"\eta(s) \propto s^{-1/2}, \quad s \ge w",
    )
SCHEDULE.not_checkable(
    "stability-and-practice",
    898,
    "This prevents early training instability",
    "Warmup prevents instability and is essential; cosine schedules are usual today.",
    reason="It depends on trainings that are not given, and on a practice.",
)

# Lines 900 to 948: the code

SCHEDULE.confirmed(
    "formula",
    909,
    "min(step^(-0.5), step * warmup_steps^(-1.5))",
    "The formula, at steps from 1 to 99,999: as it stands, and in two pieces that meet at the warmup.",
    HOLDS,
    same(_rates(*SOME_STEPS).exact, _rates(*SOME_STEPS).again, _rates(*SOME_STEPS).reference),  # type: ignore[arg-type]
    formula=r"\eta(s) = d^{-1/2} \min(s^{-1/2}, s \, w^{-3/2})",
)
SCHEDULE.confirmed(
    "pieces-meet",
    909,
    "min(step^(-0.5)",
    "At the end of the warmup both terms are the same.",
    HOLDS,
    same(
        lambda: 1 / sympy.sqrt(4000),
        lambda: 4000 / sympy.sqrt(4000) ** 3,
        lambda: warmup_schedule(4000, 1),
    ),
    formula=r"w^{-1/2} = w \cdot w^{-3/2}",
)
SCHEDULE.confirmed(
    "warmup-ends",
    945,
    "Warmup ends (",
    "The step with the largest rate, where the picture has its line.",
    count(4000),
    counted(lambda: max(SOME_STEPS, key=rate), None, _peak),
    formula=r"\eta(w) = (d w)^{-1/2} = 6.99 \cdot 10^{-4}",
)
SCHEDULE.block(
    "code",
    900,
    948,
    "The schedule and its picture, which is never drawn: the method is called with None for the scheduler.",
    needs=("matplotlib",),
    alone=Run(error="AttributeError: 'NoneType' object has no attribute 'warmup_steps'"),
)
SCHEDULE.block(
    "class",
    900,
    929,
    "The first part of that block, up to the picture: the class is only defined.",
    alone=Run(),
)
SCHEDULE.behaviour(
    "method-is-the-formula",
    929,
    "The method is the formula: its rates at steps 1, 4000 and 16,000.",
    blocks=("class",),
    probe="""
schedule = TransformerLRScheduler(None, 512, 4000)
print(*(f"{schedule.compute_lr(step):.6e}" for step in (1, 4000, 16000)))
""",
    prints="1.746928e-07 6.987712e-04 3.493856e-04",
)
SCHEDULE.behaviour(
    "first-step-is-one",
    919,
    "The first call of `step` sets the rate of step 1, in every group of parameters.",
    blocks=("class",),
    probe="""
groups = [{"params": [nn.Parameter(torch.ones(1))]} for _ in range(2)]
optimizer = optim.Adam(groups, lr=0)
rate = TransformerLRScheduler(optimizer, 1, 4).step()
print(rate, [group["lr"] for group in optimizer.param_groups])
""",
    prints="0.125 [0.125, 0.125]",
)
SCHEDULE.latent_fault(
    "method-without-its-object",
    937,
    "`compute_lr` is called on the class with None in place of the scheduler, and cannot run for any step.",
    blocks=("class",),
    probe="""
try:
    TransformerLRScheduler.compute_lr(None, 1)
except AttributeError as problem:
    print(problem)
""",
    prints="'NoneType' object has no attribute 'warmup_steps'",
    why_no_fault="It is an error of a call; no role is a schedule.",
)
SCHEDULE.latent_fault(
    "no-step-zero",
    927,
    "The formula has no rate at step 0: the method divides by zero.",
    blocks=("class",),
    probe="""
try:
    TransformerLRScheduler(None, 512).compute_lr(0)
except ZeroDivisionError:
    print("ZeroDivisionError")
""",
    prints="ZeroDivisionError",
    why_no_fault="No role is a schedule.",
)
SCHEDULE.latent_fault(
    "rates-of-groups-are-lost",
    922,
    "Every group of parameters gets the same rate, whatever rates the optimizer was given for them.",
    blocks=("class",),
    probe="""
groups = [{"params": [nn.Parameter(torch.ones(1))], "lr": lr} for lr in (0.1, 0.2)]
optimizer = optim.SGD(groups)
TransformerLRScheduler(optimizer, 1, 4).step()
print([group["lr"] for group in optimizer.param_groups])
""",
    prints="[0.125, 0.125]",
    why_no_fault="No role is a schedule.",
)
SCHEDULE.behaviour(
    "steps-of-the-picture",
    936,
    "The picture would end at step 99,999.",
    blocks=("code",),
    probe="print(steps[0], steps[-1], len(steps))",
    prints="1 99999 99999",
)
