"""What is drawn: every rare condition is reached, no case asks for what a subject lacks, a text is a case."""

import functools
import hashlib
import inspect
import json
import math
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis import given as hypothesis_given
from hypothesis import strategies as st
from torch import Tensor

from headcheck import given as shared
from headcheck.attention import drawing, given, values
from headcheck.attention.case import Case
from headcheck.attention.inputs import LAYOUTS, MASK_LAYOUTS, MIXED, Inputs, build, lay_out, lay_out_mask
from headcheck.attention.patterns import AXES, DEAD_ROWS, PATTERNS, restrict
from headcheck.attention.role import role
from headcheck.attention.subject import AttentionSubject
from headcheck.attention.values import CONTINUOUS, REGIMES
from headcheck.declarations import DTYPES, Attention
from headcheck.errors import CaseError
from headcheck.laws import Law, choose
from headcheck.reference.canonical import canonical_attention
from headcheck.subjects import builtins

SEEDED = 2000
DRAWN = 300
FLOOR = 0.005
"""The share of draws that a condition must have."""
HALF_BLOCK = 64


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@functools.cache
def prepared(name: str = "reference") -> AttentionSubject:
    return role.prepare(builtins()[name].declaration(), dtypes=(), device="cpu", seed=0)[0]


def seeded(subject: AttentionSubject, count: int) -> list[Case]:
    return [drawing.draw(Random(f"tests/{number}"), subject) for number in range(count)]


