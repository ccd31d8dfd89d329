"""What a document states: numbers with the precision in which they are printed, and what agrees with them.

0.329 stands for every number from 0.3285 to 0.3295: half a unit of the last digit printed. Where a document
calculates with exact numbers and writes =, the statement is exact. Numbers are compared with 60 digits, and
as fractions where both are rational.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

import mpmath
import sympy

DIGITS = 60
SAME = mpmath.mpf(10) ** (15 - DIGITS)
"""How far two exact ways may be apart where both are numbers of 60 digits, relative to numbers above 1."""
EPSILON = Fraction(1, 2**53)
Kind = Literal["number", "shape", "statement"]
Number = Any
"""A truth value, a Fraction, or a number of mpmath."""


@dataclass(frozen=True)
class Stated:
    """A value as it is printed, its entries in reading order, and half a unit of the last digit of each."""

    kind: Kind
    text: str
    shape: tuple[int, ...]
    entries: tuple[Number, ...]
    half_units: tuple[Fraction, ...]

    @property
    def is_exact(self) -> bool:
        """Nothing but the very value agrees."""
        return not any(self.half_units)

    def agreement(self, value: Any) -> list[bool]:
        """Entry by entry, whether a value agrees at the stated precision; all False for another shape."""
        shape, entries = numbers(value)
        if shape != self.shape:
            return [False] * len(self.entries)
        return [near(a, b, half) for a, b, half in zip(entries, self.entries, self.half_units, strict=True)]

    def agrees(self, value: Any) -> bool:
        """Every entry agrees."""
        return all(self.agreement(value))


# What an entry of the ledger writes


def rounded(text: str, unit: int | Fraction = 1) -> Stated:
    """Printed decimals: rounded("0.329"), rounded("0.651 0.510"), rounded("1 0; 0 1"), rounded("16.7", 10**6).

    Blanks part the entries of a row and semicolons the rows; `unit` is what one of them counts.
    """
    return _written(text, Fraction(unit), Fraction(1, 2))


def exactly(text: str) -> Stated:
    """The same, where the text states equality: nothing but the very numbers agrees."""
    return _written(text, Fraction(1), Fraction(0))


def count(number: int) -> Stated:
    """A number of things: parameters, scores, tokens."""
    return exactly(str(number))


def shape(*axes: int) -> Stated:
    """The shape of a tensor."""
    entries = tuple(Fraction(axis) for axis in axes)
    text = f"({', '.join(map(str, axes))}{',' if len(axes) == 1 else ''})"
    return Stated("shape", text, (len(axes),), entries, (Fraction(0),) * len(axes))


HOLDS = Stated("statement", "it holds", (), (True,), (Fraction(0),))
"""A statement in words: its derivation says whether it is true."""


def _written(text: str, unit: Fraction, half: Fraction) -> Stated:
    rows = [row.split() for row in text.split(";")]
    if len({len(row) for row in rows}) != 1:
        raise ValueError(f"rows of different lengths: {text!r}")
    words = [word for row in rows for word in row]
    axes = () if len(words) == 1 else (len(words),) if len(rows) == 1 else (len(rows), len(rows[0]))
    return Stated(
        "number",
        text if unit == 1 else f"{text} x {_plain(unit)}",
        axes,
        tuple(_entry(word) * (1 if "inf" in word else unit) for word in words),
        tuple(half * _last_digit(word) * unit for word in words),
    )


def _entry(word: str) -> Number:
    return mpmath.mpf(word) if "inf" in word else Fraction(word.replace(",", ""))


def _last_digit(word: str) -> Fraction:
    mantissa, _, exponent = word.lower().partition("e")
    return Fraction(10) ** (int(exponent or 0) - len(mantissa.partition(".")[2]))


def _plain(unit: Fraction) -> str:
    return f"{unit.numerator:,}" if unit.denominator == 1 else str(unit)


# Numbers of every origin


def nested(value: Any) -> Any:
    """Matrices, tensors and sequences as nested lists; everything else as it is."""
    if hasattr(value, "tolist"):  # torch, sympy
        value = value.tolist()
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [nested(each) for each in value]
    return value


def numbers(value: Any) -> tuple[tuple[int, ...], list[Number]]:
    """The shape of a value and its entries, each a truth value, a fraction, or a number of 60 digits."""
    value = nested(value)
    if not isinstance(value, list):
        return (), [_number(value)]
    parts = [numbers(each) for each in value]
    if len({axes for axes, _ in parts}) > 1:
        raise ValueError("rows of different lengths")
    axes = parts[0][0] if parts else ()
    return (len(parts), *axes), [entry for _, entries in parts for entry in entries]


def _number(value: Any) -> Number:
    match value:
        case bool() | Fraction():
            return value
        case int():
            return Fraction(value)
        case sympy.logic.boolalg.BooleanAtom():
            return bool(value)
        case sympy.Rational():
            return Fraction(int(value.p), int(value.q))
    if isinstance(value, sympy.Expr):
        value = str(sympy.N(value, DIGITS)).replace("oo", "inf")
    with mpmath.workdps(DIGITS):
        return mpmath.mpf(value)


def near(a: Number, b: Number, distance: Fraction | mpmath.mpf) -> bool:
    """Whether two numbers differ by no more than a distance; infinities and truth values by nothing."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, Fraction) and isinstance(b, Fraction) and isinstance(distance, Fraction):
        return abs(a - b) <= distance
    with mpmath.workdps(DIGITS):
        x, y, far = (wide(each) for each in (a, b, distance))
        return bool(x == y) or bool(abs(x - y) <= far)


