"""The algebra on which laws and bounds stand, proved for symbols; and no proof survives a wrong definition."""

import subprocess
import sys
from collections.abc import Callable
from pkgutil import iter_modules
from typing import Any

import pytest
import sympy
from sympy import Matrix, exp, log

import headcheck.proofs
from headcheck.command import main
from headcheck.laws import all_laws
from headcheck.proofs import THEMES, Equation, Proof, all_proofs, proof, proofs_of, terms
from headcheck.proofs.prover import definitions, is_nonnegative, is_proved, is_zero, latex

PROOFS = list(all_proofs().values())


def each_proof() -> Any:
    return pytest.mark.parametrize("each", PROOFS, ids=lambda each: each.name)


@each_proof()
def test_it_is_proved(each: Proof) -> None:
    """Every equation of the proof is brought to 0, or to what cannot be negative."""
    equations = each.equations()
    assert equations
    for equation in equations:
        assert is_proved(equation), latex(equation)


# Each proof can fail


@each_proof()
def test_a_slip_is_not_proved(each: Proof) -> None:
    """With a number added to the left side of any of its equations, that equation is not proved."""
    slip = terms.number("slip")
    for equation in each.equations():
        left = equation.left
        slipped = left.applyfunc(lambda e: e + slip) if isinstance(left, sympy.MatrixBase) else left + slip
        assert not is_proved(Equation(slipped, equation.right, equation.relation)), latex(equation)


Wrong = tuple[str, Callable[..., Any]]
"""The name of a definition in headcheck.proofs.terms, and a wrong one."""


def softmax(scores: Any, sink: Any = None, *, more: Any = 0) -> Any:
    """Softmax with something more in its denominator."""
    total = sum(map(exp, scores)) + (0 if sink is None else exp(sink)) + more
    return Matrix(1, len(scores), [exp(s) / total for s in scores])


def by_place(row: Any) -> Any:
    """A number for each place of a row."""
    return Matrix(1, len(row), list(range(1, len(row) + 1)))


