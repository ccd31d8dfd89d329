"""How cases are drawn: all conditions jointly, the boundary cases in mind.

One function draws a case's conditions from a `random.Random`. In seeded cases a generator then makes the
numbers, fast; in drawn ones Hypothesis chooses each number, and the seed of the conditions.
"""

from collections.abc import Sequence
from random import Random
from typing import Any, TypeVar

from hypothesis import strategies as st

from headcheck.attention import patterns
from headcheck.attention.case import Case
from headcheck.attention.patterns import PATTERNS
from headcheck.attention.sizes import DENSE, equally_many, sized
from headcheck.attention.strides import MASK_STRIDES, MIXED, STRIDES
from headcheck.attention.subject import (
    CAUSAL_SCALES,
    DEAD_ROWS,
    MASK_WITH_CAUSAL,
    SCALES,
    AttentionSubject,
)
from headcheck.attention.values import REGIMES
from headcheck.declarations import BROADCAST_SHAPES
from headcheck.numbers import A_DOZEN, numbers_that_fit
from headcheck.recipes import RARELY

Option = TypeVar("Option")

SHORT = (1, 1, 2, 2, 3, 3, 4, 5, 6, 7, 8, 9)
BLOCKS = (15, 16, 17, 17, 24, 31, 32, 33, 33)
LONG = (63, 64, 64, 65, 96, 127, 128, 128, 129, 130, 191, 192, 256, 257)
KEYS = (300, 512, 513, 1025, 1025, 2049, 4097)
"""Keys of a few queries: what is decoded reads a long cache."""
QUERIES = (257, 300, 513, 1025)
"""Queries of a few keys."""
BOTH = (257, 384, 512, 512, 513)
"""Queries and keys of one case: rare, for each costs as much as ten others."""
DIMS = (1, 2, 3, 4, 4, 5, 8, 8, 16)
WIDE_DIMS = (10, 12, 20, 24, 32, 33, 40, 64, 64, 64, 65, 80, 96, 128, 128, 128, 129, 160, 192, 256, 256, 320)
KV_HEADS, MANY_KV_HEADS = (1, 1, 2, 3), (4, 5, 8, 12, 17)
GROUPS, LARGE_GROUPS = (1, 1, 2, 3, 4, 5), (7, 8, 16)
BATCHES, LARGE_BATCHES = (1, 1, 1, 2, 2, 3, 3, 5), (8, 9, 16, 17, 33, 65)
DRAWN_STRIDES = tuple(name for name in STRIDES if name != "stacked")
"""The laws of memory ask for a stack; elsewhere "packed" and "cached" have its gaps."""
WRITTEN = ("query", "key", "value")
SCORES = 60_000
WORK = 1_000_000
"""The largest numbers of scores, and of products of their sums: they bound the time of an example."""
PACK = 4096
"""Tokens of one pack at most: a right function may hold a mask of all of them by all."""


def draw(random: Random, subject: AttentionSubject) -> Case:
    """One case within what the subject supports."""
    kv_heads = _sized(random, KV_HEADS, MANY_KV_HEADS)
    group = _sized(random, GROUPS, LARGE_GROUPS) if subject.has("grouped_heads") else 1
    q_len, kv_len = _lengths(random)
    head_dim, value_dim = _dims(random)
    case = Case(
        dtype=_dtype(random, subject),
        batch=_sized(random, BATCHES, LARGE_BATCHES),
        heads=kv_heads * group,
        kv_heads=kv_heads,
        q_len=q_len,
        kv_len=kv_len,
        head_dim=head_dim,
        value_dim=value_dim,
        values=random.choice((*REGIMES, "normal", "normal", "normal", "large")),
        scale=_sometimes(random, 0.25, (1.0, 0.5, 0.3, 2.0, -0.5)),
        softcap=_sometimes(random, 0.5, (0.5, 2.0, 20.0)),
        sinks=random.random() < 0.5,
        alibi=random.random() < 0.4,
        window=_sometimes(random, 0.5, ((1, 0), (2, 1), (0, 0), (None, 1), (3, None), (8, 8))),
        strides=_sometimes(random, 0.3, (*DRAWN_STRIDES, *MIXED)) or "contiguous",
        cotangent_strides=_sometimes(random, 0.3, DRAWN_STRIDES) or "contiguous",
        seed=random.randrange(1_000_000),
    )
    supported = _supported(shorter(_twin(random, case), subject), subject)
    affordable = shorter(_affordable(random, supported), subject)
    return fit(_with_visibility(random, affordable, subject), subject)


