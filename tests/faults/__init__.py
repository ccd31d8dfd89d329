"""The fault corpus: wrong attention that the laws must break, right attention that they must not.

A fault is one function under `@fault`, a right variant one function under `@variant`, in a module of its
family beside this file. There is no second place to edit:

    @fault("True drops instead of keeps.", breaks="masks/masked-keys-do-not-matter", naive="T")
    def polarity_reversed(call: Call) -> Tensor:
        return clean.attention(call, hide=lambda call, scores, kept: scores.masked_fill(kept, NEVER))

The function takes a `Call`; what is registered is a plain callable of the canonical signature. Shortcuts:
`replaces=clean.hide` says that the function stands in for this one step of the right kernel; a parameter
named `memory` is a dict that lives as long as the callable; `features` and `without` add parameters to the
canonical signature and take them away.
"""

import functools
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from headcheck.declarations import Attention
from tests.faults.calls import Attend, canonical

Function = Callable[..., Any]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One function of the corpus."""

    id: str
    """Module and function: masks/polarity-reversed."""
    sentence: str
    dtypes: tuple[str, ...] | None
    """The dtypes that it is made for, or shows in; None: every one."""
    features: tuple[str, ...]
    defined_at: tuple[str, int]
    make: Callable[[], Function]
    declares: Mapping[str, Any] = field(default_factory=dict)
    """Fields of its declaration, where it claims something."""

    @property
    def family(self) -> str:
        return self.id.partition("/")[0]

    @property
    def role(self) -> str:
        return "attention"

    def declaration(self) -> Attention:
        """The function as a subject; its arithmetic is inferred unless the corpus says that it must be declared."""
        arithmetic = getattr(self, "arithmetic", None)
        fields = {
            "dtypes": self.dtypes,
            "gradients": getattr(self, "gradients", None),
            "arithmetic": {"bfloat16": arithmetic, "float16": arithmetic} if arithmetic else None,
        }
        return Attention(self.call, name=self.id, **(fields | dict(self.declares)))

    @property
    def call(self) -> Function:
        """The function, in the canonical signature; it remembers nothing of those handed out before."""
        return self.make()


@dataclass(frozen=True, kw_only=True)
class Fault(Entry):
    """The right function with one thing wrong."""

    breaks: tuple[str, ...]
    """Laws that must break; the first is the one that a person would name."""
    real: str | None
    """Where it happened."""
    naive: str
    """What naive testing lacks to see it: T nothing, SH special shapes, SV special values, GR gradients,
    LP low precision or long range, PATH another flag, path or call, NO two calls or no comparison at all."""
    when: tuple[str, ...]
    """The conditions that must meet for it to show, where there is more than one."""
    peril: str | None
    """Why it must be judged in a process of its own: what it does to the one that it runs in."""


@dataclass(frozen=True, kw_only=True)
class Variant(Entry):
    """A right function, written in another way: no law may break."""

    arithmetic: str | None
    """The arithmetic that it has to declare; None: what is inferred will do."""
    gradients: bool | None
    """False: it has to declare that it claims none."""
    breaks: tuple[str, ...] = ()


FAULTS: dict[str, Fault] = {}
VARIANTS: dict[str, Variant] = {}
"""Those that declare conventions of their own among them."""
NAIVE = ("T", "SH", "SV", "GR", "LP", "PATH", "NO")


def fault(
    sentence: str,
    *,
    breaks: str | Iterable[str],
    naive: str,
    real: str | None = None,
    when: tuple[str, ...] = (),
    dtypes: tuple[str, ...] | None = None,
    peril: str | None = None,
    declares: Mapping[str, Any] | None = None,
    replaces: Function | None = None,
    features: tuple[str, ...] = (),
    without: tuple[str, ...] = (),
) -> Callable[[Function], Function]:
    """Register a wrong function."""
    if naive not in NAIVE:
        raise ValueError(f"naive={naive!r}: expected one of {', '.join(NAIVE)}")

    def register(function: Function) -> Function:
        entry = Fault(
            **_identity(function, sentence, replaces, features, without),
            breaks=(breaks,) if isinstance(breaks, str) else tuple(breaks),
            real=real,
            naive=naive,
            when=when,
            dtypes=dtypes,
            peril=peril,
            declares=declares or {},
        )
        return _enter(FAULTS, entry)

    return register


def variant(
    sentence: str,
    *,
    arithmetic: str | None = None,
    gradients: bool | None = None,
    dtypes: tuple[str, ...] | None = None,
    declares: Mapping[str, Any] | None = None,
    replaces: Function | None = None,
    features: tuple[str, ...] = (),
    without: tuple[str, ...] = (),
) -> Callable[[Function], Function]:
    """Register a right function."""

    def register(function: Function) -> Function:
        identity = _identity(function, sentence, replaces, features, without)
        declared = {"dtypes": dtypes, "declares": declares or {}}
        entry = Variant(**identity, **declared, arithmetic=arithmetic, gradients=gradients)
        return _enter(VARIANTS, entry)

    return register


def _identity(
    function: Function,
    sentence: str,
    replaces: Function | None,
    features: tuple[str, ...],
    without: tuple[str, ...],
) -> dict[str, Any]:
    stem = function.__module__.rpartition(".")[2]

    def make() -> Function:
        return canonical(_attend(function, replaces), function, features, without)

    return {
        "id": f"{stem}/{function.__name__.replace('_', '-')}",
        "sentence": sentence,
        "features": features,
        "defined_at": (function.__code__.co_filename, function.__code__.co_firstlineno),
        "make": make if _remembers(function) else functools.cache(make),
    }


def _remembers(function: Function) -> bool:
    return "memory" in inspect.signature(function).parameters


def _attend(function: Function, replaces: Function | None) -> Attend:
    """What the function makes of a call: all of it, or one step of the right kernel."""
    if _remembers(function):
        function = functools.partial(function, memory={})
    if replaces is None:
        return function
    kernel = importlib.import_module(replaces.__module__)
    return functools.partial(kernel.attention, **{replaces.__name__: function})


def _enter(table: dict[str, Any], entry: Entry) -> Function:
    """Refuse a second function of the same name; the same file read twice is no second function."""
    for known in (FAULTS.get(entry.id), VARIANTS.get(entry.id)):
        if known is not None and known.defined_at != entry.defined_at:
            raise ValueError(
                f"two functions are called {entry.id}: {known.defined_at} and {entry.defined_at}"
            )
    table.setdefault(entry.id, entry)
    return entry.call


def _load() -> None:
    for module in pkgutil.iter_modules(__path__):
        if not module.name.startswith("test_"):
            importlib.import_module(f"{__name__}.{module.name}")


_load()
