"""What is drawn: every rare condition is reached, and no case asks for what a subject lacks."""

from collections import Counter
from collections.abc import Callable, Iterable
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor

from headcheck.attention import drawing
from headcheck.attention.case import Case
from headcheck.attention.drawing import DRAWN_STRIDES
from headcheck.attention.inputs import Inputs, build
from headcheck.attention.patterns import DEAD_ROWS, PATTERNS
from headcheck.attention.strides import MASK_STRIDES, MIXED, lay_out
from headcheck.attention.values import REGIMES
from headcheck.declarations import BROADCAST_SHAPES, DTYPES
from tests.drawn import (
    DRAWN,
    SEEDED,
    STRICT,
    by_hypothesis,
    drawn_inputs,
    hypothesis_inputs,
    prepared,
    seeded,
    strict,
)

FLOOR = 0.005
"""The share of draws that a condition must have."""
HALF_BLOCK = 64


# How often each rare condition is reached

Condition = Callable[[Inputs], bool]


def _broadcast(x: Inputs) -> bool:
    return x.attn_mask is not None and x.attn_mask.shape != x.may_attend.shape


def _dead_prefix(x: Inputs) -> bool:
    """The first keys, two at least, are hidden from a query that sees a later one."""
    hidden = ~x.may_attend[..., :2].any(-1) & x.may_attend[..., 2:].any(-1)
    return x.kv_len > 2 and bool(hidden.any())


def _all_true(x: Inputs) -> bool:
    mask = x.attn_mask
    return mask is not None and mask.dtype == torch.bool and bool(mask.all())


CONDITIONS: dict[str, Condition] = {
    "a dead row": lambda x: bool(x.dead_rows.any()),
    "a dead row beside a live one": lambda x: bool(x.dead_rows.any()) and not bool(x.dead_rows.all()),
    "every row dead": lambda x: bool(x.dead_rows.all()),
    "a dead row with sinks": lambda x: x.sinks is not None and bool(x.dead_rows.any()),
    "a dead prefix": _dead_prefix,
    "an all-True mask": _all_true,
    "a mask that differs by head": lambda x: (
        x.may_attend.shape[1] > 1 and bool((x.may_attend != x.may_attend[:, :1]).any())
    ),
    "a mask that differs by batch": lambda x: x.batch > 1 and bool((x.may_attend != x.may_attend[:1]).any()),
    "a broadcast mask": _broadcast,
    "a broadcast mask with a stride of 0": lambda x: _broadcast(x) and x.mask_strides == "expanded",
    "a boolean mask": lambda x: x.attn_mask is not None and x.attn_mask.dtype == torch.bool,
    "an additive mask": lambda x: x.attn_mask is not None and x.attn_mask.dtype != torch.bool,
    "causal": lambda x: x.is_causal,
    "causal with a mask": lambda x: x.is_causal and x.attn_mask is not None,
    "causal, more queries than keys": lambda x: x.is_causal and x.q_len > x.kv_len,
    "causal, more keys than queries": lambda x: x.is_causal and x.q_len < x.kv_len,
    "a negative scale": lambda x: x.scale is not None and x.scale < 0,
    "a negative scale with causal": lambda x: x.scale is not None and x.scale < 0 and x.is_causal,
    "the default scale": lambda x: x.scale is None,
    "softcap": lambda x: x.softcap is not None,
    "sinks": lambda x: x.sinks is not None,
    "ALiBi": lambda x: x.alibi_slopes is not None,
    "a window": lambda x: x.window is not None,
    "a one-sided window": lambda x: x.window is not None and None in x.window,
    "softcap, sinks, ALiBi and window": lambda x: None not in (x.softcap, x.sinks, x.alibi_slopes, x.window),
    "one query": lambda x: x.q_len == 1,
    "one key": lambda x: x.kv_len == 1,
    "one query and one key": lambda x: x.q_len == x.kv_len == 1,
    "one dim": lambda x: x.head_dim == 1,
    "more queries than keys": lambda x: x.q_len > x.kv_len,
    "fewer queries than keys": lambda x: x.q_len < x.kv_len,
    "as many queries as keys": lambda x: x.q_len == x.kv_len > 1,
    "value_dim above head_dim": lambda x: x.value_dim > x.head_dim,
    "value_dim below head_dim": lambda x: x.value_dim < x.head_dim,
    "two batches or more": lambda x: x.batch > 1,
    "multi-query": lambda x: x.kv_heads == 1 and x.heads > 1,
}
"""Reached by both kinds of draws."""

