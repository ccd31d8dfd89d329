"""Document 003, lines 441 to 506 and 561: sinusoidal positions."""

from typing import Any

import mpmath
import sympy
import torch

from headcheck.golden.derived import Derived, counted, holds, same
from headcheck.golden.exact import sinusoid, sinusoid_again, widely
from headcheck.golden.ledger import Run, Section
from headcheck.golden.pieces import turn_is_linear
from headcheck.golden.stated import EPSILON, HOLDS, all_near, exactly, rounded, shape
from headcheck.reference import rotary_angles, sinusoidal, sinusoidal_at

WAVES = Section("003", "sinusoidal")
WHY = Section("003", "why-sinusoids")

WIDTH = 4
POSITIONS = (0, 1, 2, 7)
P, K, FREQUENCY = sympy.symbols("p k omega", real=True)


def _table(entry: Any, parity: int) -> list[list[Any]]:
    return [[entry(position, dim, WIDTH) for dim in (parity, parity + 2)] for position in POSITIONS]


def _factors(sign: int) -> list[sympy.Expr]:
    """10000^(sign 2i/d) of d_model 4."""
    return [sympy.Integer(10000) ** (sign * sympy.Rational(dim, WIDTH)) for dim in (0, 2)]


def _rotated_again() -> bool:
    """The same of complex numbers, e^(i w (p + k)) = e^(i w k) e^(i w p), for one k and many p."""
    turn = mpmath.expj(mpmath.mpf("0.01") * 3)
    return all(
        abs(mpmath.expj(mpmath.mpf("0.01") * (p + 3)) - turn * mpmath.expj(mpmath.mpf("0.01") * p)) < 1e-50
        for p in range(100)
    )


def _rotated_by_the_reference() -> bool:
    """The reference's PE(3) holds the matrix that takes PE(p) to PE(p + 3), for p = 0 .. 9."""
    table = sinusoidal(13, WIDTH).view(13, 2, 2)
    sin, cos = sinusoidal_at(torch.tensor([3]), WIDTH).view(2, 2).unbind(-1)
    sines, cosines = table[:10].unbind(-1)
    moved = torch.stack((cos * sines + sin * cosines, cos * cosines - sin * sines), dim=-1)
    return all_near(moved, table[3:], 64 * EPSILON)


def _added(*axes: int) -> Derived:
    """The shape of a table (1, seq_len, d_model) added to sequences."""
    return counted(
        lambda: tuple(max(pair) for pair in zip((1, *axes[1:]), axes, strict=True)),
        lambda: (torch.zeros(1, *axes[1:]) + torch.zeros(axes)).shape,
        lambda: (sinusoidal(*axes[1:]) + torch.zeros(axes)).shape,
    )


# Line 441

WAVES.confirmed(
    "linear-transformations",
    441,
    "relative positions can be computed via linear transformations",
    "For each offset one rotation of each pair takes the code of every position to that of the position so much later.",
    HOLDS,
    holds(turn_is_linear, _rotated_again, _rotated_by_the_reference),
)
WAVES.confirmed(
    "longer-sequences",
    441,
    "generalizes to sequence lengths longer than seen",
    "The formula has a code for every position: with 2 dims a point of the unit circle, at 1,000,000 too.",
    HOLDS,
    holds(
        lambda: sympy.simplify(sympy.sin(P) ** 2 + sympy.cos(P) ** 2) == 1,
        lambda: abs(mpmath.fsum(sinusoid_again(10**6, dim, 2) ** 2 for dim in (0, 1)) - 1) < 1e-50,
        lambda: all_near(1.0, float(sinusoidal_at(torch.tensor([10**6]), 2).square().sum()), 64 * EPSILON),
    ),
)
WAVES.not_checkable(
    "longer-sequences-of-a-model",
    441,
    "generalizes to sequence lengths longer than seen",
    "A trained model handles longer sequences.",
    reason="There is a code for them; how well a model does depends on a training that is not given.",
)
WAVES.not_checkable(
    "who-uses-which",
    441,
    "BERT use learned positional embeddings",
    "Which published model has which kind of positions.",
    reason="Facts about publications; nothing of them is calculated.",
)

# Lines 443 to 506

