"""The definitions over symbols of which the proofs are made: what they mean in reference/, in sympy.

Rows of scores and of values are row vectors; a matrix has one row for each token.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Self

import sympy
from sympy import (
    Matrix,
    Rational,
    Symbol,
    cos,
    diag,
    exp,
    log,
    oo,
    pi,
    sin,
    sqrt,
    symbols,
    tanh,
)
from sympy.core.symbol import Str

Expr = Any
"""A sympy expression: sympy does not say its types."""

# Symbols


def number(name: str) -> Expr:
    """A real number."""
    return Symbol(name, real=True)


def positive(name: str) -> Expr:
    """A positive number."""
    return Symbol(name, positive=True)


def nonnegative(name: str) -> Expr:
    """A number that is not negative."""
    return Symbol(name, nonnegative=True)


def row(name: str, length: int) -> Expr:
    """A row of real numbers."""
    return Matrix(1, length, symbols(f"{name}:{length}", real=True))


def matrix(name: str, rows: int, columns: int) -> Expr:
    """A matrix of real numbers."""
    return Matrix(rows, columns, symbols(f"{name}:{rows}:{columns}", real=True))


def ones(length: int) -> Expr:
    """A row of ones."""
    return sympy.ones(1, length)


class Named(sympy.Expr):  # type: ignore[misc]  # sympy does not say its types
    """An expression that is shown by a name, and proved by what it is."""

    is_commutative = True

    def __new__(cls, name: str, definition: Expr) -> Self:
        made: Self = super().__new__(cls, Str(str(name)), sympy.sympify(definition))
        return made

    @property
    def free_symbols(self) -> set[Expr]:
        return set(self.args[1].free_symbols)

    def doit(self, **hints: Any) -> Expr:
        """What it is."""
        return self.args[1].doit(**hints)

    def _latex(self, _printer: Any, exp: str | None = None) -> str:
        return f"{self.args[0].name}" + ("" if exp is None else f"^{{{exp}}}")


def named(name: str, expression: Expr) -> Expr:
    """An expression under a name, a row entry by entry (p_0, p_1), a matrix too (p_00, p_01)."""
    if not isinstance(expression, sympy.MatrixBase):
        return Named(name, expression)
    rows, columns = expression.shape
    return Matrix(
        rows,
        columns,
        lambda i, j: Named(f"{name}_{{{j if rows == 1 else f'{i}{j}'}}}", expression[i, j]),
    )


def zeros(like: Expr) -> Expr:
    """A row of zeros as long as a row of `like`."""
    return sympy.zeros(1, like.cols)


# Calculus


def jacobian(outputs: Iterable[Expr], inputs: Sequence[Expr]) -> Expr:
    """One row for each output, one column for each input; carried out by the prover."""
    rows = [[sympy.Derivative(each, wrt) for wrt in inputs] for each in outputs]
    return Matrix(rows)


class Expectation(sympy.Function):  # type: ignore[misc]  # sympy does not say its types
    """The mean of a polynomial in independent entries of mean 0 and variance 1."""

    def doit(self, **_: Any) -> Expr:
        """Each monomial by the moments 1, 0, 1; a third power would need more than is assumed."""
        moments = (1, 0, 1)
        polynomial = sympy.Poly(self.args[0], *sorted(self.args[0].free_symbols, key=str))
        return sum(
            factor * sympy.prod(moments[power] for power in powers) for powers, factor in polynomial.terms()
        )

    def _latex(self, printer: Any, exp: str | None = None) -> str:
        power = "" if exp is None else f"^{{{exp}}}"
        return rf"\mathbb{{E}}{power}\left[{printer.doprint(self.args[0])}\right]"


def at(expression: Expr, values: dict[Expr, Expr]) -> Expr:
    """An expression where symbols have these values; derivatives are taken first."""
    if isinstance(expression, sympy.MatrixBase):
        return expression.applyfunc(lambda each: at(each, values))
    return sympy.Subs(expression, tuple(values), tuple(values.values()))


def variance(expression: Expr) -> Expr:
    """E[x^2] - E[x]^2."""
    return Expectation(expression**2) - Expectation(expression) ** 2


def limit(expression: Expr, symbol: Expr, to: Expr) -> Expr:
    """A limit, carried out by the prover."""
    return sympy.Limit(expression, symbol, to, "-" if to == oo else "+")


# Softmax and attention


def softmax(scores: Expr, sink: Expr | None = None) -> Expr:
    """exp(s_j) / sum exp(s); a sink adds exp(sink) to the denominator."""
    total = sum(map(exp, scores)) + (0 if sink is None else exp(sink))
    return Matrix(1, len(scores), [exp(s) / total for s in scores])


def log_sum_exp(scores: Expr) -> Expr:
    """log sum exp(s)."""
    return log(sum(map(exp, scores)))


def mean(scores: Expr, values: Expr, sink: Expr | None = None) -> Expr:
    """Attention of one query over values of one dim: the weighted mean."""
    return dot(softmax(scores, sink), values)


def dot(left: Iterable[Expr], right: Iterable[Expr]) -> Expr:
    """sum_c left_c right_c."""
    return sum(a * b for a, b in zip(left, right, strict=True))


def attention(query: Expr, key: Expr, value: Expr, scale: Expr = 1) -> Expr:
    """softmax(scale Q K^T) V, row by row."""
    scores = scale * query * key.T
    return Matrix.vstack(*(softmax(scores.row(i)) for i in range(scores.rows))) * value


def softcap(score: Expr, cap: Expr) -> Expr:
    """c tanh(s / c)."""
    return cap * tanh(score / cap)


def concatenated(heads: Sequence[Expr]) -> Expr:
    """Heads side by side."""
    return Matrix.hstack(*heads)


def permutation(order: Sequence[int]) -> Expr:
    """The matrix whose product from the left takes rows in this order."""
    return Matrix(len(order), len(order), lambda i, j: int(order[i] == j))


# Positions


def rotation(angle: Expr) -> Expr:
    """The plane turned by an angle."""
    return Matrix([[cos(angle), -sin(angle)], [sin(angle), cos(angle)]])


def frequency(pair: Expr, dims: Expr) -> Expr:
    """10000^(-2 i / d)."""
    return sympy.Integer(10000) ** (-2 * sympy.sympify(pair) / dims)


def wavelength(pair: Expr, dims: Expr) -> Expr:
    """2 pi over the frequency."""
    return 2 * pi / frequency(pair, dims)


def sinusoid(position: Expr, dims: int) -> Expr:
    """The sinusoidal code as a column: sin and cos of position x frequency, by pairs."""
    angles = [position * frequency(pair, dims) for pair in range(dims // 2)]
    return Matrix([part(angle) for angle in angles for part in (sin, cos)])


def rope(vector: Expr, position: Expr) -> Expr:
    """A column turned pair by pair: entries 2 i and 2 i + 1 by position x frequency i."""
    turns = (rotation(position * frequency(pair, len(vector))) for pair in range(len(vector) // 2))
    return diag(*turns) * vector


def rope_half(vector: Expr, position: Expr) -> Expr:
    """The half pairing: entries i and i + d / 2 are turned together."""
    half = len(vector) // 2
    turned = list(vector)
    for pair in range(half):
        both = rotation(position * frequency(pair, len(vector))) * Matrix([vector[pair], vector[pair + half]])
        turned[pair], turned[pair + half] = both
    return Matrix(turned)


def alibi(slope: Expr, position: Expr, keys: Sequence[Expr]) -> Expr:
    """-slope (i - j) for keys at or before the query."""
    return Matrix(1, len(keys), [-slope * (position - j) for j in keys])


# Norms


def average(entries: Sequence[Expr]) -> Expr:
    """The mean of a row."""
    return sum(entries) / sympy.Integer(len(entries))


def centre(entries: Sequence[Expr], mark: str = "") -> Expr:
    """The mean by its name; the mark tells it from that of another row."""
    return named(rf"\mu{mark}", average(entries))


def spread(entries: Sequence[Expr], mark: str = "") -> Expr:
    """The variance of a row, over its length, by its name."""
    return named(rf"v{mark}", average([(x - centre(entries, mark)) ** 2 for x in entries]))


def mean_square(entries: Sequence[Expr], mark: str = "") -> Expr:
    """The mean of the squares, by its name."""
    return named(rf"m{mark}", average([x**2 for x in entries]))


def layer_norm(entries: Expr, eps: Expr, mark: str = "") -> Expr:
    """(x - mean) / sqrt(var + eps)."""
    return (entries - centre(entries, mark) * ones(len(entries))) / sqrt(spread(entries, mark) + eps)


def rms_norm(entries: Expr, eps: Expr, mark: str = "") -> Expr:
    """x / sqrt(mean(x^2) + eps)."""
    return entries / sqrt(mean_square(entries, mark) + eps)


# Efficient attention


def features(vector: Expr) -> Expr:
    """phi, any positive function, entry by entry."""
    return vector.applyfunc(sympy.Function("phi", positive=True))


def elu_plus_one(x: Expr, branch: str) -> Expr:
    """phi(x) = elu(x) + 1 above 0, or below."""
    return x + 1 if branch == "above" else exp(x)


def linear_attention(query: Expr, key: Expr, value: Expr) -> Expr:
    """phi(q) (phi(K)^T V) / phi(q) (phi(K)^T 1) of one query: the keys are summed first."""
    summed, total = features(key).T * value, features(key).T * sympy.ones(key.rows, 1)
    return features(query) * summed / (features(query) * total)[0]


def kernel_attention(query: Expr, key: Expr, value: Expr) -> Expr:
    """sum_j (phi(q).phi(k_j)) v_j / sum_j phi(q).phi(k_j) of one query."""
    similarity = [dot(features(query), features(key.row(j))) for j in range(key.rows)]
    return sum((similarity[j] * value.row(j) for j in range(key.rows)), zeros(value)) / sum(similarity)


def empty_state(key: Expr, value: Expr) -> tuple[Expr, Expr]:
    """s = 0, z = 0: nothing was seen."""
    return sympy.zeros(key.cols, value.cols), sympy.zeros(key.cols, 1)


def read(query: Expr, state: tuple[Expr, Expr]) -> Expr:
    """phi(q) s / phi(q) z."""
    return features(query) * state[0] / (features(query) * state[1])[0]


def linear_step(state: tuple[Expr, Expr], key: Expr, value: Expr) -> tuple[Expr, Expr]:
    """s + phi(k)^T v, z + phi(k)^T: the state after one more token."""
    return state[0] + features(key).T * value, state[1] + features(key).T


def band(length: int, left: int, right: int) -> Expr:
    """1 where a key stands in the query's window."""
    return Matrix(length, length, lambda i, j: int(bool(-left <= j - i <= right)))


# Training


def smoothed(target: int, vocabulary: int, smoothing: Expr) -> Expr:
    """(1 - e) one-hot + e / V."""
    shares = [smoothing / sympy.Integer(vocabulary)] * vocabulary
    shares[target] += 1 - smoothing
    return Matrix(1, vocabulary, shares)


def cross_entropy(logits: Expr, distribution: Expr) -> Expr:
    """-sum_w q_w log p_w, log p = logits - log-sum-exp."""
    return -dot(distribution, logits - log_sum_exp(logits) * ones(len(logits)))


def rise(step: Expr, d_model: Expr, warmup: Expr) -> Expr:
    """The schedule up to the warm-up."""
    return d_model ** -Rational(1, 2) * step * warmup ** -Rational(3, 2)


def fall(step: Expr, d_model: Expr) -> Expr:
    """The schedule after the warm-up."""
    return d_model ** -Rational(1, 2) * step ** -Rational(1, 2)


def norm(vector: Sequence[Expr]) -> Expr:
    """The Euclidean length."""
    return sqrt(sum(x**2 for x in vector))