LARGE: dict[str, Condition] = {
    "grouped heads": lambda x: 1 < x.kv_heads < x.heads,
    "an odd group": lambda x: x.group % 2 == 1 and x.group > 1,
    "an odd group of several key heads": lambda x: x.group % 2 == 1 and x.group > 1 and x.kv_heads > 1,
    "as many heads as queries": lambda x: x.heads == x.q_len > 1,
    "as many heads as keys": lambda x: x.heads == x.kv_len > 1,
    "heads, queries and keys alike": lambda x: x.heads == x.q_len == x.kv_len > 1,
    "as many batches as heads": lambda x: x.batch == x.heads > 1,
    "as many keys as dims": lambda x: x.kv_len == x.head_dim > 1,
    "keys beyond a block of 64": lambda x: x.kv_len > 64,
    "keys beyond a block of 128": lambda x: x.kv_len > 128,
    "keys beyond 1024": lambda x: x.kv_len > 1024,
    "queries beyond a block of 64": lambda x: x.q_len > 64,
    "queries beyond a block of 128": lambda x: x.q_len > 128,
    "one block of keys exactly": lambda x: x.kv_len in (16, 32, 64, 128),
    "keys one beyond a block": lambda x: x.kv_len in (17, 33, 65, 129),
    "keys one short of a block": lambda x: x.kv_len in (15, 31, 63, 127),
    "many keys, not a multiple of 16": lambda x: x.kv_len > 64 and x.kv_len % 16 != 0,
    "many queries and many keys": lambda x: x.q_len > 64 and x.kv_len > 64,
    "many keys with a mask": lambda x: x.kv_len > 64 and x.attn_mask is not None,
    "many keys and a dead prefix of 64": lambda x: (
        x.kv_len > 64 and bool((~x.may_attend[..., :64].any(-1) & x.may_attend[..., 64:].any(-1)).any())
    ),
    "many keys, causal": lambda x: x.kv_len > 64 and x.is_causal,
    "many dims": lambda x: x.head_dim > 16,
    "dims that are no multiple of 8": lambda x: x.head_dim > 8 and x.head_dim % 8 != 0,
    "logits beyond 88": lambda x: bool(_logits(x).gt(88.8).any()),
    "logits beyond -100": lambda x: bool(_logits(x).lt(-100).any()),
    "the generic tier": lambda x: x.generic,
    "stride 0 over the batch": lambda x: _laid_out(x, "expanded", 0),
    "stride 0 over the heads": lambda x: _laid_out(x, "expanded-heads", 1),
}
"""Reached by seeded draws: Hypothesis' are small."""


def _logits(x: Inputs) -> Tensor:
    scores = x.problem.attended.scores
    return scores[scores.isfinite()]


def _laid_out(x: Inputs, layout: str, axis: int) -> bool:
    return x.strides == layout and lay_out((x.query, x.key, x.value), layout)[1].stride(axis) == 0


OF_FIELDS: dict[str, tuple[Any, ...]] = {
    "dtype": DTYPES,
    "values": tuple(REGIMES),
    "mask": tuple(PATTERNS),
    "mask_form": ("boolean", "additive", "lowest", "bias"),
    "mask_axes": BROADCAST_SHAPES,
    "strides": (*DRAWN_STRIDES, *MIXED),
    "mask_strides": tuple(MASK_STRIDES),
    "cotangent_strides": DRAWN_STRIDES,
    "scale": (None, -0.5, 1.0),
    "softcap": (None, 0.5, 20.0),
    "batch": (1, 2, 3),
}
BY_HYPOTHESIS = {name: options for name, options in OF_FIELDS.items() if name not in ("values", "batch")}


