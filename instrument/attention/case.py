"""A case: the recipe of one attention call, small enough to be typed and replayed.

A case is pure data. `headcheck.attention.inputs.build` makes the tensors; the same text gives the same
tensors on every machine and in every version that reads it.
"""

import json
from dataclasses import dataclass, fields, replace
from typing import Any

from headcheck.errors import CaseError

Numbers = tuple[Any, ...]
"""A tensor written out: nested tuples of numbers (or of booleans, for a mask)."""

TENSORS = ("query", "key", "value", "mask", "cotangent")


@dataclass(frozen=True)
class Case:
    """The recipe. Only what differs from these defaults is printed."""

    dtype: str = "float32"
    batch: int = 1
    heads: int = 1
    kv_heads: int = 1
    q_len: int = 1
    kv_len: int = 1
    head_dim: int = 1
    value_dim: int = 1
    values: str = "normal"
    """The regime of query, key and value (`headcheck.attention.values`)."""
    mask: str = "none"
    """The pattern of attn_mask (`headcheck.attention.patterns`)."""
    mask_form: str = "boolean"
    """boolean; additive (0 and -inf); lowest (0 and the dtype's lowest number); bias (finite, and -inf)."""
    mask_axes: str = "bhqk"
    """The axes the mask really has; the others have size 1, or are absent where they lead: 'qk'."""
    is_causal: bool = False
    scale: float | None = None
    window: tuple[int | None, int | None] | None = None
    """Keys seen before and after the query's position, itself included; None is unbounded."""
    softcap: float | None = None
    sinks: bool = False
    alibi: bool = False
    layout: str = "contiguous"
    """How query, key and value lie in memory (`headcheck.attention.inputs.LAYOUTS`)."""
    mask_layout: str = "contiguous"
    """How attn_mask lies in memory (`headcheck.attention.inputs.MASK_LAYOUTS`)."""
    cotangent_layout: str = "contiguous"
    seed: int = 0
    numbers: tuple[tuple[str, Numbers], ...] = ()
    """Tensors written out, by name, in place of the regime's."""

    def but(self, **changes: Any) -> "Case":
        """The same case with some fields changed."""
        return replace(self, **changes)

    @property
    def written_out(self) -> bool:
        """Whether the numbers stand in the case itself."""
        return bool(self.numbers)

    @property
    def elements(self) -> int:
        """How many numbers query, key and value hold together: the size of a counterexample."""
        keys = self.batch * self.kv_heads * self.kv_len * (self.head_dim + self.value_dim)
        return self.batch * self.heads * self.q_len * self.head_dim + keys

    def __str__(self) -> str:
        tokens = [
            f"{each.name}={_write(getattr(self, each.name))}"
            for each in fields(self)
            if each.name != "numbers" and getattr(self, each.name) != each.default
        ]
        tokens += [f"{name}={_write(numbers)}" for name, numbers in self.numbers]
        return " ".join(tokens)


def parse(text: str) -> Case:
    """Read a case as `str` writes it: name=value, separated by blanks."""
    plain: dict[str, Any] = {}
    numbers: list[tuple[str, Numbers]] = []
    known = {each.name: each for each in fields(Case)}
    for token in text.split():
        name, equals, value = token.partition("=")
        if not equals or (name not in known and name not in TENSORS):
            raise CaseError(f"cannot read {token!r} in the case; a token is name=value with a name of a Case")
        if name in TENSORS and value.startswith("["):
            numbers.append((name, _freeze(_read(name, value))))
        elif name in known:
            default = known[name].default
            plain[name] = value if isinstance(default, str) else _freeze(_read(name, value))
        else:
            raise CaseError(f"cannot read {token!r} in the case: {name} takes numbers in brackets")
    return Case(**plain, numbers=tuple(numbers))


def _read(name: str, value: str) -> Any:
    try:
        return json.loads(value)
    except ValueError as problem:
        raise CaseError(f"cannot read {name}={value!r} in the case: {problem}") from None


def _write(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def _freeze(value: Any) -> Any:
    return tuple(map(_freeze, value)) if isinstance(value, list) else value