def by_hypothesis(subject: AttentionSubject, count: int) -> list[Case]:
    """What Hypothesis draws when the engine asks it to."""
    found: list[Case] = []

    @settings(
        max_examples=count,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @hypothesis_given(drawing.drawn(subject))
    def collect(case: Case) -> None:
        found.append(case)

    collect()
    return found


@functools.cache
def drawn_inputs() -> list[Inputs]:
    return [build(case) for case in seeded(prepared(), SEEDED)]


@functools.cache
def hypothesis_inputs() -> list[Inputs]:
    return [build(case) for case in by_hypothesis(prepared(), DRAWN)]


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
    "a broadcast mask with a stride of 0": lambda x: _broadcast(x) and x.mask_layout == "expanded",
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
    return x.layout == layout and lay_out((x.query, x.key, x.value), layout)[1].stride(axis) == 0


OF_FIELDS: dict[str, tuple[Any, ...]] = {
    "dtype": DTYPES,
    "values": tuple(REGIMES),
    "mask": tuple(PATTERNS),
    "mask_form": ("boolean", "additive", "lowest", "bias"),
    "mask_axes": AXES,
    "layout": (*LAYOUTS, *MIXED),
    "mask_layout": tuple(MASK_LAYOUTS),
    "cotangent_layout": tuple(LAYOUTS),
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


def counted(inputs: list[Inputs], conditions: dict[str, Condition]) -> Counter[str]:
    return Counter(name for x in inputs for name, condition in conditions.items() if condition(x))


def test_seeded_draws_reach_every_rare_condition() -> None:
    """Each condition that bugs hide behind has its share of 2,000 seeded draws."""
    conditions = CONDITIONS | LARGE
    require_often(counted(drawn_inputs(), conditions), list(conditions), SEEDED)


def test_hypothesis_draws_reach_every_rare_condition_of_small_shapes() -> None:
    """Each condition that a small shape can show has its share of 300 Hypothesis draws."""
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
    return case.mask != "none" or field not in ("mask_form", "mask_axes", "mask_layout")


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


def _refuse(problem: str) -> Tensor:
    raise TypeError(problem)


def bare(query: Tensor, key: Tensor, value: Tensor) -> Any:
    """Nothing but the three tensors, and no grouped heads."""
    if query.shape[1] != key.shape[1]:
        return _refuse("grouped heads")
    return canonical_attention(query, key, value)


def boolean_4d(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Any:
    if attn_mask is not None and (attn_mask.dtype != torch.bool or attn_mask.ndim != 4):
        return _refuse(f"a mask of {attn_mask.dtype} with {attn_mask.ndim} axes")
    return canonical_attention(query, key, value, attn_mask)


def additive_only(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Any:
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        return _refuse("a boolean mask")
    return canonical_attention(query, key, value, attn_mask)


def square(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> Any:
    if query.shape[2] != key.shape[2] or value.shape[3] != query.shape[3]:
        return _refuse("another length or dim")
    if any(x.stride(-1) != 1 and x.shape[-1] > 1 for x in (query, key, value)):
        return _refuse("strides")
    return canonical_attention(query, key, value, is_causal=is_causal)


def one_at_a_time(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
) -> Any:
    if is_causal and (attn_mask is not None or (scale is not None and scale <= 0)):
        return _refuse("a mask, or a scale of zero or below, with is_causal")
    return canonical_attention(query, key, value, attn_mask, is_causal=is_causal, scale=scale)


STRICT = {
    "bare": Attention(bare, dtypes=("float64",)),
    "boolean": Attention(boolean_4d, masks=("boolean",), mask_ranks=(4,)),
    "additive": Attention(additive_only, masks=("additive",)),
    "square": Attention(square, rectangular=False, value_dim=False, any_strides=False),
    "refused": Attention(one_at_a_time, mask_with_causal="refused", scale_with_causal="positive"),
    "undeclared": Attention(one_at_a_time),
    "no causal": Attention(one_at_a_time, causal=False, scale=False, dtypes=("bfloat16", "float16")),
    "no features": Attention(canonical_attention, window=False, softcap=False, sinks=False, alibi=False),
}


@functools.cache
def strict(name: str) -> AttentionSubject:
    return role.prepare(STRICT[name], dtypes=(), device="cpu", seed=0)[0]


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
            STRICT[name].function(*lay_out((x.query, x.key, x.value), x.layout), **accepted)
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
    """No draw costs more than drawing.WORK, so that no example is slow."""
    subject = prepared() if name == "reference" else strict(name)
    for c in seeded(subject, 1000):
        work = c.batch * c.heads * c.q_len * c.kv_len * (c.head_dim + c.value_dim)
        assert work <= drawing.WORK, f"{c}: {work}"


# A text is a case


def tensors_of(case: Case) -> dict[str, Tensor]:
    x = build(case)
    names = ("query", "key", "value", "attn_mask", "sinks", "alibi_slopes", "cotangent")
    return {name: tensor for name in names if (tensor := getattr(x, name)) is not None}


def digest(text: str) -> str:
    """The bits of all tensors of a case."""
    parts = hashlib.sha256()
    for name, tensor in tensors_of(Case.parse(text)).items():
        parts.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        parts.update(tensor.contiguous().view(torch.uint8).numpy().tobytes() if tensor.numel() else b"")
    return parts.hexdigest()


def written_out(case: Case) -> Case:
    """The case with its numbers in it, as the minimiser writes them."""
    from headcheck.attention.simpler import _write_out

    return _write_out(case, prepared())


def test_a_printed_case_is_read_back() -> None:
    """Case.parse(str(case)) is the case and builds the same bits: seeded, drawn, and written out."""
    small = [case for case in seeded(prepared(), 200) if case.elements < 100]
    for case in (*seeded(prepared(), 200), *by_hypothesis(prepared(), 100), *map(written_out, small)):
        assert Case.parse(str(case)) == case
        assert digest(str(case)) == digest(str(Case.parse(str(case))))


@settings(max_examples=60, deadline=None, derandomize=True)
@hypothesis_given(
    numbers=st.lists(
        st.floats(width=32) | st.sampled_from((-0.0, 1e-320, math.inf, -math.inf)), min_size=3, max_size=3
    )
)
def test_any_number_survives_printing(numbers: list[float]) -> None:
    """Every float that is no NaN is read back with all its bits, minus zero and subnormals included."""
    given_numbers = [0.5 if math.isnan(n) else n for n in numbers]
    case = Case(dtype="float64", kv_len=3, numbers=(("value", tuple((n,) for n in given_numbers)),))
    found = build(Case.parse(str(case))).value.flatten()
    assert found.view(torch.int64).equal(torch.tensor(given_numbers, dtype=torch.float64).view(torch.int64))


def test_equal_text_gives_equal_tensors_in_a_new_process() -> None:
    """The tensors are a function of the text alone: another process makes the same bits."""
    texts = [str(case) for case in (*seeded(prepared(), 40), *by_hypothesis(prepared(), 10))]
    code = "import sys, json; from tests.test_inputs import digest\n"
    code += "print(json.dumps([digest(text) for text in json.load(sys.stdin)]))"
    there = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps(texts),
        capture_output=True,
        text=True,
        check=True,
        timeout=50,
        cwd=Path(__file__).parent.parent,
    )
    assert json.loads(there.stdout) == [digest(text) for text in texts]


def test_another_seed_gives_other_tensors() -> None:
    """The seed of a case matters."""
    case = Case(kv_len=4, head_dim=2, mask="random", q_len=5)
    assert digest(str(case)) != digest(str(case.but(seed=1)))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("kv_len", "name=value"),
        ("kvlen=3", "name=value"),
        ("kv_len=three", "kv_len='three'"),
        ("query=normal", "query takes numbers in brackets"),
        ("query=[1,", "query="),
    ],
)
def test_a_case_that_cannot_be_read_says_where(text: str, problem: str) -> None:
    """One line names the token that is wrong."""
    with pytest.raises(CaseError, match=problem):
        Case.parse(text)


# How tensors lie in memory

SHAPE = (2, 3, 5, 7)
B, H, L, D = SHAPE
STRIDES = {
    "contiguous": (H * L * D, L * D, D, 1),
    "transposed": (L * H * D, D, H * D, 1),
    "dim-first": (H * L * D, L * D, 1, L),
    "sliced": (2 * H * L * D, 2 * L * D, 2 * D, 1),
    "cached": (H * (L + 5) * D, (L + 5) * D, D, 1),
    "packed": (3 * H * L * D, 3 * L * D, 3 * D, 1),
    "offset": (H * L * D, L * D, D, 1),
}


def numbers(shape: tuple[int, ...] = SHAPE) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def test_every_layout_is_promised_strides() -> None:
    """The table of strides below misses no layout."""
    assert {*STRIDES, "expanded", "expanded-heads"} == set(LAYOUTS)


@pytest.mark.parametrize("layout", STRIDES)
def test_a_layout_keeps_the_numbers_and_its_promise(layout: str) -> None:
    """Equal to the contiguous tensor, in memory of its own, with the strides that its docstring tells of."""
    x = numbers()
    laid_out = LAYOUTS[layout](x)
    assert torch.equal(laid_out, x)
    assert laid_out.stride() == STRIDES[layout]
    assert laid_out.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()
    assert (laid_out.storage_offset() > 0) == (layout in ("offset", "packed"))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (2, 3, 0, 4), (1, 2, 3, 1), (0, 1, 2, 3)])
