"""Document 002, lines 120 to 143 and 154: order, and sinusoidal positions."""

from typing import Any

import mpmath
import sympy
import torch

from headcheck.golden.d002 import RAW
from headcheck.golden.derived import Derived, Worked, holds, same
from headcheck.golden.exact import sinusoid, sinusoid_again, widely
from headcheck.golden.ledger import Run, Section
from headcheck.golden.pieces import turn_is_linear
from headcheck.golden.stated import EPSILON, HOLDS, all_near, nested
from headcheck.reference import sinusoidal, sinusoidal_at

ORDER = Section("002", "order")
WAVES = Section("002", "sinusoidal")

SHUFFLED = Worked(
    "2 2 2 2; 0 4 2 2; 2 0 1 1", "2 2 2 2; 4 0 2 2; 0 2 1 1", "2 2 2 2; 0 2 4 2; 2 1 0 1", scaled=False
)
"""The example's words the other way round."""
WIDTH, DIMS = 16, range(16)
P, K, FREQUENCY = sympy.symbols("p k omega", real=True)
"""A position, an offset, and a frequency."""


def _waves(parity: int) -> Derived:
    """The sines (0) or cosines (1) of 4 dims at positions 0 to 7: as powers, as exponentials, by the reference."""
    dims = (parity, parity + 2)
    table = [[sinusoid(p, dim, 4) for dim in dims] for p in range(8)]
    return holds(
        widely(lambda: all_near(table, [[sinusoid_again(p, dim, 4) for dim in dims] for p in range(8)])),
        None,
        lambda: all_near(table, sinusoidal(8, 4)[:, parity::2], 64 * EPSILON),
    )


def _step_length(position: int) -> mpmath.mpf:
    """Of PE(position) - PE(position - 1), by the second way."""
    return mpmath.sqrt(mpmath.fsum(each**2 for each in _step_again(position)))


def _steps_of_the_reference() -> tuple[float, float]:
    """The lengths of the steps to positions 50 and 30."""
    lengths = sinusoidal(51, WIDTH).diff(dim=0).norm(dim=-1)
    return float(lengths[49]), float(lengths[29])


def _squared(row: list[Any]) -> Any:
    """The square of a length."""
    return sum(each**2 for each in row)


def _step(position: int) -> list[sympy.Expr]:
    """PE(position) - PE(position - 1) of 16 dims."""
    return [sinusoid(position, dim, WIDTH) - sinusoid(position - 1, dim, WIDTH) for dim in DIMS]


def _step_again(position: int) -> list[Any]:
    """The same by sin a - sin b = 2 sin((a - b) / 2) cos((a + b) / 2), and likewise cosines."""
    found = []
    for dim in DIMS:
        angle = mpmath.exp(-mpmath.log(10000) * (dim - dim % 2) / WIDTH)
        middle = angle * (2 * position - 1) / 2
        found.append(2 * mpmath.sin(angle / 2) * (-mpmath.sin(middle) if dim % 2 else mpmath.cos(middle)))
    return found


def _shift_of_the_reference(offset: int) -> bool:
    """The same 16 x 16 matrix takes the reference's PE(p) to PE(p + offset) for p = 0 .. 9."""
    table = sinusoidal(10 + offset, WIDTH)
    turn = torch.zeros(WIDTH, WIDTH, dtype=torch.float64)
    for dim in range(0, WIDTH, 2):
        sin, cos = sinusoidal_at(torch.tensor([offset]), WIDTH)[0, dim : dim + 2]
        turn[dim : dim + 2, dim : dim + 2] = torch.stack((torch.stack((cos, sin)), torch.stack((-sin, cos))))
    return all_near((table[:10] @ turn.T).tolist(), table[offset:], 64 * EPSILON)


# Lines 121 to 125

ORDER.confirmed(
    "nowhere",
    122,
    "Nowhere.",
    "The first word's output does not change when the two others change places: no position is in the formula.",
    HOLDS,
    same(
        RAW.output.at(0).exact,
        SHUFFLED.output.at(2).exact,
        SHUFFLED.output.at(2).reference,
    ),
)
ORDER.confirmed(
    "permutation-equivariant",
    123,
    "permutation-equivariant",
    "If the words are shuffled, so are the outputs, and nothing else changes.",
    HOLDS,
    same(
        RAW.output.exact,
        SHUFFLED.output.map(lambda rows: nested(rows)[::-1]).exact,
        SHUFFLED.output.map(lambda rows: nested(rows)[::-1]).reference,
    ),
    formula=r"A(P Q, P K, P V) = P A(Q, K, V)",
)
for name, place in (
    ("weights-of-a-pair", "between any pair of words"),
    ("identical-patterns", "identical attention patterns"),
):
    ORDER.confirmed(
        name,
        123,
        place,
        "What each word gives each other is the same in both orders: as a matrix, rows and columns are shuffled.",
        HOLDS,
        same(
            RAW.weights.exact,
            SHUFFLED.weights.map(lambda rows: [row[::-1] for row in nested(rows)[::-1]]).exact,
            SHUFFLED.weights.map(lambda rows: [row[::-1] for row in nested(rows)[::-1]]).reference,
        ),
        formula=r"\alpha(P X) = P \alpha(X) P^T",
    )
