"""What is declared is held to, and what is only inferred is not a promise."""

import os
import pickle
import signal
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import headcheck
from headcheck.arithmetic import named
from headcheck.attention.role import role
from headcheck.comparison import LawBroken
from headcheck.declarations import Attention
from headcheck.errors import SubjectError
from headcheck.laws import all_laws, choose
from headcheck.pasting import pasted
from headcheck.reference.canonical import canonical_attention
from tests.engines import OUTPUT, PLAIN, engine_of

# Declared and inferred


def without_softcap(query: Tensor, key: Tensor, value: Tensor, softcap: float | None = None) -> Any:
    if softcap is not None:
        raise NotImplementedError("softcap comes later")
    return canonical_attention(query, key, value)


CAPS = "attention/features/a-softcap-caps-the-scores"


def test_a_declared_feature_that_is_not_implemented_is_a_break() -> None:
    """softcap=True, and the function raises NotImplementedError: the law of the softcap is broken."""
    row = engine_of(Attention(without_softcap, softcap=True)).judge(all_laws()[CAPS])
    assert row.outcome == "breaks"
    assert row.reason.startswith(
        "raised NotImplementedError: softcap comes later (where such calls are meant"
    )


def test_an_inferred_feature_that_is_not_implemented_is_not_applicable() -> None:
    """The signature has it, nobody declared it: not applicable, with what the function said."""
    row = engine_of(Attention(without_softcap)).judge(all_laws()[CAPS])
    assert row.outcome == "not-applicable"
    assert "softcap comes later" in row.reason
    assert engine_of(Attention(without_softcap)).judge(all_laws()[OUTPUT]).outcome == "holds"


@pytest.mark.parametrize(
    ("kind", "outcome"),
    [(ValueError, "not-applicable"), (TypeError, "not-applicable"), (RuntimeError, "breaks")],
)
def test_what_a_plain_call_refuses_in_so_many_words_is_not_asked_for(
    kind: type[Exception], outcome: str
) -> None:
    """A ValueError or TypeError for a plain softcap is a refusal, and a note says so; a RuntimeError is a finding."""

    def refuses(query: Tensor, key: Tensor, value: Tensor, softcap: float | None = None) -> Any:
        if softcap is not None:
            raise kind("softcap comes later")
        return canonical_attention(query, key, value)

    engine = engine_of(Attention(refuses))
    row = engine.judge(all_laws()[CAPS])
    assert row.outcome == outcome
    assert "softcap comes later" in row.reason
    assert engine_of(Attention(refuses, softcap=True)).judge(all_laws()[CAPS]).outcome == "breaks"


def causal_by_default(query: Tensor, key: Tensor, value: Tensor, causal: bool = True) -> Any:
    return canonical_attention(query, key, value, is_causal=causal)


def as_in_a_tutorial(q: Tensor, k: Tensor, v: Tensor, causal: bool, sm_scale: float) -> Any:
    return canonical_attention(q, k, v, is_causal=causal, scale=sm_scale)


def by_keyword(*, query: Tensor, key: Tensor, value: Tensor) -> Any:
    return canonical_attention(query, key, value)


class Module(torch.nn.Module):
    """Its own signature says nothing; that of forward does."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Any:
        return canonical_attention(query, key, value, attn_mask=mask)


@pytest.mark.parametrize("function", [causal_by_default, as_in_a_tutorial, by_keyword, Module()])
def test_a_function_is_called_as_its_signature_asks(function: Any) -> None:
    """Causal unless told otherwise, arguments without a default, keywords only, a module's forward."""
    verdict = headcheck.verify(function, profile="quick", dtype="float32", laws=("accuracy", "masks"))
    assert verdict.conforms, repr(verdict)