def test_a_layout_takes_any_shape(layout: str, shape: tuple[int, ...]) -> None:
    """Sizes of 0 and 1 are laid out as well."""
    assert torch.equal(LAYOUTS[layout](numbers(shape)), numbers(shape))


@pytest.mark.parametrize(("layout", "axis"), [("expanded", 0), ("expanded-heads", 1)])
def test_an_expanded_layout_has_a_stride_of_zero(layout: str, axis: int) -> None:
    """A case with an expanded layout has equal keys along the axis, and they are stored once."""
    case = Case(batch=2, heads=3, kv_heads=3, kv_len=4, head_dim=2, value_dim=2, layout=layout)
    x = build(case)
    for plain in (x.key, x.value):
        assert torch.equal(plain, plain.narrow(axis, 0, 1).expand(plain.shape))
    _, key, value = lay_out((x.query, x.key, x.value), layout)
    assert (key.stride(axis), value.stride(axis)) == (0, 0)
    assert torch.equal(key, x.key)


@pytest.mark.parametrize("layout", MIXED)
def test_a_mixed_layout_lays_each_tensor_out_its_own_way(layout: str) -> None:
    """Query, key and value have the strides of the three layouts named."""
    found = lay_out([numbers()] * 3, layout)
    assert [x.stride() for x in found] == [STRIDES[name] for name in MIXED[layout]]
    assert all(torch.equal(x, numbers()) for x in found)


@pytest.mark.parametrize("layout", [*LAYOUTS, *MIXED])
@pytest.mark.parametrize("order", ["bhsd", "bshd", "sbhd"])
def test_a_subject_of_any_axis_order_meets_the_layouts(layout: str, order: str) -> None:
    """What the function is given equals the inputs, in the declared axis order, strided as promised."""
    given_tensors: dict[str, Tensor] = {}

    def spy(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        given_tensors.update(query=query, key=key, value=value)
        return query

    subject = AttentionSubject(Attention(spy, layout=order), dtypes=("float32",), arithmetic={})
    case = Case(batch=2, heads=3, kv_heads=3, q_len=4, kv_len=4, head_dim=5, value_dim=5, layout=layout)
    x = build(case)
    subject(x)
    back = [order.index(axis) for axis in "bhsd"]
    assert all(torch.equal(given_tensors[name].permute(back), getattr(x, name)) for name in given_tensors)
    strided = not all(tensor.is_contiguous() for tensor in given_tensors.values())
    offset = any(tensor.storage_offset() for tensor in given_tensors.values())
    assert strided or offset or layout == "contiguous"


@pytest.mark.parametrize("layout", MASK_LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.bool, torch.float16])
def test_a_mask_layout_keeps_the_mask_and_its_promise(layout: str, dtype: torch.dtype) -> None:
    """An equal mask in memory of its own: keys first, every second number, in a wider one, or expanded."""
    whole = (2, 3, 4, 5)
    mask = (numbers((2, 1, 4, 5)) > 0).to(dtype)
    found = lay_out_mask(mask, layout, whole)
    assert torch.equal(found.expand(whole), mask.expand(whole))
    assert found.untyped_storage().data_ptr() != mask.untyped_storage().data_ptr()
    strides = {
        "contiguous": (20, 20, 5, 1),
        "expanded": (20, 0, 5, 1),
        "keys-first": (20, 20, 1, 4),
        "sliced": (40, 40, 10, 2),
        "windowed": (32, 32, 8, 1),
    }
    assert found.stride() == strides[layout]


