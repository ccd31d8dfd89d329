"""Which arithmetic a subject has that declares none: the narrowest model within which it stays on drawn cases."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from headcheck.arithmetic import Arithmetic

AnyCase = TypeVar("AnyCase")

TRIES = 24


def narrowest(
    models: Sequence[Arithmetic],
    cases: Iterable[AnyCase],
    ratio: Callable[[AnyCase, Arithmetic], float],
    tells: Callable[[AnyCase], bool] = lambda case: True,
) -> tuple[Arithmetic, float]:
    """The model that fits, and the subject's largest error over bound; infinite where none fits on any case.

    models: the narrowest first. ratio: the largest error over bound of a case under a model. A case on which
    no model fits says nothing about rounding; a law will say what is wrong with it. tells: whether a case that
    asks for a wider model tells of rounding, and not of an answer that is wrong by as little.
    """
    worst, explained = 0.0, False
    for case in cases:
        for skipped, model in enumerate(models):
            if (found := ratio(case, model)) <= 1:
                if skipped and not tells(case):
                    break
                worst, explained = max(found, 0.0 if skipped else worst), True
                models = models[skipped:]
                break
    return models[0], worst if explained else math.inf


def told(dtype: str, model: Arithmetic, ratio: float) -> str:
    """What was found out, in a note; ratio: the largest error over its bound."""
    if ratio > 1:
        return f"{dtype}: no model of arithmetic explains its errors; held to {model}"
    return f"{dtype}: arithmetic inferred as {model} (largest error {ratio:.2f} of its bound)"
