"""What Hypothesis draws is a matter of the seed alone."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from hypothesis.internal.conjecture import providers

_OF_CODE = "_get_local_constants"
"""What reads the numbers that stand in the code of the modules that are loaded, to draw one of them now and then."""
_NUMBERS = "Constants"
_REMEMBERED = "CONSTANTS_CACHE"
_cache: Any = None


@contextmanager
def drawn_by_the_seed_alone() -> Iterator[None]:
    """No number is drawn because it stands in the code of a module.

    Other modules may be loaded elsewhere, and one that loads an extra when it is looked at may raise. Later or earlier
    versions of Hypothesis may do without such names.
    """
    global _cache  # noqa: PLW0603  # of this process, beside Hypothesis' own
    if not all(hasattr(providers, name) for name in (_OF_CODE, _NUMBERS, _REMEMBERED)):
        yield
        return
    theirs = getattr(providers, _REMEMBERED)
    if _cache is None:
        _cache = type(theirs)(getattr(theirs, "max_size", 1024))
    with (
        patch.object(providers, _OF_CODE, getattr(providers, _NUMBERS)),
        patch.object(providers, _REMEMBERED, _cache),
    ):
        yield