def require_often(counts: Counter[str], wanted: list[str], total: int) -> None:
    """Each of them has its share; the message shows all frequencies, the rarest first."""
    shares = sorted((counts[name] / total, name) for name in wanted)
    table = "\n".join(f"{share:7.2%}  {name}" for share, name in shares)
    assert shares[0][0] >= FLOOR, f"of {total} draws, at least {FLOOR:.1%} each:\n{table}"


def counted(inputs: Iterable[Inputs], conditions: dict[str, Condition]) -> Counter[str]:
    return Counter(name for x in inputs for name, condition in conditions.items() if condition(x))


def test_seeded_draws_reach_every_rare_condition() -> None:
    """Each condition that bugs hide behind has its share of 2,000 seeded draws."""
    conditions = CONDITIONS | LARGE
    require_often(counted(drawn_inputs(), conditions), list(conditions), SEEDED)


def test_hypothesis_draws_reach_every_rare_condition_of_small_shapes() -> None:
    """Each condition that a small shape can show has its share of 600 Hypothesis draws."""
    found = hypothesis_inputs()
    assert len(found) >= DRAWN * 0.9
    require_often(counted(found, CONDITIONS), list(CONDITIONS), len(found))


@pytest.mark.parametrize("field", OF_FIELDS)
def test_seeded_draws_reach_every_option(field: str) -> None:
    """Each option of each field of a case has its share of the seeded draws."""
    counts = Counter(str(getattr(x.case, field)) for x in drawn_inputs() if _tells(x.case, field))
    require_often(counts, [str(option) for option in OF_FIELDS[field]], SEEDED)


@pytest.mark.parametrize("field", BY_HYPOTHESIS)
def test_hypothesis_draws_reach_every_option(field: str) -> None:
    """Each option that is not about large shapes has its share of the Hypothesis draws."""
    found = hypothesis_inputs()
    counts = Counter(str(getattr(x.case, field)) for x in found if _tells(x.case, field))
    # 'lowest' is for masks alone, without causal, window, ALiBi or dead rows.
    wanted = [str(option) for option in BY_HYPOTHESIS[field] if option != "lowest"]
    require_often(counts, wanted, len(found))


def _tells(case: Case, field: str) -> bool:
    """Fields of the mask count where there is a mask."""
    return case.mask != "none" or field not in ("mask_form", "mask_axes", "mask_strides")


def test_every_dtype_meets_every_regime() -> None:
    """No regime is drawn in some dtypes only."""
    met = Counter((x.case.dtype, x.case.values) for x in drawn_inputs())
    assert all(met[dtype, regime] >= 3 for dtype in DTYPES for regime in REGIMES), met


