"""What Hypothesis draws is a matter of the seed alone."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any
from unittest.mock import patch

from hypothesis.internal.conjecture import providers

_OF_CODE = "_get_local_constants"
"""What reads the numbers that stand in the code of the modules that are loaded, to draw one of them now and then."""
_NUMBERS = "Constants"
_REMEMBERED = "CONSTANTS_CACHE"


@contextmanager
def drawn_by_the_seed_alone() -> Iterator[None]:
    """No number is drawn because it stands in the code of a module.

    Other modules may be loaded elsewhere, and one that loads an extra when it is looked at may raise. Later or earlier
    versions of Hypothesis may do without such names.
    """
    if not all(hasattr(providers, name) for name in (_OF_CODE, _NUMBERS, _REMEMBERED)):
        yield
        return
    with (
        patch.object(providers, _OF_CODE, getattr(providers, _NUMBERS)),
        patch.object(providers, _REMEMBERED, _own()),
    ):
        yield


@cache
def _own() -> Any:
    """What is remembered of such draws in this process, beside what Hypothesis remembers of others."""
    theirs = getattr(providers, _REMEMBERED)
    return type(theirs)(getattr(theirs, "max_size", 1024))
