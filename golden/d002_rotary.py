"""Document 002, lines 144 to 152: learned and rotary positions."""

import mpmath
import sympy
import torch

from headcheck.golden.derived import Derived, holds
from headcheck.golden.exact import widely
from headcheck.golden.ledger import Section
from headcheck.golden.stated import EPSILON, HOLDS, all_near, count
from headcheck.reference import LearnedPositions, rotary

LEARNED = Section("002", "learned-positions")
ROPE = Section("002", "rotary")

M, N, THETA = sympy.symbols("m n theta", real=True)
"""Two positions, and the frequency of a pair of dims."""
A, B, C, D = sympy.symbols("a b c d", real=True)
"""A pair of dims of a query and of a key."""
QUERY, KEY = (1.0, 2.0, -1.0, 0.5), (0.5, -1.0, 2.0, 1.5)


def _turned(x: sympy.Expr, y: sympy.Expr, angle: sympy.Expr) -> sympy.Matrix:
    """A vector of the plane, turned."""
    turn = sympy.Matrix([[sympy.cos(angle), -sympy.sin(angle)], [sympy.sin(angle), sympy.cos(angle)]])
    return turn * sympy.Matrix([x, y])


def _at(vector: tuple[float, ...], position: int) -> torch.Tensor:
    """A vector of four dims, turned by the reference to its position."""
    x = torch.tensor(vector, dtype=torch.float64)[None, None, None]
    return rotary(x, torch.tensor([position]))[0, 0, 0]


def _score(query_at: int, key_at: int) -> float:
    return float(_at(QUERY, query_at) @ _at(KEY, key_at))


def _is_refused(position: int) -> bool:
    try:
        LearnedPositions(512, 2)(torch.tensor([position]))
    except ValueError:
        return True
    return False


def _as_complex() -> bool:
    """The pair as x + iy, times e^(i angle), is the pair turned."""
    real, imaginary = ((A + sympy.I * B) * sympy.exp(sympy.I * THETA * M)).expand(complex=True).as_real_imag()
    return all(
        sympy.simplify(x - y) == 0 for x, y in zip((real, imaginary), _turned(A, B, THETA * M), strict=True)
    )


def _reference_as_complex() -> bool:
    """The reference at position 5, against its pairs as complex numbers, with angles 5 and 0.05."""
    pairs = torch.view_as_complex(torch.tensor(QUERY, dtype=torch.float64).view(2, 2))
    angles = torch.tensor([5.0, 0.05], dtype=torch.float64)
    turned = pairs * torch.polar(torch.ones_like(angles), angles)
    return all_near(torch.view_as_real(turned).flatten().tolist(), _at(QUERY, 5), 64 * EPSILON)


def _product_of_turned() -> sympy.Expr:
    """The product of a query turned at m and a key turned at n."""
    return (_turned(A, B, THETA * M).T * _turned(C, D, THETA * N))[0]


def _product_by_the_distance() -> sympy.Expr:
    """Re(z conj(w) e^(i theta (m - n)))."""
    angle = THETA * (M - N)
    return (A * C + B * D) * sympy.cos(angle) - (B * C - A * D) * sympy.sin(angle)


def _is_zero(expression: sympy.Expr) -> bool:
    """By the addition theorems, as a polynomial of sines and cosines."""
    return bool(sympy.expand(sympy.expand_trig(sympy.expand(expression))) == 0)


def _product_again(query_at: int, key_at: int) -> mpmath.mpf:
    """Re(z conj(w)) of two complex numbers, each turned to its position, with theta = 1/100."""
    z, w = mpmath.mpc(1, 2), mpmath.mpc(3, -1)
    turned = z * mpmath.expj(mpmath.mpf(query_at) / 100), w * mpmath.expj(mpmath.mpf(key_at) / 100)
    return (turned[0] * mpmath.conj(turned[1])).real


# Lines 145 and 146

