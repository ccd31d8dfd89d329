"""A text is a case, and a case is tensors: how they lie in memory, masks and values."""

import hashlib
import json
import math
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given as hypothesis_given
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor

from headcheck.attention import values
from headcheck.attention.case import Case
from headcheck.attention.inputs import build
from headcheck.attention.patterns import DEAD_ROWS, PATTERNS, restrict
from headcheck.attention.role import OPTIONS, role
from headcheck.attention.strides import MASK_STRIDES, MIXED, STRIDES, lay_out, lay_out_mask
from headcheck.attention.subject import AttentionSubject
from headcheck.attention.values import CONTINUOUS, REGIMES
from headcheck.declarations import BROADCAST_SHAPES, Attention
from headcheck.errors import CaseError
from headcheck.recipes import options_of
from headcheck.roles import HOMES
from headcheck.roles import role as role_named
from tests.drawn import SEEDED, by_hypothesis, drawn_inputs, hypothesis_inputs, prepared, seeded

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


def test_words_of_python_are_read_as_well() -> None:
    """True, False and None, as somebody types them who writes Python all day."""
    assert Case.parse("is_causal=True sinks=False scale=None") == Case(is_causal=True)


def test_another_seed_gives_other_tensors() -> None:
    """The seed of a case matters."""
    case = Case(kv_len=4, head_dim=2, mask="random", q_len=5)
    assert digest(str(case)) != digest(str(case.but(seed=1)))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("kv_len", "'kv_len' in the case, where a token is name=value"),
        ("kvlen=3", "'kvlen=3' in the case, .*did you mean kv_len="),
        ("bogus=3", "'bogus=3' in the case, .*the names are dtype, seed, batch, heads"),
        ("kv_len=two", "kv_len=two in the case: kv_len is a whole number, 1 or more"),
        ("kv_len=0", "kv_len is a whole number, 1 or more"),
        ("kv_len=2.5", "kv_len is a whole number, 1 or more"),
        ("kv_len=true", "kv_len is a whole number, 1 or more"),
        ("seed=-1", "seed is a whole number, 0 or more"),
        ("is_causal=yes", "is_causal=yes in the case: is_causal is true or false"),
        ("is_causal=1", "is_causal is true or false"),
        ("scale=wide", "scale is a number or null"),
        ("window=3", r"window is \[a whole number or null, a whole number or null\] or null"),
        ("window=[1]", r"window is \[a whole number or null, "),
        ("dtype=float31", "dtype is one of float32, float64, bfloat16, float16"),
        ("mask=banana", "mask is one of none, all-true, random, "),
        ("mask_form=odd", "mask_form is one of boolean, additive, lowest, bias"),
        ("mask_axes=zz", "mask_axes is one of bhqk, "),
        ("values=odd", "values is one of normal, "),
        ("strides=odd", "strides is one of contiguous, .*mixed"),
        ("mask_strides=odd", "mask_strides is one of contiguous, "),
        ("cotangent_strides=odd", "cotangent_strides is one of contiguous, "),
        ("query=normal", "query is numbers in brackets"),
        ("query=[1,", "query is numbers in brackets"),
        ('query=["a"]', "query is numbers in brackets"),
        ("kv_len=2 key=[[1.0]]", r"key holds 1 numbers in the case; its shape \(1, 1, 2, 1\) asks for 2"),
        (
            "kv_len=99999999999",
            "kv_len=99999999999 is too large in the case: a tensor would hold 99,999,999,999",
        ),
        ("q_len=200000 kv_len=300000", "kv_len=300000 is too large in the case"),
    ],
)
def test_a_case_that_cannot_be_read_says_where(text: str, problem: str) -> None:
    """One line names the field, what it was given and what it may be."""
    with pytest.raises(CaseError, match=problem) as raised:
        role.parse(text)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", HOMES)
def test_whatever_a_field_may_be_is_read(name: str) -> None:
    """Each option of each field of each role, as a case writes it, is the case itself again."""
    of_role: Any = role_named(name)
    plain = of_role.parse("")
    more = OPTIONS if isinstance(plain, Case) else {}
    for each in fields(plain):
        for value in {*options_of(each), *more.get(each.name, ())}:
            case = plain.but(**{each.name: value})
            assert of_role.parse(str(case)) == case


def test_every_text_of_an_attention_case_has_its_options() -> None:
    """A field of text that is added without them would be read as anything."""
    assert {each.name for each in fields(Case) if each.type is str} == {*OPTIONS, "dtype"}


# How tensors lie in memory

SHAPE = (2, 3, 5, 7)
B, H, L, D = SHAPE
EXPANDED = {"expanded", "expanded-heads", "expanded-queries", "expanded-rows"}
EXPECTED = {
    "contiguous": (H * L * D, L * D, D, 1),
    "transposed": (L * H * D, D, H * D, 1),
    "dim-first": (H * L * D, L * D, 1, L),
    "sliced": (2 * H * L * D, 2 * L * D, 2 * D, 1),
    "cached": (H * (L + 5) * D, (L + 5) * D, D, 1),
    "packed": (3 * H * L * D, 3 * L * D, 3 * D, 1),
    "offset": (H * L * D, L * D, D, 1),
    "stacked": ((H + 2) * L * D, L * D, D, 1),
    "projected": (L * 3 * H * D, D, 3 * H * D, 1),
}