for name, line, place in (
    ("position-is-carried", 124, "carries a signal about where it sits"),
    ("order-blindness-solved", 154, "positional encoding solves the order-blindness problem"),
):
    ORDER.confirmed(
        name,
        line,
        place,
        "With positions added to the embeddings, one word at two places is two vectors, and order counts.",
        HOLDS,
        holds(
            lambda: any(sympy.simplify(sinusoid(0, dim, 4) - sinusoid(1, dim, 4)) != 0 for dim in range(4)),
            None,
            lambda: not torch.allclose(*(sinusoidal(2, 4) + 1)),
        ),
        formula=r"x_p + PE(p)",
    )
ORDER.not_checkable(
    "each-an-improvement",
    125,
    "each an improvement on the last",
    "Each of the three approaches improves on the one before.",
    reason="No measure is named; line 146 itself says that the second reaches less far than the first.",
)

# Lines 127 to 132

for name, line, place, parity in (
    ("formula-sine", 128, "PE(pos, 2i) = sin(pos", 0),
    ("formula-cosine", 129, "PE(pos, 2i+1) = cos(pos", 1),
):
    WAVES.confirmed(
        name,
        line,
        place,
        f"{'Cosines' if parity else 'Sines'} of pos / 10000^(2i/d): as powers and as exponentials.",
        HOLDS,
        _waves(parity),
        formula=rf"\{'cos' if parity else 'sin'} \frac{{pos}}{{10000^{{2i/d}}}}",
    )
WAVES.confirmed(
    "frequencies-fall",
    130,
    "oscillates at a different frequency",
    "The frequency falls from pair to pair of dims: the first change rapidly, the last slowly.",
    HOLDS,
    holds(
        lambda: all(
            sympy.Integer(10000) ** sympy.Rational(-2 * i, WIDTH)
            > sympy.Integer(10000) ** sympy.Rational(-2 * i - 2, WIDTH)
            for i in range(7)
        ),
        lambda: all(
            mpmath.power(10000, -i / mpmath.mpf(8)) > mpmath.power(10000, -(i + 1) / mpmath.mpf(8))
            for i in range(7)
        ),
        lambda: bool((sinusoidal(2, WIDTH)[1, 0::2].diff() < 0).all()),
    ),
    formula=r"\omega_i = 10000^{-2i/d}",
)
for name, line, place in (
    ("fingerprint", 130, '"fingerprint" of wave values'),
    ("every-position-is-unique", 142, "every position is unique"),
):
    WAVES.confirmed(
        name,
        line,
        place,
        "No two of 100 positions have the same code: none the same first two dims even.",
        HOLDS,
        holds(
            # sin and cos of p and q agree only where p - q is a multiple of 2 pi, and no whole number but 0 is.
            lambda: sympy.pi.is_irrational,
            widely(
                lambda: (
                    min(abs(mpmath.expj(p) - mpmath.expj(q)) for p in range(100) for q in range(p))
                    > mpmath.mpf("1e-3")
                )
            ),
            lambda: float(torch.pdist(sinusoidal(100, WIDTH)).min()) > 0,
        ),
        formula=r"p \ne q \Rightarrow PE(p) \ne PE(q)",
    )
for name, place in (
    ("linear-shift", "linear function of PE(pos)"),
    ("rotation", "encoded as a rotation"),
    ("three-to-the-left", "fixed linear combination"),
):
    WAVES.confirmed(
        name,
        131,
        place,
        "One rotation for each offset takes the code of every position to that of the position so much later.",
        HOLDS,
        holds(turn_is_linear, None, lambda: _shift_of_the_reference(3)),
        formula=r"\begin{pmatrix} \sin \omega (p + k) \\ \cos \omega (p + k) \end{pmatrix} = "
        r"\begin{pmatrix} \cos \omega k & \sin \omega k \\ -\sin \omega k & \cos \omega k \end{pmatrix} "
        r"\begin{pmatrix} \sin \omega p \\ \cos \omega p \end{pmatrix}",
    )