def shorter(case: Case, subject: AttentionSubject) -> Case:
    """Both lengths the smaller one, where the subject takes equal ones only: `fit` would take the larger."""
    if not equally_many(subject.declaration, case.q_len):
        return case
    return case.but(q_len=min(case.q_len, case.kv_len), kv_len=min(case.q_len, case.kv_len))


def _sized(random: Random, usual: Sequence[int], large: Sequence[int]) -> int:
    return random.choice(large if random.random() < RARELY else usual)


def _lengths(random: Random) -> tuple[int, int]:
    kind = random.random()
    if kind < 0.006:
        return random.choice(BOTH), random.choice(BOTH)
    if kind < 0.50:
        return random.choice(SHORT), random.choice(SHORT)
    if kind < 0.77:
        return random.choice((*SHORT, *BLOCKS, *BLOCKS)), random.choice((2, 8, *BLOCKS))
    if kind < 0.84:
        return random.choice(LONG), random.choice((*SHORT, *LONG))
    if kind < 0.88:
        return random.choice(QUERIES), random.choice((*SHORT, *BLOCKS, *LONG))
    return random.choice((1, 2, 3, 5, 17)), random.choice((*LONG, *KEYS))


def _dims(random: Random) -> tuple[int, int]:
    head_dim = random.choice(DIMS if random.random() < 0.85 else WIDE_DIMS)
    if random.random() < 0.6:
        return head_dim, head_dim
    return head_dim, random.choice(DIMS if random.random() < 0.85 else WIDE_DIMS)


def _dtype(random: Random, subject: AttentionSubject) -> str:
    """The first dtype half of the time, the others in equal parts."""
    return random.choice((*subject.dtypes[:1] * max(1, len(subject.dtypes) - 1), *subject.dtypes[1:]))


def _twin(random: Random, case: Case) -> Case:
    """Sometimes two axes have one length: a mix-up of axes then keeps the shapes, and must show in values."""
    twin = random.random()
    if twin < 0.1:
        return case.but(kv_len=case.q_len)
    if twin < 0.15:
        return case.but(q_len=case.heads, kv_len=case.heads)
    if twin < 0.2:
        return case.but(batch=case.heads)
    if twin < 0.25 and case.kv_len in DIMS:
        return case.but(head_dim=case.kv_len, value_dim=case.kv_len)
    return case


def _affordable(random: Random, case: Case) -> Case:
    """The case with axes cut, in any order, until its scores and its work are bounded."""
    if min(case.q_len, case.kv_len) in BOTH:
        return _cut(case, batch=1, kv_heads=1, heads=2, head_dim=64, value_dim=64)
    cuts: list[dict[str, int]] = [
        {"batch": 2},
        {"heads": 2 * case.kv_heads},
        {"kv_heads": 1, "heads": 2},
        {"head_dim": 16, "value_dim": 16},
        {"q_len": 33},
    ]
    random.shuffle(cuts)
    for cut in (
        *cuts,
        {"batch": 1},
        {"heads": 1, "kv_heads": 1},
        {"head_dim": 4, "value_dim": 4},
        {"q_len": 5},
    ):
        scores = case.batch * case.heads * case.q_len * case.kv_len
        if scores <= SCORES and scores * (case.head_dim + case.value_dim) <= WORK:
            break
        case = _cut(case, **cut)
    return case


def _cut(case: Case, **most: int) -> Case:
    return case.but(**{axis: min(getattr(case, axis), size) for axis, size in most.items()})


def _with_visibility(random: Random, case: Case, subject: AttentionSubject) -> Case:
    """A mask, the causal flag, both, or neither."""
    both = MASK_WITH_CAUSAL not in subject.avoids
    is_causal = random.random() < 0.25
    if random.random() < 0.5 and (both or not is_causal):
        form = random.choice(("boolean", "boolean", "additive", "bias", "bias", "lowest"))
        case = case.but(
            mask=random.choice(tuple(PATTERNS)),
            mask_form=form,
            mask_strides=_sometimes(random, 0.3, tuple(MASK_STRIDES)) or "contiguous",
            mask_axes=random.choice(("bhqk", "bhqk", *BROADCAST_SHAPES)),
        )
    return case.but(is_causal=is_causal)


def _sometimes(random: Random, chance: float, options: Sequence[Option]) -> Option | None:
    return random.choice(options) if random.random() < chance else None


