"""A case: the recipe of one attention call, small enough to be typed and replayed.

A case is pure data. `headcheck.attention.inputs.build` makes the tensors; the same text gives the same
tensors on every machine and in every version that reads it.
"""

from dataclasses import dataclass
from typing import ClassVar

from headcheck.recipes import Recipe


@dataclass(frozen=True)
class Case(Recipe):
    """The recipe. Only what differs from these defaults is printed."""

    AXES: ClassVar = {
        "query": ("batch", "heads", "q_len", "head_dim"),
        "key": ("batch", "kv_heads", "kv_len", "head_dim"),
        "value": ("batch", "kv_heads", "kv_len", "value_dim"),
        "mask": ("batch", "heads", "q_len", "kv_len"),
        "cotangent": ("batch", "heads", "q_len", "value_dim"),
    }

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
    strides: str = "contiguous"
    """How query, key and value lie in memory (`headcheck.attention.strides.STRIDES`)."""
    mask_strides: str = "contiguous"
    """How attn_mask lies in memory (`headcheck.attention.strides.MASK_STRIDES`)."""
    cotangent_strides: str = "contiguous"

    def asked_for(self) -> list[str]:
        """Beyond tensors of some sizes; grouped heads are asked for by a size."""
        return [*super().asked_for(), *(["kv_heads"] if self.heads != self.kv_heads else [])]

    @property
    def elements(self) -> int:
        """How many numbers query, key and value hold together: the size of a counterexample."""
        keys = self.batch * self.kv_heads * self.kv_len * (self.head_dim + self.value_dim)
        return self.batch * self.heads * self.q_len * self.head_dim + keys