WAVES.confirmed(
    "any-position",
    132,
    "the formula works for any position",
    "The formula has a value at every position: with 2 dims a point of the unit circle, at 1,000,000 too.",
    HOLDS,
    holds(
        lambda: sympy.simplify(sympy.sin(P) ** 2 + sympy.cos(P) ** 2) == 1,
        widely(
            lambda: all_near(mpmath.mpf(1), mpmath.fsum(sinusoid_again(10**6, dim, 2) ** 2 for dim in (0, 1)))
        ),
        lambda: all_near(1.0, float(sinusoidal_at(torch.tensor([10**6]), 2).square().sum()), 64 * EPSILON),
    ),
    formula=r"\sin^2 \omega p + \cos^2 \omega p = 1",
)
WAVES.not_checkable(
    "longer-than-in-training",
    132,
    "longer than anything it saw during training",
    "A model with sinusoidal positions handles sequences longer than those of its training.",
    reason="The code has positions for them; how well a model does there depends on a training that is not given.",
)
WAVES.confirmed(
    "no-table-to-run-off",
    132,
    "No lookup table to run off the end of",
    "The formula has a code for every position: that of a million lies within 1 as all do; the code below the line "
    "makes a table, which ends: see table-ends.",
    HOLDS,
    holds(
        lambda: all(abs(sinusoid(10**6, dim, WIDTH)) <= 1 for dim in range(WIDTH)),
        lambda: all(abs(sinusoid_again(10**6, dim, WIDTH)) <= 1 for dim in range(WIDTH)),
        lambda: sinusoidal_at(torch.tensor([10**6]), WIDTH).abs().max() <= 1,
    ),
)

# Lines 133 to 143

WAVES.block("function", 133, 143, "A table of the code.", levels="00111111000", alone=Run())
WAVES.erratum(
    "the-offset-pattern",
    143,
    "the offset pattern is consistent",
    "With 16 dims the steps from 49 to 50 and from 29 to 30 are nearly the same: they differ by less than they are long.",
    HOLDS,
    holds(
        lambda: bool(
            _squared([a - b for a, b in zip(_step(50), _step(30), strict=True)]) < _squared(_step(30))
        ),
        widely(
            lambda: (
                mpmath.fsum((a - b) ** 2 for a, b in zip(_step_again(50), _step_again(30), strict=True))
                < mpmath.fsum(a**2 for a in _step_again(30))
            )
        ),
    ),
    slip="What is consistent from position to position is a rotation, not a difference. The difference of the two steps "
    "is 1.057 long, each of them 1.015; in the slow dims alone, from the ninth on, they agree within 0.002.",
    formula=r"PE(50) - PE(49) \ne PE(30) - PE(29)",
)
WAVES.confirmed(
    "steps-are-equally-long",
    143,
    "the offset pattern is consistent",
    "What is consistent of the steps from one position to the next: they are all equally long.",
    HOLDS,
    holds(
        widely(lambda: all_near(_squared(_step(50)), _squared(_step(30)))),
        widely(lambda: all_near(_step_length(50), _step_length(30))),
        lambda: all_near(*_steps_of_the_reference(), 64 * EPSILON),
    ),
    formula=r"|PE(p + 1) - PE(p)|^2 = \sum_i 4 \sin^2 \frac{\omega_i}{2}",
)
WAVES.behaviour(
    "code-is-the-formula",
    137,
    "The code's table holds the sines and cosines of lines 128 and 129, to five decimals.",
    blocks=("function",),
    probe="""
angles = torch.arange(100.0).double()[:, None] / 10000 ** (torch.arange(8) / 8)
print(torch.allclose(pe[:, 0::2], angles.sin().float(), rtol=0, atol=5e-6))
print(torch.allclose(pe[:, 1::2], angles.cos().float(), rtol=0, atol=5e-6))
""",
    prints="True\nTrue",
)
WAVES.behaviour(
    "steps-at-run-time",
    143,
    "The first two dims of both steps in the code's own table.",
    blocks=("function",),
    probe="for step in (pe[50] - pe[49], pe[30] - pe[29]):\n"
    "    print([round(each, 2) for each in step[:2].tolist()])",
    prints="[0.69, 0.66]\n[-0.32, 0.9]",
)
WAVES.latent_fault(
    "table-ends",
    135,
    "The table ends at max_len: the position after it is an error.",
    blocks=("function",),
    probe="try:\n    sinusoidal_pe(1, 2)[1]\nexcept IndexError as problem:\n    print(problem)",
    prints="index 1 is out of bounds for dimension 0 with size 1",
    fault="sinusoidal/table-ends",
)
WAVES.latent_fault(
    "odd-width",
    139,
    "An odd d_model fails: there is one cosine more than there are odd dims.",
    blocks=("function",),
    probe='try:\n    sinusoidal_pe(1, 3)\nexcept RuntimeError:\n    print("RuntimeError")',
    prints="RuntimeError",
    fault="sinusoidal/odd-refused",
)