LEARNED.not_checkable(
    "used-by-bert-and-gpt-2",
    145,
    "BERT and GPT-2",
    "BERT and GPT-2 learn their positions.",
    reason="A fact about models that are not given.",
)
LEARNED.confirmed(
    "one-row-per-position",
    145,
    "one row per possible position",
    "A table for 512 positions has 512 rows, which are parameters.",
    count(512),
    Derived(
        lambda: len(range(512)),
        lambda: len(torch.nn.Embedding(512, 2).weight),
        lambda: next(LearnedPositions(512, 2).parameters()).shape[0],
    ),
)
LEARNED.not_checkable(
    "often-slightly-better",
    146,
    "often slightly better than sinusoidal",
    "With plenty of data learned positions are often slightly better.",
    reason="It depends on trainings that are not given.",
)
LEARNED.confirmed(
    "position-513",
    146,
    "position 513 doesn't exist",
    "Of 512 positions, 0 to 511, the last is 511; 512, the 513th, and 513 do not exist.",
    HOLDS,
    holds(
        lambda: max(range(512)) == 511 and 513 not in range(512),
        None,
        lambda: [_is_refused(position) for position in (511, 512, 513)] == [False, True, True],
    ),
)

# Lines 148 to 152

ROPE.not_checkable(
    "who-uses-it",
    148,
    "LLaMA, Mistral, Qwen",
    "Su et al. 2021 introduced rotary positions; most large language models use them.",
    reason="A fact about models and papers that are not given.",
)
ROPE.confirmed(
    "rotates-pairs",
    149,
    "rotated by pos",
    "Each pair of dims is turned as a vector of the plane: its length stays, position 0 leaves it as it is.",
    HOLDS,
    holds(
        lambda: (
            sympy.simplify(_turned(A, B, THETA * M).dot(_turned(A, B, THETA * M)) - A**2 - B**2) == 0
            and list(_turned(A, B, sympy.Integer(0))) == [A, B]
        ),
        None,
        lambda: (
            all_near(
                torch.tensor(QUERY, dtype=torch.float64).view(2, 2).norm(dim=-1).tolist(),
                _at(QUERY, 5).view(2, 2).norm(dim=-1),
                64 * EPSILON,
            )
            and _at(QUERY, 0).tolist() == [*QUERY]
        ),
    ),
    formula=r"(x, y) \to (x \cos p \theta - y \sin p \theta, x \sin p \theta + y \cos p \theta)",
)
ROPE.confirmed(
    "complex-notation",
    150,
    "That's a rotation in the complex plane",
    "The turned pair is the pair as a complex number times e^(i theta p).",
    HOLDS,
    holds(_as_complex, None, _reference_as_complex),
    formula=r"z' = z e^{i \theta p}",
)
for name, line, place in (
    ("conjugates-cancel", 151, "partially cancel, leaving a factor of"),
    ("relative-distance-only", 151, "only on the relative distance (m - n)"),
    ("difference-in-angles", 152, "only sees the difference in angles"),
):
    ROPE.confirmed(
        name,
        line,
        place,
        "The product of a query at m and a key at n is a function of m - n: positions 7 and 3 are 104 and 100.",
        HOLDS,
        holds(
            lambda: _is_zero(_product_of_turned() - _product_by_the_distance()),
            widely(lambda: all_near(*(_product_again(*at) for at in ((7, 3), (104, 100))))),
            # The angles, up to 104 radians, are rounded: 256 units.
            lambda: all_near(_score(7, 3), _score(104, 100), 256 * EPSILON),
        ),
        formula=r"\text{Re}(z_m \overline{w_n}) = \text{Re}(z \overline{w} e^{i \theta (m - n)})",
    )
ROPE.not_checkable(
    "extrapolates-better",
    152,
    "extrapolates to longer sequences far better",
    "Rotary positions extrapolate far better than learned ones.",
    reason="It depends on trainings that are not given: that they have a value for every position is line 151's.",
)
