"""Decides an equation, and writes it as LaTeX."""

from typing import Any

import sympy

from headcheck.proofs import Equation
from headcheck.proofs.terms import Named

_FAR = 1e-9
"""Beyond what 30 digits leave of an exact 0."""

_SIGNS = {"=": "=", "<=": r"\le"}


def is_proved(equation: Equation) -> bool:
    """Whether sympy brings right - left to 0, or to what its assumptions show to be no less than 0.

    A False says that no proof was found.
    """
    decide = is_zero if equation.relation == "=" else is_nonnegative
    return all(decide(each) for each in _entries(equation.right - equation.left))


def is_zero(expression: Any) -> bool:
    """Whether the expression simplifies to 0, derivatives, limits and expectations carried out."""
    done = _done(expression)
    if _is_refuted(done):
        return False
    for prepare in (_collected, sympy.expand_trig, sympy.expand_log, sympy.radsimp):
        if sympy.simplify(prepare(done)) == 0:
            return True
    return False


def is_nonnegative(expression: Any) -> bool:
    """Whether the expression, simplified, is a sum of products that cannot be negative."""
    done = _done(expression)
    forms = (done, sympy.simplify(done), sympy.factor(sympy.simplify(done)))
    return any(form.is_nonnegative is True for form in forms)


def latex(equation: Equation) -> str:
    """The equation as it is shown."""
    left, right = (sympy.latex(side) for side in (equation.left, equation.right))
    return f"{left} {_SIGNS[equation.relation]} {right}"


def definitions(equation: Equation) -> list[str]:
    """What the names in an equation stand for, as LaTeX, each after those that use it."""
    sides = [each for side in (equation.left, equation.right) for each in _entries(side)]
    found = (part for side in sides for part in sympy.preorder_traversal(side) if isinstance(part, Named))
    return [f"{sympy.latex(each)} = {sympy.latex(each.args[1])}" for each in dict.fromkeys(found)]


def _collected(expression: Any) -> Any:
    return sympy.powsimp(sympy.expand(sympy.together(expression)))


def _done(expression: Any) -> Any:
    """Names replaced by what they are; derivatives, limits and expectations carried out."""
    return sympy.sympify(expression).doit()


def _is_refuted(done: Any) -> bool:
    """Whether the expression is far from 0 at one point: what is wrong is not worth simplifying."""
    names = sorted(done.free_symbols, key=str)
    point = {name: sympy.Rational(3 * place + 2, 7) for place, name in enumerate(names)}
    value = sympy.N(done.subs(point), 30)
    return bool(value.is_number and abs(value) > _FAR)


def _entries(difference: Any) -> list[Any]:
    return list(difference) if isinstance(difference, sympy.MatrixBase) else [difference]