def test_a_call_that_may_be_refused_does_not_tell_of_grouped_heads() -> None:
    """No answer is no proof that fewer key heads are taken."""

    def causal_only(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> Any:
        if not is_causal:
            raise NotImplementedError("only causal")
        return canonical_attention(query, key, value, is_causal=True, enable_gqa=False)

    prepared = role.prepare(Attention(causal_only, may_refuse=True), dtypes=(), device="cpu", seed=0)[0]
    assert prepared.lacks("grouped_heads")


def repeating(query: Tensor, key: Tensor, value: Tensor) -> Any:
    """Grouped heads without an argument for them."""
    group = query.shape[1] // key.shape[1]
    return canonical_attention(query, key.repeat_interleave(group, 1), value.repeat_interleave(group, 1))


def tiling(query: Tensor, key: Tensor, value: Tensor) -> Any:
    """The same in the wrong order."""
    group = query.shape[1] // key.shape[1]
    return canonical_attention(query, key.repeat(1, group, 1, 1), value.repeat(1, group, 1, 1))


def broadcasting(query: Tensor, key: Tensor, value: Tensor) -> Any:
    """One key head serves all by accident, two do not fit four."""
    return torch.softmax(query @ key.mT * query.shape[-1] ** -0.5, dim=-1) @ value


def careless(query: Tensor, key: Tensor, value: Tensor) -> Any:
    """Other key heads than it expects end its process, as those of a kernel that reads past its tensors."""
    if query.shape[1] != key.shape[1]:
        os.kill(os.getpid(), signal.SIGSEGV)
    return canonical_attention(query, key, value)


def mixing(query: Tensor, key: Tensor, value: Tensor) -> Any:
    """Keys in one order, values in the other."""
    group = query.shape[1] // key.shape[1]
    return canonical_attention(query, key.repeat_interleave(group, 1), value.repeat(1, group, 1, 1))


def reshaping(query: Tensor, key: Tensor, value: Tensor) -> Any:
    """Fewer key heads pass for as many, each of a part of the length."""
    key, value = (x.reshape(*query.shape[:2], -1, x.shape[-1]) for x in (key, value))
    return canonical_attention(query, key, value)


@pytest.mark.parametrize(
    ("function", "outcome"),
    [
        (repeating, "holds"),
        (tiling, "breaks"),
        (mixing, "breaks"),
        (broadcasting, "not-applicable"),
        (reshaping, "not-applicable"),
        (careless, "not-applicable"),
    ],
)
def test_grouped_heads_are_found_without_an_argument_for_them(
    function: Callable[..., Any], outcome: str
) -> None:
    """Who takes fewer key heads in either order is judged; who does not, or dies of it, is not."""
    engine = engine_of(Attention(function, dtypes=("float32",)))
    assert engine.judge(all_laws()["attention/heads/grouped-heads-equal-repeated-heads"]).outcome == outcome


def test_grouped_heads_are_found_in_sixteen_bits_alone() -> None:
    """However coarsely it rounds, step by step."""

    def stepwise(query: Tensor, key: Tensor, value: Tensor) -> Any:
        assert query.dtype == torch.bfloat16
        group = query.shape[1] // key.shape[1]
        scores = (query / query.shape[-1] ** 0.5) @ key.repeat_interleave(group, 1).mT
        return torch.softmax(scores, dim=-1) @ value.repeat_interleave(group, 1)

    prepared, notes = role.prepare(Attention(stepwise), dtypes=("bfloat16",), device="cpu", seed=0)
    assert prepared.has("grouped_heads")
    assert not any(note.startswith("fewer key heads") for note in notes)


def test_fewer_key_heads_that_are_taken_and_not_judged_are_told() -> None:
    """Nobody can say whether they are meant."""

    def told(function: Callable[..., Any]) -> bool:
        notes = role.prepare(Attention(function), dtypes=("float32",), device="cpu", seed=0)[1]
        return any(note.startswith("fewer key heads than query heads are taken") for note in notes)

    assert told(reshaping)
    assert not any(map(told, (repeating, broadcasting, careless)))


REFUSED = "attention/features/what-is-declared-unsupported-is-refused"


def test_a_feature_declared_unsupported_must_raise() -> None:
    """softcap=False, and the function silently takes one and ignores it: some law is broken."""

    def ignores(query: Tensor, key: Tensor, value: Tensor, softcap: float | None = None) -> Any:
        return canonical_attention(query, key, value)

    engine = engine_of(Attention(ignores, softcap=False))
    broken = [each.id for each in choose("attention") if engine.judge(each).outcome == "breaks"]
    assert broken == [REFUSED]


def test_a_feature_that_raises_as_declared_is_right() -> None:
    """softcap=False, and the function refuses one: the law about it holds."""

    def refuses(query: Tensor, key: Tensor, value: Tensor, softcap: float | None = None) -> Any:
        if softcap is not None:
            raise TypeError("no softcap here")
        return canonical_attention(query, key, value)

    assert engine_of(Attention(refuses, softcap=False)).judge(all_laws()[REFUSED]).outcome == "holds"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda output: output[..., :1], r"output has shape \(1, 2, 3, 1\), expected \(1, 2, 3, 2\)"),
        (lambda output: output.double(), "output has dtype torch.float64, expected torch.float32"),
        (lambda output: output.tolist(), "returned a list, expected a torch.Tensor"),
        (lambda output: None, r"returned None \(is a return missing\?\), expected a torch.Tensor"),
        (lambda output: (output,), "returned a tuple, expected a torch.Tensor"),
    ],
)
def test_an_output_of_the_wrong_form_is_a_break(wrong: Callable[[Tensor], Any], message: str) -> None:
    """Shape, dtype and type are named, as they are and as they should be."""

    def subject(query: Tensor, key: Tensor, value: Tensor) -> Any:
        output = canonical_attention(query, key, value)
        return output if key.shape[2] == 3 else wrong(output)  # type: ignore[arg-type]  # Never right is no subject.

    engine = engine_of(Attention(subject, dtypes=("float32",)))
    error = engine.example(all_laws()[OUTPUT], PLAIN).error
    with pytest.raises(LawBroken, match=f"^{message}$"):
        raise LawBroken(error)