def numbers(shape: tuple[int, ...] = SHAPE) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def test_every_layout_is_promised_strides() -> None:
    """The table of strides below misses no layout."""
    assert {*EXPECTED, *EXPANDED} == set(STRIDES)


@pytest.mark.parametrize("layout", EXPECTED)
def test_a_layout_keeps_the_numbers_and_its_promise(layout: str) -> None:
    """Equal to the contiguous tensor, in memory of its own, with the strides that its docstring tells of."""
    x = numbers()
    laid_out = STRIDES[layout](x)
    assert torch.equal(laid_out, x)
    assert laid_out.stride() == EXPECTED[layout]
    assert laid_out.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()
    assert (laid_out.storage_offset() > 0) == (layout in ("offset", "packed", "projected"))


def test_projected_together_they_share_one_memory() -> None:
    """Where the shapes allow it, query, key and value are parts of one projection, fewer key heads included."""
    query, key, value = numbers(), numbers()[:, :1], numbers()[:, 1:2]
    laid_out = lay_out((query, key, value), "projected")
    assert len({x.untyped_storage().data_ptr() for x in laid_out}) == 1
    assert all(map(torch.equal, laid_out, (query, key, value)))
    longer = lay_out((query, key, numbers((B, 1, L, D + 1))), "projected")
    assert len({x.untyped_storage().data_ptr() for x in longer}) == 3


@pytest.mark.parametrize("layout", ["expanded-queries", "expanded-rows"])
def test_queries_are_expanded_where_all_are_one(layout: str) -> None:
    """The query alone has a stride of zero: over the batch, or over the length."""
    x = build(Case(batch=2, q_len=3, kv_len=3, head_dim=2, value_dim=2, strides=layout))
    query, key, _ = lay_out((x.query, x.key, x.value), layout)
    assert query.stride(0 if layout == "expanded-queries" else 2) == 0
    assert 0 not in key.stride()


@pytest.mark.parametrize("layout", STRIDES)
@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (2, 3, 0, 4), (1, 2, 3, 1), (0, 1, 2, 3)])
def test_a_layout_takes_any_shape(layout: str, shape: tuple[int, ...]) -> None:
    """Sizes of 0 and 1 are laid out as well."""
    assert torch.equal(STRIDES[layout](numbers(shape)), numbers(shape))


@pytest.mark.parametrize(("layout", "axis"), [("expanded", 0), ("expanded-heads", 1)])
def test_an_expanded_layout_has_a_stride_of_zero(layout: str, axis: int) -> None:
    """A case with an expanded layout has equal keys along the axis, and they are stored once."""
    case = Case(batch=2, heads=3, kv_heads=3, kv_len=4, head_dim=2, value_dim=2, strides=layout)
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
    assert [x.stride() for x in found] == [EXPECTED[name] for name in MIXED[layout]]
    assert all(torch.equal(x, numbers()) for x in found)


@pytest.mark.parametrize("layout", [*STRIDES, *MIXED])
@pytest.mark.parametrize("order", ["bhsd", "bshd", "sbhd"])
def test_a_subject_of_any_axis_order_meets_the_layouts(layout: str, order: str) -> None:
    """What the function is given equals the inputs, in the declared axis order, strided as promised."""
    given_tensors: dict[str, Tensor] = {}

    def spy(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        given_tensors.update(query=query, key=key, value=value)
        return query

    subject = AttentionSubject(Attention(spy, layout=order), dtypes=("float32",), arithmetic={})
    case = Case(batch=2, heads=3, kv_heads=3, q_len=4, kv_len=4, head_dim=5, value_dim=5, strides=layout)
    x = build(case)
    subject(x)
    back = [order.index(axis) for axis in "bhsd"]
    assert all(torch.equal(given_tensors[name].permute(back), getattr(x, name)) for name in given_tensors)
    strided = not all(tensor.is_contiguous() for tensor in given_tensors.values())
    offset = any(tensor.storage_offset() for tensor in given_tensors.values())
    assert strided or offset or layout == "contiguous"


@pytest.mark.parametrize("layout", MASK_STRIDES)
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


@pytest.mark.parametrize("axes", BROADCAST_SHAPES)
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
    assert not tied, f"{len(tied)} of {SEEDED} draws: {tied[:5]}"


def test_generic_inputs_are_of_continuous_regimes_only() -> None:
    """Neither written numbers nor structured regimes are judged by the generic tier."""
    assert not any(x.generic for x in hypothesis_inputs())
    assert {x.case.values for x in drawn_inputs() if x.generic} == CONTINUOUS


def test_the_dtypes_at_play_are_those_of_the_tensors_what_they_promote_to_and_autocasts() -> None:
    """The narrowest of them sets the bound."""
    x = build(Case(heads=1, kv_heads=1, q_len=2, kv_len=2, head_dim=2, value_dim=2))
    assert (x.dtypes, x.narrowest) == ({torch.float32}, torch.float32)
    mixed = x.but(
        key=x.key.to(torch.float16), query=x.query.to(torch.bfloat16), value=x.value.to(torch.float16)
    )
    assert mixed.dtypes == {torch.float16, torch.bfloat16, torch.float32}
    assert mixed.narrowest == torch.bfloat16
    assert x.but(autocast=torch.float16).narrowest == torch.float16