def fit(case: Case, subject: AttentionSubject) -> Case:
    """The case with what the subject lacks taken out, and what contradicts itself settled."""
    supported = _without_what_is_avoided(_supported(case, subject), subject)
    return numbers_that_fit(_settled(supported))


def _supported(case: Case, subject: AttentionSubject) -> Case:
    """Only features and forms that the subject has."""
    return sized(case.but(**_features_off(case, subject), **_forms_taken(case, subject)), subject.declaration)


def _features_off(case: Case, subject: AttentionSubject) -> dict[str, Any]:
    off: dict[str, Any] = {"scale": None, "window": None, "softcap": None}
    off |= {"is_causal": False, "sinks": False, "alibi": False}
    changes = {field: value for field, value in off.items() if not subject.has(field)}
    if not subject.has("grouped_heads"):
        changes["kv_heads"] = case.heads
    if not subject.has("attn_mask"):
        changes["mask"] = "none"
    elif case.mask_form == "boolean" and not subject.has("boolean"):
        changes["mask_form"] = "additive"
    elif case.mask_form != "boolean" and not subject.has("additive"):
        changes["mask_form"] = "boolean"
    return changes


def _forms_taken(case: Case, subject: AttentionSubject) -> dict[str, Any]:
    conventions = subject.declaration
    changes: dict[str, Any] = {}
    if case.dtype not in subject.dtypes:
        changes["dtype"] = subject.dtypes[0]
    if subject.is_packed:
        changes["batch"] = max(1, min(case.batch, PACK // max(case.q_len, case.kv_len, 1)))
    if conventions.any_strides is False and case.strides in ("dim-first", "mixed"):
        changes["strides"] = "transposed"
    if conventions.contiguous and case.strides not in DENSE:
        changes["strides"] = "contiguous"
    if case.mask != "none" and case.mask_axes not in subject.mask_forms:
        changes["mask_axes"] = subject.mask_forms[0]
    return changes


def _without_what_is_avoided(case: Case, subject: AttentionSubject) -> Case:
    odd = SCALES in subject.avoids or (CAUSAL_SCALES in subject.avoids and case.is_causal)
    if odd and case.scale is not None and case.scale <= 0:
        case = case.but(scale=None)
    if DEAD_ROWS not in subject.avoids:
        return case
    always = subject.declaration.always
    if case.window is not None:
        gone = case.q_len > case.kv_len and "window" not in always
        case = case.but(window=None if gone else case.window)
    if "window" in always or (case.is_causal and subject.alignment == "bottom-right"):
        case = case.but(q_len=min(case.q_len, case.kv_len))
    return case


def _settled(case: Case) -> Case:
    """A mask in its default form where there is none; the lowest number as a fill only where it is a mask.

    In a row with nothing to attend to, 'lowest' everywhere is no mask at all but an equal bias.
    """
    if case.heads % case.kv_heads:
        case = case.but(heads=case.kv_heads)
    if case.mask == "none":
        if "mask" in dict(case.numbers):
            case = case.but(numbers=tuple(pair for pair in case.numbers if pair[0] != "mask"))
        return case.but(mask_form="boolean", mask_axes="bhqk", mask_strides="contiguous")
    if case.mask_form == "lowest":
        alone = not (case.is_causal or case.alibi or case.window)
        if not alone or case.mask in patterns.DEAD_ROWS or case.mask_axes == "bhq1":
            case = case.but(mask_form="additive")
    return case


@st.composite
def drawn(draw_from: st.DrawFn, subject: AttentionSubject) -> Case:
    """A small case whose every number is drawn."""
    written = [draw_from(A_DOZEN) for _ in WRITTEN]
    # The numbers are part of the seed: Hypothesis varies them around a seed that it keeps, and would repeat the case.
    case = draw(Random(repr((draw_from(st.integers(0, 2**63)), written))), subject)
    case = case.but(
        batch=min(case.batch, 2),
        heads=min(case.heads, 4) if case.heads == case.kv_heads else 2,
        kv_heads=min(case.kv_heads, 4) if case.heads == case.kv_heads else 1,
        q_len=min(case.q_len, 3),
        kv_len=min(case.kv_len, 4),
        head_dim=min(case.head_dim, 3),
        value_dim=min(case.value_dim, 3),
    )
    most = 24.0 if case.dtype == "float16" else 1000.0
    numbers = [
        (name, tuple(min(max(n, -most), most) for n in drawn_numbers))
        for name, drawn_numbers in zip(WRITTEN, written, strict=True)
    ]
    return fit(case.but(values="normal", numbers=tuple(numbers)), subject)