# Told


@pytest.mark.parametrize(
    ("declaration", "field"),
    [
        (headcheck.CausalLM(canonical_attention, step=without_softcap), "step"),
        (headcheck.Seq2Seq(canonical_attention, encode=without_softcap), "encode"),
        (headcheck.Seq2Seq(canonical_attention, decode=without_softcap), "decode"),
        (headcheck.MultiHeadAttention(canonical_attention, load=without_softcap), "load"),
    ],
)
def test_a_declared_function_is_told_by_its_name(declaration: Any, field: str) -> None:
    """In the verdict, which goes to other processes and into JSON, and in what is to be pasted."""
    assert declaration.summary() == {field: "without_softcap"}
    assert f"{field}=without_softcap" in pasted(declaration, "subject")


# Autocast


UNDER_AUTOCAST = "attention/dtypes/under-autocast-the-output-is-within-the-lower-bound"


def refuses_autocast(query: Tensor, key: Tensor, value: Tensor) -> Any:
    if torch.is_autocast_enabled("cpu"):
        raise RuntimeError("no autocast here")
    return canonical_attention(query, key, value)


def ignores_autocast(query: Tensor, key: Tensor, value: Tensor) -> Any:
    with torch.autocast("cpu", enabled=False):
        return canonical_attention(query, key, value)


def follows_autocast(query: Tensor, key: Tensor, value: Tensor) -> Any:
    return torch.nn.functional.scaled_dot_product_attention(query, key, value)


@pytest.mark.parametrize(
    ("declared", "outcome"), [(None, "not-applicable"), (True, "breaks"), (False, "not-applicable")]
)
def test_who_raises_under_autocast_is_held_to_it_only_if_declared(
    declared: bool | None, outcome: str
) -> None:
    """Undeclared it is tried, and what a plain call said is the reason."""
    row = engine_of(Attention(refuses_autocast, autocast=declared)).judge(all_laws()[UNDER_AUTOCAST])
    assert row.outcome == outcome
    if declared is not False:
        assert "no autocast here" in row.reason


@pytest.mark.parametrize("function", [ignores_autocast, follows_autocast])
def test_autocast_may_be_ignored(function: Callable[..., Any]) -> None:
    """An answer in float32 is as good as one in bfloat16."""
    assert engine_of(Attention(function)).judge(all_laws()[UNDER_AUTOCAST]).outcome == "holds"


def test_a_function_in_a_declaration_is_told_by_its_name() -> None:
    """A verdict, which goes from process to process and into JSON, names `step` and `load`."""

    def step(module: Any, tokens: Any, cache: Any) -> Any:
        return module, tokens, cache

    for declared, field in (
        (headcheck.CausalLM(torch.nn.Identity(), step=step), "step"),
        (headcheck.MultiHeadAttention(torch.nn.Identity(), load=step), "load"),
    ):
        assert declared.summary()[field].endswith("step")
        pickle.dumps(declared.summary())