# Masks and values


@pytest.mark.parametrize("name", PATTERNS)
def test_only_marked_patterns_leave_dead_rows(name: str) -> None:
    """A pattern leaves a query without keys if and only if it is marked so."""
    generator = torch.Generator().manual_seed(0)
    dead = 0
    for number in range(60):
        random = Random(number)
        case = Case(batch=2, heads=2, q_len=random.randint(1, 9), kv_len=random.randint(1, 9))
        keep = PATTERNS[name](case, generator)
        assert (keep.dtype, keep.shape) == (torch.bool, (2, 2, case.q_len, case.kv_len))
        dead += int((~keep.any(-1)).sum())
    assert (dead > 0) == (name in DEAD_ROWS)


@pytest.mark.parametrize("axes", AXES)
def test_a_restricted_mask_has_the_axes_that_its_name_says(axes: str) -> None:
    """1 stands for an axis of size 1; leading axes may be absent; the rest is the mask's own first part."""
    sizes = {"b": 2, "h": 3, "q": 4, "k": 5, "1": 1}
    keep = numbers((2, 3, 4, 5)) > 0
    found = restrict(keep, axes)
    assert tuple(found.shape) == tuple(sizes[axis] for axis in axes)
    kept = [slice(None) if axis in "bhqk" else slice(0, 1) for axis in axes.rjust(4)]
    assert torch.equal(found, keep[tuple(kept)].reshape(found.shape))