def test_other_seeds_reach_the_conditions_too() -> None:
    """The frequencies are no luck of one stream: they are reached in each of four others."""
    for stream in range(4):
        cases = [drawing.draw(Random(f"{stream}/{number}"), prepared()) for number in range(500)]
        counts = Counter(
            name
            for case in cases
            for name, yes in (
                ("causal with a mask", case.is_causal and case.mask != "none"),
                ("dead rows", case.mask in DEAD_ROWS),
                ("long", case.kv_len > HALF_BLOCK),
                ("odd group", case.heads // case.kv_heads in (3, 5)),
            )
            if yes
        )
        require_often(counts, ["causal with a mask", "dead rows", "long", "odd group"], len(cases))


# A drawn case fits its subject


@pytest.mark.parametrize("name", STRICT)
def test_no_drawn_case_asks_for_what_the_subject_lacks(name: str) -> None:
    """A function that throws at all that it lacks answers every seeded and every drawn case."""
    subject = strict(name)
    for case in (*seeded(subject, 250), *by_hypothesis(subject, 40)):
        output = subject(build(case, subject.alignment))
        assert output.shape == (case.batch, case.heads, case.q_len, case.value_dim)
        assert case.dtype in subject.dtypes


@pytest.mark.parametrize(
    ("name", "refusal"),
    [
        ("bare", "grouped heads"),
        ("boolean", "a mask of"),
        ("additive", "a boolean mask"),
        ("square", "another length or dim|strides"),
        ("refused", "with is_causal"),
    ],
)
def test_the_strict_functions_are_strict(name: str, refusal: str) -> None:
    """They do throw at cases that were drawn for a subject that has everything."""
    problems = []
    for case in seeded(prepared(), 100):
        x = build(case)
        mask = {} if x.attn_mask is None else {"attn_mask": x.attn_mask}
        causal = {"is_causal": True} if x.is_causal else {}
        accepted = {"bare": {}, "square": causal, "refused": mask | causal}.get(name, mask)
        try:
            STRICT[name].function(*lay_out((x.query, x.key, x.value), x.strides), **accepted)
        except (TypeError, ValueError) as problem:
            problems.append(str(problem))
    with pytest.raises(TypeError, match=refusal):
        raise TypeError(next((p for p in problems if "enable_gqa" not in p), "no problem"))


def test_fitting_is_done_in_one_go() -> None:
    """Fitting a case that fits changes nothing, whatever the subject lacks."""
    for subject in [prepared(), *map(strict, STRICT)]:
        for case in seeded(prepared(), 300):
            fitted = drawing.fit(case, subject)
            assert drawing.fit(fitted, subject) == fitted


@pytest.mark.parametrize("name", ["reference", *STRICT])
def test_the_work_of_a_drawn_case_is_bounded(name: str) -> None:
    """No draw costs more than drawing.WORK, so that no example is slow; but a few have both lengths of models."""
    subject = prepared() if name == "reference" else strict(name)
    cases = list(seeded(subject, 1000))
    long = [c for c in cases if min(c.q_len, c.kv_len) > max(drawing.LONG) - 1]
    for c in cases:
        scores = c.batch * c.heads * c.q_len * c.kv_len
        assert c in long or scores <= drawing.SCORES, f"{c}: {scores}"
        assert c in long or scores * (c.head_dim + c.value_dim) <= drawing.WORK, f"{c}: {scores}"
    assert len(long) < 20
    assert all(c.batch * c.heads <= 2 and c.head_dim + c.value_dim <= 128 for c in long)


def test_sizes_of_real_models_are_drawn() -> None:
    """Among the cases of one gate there are long lengths, wide and many heads, large groups and batches: jointly."""
    cases = list(seeded(prepared(), 8000))
    sizes = {
        "q_len": lambda c: c.q_len > 512,
        "kv_len": lambda c: c.kv_len > 2048,
        "both": lambda c: min(c.q_len, c.kv_len) > 256,
        "head_dim": lambda c: c.head_dim > 128,
        "value_dim": lambda c: c.value_dim > 128,
        "heads": lambda c: c.heads > 16,
        "group": lambda c: c.heads >= 8 * c.kv_heads,
        "batch": lambda c: c.batch > 16,
    }
    conditions = {
        "causal": lambda c: c.is_causal,
        "boolean mask": lambda c: c.mask != "none" and c.mask_form == "boolean",
        "bias": lambda c: c.mask != "none" and c.mask_form != "boolean",
        "a half dtype": lambda c: c.dtype in ("float16", "bfloat16"),
        "strides": lambda c: c.strides != "contiguous",
        "an odd width": lambda c: c.value_dim != c.head_dim,
    }
    for size, is_large in sizes.items():
        large = [c for c in cases if is_large(c)]
        for condition, holds in conditions.items():
            assert any(map(holds, large)), f"no case with a large {size} and {condition}"