DOUBLED: Wrong = "softmax", lambda scores, sink=None: softmax(2 * scores, sink)
PADDED: Wrong = "softmax", lambda scores, sink=None: softmax(scores, sink, more=len(scores))
PLACED: Wrong = "softmax", lambda scores, sink=None: softmax(scores + by_place(scores).applyfunc(log), sink)
SIGNED: Wrong = "softmax", lambda scores, sink=None: softmax(scores, sink) - terms.ones(len(scores))
BACKWARD: Wrong = "softmax", lambda scores, sink=None: softmax(-scores, sink)
SINKLESS: Wrong = "softmax", lambda scores, sink=None: softmax(scores)
KEY_FOR_SINK: Wrong = (
    "softmax",
    lambda scores, sink=None: softmax(scores, sink, more=0 if sink is None else 1),
)
HALVED: Wrong = "log_sum_exp", lambda scores: log(sum(map(exp, scores))) / 2
BASE_TWO: Wrong = "log_sum_exp", lambda scores: log(sum(map(exp, scores)), 2)
LAST_LOST: Wrong = "dot", lambda left, right: sum([a * b for a, b in zip(left, right, strict=True)][:-1])
COUNTED_TWICE: Wrong = "dot", lambda left, right: 2 * sum(a * b for a, b in zip(left, right, strict=True))
VALUES_IN: Wrong = "mean", lambda scores, values: (softmax(scores + values) * values.T)[0]
ROW_SCALED: Wrong = (
    "attention",
    lambda q, k, v, scale=1: (
        sympy.diag(*range(1, q.rows + 1))
        * Matrix.vstack(*(softmax((scale * q * k.T).row(i)) for i in range(q.rows)))
        * v
    ),
)
SCALED_TWICE: Wrong = (
    "attention",
    lambda q, k, v, scale=1: (
        Matrix.vstack(*(softmax((scale**2 * q * k.T).row(i)) for i in range(q.rows))) * v
    ),
)
NOT_PUT_IN: Wrong = "at", lambda expression, values: expression
UNCAPPED: Wrong = "softcap", lambda score, cap: cap * sympy.tanh(score)
TURNED_ROUND: Wrong = "concatenated", lambda heads: Matrix.hstack(*heads[::-1])
SQUARED: Wrong = (
    "concatenated",
    lambda heads: Matrix.hstack(*(head.multiply_elementwise(head) for head in heads)),
)
STRETCHED: Wrong = (
    "rotation",
    lambda a: Matrix([[sympy.cos(a), -sympy.sin(a)], [sympy.sin(a), 2 * sympy.cos(a)]]),
)
TURNED_BACK: Wrong = (
    "rotation",
    lambda a: Matrix([[sympy.cos(a), sympy.sin(a)], [-sympy.sin(a), sympy.cos(a)]]),
)
TWO_FREQUENCIES: Wrong = (
    "sinusoid",
    lambda p, d: Matrix(
        [part for i in range(d // 2) for part in (sympy.sin(p / 7**i), sympy.cos(2 * p / 7**i))]
    ),
)
HALF_FREQUENCY: Wrong = "frequency", lambda pair, dims: sympy.Integer(10000) ** (-sympy.sympify(pair) / dims)
HALF_WAVE: Wrong = "wavelength", lambda pair, dims: sympy.pi / terms.frequency(pair, dims)
NOT_LINEAR: Wrong = "rope", lambda vector, position: vector.multiply_elementwise(vector)
HALF_BACK: Wrong = "rope_half", lambda vector, position: HALF(vector, -position)
HALF = terms.rope_half
DOUBLE_STEP: Wrong = (
    "alibi",
    lambda slope, position, keys: Matrix(1, len(keys), [-slope * (position - 2 * j) for j in keys]),
)
PRODUCT: Wrong = (
    "alibi",
    lambda slope, position, keys: Matrix(1, len(keys), [-slope * position * j for j in keys]),
)
NOT_CENTRED: Wrong = (
    "layer_norm",
    lambda x, eps, mark="": x / sympy.sqrt(terms.spread(x, mark) + eps) + terms.ones(len(x)),
)
EPS_OUTSIDE: Wrong = (
    "layer_norm",
    lambda x, eps, mark="": (
        (x - terms.centre(x, mark) * terms.ones(3)) / (sympy.sqrt(terms.spread(x, mark)) + eps)
    ),
)
RMS_EPS_OUTSIDE: Wrong = (
    "rms_norm",
    lambda x, eps, mark="": x / (sympy.sqrt(terms.mean_square(x, mark)) + eps),
)
NOT_DIVIDED: Wrong = (
    "linear_attention",
    lambda query, key, value: terms.features(query) * terms.features(key).T * value,
)
FORGETFUL: Wrong = (
    "linear_step",
    lambda state, key, value: (state[0] + terms.features(key).T * value, terms.features(key).T),
)
A_STEP: Wrong = "elu_plus_one", lambda x, branch: x + 2 if branch == "above" else exp(x)
ONE_WIDER: Wrong = (
    "band",
    lambda length, left, right: Matrix(length, length, lambda i, j: int(bool(-left <= j - i <= right + 1))),
)
SHARED_BY_OTHERS: Wrong = (
    "smoothed",
    lambda target, vocabulary, e: Matrix(
        1, vocabulary, [e / (vocabulary - 1) + (1 - e) * (w == target) for w in range(vocabulary)]
    ),
)
NOT_NORMALISED: Wrong = "cross_entropy", lambda logits, distribution: -terms.dot(distribution, logits)
STEEPER: Wrong = "rise", lambda step, d_model, warmup: step / sympy.sqrt(d_model * warmup)
RISING: Wrong = "fall", lambda step, d_model: sympy.sqrt(step / d_model)
NOT_ROOTED: Wrong = "norm", lambda vector: sum(x**2 for x in vector)

CAUGHT: dict[str, Wrong] = {
    "softmax/rows-sum-to-one": PADDED,
    "softmax/weights-are-not-negative": SIGNED,
    "softmax/a-shift-changes-nothing": PADDED,
    "softmax/a-shift-moves-the-log-sum-exp": HALVED,
    "softmax/permuted-scores-permute-weights": PLACED,
    "softmax/a-higher-score-has-no-smaller-weight": BACKWARD,
    "softmax/a-high-temperature-makes-weights-equal": PLACED,
    "softmax/a-low-temperature-picks-the-highest-score": PADDED,
    "softmax/the-jacobian": DOUBLED,
    "softmax/rows-of-the-jacobian-sum-to-zero": PADDED,
    "softmax/the-gradient-of-the-log-sum-exp": BASE_TWO,
    "softmax/a-sink-takes-what-is-missing": SINKLESS,
    "softmax/a-sink-far-below-takes-nothing": KEY_FOR_SINK,
    "attention/permuting-keys-changes-nothing": PLACED,
    "attention/permuting-queries-permutes-rows": ROW_SCALED,
    "attention/self-attention-permutes-with-its-tokens": PLACED,
    "attention/the-output-stays-in-the-hull": PADDED,
    "attention/constant-values-come-back": PADDED,
    "attention/one-key-gives-its-value": PADDED,
    "attention/equal-scores-give-the-mean": PLACED,
    "attention/linear-in-the-values": VALUES_IN,
    "attention/parts-merge-by-log-sum-exp": BASE_TWO,
    "attention/a-bias-of-log-two-is-a-key-twice": DOUBLED,
    "attention/duplicated-keys-change-nothing": PLACED,
    "attention/a-masked-key-is-no-key": PADDED,
    "attention/deviations-from-the-output-cancel": PADDED,
    "attention/an-orthogonal-change-of-basis-keeps-the-scores": STRETCHED,
    "attention/scale-trades-with-query-and-key": SCALED_TWICE,
    "attention/the-variance-of-a-dot-product": COUNTED_TWICE,
    "attention/the-known-answer": SCALED_TWICE,
    "gradients/the-gradient-of-the-scores": DOUBLED,
    "gradients/the-row-sum-is-the-cotangent-times-the-output": LAST_LOST,
    "gradients/the-gradients-of-query-key-and-value": DOUBLED,
    "gradients/the-gradient-of-a-sink": SINKLESS,
    "gradients/a-key-head-hears-its-whole-group": NOT_PUT_IN,
    "gradients/the-derivative-of-a-softcap": UNCAPPED,
    "heads/the-output-projection-sums-over-heads": TURNED_ROUND,
    "heads/heads-may-change-places": TURNED_ROUND,
    "heads/one-projection-is-that-of-each-head": SQUARED,
    "positions/one-matrix-shifts-every-position": TWO_FREQUENCIES,
    "positions/inner-products-depend-on-the-offset": TWO_FREQUENCIES,
    "positions/the-code-has-a-constant-norm": TWO_FREQUENCIES,
    "positions/the-wavelengths-are-a-geometric-row": HALF_FREQUENCY,
    "positions/each-pair-repeats-after-its-wavelength": HALF_WAVE,
    "positions/dot-products-depend-on-the-relative-position": STRETCHED,
    "positions/rotations-compose": STRETCHED,
    "positions/rotations-invert": STRETCHED,
    "positions/rotations-keep-norms": STRETCHED,
    "positions/rotations-are-linear": NOT_LINEAR,
    "positions/the-two-pairings-are-each-others-permutation": HALF_BACK,
    "positions/a-rotation-is-a-complex-factor": TURNED_BACK,
    "positions/alibi-depends-on-the-relative-position": DOUBLE_STEP,
    "positions/causal-alibi-needs-no-query-position": PRODUCT,
    "norms/layer-norm-has-mean-zero": NOT_CENTRED,
    "norms/layer-norm-has-almost-variance-one": EPS_OUTSIDE,
    "norms/layer-norm-ignores-a-shift": NOT_CENTRED,
    "norms/layer-norm-ignores-a-scale": EPS_OUTSIDE,
    "norms/layer-norm-of-a-constant-row-is-zero": NOT_CENTRED,
    "norms/the-gradient-of-layer-norm": EPS_OUTSIDE,
    "norms/rms-norm-has-almost-mean-square-one": RMS_EPS_OUTSIDE,
    "norms/rms-norm-ignores-a-scale": RMS_EPS_OUTSIDE,
    "norms/layer-norm-is-rms-norm-of-the-centred-row": EPS_OUTSIDE,
    "norms/the-gradient-of-rms-norm": RMS_EPS_OUTSIDE,
    "efficient/summing-the-keys-first-changes-nothing": NOT_DIVIDED,
    "efficient/token-by-token-is-all-at-once": FORGETFUL,
    "efficient/a-feature-is-positive-and-smooth": A_STEP,
    "efficient/layers-of-windows-reach-layers-times-the-window": ONE_WIDER,
    "training/smoothed-targets-sum-to-one": (
        "smoothed",
        lambda target, vocabulary, e: terms.ones(vocabulary) * e,
    ),
    "training/the-gradient-of-the-loss": NOT_NORMALISED,
    "training/the-loss-is-least-at-the-smoothed-target": NOT_NORMALISED,
    "training/the-loss-is-convex": DOUBLED,
    "training/equal-logits-cost-the-logarithm-of-the-vocabulary": NOT_NORMALISED,
    "training/the-schedule-is-continuous-at-its-peak": STEEPER,
    "training/the-schedule-is-highest-at-the-warmup": RISING,
    "training/a-clipped-gradient-has-the-norm-allowed": NOT_ROOTED,
    "training/tied-weights-add-their-gradients": NOT_PUT_IN,
}
"""For each proof, a wrong definition with which it must not go through."""


@each_proof()
def test_a_wrong_definition_is_not_proved(each: Proof, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one definition made wrong, at least one equation of the proof is not proved."""
    name, wrong = CAUGHT[each.name]
    monkeypatch.setattr(terms, name, wrong)
    assert not all(map(is_proved, each.equations()))


def test_every_wrong_definition_is_for_a_proof_that_exists() -> None:
    """The table has a row for each proof and no other."""
    assert list(CAUGHT) == [each.name for each in PROOFS]


def test_the_prover_tells_a_wrong_identity() -> None:
    """What is not zero, or can be negative, is not proved."""
    scores, values = terms.row("s", 3), terms.row("v", 3)
    weights = terms.softmax(scores)
    assert is_zero(sum(weights) - 1)
    assert not is_zero(weights[0] - weights[1])
    assert not is_zero(terms.mean(scores, values) - terms.average(values))
    assert is_nonnegative(weights[0])
    assert not is_nonnegative(weights[0] - weights[1])
    assert not is_nonnegative(-weights[0])


def test_matrices_are_compared_entry_by_entry() -> None:
    """One wrong entry is enough, and another shape is an error."""
    weights = terms.softmax(terms.row("s", 2))
    assert is_proved(Equation(weights, weights))
    assert not is_proved(Equation(weights, weights + Matrix([[0, 1]])))
    with pytest.raises(ValueError, match="size"):
        is_proved(Equation(weights, weights.T))


def test_an_expectation_is_by_moments() -> None:
    """Of independent entries with mean 0 and variance 1; a third power is not known."""
    a, b = terms.row("a", 2)
    assert terms.Expectation(3 + a + 2 * a**2 * b**2 + a * b**2).doit() == 5
    with pytest.raises(IndexError, match="out of range"):
        terms.Expectation(a**3).doit()


# Names


@each_proof()
def test_a_name_stands_for_one_thing(each: Proof) -> None:
    """In one equation no name has two meanings, and none is that of a symbol."""
    for equation in each.equations():
        shown = [text.partition(" = ")[0] for text in definitions(equation)]
        sides = sympy.Tuple(equation.left, equation.right)
        symbols = {sympy.latex(symbol) for symbol in sides.free_symbols}
        assert len(set(shown)) == len(shown)
        assert not symbols & set(shown)


def test_a_named_expression_is_shown_by_its_name_and_proved_by_what_it_is() -> None:
    """The name is in the LaTeX, the definition beside it, and the prover sees through it."""
    x = terms.number("x")
    equation = Equation(sympy.Derivative(terms.named("y", x**2), x), 2 * x)
    assert "y" in latex(equation)
    assert definitions(equation) == ["y = x^{2}"]
    assert is_proved(equation)
    assert latex(Equation(terms.named("y", x) ** 2, x, "<=")) == r"y^{2} \le x"


# The collection


@each_proof()
def test_a_proof_names_laws_that_exist(each: Proof) -> None:
    """Every id it proves is that of a law, and the law knows its proof."""
    assert set(each.proves) <= set(all_laws())
    assert len(set(each.proves)) == len(each.proves)
    for law in each.proves:
        assert each in proofs_of(law)


@each_proof()
def test_a_proof_is_documented(each: Proof) -> None:
    """Its statement is a sentence, and its name says where the function stands."""
    assert each.statement.endswith(".")
    assert len(each.statement.split()) >= 4 or "=" in each.statement
    assert each.name == f"{each.theme}/{each.state.__name__}".replace("_", "-")
    assert each.state.__module__ == f"headcheck.proofs.{each.theme}"


def test_every_theme_is_a_module() -> None:
    """No module is left out, none has no proof, and no two statements are the same."""
    modules = {module.name for module in iter_modules(headcheck.proofs.__path__)}
    assert modules - {"prover", "terms"} == set(THEMES)
    assert [theme for theme in THEMES if any(each.theme == theme for each in PROOFS)] == list(THEMES)
    assert len({each.statement for each in PROOFS}) == len(PROOFS)


def test_a_proof_without_a_statement_is_refused() -> None:
    """The docstring is the statement."""
    with pytest.raises(ValueError, match="the proof unstated has no statement"):

        @proof()
        def unstated(t: Any) -> Any:
            """No full stop"""


def test_listing_the_proofs_loads_no_sympy() -> None:
    """`headcheck laws` says which laws are proved without proving them."""
    code = "import sys; from headcheck.proofs import all_proofs; all_proofs(); print('sympy' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.strip() == "False"


def test_the_command_says_that_a_law_is_proved(capsys: pytest.CaptureFixture[str]) -> None:
    """`headcheck laws ID` names the proof; of a law without one it says nothing."""
    main(["laws", "attention/symmetry/parts-merge-to-the-whole"])
    assert "proved: yes, by attention/parts-merge-by-log-sum-exp" in capsys.readouterr().out
    main(["laws", "attention/state/same-call-same-answer"])
    assert "proved" not in capsys.readouterr().out