WAVES.block(
    "module",
    443,
    506,
    "The encoding as a module, and its picture.",
    needs=("matplotlib",),
    alone=Run(prints=("Positional encoding shape: torch.Size([1, 100, 512])",)),
)
for name, line, place, parity in (
    ("formula-sine", 452, "PE(pos, 2i) = sin(pos", 0),
    ("formula-cosine", 453, "PE(pos, 2i+1) = cos(pos", 1),
    ("sines-and-cosines", 441, "fixed patterns of sines and cosines at different frequencies", 0),
):
    WAVES.confirmed(
        name,
        line,
        place,
        f"{'Cosines' if parity else 'Sines'} of pos / 10000^(2i/d), at four positions of 4 dims: as powers and as "
        "exponentials.",
        HOLDS,
        same(
            lambda parity=parity: _table(sinusoid, parity),  # type: ignore[misc]
            lambda parity=parity: _table(sinusoid_again, parity),  # type: ignore[misc]
            lambda parity=parity: sinusoidal_at(torch.tensor(POSITIONS), WIDTH)[:, parity::2],  # type: ignore[misc]
        ),
        formula=rf"\{'cos' if parity else 'sin'} \frac{{pos}}{{10000^{{2i/d}}}}",
    )
WAVES.erratum(
    "comment-on-the-factors",
    464,
    "10000^(2i/d_model)",
    "What div_term holds, for d_model 4.",
    exactly("1 100"),
    Derived(
        lambda: _factors(-1),
        widely(lambda: [mpmath.exp(-mpmath.log(10000) * dim / WIDTH) for dim in (0, 2)]),
        lambda: rotary_angles(torch.tensor([1]), WIDTH)[0],
    ),
    slip="The comment lacks the minus: the code, rightly, computes 10000^(-2i/d) and multiplies by it.",
    gives=lambda: _factors(1),
    formula=r"e^{-2i \ln(10000) / d} = 10000^{-2i/d}",
)
for name, parity in (("even-dims", 0), ("odd-dims", 1)):
    WAVES.confirmed(
        name,
        468,
        "sin to even indices, cos to odd indices",
        f"{'Cosines' if parity else 'Sines'} stand in the {'odd' if parity else 'even'} dims: the code of position 0.",
        rounded("1 1" if parity else "0 0"),
        Derived(
            lambda parity=parity: _table(sinusoid, parity)[0],  # type: ignore[misc]
            widely(lambda parity=parity: _table(sinusoid_again, parity)[0]),  # type: ignore[misc]
            lambda parity=parity: sinusoidal(1, WIDTH)[0, parity::2],  # type: ignore[misc]
        ),
    )
for name, line, place, axes, derived in (
    ("table", 473, "(1, max_seq_len, d_model)", (1, 3, 4), _added(1, 3, 4)),
    ("input", 481, "(batch, seq_len, d_model)", (2, 3, 4), _added(2, 3, 4)),
    ("sum", 483, "x + positional encoding", (2, 3, 4), _added(2, 3, 4)),
    (
        "first-50",
        495,
        "First 50 positions",
        (50, 512),
        counted(
            lambda: (50, 512),
            lambda: torch.zeros(1, 100, 512)[0, :50].shape,
            lambda: sinusoidal(50, 512).shape,
        ),
    ),
):
    WAVES.confirmed(
        f"shape-{name}",
        line,
        place,
        f"The shape, {name}{', here of 2 sequences of 3 tokens and 4 dims' if line < 490 else ''}.",
        shape(*axes),
        derived,
    )
WAVES.behaviour(
    "table-of-the-code",
    469,
    "The table of d_model 4 at position 1: sin 1, cos 1, sin 0.01, cos 0.01.",
    blocks=("module",),
    probe="print([round(each, 4) for each in SinusoidalPositionalEncoding(4).pe[0, 1].tolist()])",
    prints="[0.8415, 0.5403, 0.01, 0.9999]",
)
WAVES.behaviour(
    "buffer-not-parameter",
    472,
    "The table is a buffer and no parameter.",
    blocks=("module",),
    probe="print([name for name, _ in pos_encoding.named_buffers()], len(list(pos_encoding.parameters())))",
    prints="['pe'] 0",
)
WAVES.behaviour(
    "picture",
    502,
    "The picture shows 512 dims from top to bottom and 50 positions from left to right.",
    blocks=("module",),
    probe="print(plt.gcf().axes[0].images[0].get_array().shape)",
    prints="(512, 50)",
)
WAVES.latent_fault(
    "odd-width",
    470,
    "An odd d_model fails: there is one cosine more than there are odd dims.",
    blocks=("module",),
    probe="try:\n    SinusoidalPositionalEncoding(3)\nexcept RuntimeError:\n    print('RuntimeError')",
    prints="RuntimeError",
    fault="sinusoidal/odd-refused",
)
WAVES.latent_fault(
    "table-ends",
    486,
    "The table ends: a sequence longer than max_seq_len is refused by an error about sizes.",
    blocks=("module",),
    probe="try:\n    SinusoidalPositionalEncoding(2, 2)(torch.zeros(1, 3, 2))\n"
    "except RuntimeError:\n    print('RuntimeError')",
    prints="RuntimeError",
    fault="sinusoidal/table-ends",
)
WAVES.latent_fault(
    "table-of-one-position",
    486,
    "With max_seq_len = 1 a longer sequence is not refused: the one row is broadcast, and every token is at position 0.",
    blocks=("module",),
    probe="print(SinusoidalPositionalEncoding(2, 1, 0.0)(torch.zeros(1, 2, 2)).tolist())",
    prints="[[[0.0, 1.0], [0.0, 1.0]]]",
    fault="encoder/one-position-for-all",
)
WAVES.latent_fault(
    "half-becomes-single",
    486,
    "The table stays in float32: embeddings in float16 come back in float32.",
    blocks=("module",),
    probe="print(SinusoidalPositionalEncoding(2)(torch.zeros(1, 1, 2).half()).dtype)",
    prints="torch.float32",
    fault="rotary/half-becomes-single",
)

