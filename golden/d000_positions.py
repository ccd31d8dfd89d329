"""Document 000, lines 537 to 590: sinusoidal and learned positions."""

import mpmath
import sympy
import torch
from torch import nn

from headcheck.golden.derived import Derived, counted, holds
from headcheck.golden.exact import sinusoid, sinusoid_again, widely
from headcheck.golden.ledger import Run, Section
from headcheck.golden.stated import HOLDS, exactly, shape
from headcheck.reference import LearnedPositions, sinusoidal

CODE = Section("000", "sinusoidal-positions")


def _frequencies(d_model: int) -> list[sympy.Expr]:
    return [sympy.Integer(10000) ** sympy.Rational(-2 * i, d_model) for i in range(d_model // 2)]


def _dot(i: sympy.Expr, j: sympy.Expr, d_model: int) -> sympy.Expr:
    """PE(i) . PE(j), pair by pair."""
    return sum(
        sympy.sin(i * w) * sympy.sin(j * w) + sympy.cos(i * w) * sympy.cos(j * w)
        for w in _frequencies(d_model)
    )


def _depends_on_distance() -> bool:
    i, j = sympy.symbols("i j", real=True)
    difference = _dot(i, j, 8) - sum(sympy.cos((i - j) * w) for w in _frequencies(8))
    return bool(sympy.expand(sympy.expand_trig(sympy.expand(difference))) == 0)


def _depends_on_distance_again() -> bool:
    """Two pairs of positions at distance 3, number by number."""
    first, second = (
        mpmath.fsum(sinusoid_again(p, k, 64) * sinusoid_again(p + 3, k, 64) for k in range(64))
        for p in (0, 7)
    )
    return bool(abs(first - second) < mpmath.mpf(10) ** -50)


def _reference_distance() -> bool:
    """Within 64 roundings of the largest product, 32."""
    codes = sinusoidal(20, 64)
    products = codes @ codes.T
    apart = [(products.diagonal(k) - products[0, k]).abs().max() for k in range(20)]
    return bool(max(apart) <= 64 * 32 * 2**-53)


def _all_differ() -> bool:
    """The first two dims alone tell 5000 positions apart: cos(p - q) is 1 for no whole number but 0."""
    return all(mpmath.cos(distance) < 1 for distance in range(1, 5000))


def _refuses_beyond(length: int) -> bool:
    """A table of learned positions has no row for the next position, torch's and the reference's alike."""
    try:
        nn.Embedding(length, 2)(torch.tensor([length]))
    except IndexError:
        pass
    else:
        return False
    try:
        LearnedPositions(length, 2)(torch.tensor([length]))
    except ValueError:
        return True
    return False


def _code(position: int) -> Derived:
    """The first 8 of 64 dims."""
    return Derived(
        exact=lambda: [sinusoid(position, k, 64) for k in range(8)],
        again=widely(lambda: [sinusoid_again(position, k, 64) for k in range(8)]),
        reference=lambda: sinusoidal(10, 64)[position, :8],
        inputs={
            "operation": "sinusoidal positions",
            "position": str(position),
            "d_model": "64",
            "dims": "0 to 7",
        },
    )


def _every_second(start: int) -> Derived:
    """Of the code of position 0."""
    return _code(0).at().map(lambda row: list(row)[start::2])


# Lines 539 to 583

CODE.confirmed(
    "unique",
    539,
    "Each position gets a unique vector",
    "No two of 5000 positions have one code.",
    HOLDS,
    holds(
        lambda: sympy.pi.is_rational is False,
        _all_differ,
        lambda: len({tuple(row) for row in sinusoidal(5000, 2).tolist()}) == 5000,
    ),
    formula=r"e^{ip} = e^{iq} \iff p - q \in 2 \pi Z",
)
CODE.confirmed(
    "different-frequencies",
    539,
    "at different frequencies",
    "The frequencies of 64 dims are 32 different ones.",
    HOLDS,
    holds(
        lambda: len(set(_frequencies(64))) == 32,
        None,
        lambda: len(set(sinusoidal(2, 64)[1, ::2].tolist())) == 32,
    ),
    formula=r"10000^{-2i/d}",
)
CODE.confirmed(
    "relative",
    539,
    "is a function of i - j",
    "The dot product of two codes depends on their distance alone.",
    HOLDS,
    holds(_depends_on_distance, _depends_on_distance_again, _reference_distance),
    formula=r"PE(i) \cdot PE(j) = \sum_k \cos(\omega_k (i - j))",
)
CODE.not_checkable(
    "generalizes",
    539,
    "generalizes to sequence lengths longer than those seen",
    "A model with these codes does well on longer sequences than it was trained on.",
    reason="It depends on a training that is not given. The codes themselves are defined at every position.",
)
CODE.block(
    "module",
    541,
    581,
    "The module, and a demonstration of 10 tokens.",
    alone=Run(
        prints=(
            "Input shape:  torch.Size([1, 10, 64])",
            "Output shape: torch.Size([1, 10, 64])",
            "Position 0 encoding (first 8 dims): tensor([0., 1., 0., 1., 0., 1., 0., 1.])",
        )
    ),
)
for name, line, place, axes, derived in (
    (
        "table",
        550,
        "[max_len, d_model]",
        (100, 64),
        counted(lambda: (100, 64), None, lambda: sinusoidal(100, 64).shape),
    ),
    (
        "position",
        552,
        "[max_len, 1]",
        (100, 1),
        counted(lambda: (100, 1), lambda: torch.arange(100.0)[:, None].shape),
    ),
    (
        "broadcast",
        559,
        "[1, max_len, d_model]",
        (1, 100, 64),
        counted(lambda: (1, 100, 64), None, lambda: sinusoidal(100, 64)[None].shape),
    ),
    (
        "input",
        576,
        "[1, 10, 64]",
        (1, 10, 64),
        counted(lambda: (1, 10, 64), lambda: torch.zeros(1, 10, 64).shape),
    ),
    (
        "output",
        577,
        "[1, 10, 64]",
        (1, 10, 64),
        counted(lambda: (1, 10, 64), None, lambda: (torch.zeros(1, 10, 64) + sinusoidal(100, 64)[:10]).shape),
    ),
):
    CODE.confirmed(f"shape-{name}", line, place, f"The shape, {name}.", shape(*axes), derived)
CODE.confirmed(
    "position-0",
    580,
    "[0, 0, :8]",
    "The first 8 dims at position 0, which the block prints and the text does not: sin 0 and cos 0.",
    exactly("0 1 0 1 0 1 0 1"),
    _code(0),
)
CODE.confirmed(
    "formula",
    554,
    "-math.log(10000.0) / d_model",
    "exp(-2i log(10000) / d) is 10000^(-2i/d).",
    HOLDS,
    holds(
        lambda: all(
            sympy.simplify(
                sympy.exp(-2 * i * sympy.log(10000) / 64) - sympy.Integer(10000) ** sympy.Rational(-2 * i, 64)
            )
            == 0
            for i in range(4)
        ),
        lambda: all(
            abs(mpmath.exp(-2 * i * mpmath.log(10000) / 64) - mpmath.power(10000, mpmath.mpf(-2 * i) / 64))
            < 1e-50
            for i in range(32)
        ),
    ),
    formula=r"e^{-2i \ln(10000) / d} = 10000^{-2i/d}",
)
for name, line, place, odd in (("even", 557, "even indices", 0), ("odd", 558, "odd indices", 1)):
    CODE.confirmed(
        f"{name}-dims",
        line,
        place,
        f"The {name} dims are {'cosines' if odd else 'sines'}: at position 0 they are {odd}.",
        exactly(" ".join([str(odd)] * 4)),
        _every_second(odd),
    )
CODE.confirmed(
    "position-9-differs",
    579,
    "are very different",
    "In the 8 dims that are printed, the codes of positions 0 and 9 point apart: their dot product is negative.",
    HOLDS,
    holds(
        lambda: sum(sympy.cos(9 * w).evalf(30) for w in _frequencies(64)[:4]) < 0,
        lambda: mpmath.fsum(sinusoid_again(0, k, 64) * sinusoid_again(9, k, 64) for k in range(8)) < 0,
        lambda: sinusoidal(10, 64)[0, :8] @ sinusoidal(10, 64)[9, :8] < 0,
    ),
)
CODE.not_checkable(
    "position-9-in-all-dims",
    579,
    "are very different",
    "Over all 64 dims the codes of positions 0 and 9 are very different.",
    reason="A matter of measure: the slow dims hardly differ, and the cosine of the whole codes is positive.",
)
CODE.confirmed(
    "added",
    583,
    "not concatenated",
    "Adding leaves the number of dims, concatenating doubles it.",
    HOLDS,
    holds(
        lambda: (sympy.zeros(3, 64) + sympy.ones(3, 64)).shape == (3, 64),
        lambda: torch.cat((torch.zeros(3, 64), torch.ones(3, 64)), dim=1).shape == (3, 128),
    ),
)
CODE.behaviour(
    "a-buffer",
    583,
    "The table moves with the model and is no parameter.",
    blocks=("module",),
    probe="module = PositionalEncoding(2)\nprint(len(list(module.parameters())), module.to('meta').pe.device)",
    prints="0 meta",
)
CODE.latent_fault(
    "beyond-the-table",
    566,
    "A sequence longer than max_len fails, although (line 588) the codes reach to any length.",
    blocks=("module",),
    probe="try:\n    PositionalEncoding(2, max_len=2)(torch.zeros(1, 3, 2))\n"
    "except RuntimeError as problem:\n    print(type(problem).__name__)",
    prints="RuntimeError",
    fault="sinusoidal/table-ends",
)
CODE.latent_fault(
    "a-table-of-one",
    566,
    "With max_len = 1 a longer sequence does not fail: every token gets the code of position 0.",
    blocks=("module",),
    probe="print(PositionalEncoding(2, max_len=1, dropout=0.0)(torch.zeros(1, 2, 2)).tolist())",
    prints="[[[0.0, 1.0], [0.0, 1.0]]]",
    fault="encoder/one-position-for-all",
)
CODE.latent_fault(
    "odd-dims",
    558,
    "An odd d_model fails: there is one cosine too many.",
    blocks=("module",),
    probe="try:\n    PositionalEncoding(3)\nexcept RuntimeError as problem:\n    print(type(problem).__name__)",
    prints="RuntimeError",
    fault="sinusoidal/odd-refused",
)
CODE.latent_fault(
    "table-in-the-checkpoint",
    562,
    "The table is saved with the weights: they cannot be loaded into a model with another max_len.",
    blocks=("module",),
    probe="try:\n    PositionalEncoding(2, max_len=1).load_state_dict(PositionalEncoding(2, max_len=2).state_dict())\n"
    "except RuntimeError as problem:\n    print(type(problem).__name__)",
    prints="RuntimeError",
    why_no_fault="The output is right; no law saves and loads a module.",
)
CODE.latent_fault(
    "half-becomes-single",
    566,
    "The table is float32: half precision comes out as float32.",
    blocks=("module",),
    probe="print(PositionalEncoding(2)(torch.zeros(1, 1, 2, dtype=torch.float16)).dtype)",
    prints="torch.float32",
    fault="rotary/half-becomes-single",
)

# Line 588

CODE.confirmed(
    "learned-cannot-extrapolate",
    588,
    "cannot extrapolate to longer sequences",
    "A table of learned positions has no row beyond its last.",
    HOLDS,
    holds(lambda: 4 not in range(4), lambda: _refuses_beyond(4)),
)
CODE.confirmed(
    "any-length",
    588,
    "generalize to any length because",
    "The codes are defined at every position.",
    HOLDS,
    holds(
        lambda: sinusoid(10**6, 1, 4).is_real,
        lambda: mpmath.isfinite(sinusoid_again(10**6, 1, 4)),
        lambda: sinusoidal(6000, 4)[5999].isfinite().all(),
    ),
)
for name, place, what in (
    ("bert-and-gpt", "BERT and GPT use learned positional embeddings", "BERT and GPT learn their positions."),
    ("similar", "both approaches perform similarly", "Learned and fixed positions do equally well."),
):
    CODE.not_checkable(
        name, 588, place, what, reason="A fact about published models; nothing here derives it."
    )