def all_near(exact: Any, other: Any, relative: Any = SAME) -> bool:
    """Whether two values have one shape, and entries so near relative to numbers above 1; fractions equal."""
    (axes, want), (other_axes, got) = numbers(exact), numbers(other)
    if axes != other_axes:
        return False
    return all(_near(a, b, relative) for a, b in zip(want, got, strict=True))


def _near(a: Any, b: Any, relative: Any) -> bool:
    if isinstance(a, bool) or isinstance(b, bool) or (isinstance(a, Fraction) and isinstance(b, Fraction)):
        return near(a, b, Fraction(0))
    with mpmath.workdps(DIGITS):
        size = max(mpmath.mpf(1), abs(wide(a)))
        return near(a, b, wide(relative) * size if mpmath.isfinite(size) else mpmath.mpf(0))


def wide(number: Number) -> mpmath.mpf:
    """The number with as many digits as mpmath computes with where it is called."""
    if isinstance(number, Fraction):
        return mpmath.mpf(number.numerator) / number.denominator
    return mpmath.mpf(number)


# Writing numbers


def digits(number: Number, places: int = 15) -> str:
    """A number for a reader: a whole one in full, others with so many significant digits."""
    if isinstance(number, bool):
        return str(number).lower()
    if isinstance(number, Fraction) and number.denominator == 1:
        return str(number.numerator)
    with mpmath.workdps(DIGITS):
        return str(mpmath.nstr(wide(number), places, strip_zeros=True))


def written(value: Any, places: int = 15) -> str:
    """A value for a reader: blanks between entries, semicolons between rows."""
    axes, entries = numbers(value)
    words = [digits(entry, places) for entry in entries]
    return _in_rows(axes, words)


def as_printed(value: Any, stated: Stated) -> str:
    """The value at the precision of the statement: what the document should have printed."""
    axes, entries = numbers(value)
    if axes != stated.shape or stated.is_exact:
        return written(value)
    return _in_rows(
        axes, [_at(entry, 2 * half) for entry, half in zip(entries, stated.half_units, strict=True)]
    )


def _at(number: Number, step: Fraction) -> str:
    if isinstance(number, bool) or not step or not mpmath.isfinite(wide(number)):
        return digits(number)
    with mpmath.workdps(DIGITS):
        whole = int(mpmath.floor(wide(number) / wide(step) + mpmath.mpf("0.5")))
    nearest = whole * step
    if nearest.denominator == 1:
        return str(nearest.numerator)
    places = next(n for n in range(1, DIGITS) if (10**n * step).denominator == 1)
    return f"{'-' if nearest < 0 else ''}{_decimal(abs(nearest), places)}"


def _decimal(number: Fraction, places: int) -> str:
    scaled = number * 10**places
    text = f"{scaled.numerator // scaled.denominator:0{places + 1}d}"
    return f"{text[:-places]}.{text[-places:]}"


def _in_rows(axes: tuple[int, ...], words: list[str]) -> str:
    if len(axes) != 2:
        return " ".join(words)
    return "; ".join(" ".join(row) for row in _chunks(words, axes[1]))


def _chunks(words: list[str], length: int) -> Iterable[list[str]]:
    return (words[start : start + length] for start in range(0, len(words), length))