# Line 561

for name, place in (
    ("linear-transformation", "relative positions can be computed via linear transformation"),
    ("any-fixed-offset", "can be expressed as a linear function of PE(pos)"),
):
    WHY.confirmed(
        name,
        561,
        place,
        "PE(p + k) is a matrix times PE(p), and the matrix depends on k alone.",
        HOLDS,
        holds(turn_is_linear, _rotated_again, _rotated_by_the_reference),
        formula=r"\begin{pmatrix} \sin \omega (p + k) \\ \cos \omega (p + k) \end{pmatrix} = "
        r"\begin{pmatrix} \cos \omega k & \sin \omega k \\ -\sin \omega k & \cos \omega k \end{pmatrix} "
        r"\begin{pmatrix} \sin \omega p \\ \cos \omega p \end{pmatrix}",
    )
WHY.not_checkable(
    "easier-to-learn",
    561,
    "makes it easier for the model to learn",
    "What is easier for a model to learn.",
    reason="It takes trainings to compare, and none is given.",
)
WHY.confirmed(
    "shortest-wave",
    561,
    "wavelengths from 2p",
    "The shortest wave, in units of 2 pi (the letter was lost in extraction and stands as a p).",
    exactly("1"),
    Derived(
        lambda: sympy.Integer(10000) ** sympy.Rational(0, 512),
        widely(lambda: mpmath.exp(0)),
        lambda: 1 / rotary_angles(torch.tensor([1]), 512)[0, 0],
    ),
    formula=r"\lambda_i = 2 \pi \cdot 10000^{2i/d}",
)
WHY.erratum(
    "longest-wave",
    561,
    "to 10000×2p",
    "The longest wave of 512 dims, in units of 2 pi.",
    rounded("10000"),
    Derived(
        lambda: sympy.Integer(10000) ** sympy.Rational(510, 512),
        widely(lambda: mpmath.exp(mpmath.log(10000) * 510 / 512)),
        lambda: 1 / rotary_angles(torch.tensor([1]), 512)[0, -1],
    ),
    slip="The last pair has 2i = d - 2, not d: 10000 is never reached, only neared as d grows. (So says the paper.)",
    gives=lambda: sympy.Integer(10000) ** sympy.Rational(512, 512),
    formula=r"10000^{(d - 2)/d} = 10000^{510/512}",
)
WHY.confirmed(
    "different-scales",
    561,
    "encode position at different scales",
    "Each wave is longer than the one before by the same factor: with 16 dims, the root of 10.",
    HOLDS,
    holds(
        lambda: all(
            sympy.Integer(10000) ** sympy.Rational(i + 1, 8) / sympy.Integer(10000) ** sympy.Rational(i, 8)
            == sympy.sqrt(10)
            for i in range(7)
        ),
        lambda: all(
            abs(
                mpmath.power(10000, mpmath.mpf(i + 1) / 8) / mpmath.power(10000, mpmath.mpf(i) / 8)
                - mpmath.sqrt(10)
            )
            < 1e-40
            for i in range(7)
        ),
        lambda: bool((rotary_angles(torch.tensor([1]), 16)[0].diff() < 0).all()),
    ),
    formula=r"\lambda_{i+1} / \lambda_i = 10000^{1/8} = \sqrt{10}",
)
WHY.not_checkable(
    "like-binary",
    561,
    "similar to binary representation",
    "The encoding is similar to binary numbers.",
    reason="A comparison; in what the two agree is not said.",
)