@pytest.mark.parametrize(
    ("declaration", "field", "wrong"),
    [
        (headcheck.Attention, "masks", ("float",)),
        (headcheck.Attention, "mask_shapes", ("kq",)),
        (headcheck.MultiHeadAttention, "mask_shapes", ("kq",)),
        (headcheck.Encoder, "padding", ("both",)),
        (headcheck.CausalLM, "padding", ("both",)),
    ],
)
def test_each_of_several_must_be_known(declaration: Any, field: str, wrong: tuple[object, ...]) -> None:
    """A field that holds several things refuses one that headcheck does not know, and says what it knows."""
    with pytest.raises(SubjectError, match=f"^{field}=.* is not a convention headcheck knows; choose one of"):
        declaration(lambda x: x, **{field: wrong})


@pytest.mark.parametrize(
    ("declared", "told"),
    [
        ({"dtypes": "float16"}, r"dtypes='float16' holds several: write dtypes=\('float16',\)"),
        ({"devices": "cuda"}, r"devices='cuda' holds several: write devices=\('cuda',\)"),
        ({"arithmetic": "fast"}, "arithmetic='fast' is not .* choose one of 'wide', 'flash'"),
        ({"arithmetic": {"half": "wide"}}, "arithmetic='half' is not .* choose one of 'float32'"),
    ],
)
def test_a_mistyped_declaration_is_refused_where_it_is_made(declared: dict[str, Any], told: str) -> None:
    """A word where several belong, and a model of arithmetic that there is none of, in one line with the cure."""
    with pytest.raises(SubjectError, match=told):
        Attention(canonical_attention, **declared)


def off_by_three(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return canonical_attention(query, key, value) + 3


def test_no_arithmetic_is_inferred_where_none_explains_the_errors() -> None:
    """A wrong function is not said to round in a way that a model describes."""
    prepared = role.prepare(Attention(off_by_three), dtypes=("bfloat16",), device="cpu", seed=0)
    assert "bfloat16: no model of arithmetic explains its errors; held to wide" in prepared[1]


def answers_in_pairs(query: Tensor, key: Tensor, value: Tensor, softcap: float | None = None) -> Any:
    output = canonical_attention(query, key, value)
    return output if softcap is None else (output, None)


def test_an_answer_of_the_wrong_kind_is_no_refusal() -> None:
    """What is declared absent is refused by an exception, not by a tuple."""
    assert (
        engine_of(Attention(answers_in_pairs, softcap=False)).judge(all_laws()[REFUSED]).outcome == "breaks"
    )


def test_a_sink_is_far_below_the_lowest_score() -> None:
    """Scores of minus a million: a sink of minus 60,000 would take all."""
    case = "sinks=true query=[[1000.0]] key=[[-1000.0]] value=[[1.0]]"
    row = headcheck.replay("reference", "attention/features/a-sink-far-below-takes-nothing", case)
    assert row.outcome == "holds", row.counterexample


DOUBLES = "attention/dtypes/doubles-are-computed-as-doubles"


def in_float32(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """float64 is answered by way of float32."""
    return canonical_attention(query.float(), key.float(), value.float()).to(query.dtype)


def test_float64_in_float32_breaks_one_law_and_no_other() -> None:
    """Undeclared, one law says that doubles are computed as singles; the others allow for it."""
    engine = engine_of(Attention(in_float32, dtypes=("float64",)))
    assert engine.judge(all_laws()[DOUBLES]).outcome == "breaks"
    assert engine.judge(all_laws()[OUTPUT]).outcome == "holds"


def test_float64_in_float32_may_be_declared() -> None:
    """Declared, it is what the laws hold the function to."""
    declared = replace(named("native"), inputs="float32")
    engine = engine_of(Attention(in_float32, dtypes=("float64",), arithmetic={"float64": declared}))
    assert engine.judge(all_laws()[DOUBLES]).outcome == "not-applicable"
    assert engine.judge(all_laws()[OUTPUT]).outcome == "holds"