def generated(case: Case, seed: int) -> values.Triple:
    return values.generate(case, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", REGIMES)
@pytest.mark.parametrize("scale", [None, 0.3, -0.5])
def test_continuous_regimes_have_no_ties_and_the_others_have_structure(
    name: str, scale: float | None
) -> None:
    """A regime marked continuous draws numbers that all differ, and so do its scores."""
    case = Case(heads=2, kv_heads=2, q_len=5, kv_len=40, head_dim=4, value_dim=3, values=name, scale=scale)
    for seed in range(5):
        query, key, value = generated(case, seed)
        scores = (query @ key.mT).sort(-1).values
        ties = sum(x.unique().numel() < x.numel() for x in (query, key, value))
        ties += int((scores[..., 1:] == scores[..., :-1]).sum())
        if name in CONTINUOUS:
            assert ties == 0
    if name in ("ties", "equal", "constant", "integers", "one-hot", "stagnating"):
        assert ties > 0
        assert name not in CONTINUOUS


def test_generic_inputs_have_no_tied_scores() -> None:
    """Where the generic tier of the bound is used, no two keys that a query sees have the same score."""
    tied = []
    for x in drawn_inputs():
        if x.is_generic:
            scores = x.problem.attended.scores.sort(-1).values
            equal = (scores[..., 1:] == scores[..., :-1]) & scores[..., 1:].isfinite()
            # Chance makes no ties in 52 bits; rounding the inputs to half precision may.
            if x.dtype in (torch.float32, torch.float64) and bool(equal.any()):
                tied.append(str(x.case))
    assert not tied, f"{len(tied)} of {len(drawn_inputs())} draws: {tied[:5]}"


def test_generic_inputs_are_of_continuous_regimes_only() -> None:
    """Neither written numbers nor structured regimes are judged by the generic tier."""
    assert not any(x.generic for x in hypothesis_inputs())
    assert {x.case.values for x in drawn_inputs() if x.generic} == CONTINUOUS


# Repairs

Predicate = Callable[[Case], bool]
HIDING = ("padding", "left-padding", "dead-prefix", "last-key-only", "all-dead")
REPAIRS: dict[str, tuple[given.Repair, Predicate]] = {
    "masked": (given.masked, lambda c: c.mask not in ("none", "all-true")),
    "hiding_keys": (given.hiding_keys, lambda c: c.mask in HIDING),
    "hiding_something": (
        given.hiding_something,
        lambda c: c.is_causal or c.window is not None or c.mask not in ("none", "all-true"),
    ),
    "boolean_mask": (
        given.boolean_mask,
        lambda c: c.mask not in ("none", "all-true") and c.mask_form == "boolean",
    ),
    "unmasked": (given.unmasked, lambda c: c.mask == "none" and not c.is_causal and c.window is None),
    "no_mask": (given.no_mask, lambda c: c.mask == "none"),
    "not_causal": (given.not_causal, lambda c: not c.is_causal and c.window is None and not c.alibi),
    "without_causal": (given.without_causal, lambda c: not c.is_causal),
    "causal": (given.causal, lambda c: c.is_causal),
    "live_rows": (given.live_rows, lambda c: c.mask not in DEAD_ROWS and c.mask_axes != "bhq1"),
    "default_scale": (given.default_scale, lambda c: c.scale is None),
    "plain": (
        given.plain,
        lambda c: not c.sinks and c.softcap is None and not c.alibi and c.window is None,
    ),
    "without": (given.without("sinks", "window"), lambda c: not c.sinks and c.window is None),
    "at_least": (shared.at_least(kv_len=3, batch=2), lambda c: c.kv_len >= 3 and c.batch >= 2),
    "at_most": (shared.at_most(kv_len=3, q_len=2), lambda c: c.kv_len <= 3 and c.q_len <= 2),
    "one_in": (
        shared.one_in(3, given.unmasked, shared.at_most(q_len=1)),
        lambda c: (
            c.written_out
            or c.seed // 11 % 3 > 0
            or (c.mask == "none" and c.q_len == 1 and not c.is_causal and c.window is None)
        ),
    ),
    "long_rows": (
        given.long_rows,
        lambda c: c.kv_len > 1024 and c.batch == 1 and max(c.q_len - 2, c.head_dim - 4, c.value_dim - 4) <= 0,
    ),
    "beside_a_block": (given.beside_a_block, lambda c: c.kv_len in (15, 16, 17, 31, 32, 33, 63, 64, 65)),
    "alike": (given.alike("batch", "heads"), lambda c: c.batch == c.heads),
    "equal_heads": (given.equal_heads, lambda c: c.kv_heads == c.heads),
    "grouped": (given.grouped, lambda c: 1 < c.kv_heads < c.heads),
    "having": (shared.having(batch=2), lambda c: c.batch == 2),
    "one_of": (shared.one_of("mask_form", "bias", "additive"), lambda c: c.mask_form in ("bias", "additive")),
}


def test_no_repair_is_missing_here() -> None:
    """Every public function of `given` is under test below."""
    public = {
        name
        for module in (given, shared)
        for name, each in vars(module).items()
        if inspect.isfunction(each) and each.__module__ == module.__name__ and not name.startswith("_")
    }
    assert public == set(REPAIRS)


@pytest.mark.parametrize("name", REPAIRS)
def test_a_repair_does_what_it_says_once(name: str) -> None:
    """After it the case is where its docstring says; a case that was there already is left alone."""
    repair, there = REPAIRS[name]
    cases = [*seeded(prepared(), 400), *by_hypothesis(prepared(), 60)]
    moved = 0
    for case in cases:
        repaired = repair(case)
        assert there(repaired), f"{name}: {case}"
        assert repair(repaired) == repaired
        if there(case):
            assert repaired == case, f"{name} changed a case that was there: {case}"
        moved += repaired != case
    assert moved > 0


def test_live_rows_live() -> None:
    """After `live_rows`, a mask by itself leaves every query a key."""
    for case in seeded(prepared(), 600):
        alone = given.live_rows(case).but(is_causal=False, window=None)
        x = build(drawing.fit(alone, prepared()))
        assert not bool(x.dead_rows.any()), str(alone)


@pytest.mark.parametrize("law", choose("attention"), ids=lambda law: law.id)
def test_preparing_a_case_for_a_law_is_done_in_one_go(law: Law) -> None:
    """Repairing and fitting a case twice is doing it once: or it could not be made smaller."""
    for subject in (prepared(), strict("refused"), strict("square"), strict("boolean")):
        if any(subject.lacks(feature) for feature in law.needs):
            continue
        for case in seeded(subject, 60):
            once = drawing.fit(law.repaired(case), subject)
            assert drawing.fit(law.repaired(once), subject) == once
