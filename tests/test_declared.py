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
from torch.nn import functional

import headcheck
from headcheck.arithmetic import named
from headcheck.attention.forms import gradient_of_shape, in_broadcast_shape, of_shape, shape_for
from headcheck.attention.role import role
from headcheck.comparison import LawBroken, NotApplicable
from headcheck.declarations import Attention
from headcheck.engine import Profile
from headcheck.errors import SubjectError
from headcheck.functions.softmax import Softmax
from headcheck.functions.softmax import role as softmax_role
from headcheck.laws import all_laws, choose, law_named
from headcheck.pasting import pasted
from headcheck.reference.canonical import canonical_attention
from tests.engines import GRADIENTS, OUTPUT, PLAIN, engine_of


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


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


def detaching(*names: str) -> Callable[..., Any]:
    """Attention whose output does not depend on these inputs for autograd."""

    def attention(query: Tensor, key: Tensor, value: Tensor) -> Any:
        given = {"query": query, "key": key, "value": value}
        return canonical_attention(**{n: x.detach() if n in names else x for n, x in given.items()})

    return attention


@pytest.mark.parametrize("declared", [None, True])
@pytest.mark.parametrize("missing", ["query", "key", "value"])
def test_a_gradient_that_is_missing_for_one_input_is_a_break(missing: str, declared: bool | None) -> None:
    """Gradients for some inputs and none for another, declared or not."""
    row = engine_of(Attention(detaching(missing), gradients=declared)).judge(all_laws()[GRADIENTS])
    assert (row.outcome, row.reason) == ("breaks", f"the output carries a gradient, but none for {missing}")


@pytest.mark.parametrize(
    "law", ["state/inference-mode-leaves-nothing", "state/an-input-changed-before-backward"]
)
@pytest.mark.parametrize("missing", ["query", "key", "value"])
def test_no_law_of_gradients_passes_over_one_that_is_missing(missing: str, law: str) -> None:
    """Whichever of the three it asks for."""
    (each,) = choose("attention", [f"attention/{law}"])
    row = engine_of(Attention(detaching(missing)), Profile("some", seeded=20, drawn=0, shrinks=0)).judge(each)
    assert row.outcome == "breaks"


class ForgetsTheQuery(torch.autograd.Function):
    """Attention whose query has its gradient the first time only."""

    @staticmethod
    def forward(ctx: Any, query: Tensor) -> Tensor:
        ctx.asked = 0
        return query.clone()

    @staticmethod
    def backward(ctx: Any, *sent: Tensor) -> Tensor:
        ctx.asked += 1
        return sent[0] if ctx.asked == 1 else torch.zeros_like(sent[0])


def test_the_second_gradient_of_the_query_is_looked_at() -> None:
    """As those of key and value are."""

    def attention(query: Tensor, key: Tensor, value: Tensor) -> Any:
        return canonical_attention(ForgetsTheQuery.apply(query), key, value)

    law = all_laws()["attention/gradients/a-second-backward-gives-the-same"]
    row = engine_of(Attention(attention)).judge(law)
    assert row.outcome == "breaks"
    assert "gradient of query, the second time" in row.reason


def test_a_rate_of_zero_that_is_said_is_another_call_than_none() -> None:
    """Where the default is no dropout at all, zero may be taken for something else."""

    def attention(query: Tensor, key: Tensor, value: Tensor, dropout_p: float | None = None) -> Tensor:
        rate = 0.0 if dropout_p is None else dropout_p or 0.5
        return functional.scaled_dot_product_attention(query, key, value, dropout_p=rate)

    row = engine_of(Attention(attention)).judge(law_named("attention/dropout/a-rate-of-zero-drops-nothing"))
    assert row.outcome == "breaks"


def test_rows_without_keys_that_are_declared_to_give_the_mean_may_have_any_log_sum_exp() -> None:
    """It is that of scores that were filled in."""

    def attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Any:
        scores = query @ key.mT / query.shape[-1] ** 0.5
        if attn_mask is not None:
            scores = scores.masked_fill(~attn_mask, torch.finfo(scores.dtype).min)
        return scores.softmax(dim=-1) @ value, scores.logsumexp(dim=-1)

    mean = Attention(attention, masks=("boolean",), returns=("output", "log_sum_exp"), empty_rows="mean")
    each = law_named("attention/features/log-sum-exp-is-within-the-bound")
    profile = Profile("some", seeded=60, drawn=0)
    assert engine_of(mean, profile).judge(each).outcome == "holds"
    assert engine_of(mean.but(empty_rows=None), profile).judge(each).outcome == "holds"
    assert engine_of(mean.but(empty_rows="zeros"), profile).judge(each).outcome == "breaks"


def test_no_gradient_at_all_is_not_applicable_unless_declared() -> None:
    """Without a backward the gradient laws do not apply; a subject that declares gradients breaks them."""
    function = detaching("query", "key", "value")
    undeclared = engine_of(Attention(function)).judge(all_laws()[GRADIENTS])
    assert (undeclared.outcome, undeclared.reason) == ("not-applicable", "the output carries no gradient")
    declared = engine_of(Attention(function, gradients=True)).judge(all_laws()[GRADIENTS])
    assert (declared.outcome, declared.reason) == (
        "breaks",
        "the output carries no gradient, and gradients are declared",
    )
    ruled_out = engine_of(Attention(function, gradients=False)).judge(all_laws()[GRADIENTS])
    assert (ruled_out.outcome, ruled_out.reason) == ("not-applicable", "has no gradients, as declared")


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


REFUSED = "attention/features/what-is-declared-unsupported-is-refused"


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


def test_a_mask_and_its_gradient_in_other_axes() -> None:
    """Axes of one come and go, what is alike is said once, and what differs cannot be."""
    mask, sizes = torch.tensor([[True, False], [True, True]]), (3, 4, 2, 2)
    assert shape_for(mask, ("bhqk",), sizes) == "bhqk"
    assert of_shape(mask, "bhqk", sizes).shape == sizes
    whole = mask.expand(sizes).clone()
    assert shape_for(whole, ("qk", "bk"), sizes) == "qk"
    assert torch.equal(of_shape(whole, "qk", sizes), mask)
    keys = mask[:, None, None, :].expand(2, 4, 5, 2)
    assert shape_for(keys, ("qk", "bk"), (2, 4, 5, 2)) == "bk"
    assert torch.equal(of_shape(keys, "bk", (2, 4, 5, 2)), mask)
    assert of_shape(keys, "bqk", (2, 4, 5, 2)).shape == (2, 5, 2)
    with pytest.raises(
        NotApplicable, match="takes attn_mask in the shape qk only, which cannot say this one"
    ):
        shape_for(keys, ("qk",), (2, 4, 5, 2))
    assert in_broadcast_shape(mask, "bk").shape == (2, 1, 1, 2)
    gradient = torch.ones(2, 3, 4, 5)
    assert torch.equal(
        gradient_of_shape(gradient, torch.Size([4, 5])), torch.full((4, 5), 6.0, dtype=torch.float64)
    )
    assert gradient_of_shape(gradient[0, 0], torch.Size([1, 1, 4, 5])).shape == (1, 1, 4, 5)
    for given in (gradient[0, 0], gradient[:1, :1]):
        with pytest.raises(NotApplicable, match=r"is given no attn_mask of the shape \(3, 4, 5\)"):
            gradient_of_shape(given, torch.Size([3, 4, 5]))


def test_no_numbers_of_axes_and_no_order_of_letters_are_refused() -> None:
    """In one line that names the cure."""
    with pytest.raises(SubjectError, match=r"masks=\(\) says that there are no masks"):
        Attention(repeating, mask_shapes=())
    with pytest.raises(SubjectError, match="output_layout='bsd' is no order of the axes"):
        Attention(repeating, output_layout="bsd")


def adding(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Any:
    """Whatever the mask holds is added to the scores."""
    scores = query @ key.mT / query.shape[-1] ** 0.5
    return torch.softmax(scores if attn_mask is None else scores + attn_mask, dim=-1) @ value


def adding_by_another_name(
    query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None = None
) -> Any:
    """The same, not by torch's name."""
    return adding(query, key, value, attention_mask)


def hiding_by_another_name(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Any:
    """Whatever is zero is hidden."""
    hidden = (
        None
        if mask is None
        else torch.zeros(mask.shape, dtype=query.dtype).masked_fill(mask == 0, -torch.inf)
    )
    return adding(query, key, value, hidden)


def halving_by_another_name(
    query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None = None
) -> Any:
    """A boolean mask hides, and a bias counts half: a bug, and no mask of one kind."""
    if attention_mask is not None and attention_mask.dtype == torch.bool:
        return hiding_by_another_name(query, key, value, attention_mask)
    return adding(query, key, value, None if attention_mask is None else attention_mask / 2)


def test_a_bug_in_one_kind_of_masks_is_judged_whatever_the_name() -> None:
    """It is not read as the other kind, so that it is no convention."""
    prepared, _ = role.prepare(Attention(halving_by_another_name), dtypes=("float32",), device="cpu", seed=0)
    assert prepared.has("boolean")
    assert prepared.has("additive")


def crashing_where_an_axis_is_one(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None
) -> Any:
    """Masks are viewed as whole ones."""
    whole = (*query.shape[:3], key.shape[2])
    return canonical_attention(
        query, key, value, attn_mask=None if attn_mask is None else attn_mask.view(whole)
    )


def refusing_where_an_axis_is_one(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None
) -> Any:
    """The same in so many words."""
    if attn_mask is not None and attn_mask.shape != (*query.shape[:3], key.shape[2]):
        raise ValueError("attn_mask is (batch, heads, q_len, kv_len)")
    return canonical_attention(query, key, value, attn_mask=attn_mask)


@pytest.mark.parametrize("kind", [None, ("additive",)])
def test_masks_with_axes_of_one_may_be_refused_and_not_crash(kind: tuple[str, ...] | None) -> None:
    """In so many words it is a convention, otherwise a law says what is wrong; with declared kinds likewise."""
    for function, taken in ((crashing_where_an_axis_is_one, True), (refusing_where_an_axis_is_one, False)):
        declared = Attention(function, masks=kind)
        prepared, _ = role.prepare(declared, dtypes=("float32",), device="cpu", seed=0)
        assert (len(prepared.mask_forms) > 1) is taken


def hiding_keys(query: Tensor, key: Tensor, value: Tensor, key_padding_mask: Tensor | None = None) -> Any:
    """A mask of the keys (batch, kv_len), True is padding."""
    keep = None if key_padding_mask is None else ~key_padding_mask[:, None, None, :]
    return canonical_attention(query, key, value, attn_mask=keep)


def hiding_the_keys_of_the_first(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None
) -> Any:
    """The padding of the first sequence is that of all."""
    return hiding_keys(query, key, value, None if mask is None else mask[:1].expand(mask.shape))


def hiding_by_sequence(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Any:
    """A mask (batch, q_len, kv_len), True keeps."""
    return canonical_attention(query, key, value, attn_mask=None if mask is None else mask.unsqueeze(1))


def test_a_mask_of_the_keys_is_found_and_judged() -> None:
    """A function of no mask that torch broadcasts: its own shape is seen; declared, a bug in it is caught."""
    arguments = {"attn_mask": "key_padding_mask"}
    for declared, shape, form in (
        (Attention(hiding_keys, arguments=arguments, true_means="block"), "bk", "b11k"),
        (Attention(hiding_by_sequence), "bqk", "b1qk"),
    ):
        prepared, notes = role.prepare(declared, dtypes=("float32",), device="cpu", seed=0)
        assert prepared.mask_forms == (form,)
        assert f"takes attn_mask in the shape {shape}: as if declared, mask_shapes={shape}" in notes
        assert engine_of(declared).judge(all_laws()[OUTPUT]).outcome == "holds"
    for right, function in ((True, hiding_keys), (False, hiding_the_keys_of_the_first)):
        declared = Attention(
            function, arguments=arguments if right else {}, mask_shapes=("bk",), true_means="block"
        )
        outcome = engine_of(declared).judge(all_laws()[OUTPUT]).outcome
        assert outcome == ("holds" if right else "breaks")


def test_a_mask_by_another_name_may_be_of_one_kind() -> None:
    """The other kind is told and not asked for; by torch's name it is a break, with a hint."""
    for function, lacking in ((adding_by_another_name, "boolean"), (hiding_by_another_name, "additive")):
        prepared, notes = role.prepare(Attention(function), dtypes=("float32",), device="cpu", seed=0)
        why = f"takes no {lacking} attn_mask, as a plain call shows: it has another effect than torch's"
        assert prepared.lacks(lacking) == why
        assert why in notes
    prepared, notes = role.prepare(Attention(adding), dtypes=("float32",), device="cpu", seed=0)
    assert prepared.has("boolean")
    assert any("if none is meant, --declare masks=additive" in note for note in notes)


def always_causal(query: Tensor, key: Tensor, value: Tensor) -> Any:
    """As minGPT's."""
    return canonical_attention(query, key, value, is_causal=True)


def unscaled(query: Tensor, key: Tensor, value: Tensor) -> Any:
    """As T5's."""
    return canonical_attention(query, key, value, scale=1.0)


def one_head(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Any:
    """(batch, length, dim), with the weights beside the output."""
    assert mask is None or mask.ndim == query.ndim
    mask = None if mask is None else mask[:, None]
    output, weights = canonical_attention(
        query[:, None], key[:, None], value[:, None], mask, return_weights=True
    )
    return output[:, 0], weights[:, 0]


@pytest.mark.parametrize(
    ("function", "always", "told"),
    [
        (always_causal, {"is_causal": True}, "--declare always.is_causal=True, and wrong as it is"),
        (unscaled, {"scale": 1.0}, "--declare always.scale=1.0 says that it is meant"),
    ],
)
def test_what_every_call_has_is_hinted_at_and_declared(
    function: Callable[..., Any], always: dict[str, Any], told: str
) -> None:
    """Undeclared it is a break with a hint; declared, laws that speak of another call say nothing."""
    _, notes = role.prepare(Attention(function), dtypes=("float32",), device="cpu", seed=0)
    assert any(told in note for note in notes)
    assert engine_of(Attention(function)).judge(all_laws()[OUTPUT]).outcome == "breaks"
    declared = engine_of(Attention(function, always=always))
    assert declared.judge(all_laws()[OUTPUT]).outcome == "holds"
    other = "symmetry/permuting-keys-changes-nothing" if "is_causal" in always else "accuracy/explicit-scale"
    rows = [declared.judge(each) for each in choose("attention", [other])]
    assert [(row.outcome, "always" in row.reason or "speaks" in row.reason) for row in rows] == [
        ("not-applicable", True)
    ]


def test_tensors_of_three_axes_are_found() -> None:
    """Where no call with four axes works; heads are one, masks (batch, q_len, kv_len)."""
    declared = Attention(one_head)
    prepared, notes = role.prepare(declared, dtypes=("float32",), device="cpu", seed=0)
    assert "takes no tensors of four axes: as if declared, layout=bsd" in notes
    assert (prepared.declaration.layout, prepared.mask_forms) == ("bsd", ("b1qk",))
    assert prepared.declaration.returns == ("output", "weights")
    for law in (OUTPUT, GRADIENTS, "attention/features/returned-weights-are-within-the-bound"):
        assert engine_of(declared).judge(all_laws()[law]).outcome == "holds"
    row = engine_of(declared).judge(all_laws()["attention/masks/the-masks-of-others-do-not-matter"])
    assert (row.outcome, row.reason) == ("not-applicable", "takes no heads=2, of which the law speaks")


def crashing_in_a_batch(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Any:
    """A mask of two axes is taken for that of one sequence."""
    if attn_mask is not None and attn_mask.ndim == 2:
        attn_mask = attn_mask.reshape(query.shape[0], 1, *attn_mask.shape)
    return canonical_attention(query, key, value, attn_mask)


def crashing_for_each_sequence(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None
) -> Any:
    """One head without an axis; a mask for each sequence is multiplied with the wrong axis."""
    if attn_mask is not None and attn_mask.ndim == 3:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")
    return canonical_attention(*(torch.bmm(x, _eye(x))[:, None] for x in (query, key, value)), attn_mask)[
        :, 0
    ]


def _eye(x: Tensor) -> Tensor:
    return torch.eye(x.shape[-1], dtype=x.dtype).expand(x.shape[0], -1, -1)


@pytest.mark.parametrize("function", [crashing_in_a_batch, crashing_for_each_sequence])
def test_a_crash_is_no_convention_of_masks(function: Callable[..., Any]) -> None:
    """Where another mask works, one that crashes is a finding."""
    engine = engine_of(Attention(function), Profile("brief", seeded=20, drawn=0, shrinks=0, limit_s=5.0))
    law = "attention/memory/a-strided-mask-equals-a-contiguous-one"
    rows = [engine.judge(all_laws()[each]) for each in (OUTPUT, law)]
    assert "breaks" in [row.outcome for row in rows]


def of_one_length(query: Tensor, key: Tensor, value: Tensor) -> Any:
    """(batch, length, dim), as many queries as keys, of 8 dims or 16."""
    if query.shape != key.shape or query.shape[-1] not in (8, 16):
        raise ValueError(f"head_dim {query.shape[-1]} is not supported, nor are lengths that differ")
    return torch.bmm(torch.softmax(torch.bmm(query, key.mT) / query.shape[-1] ** 0.5, dim=-1), value)


def test_sizes_are_found_whatever_the_layout_is() -> None:
    """What a plain call refuses in so many words is not asked for."""
    prepared, _ = role.prepare(Attention(of_one_length), dtypes=("float32",), device="cpu", seed=0)
    found = prepared.declaration
    assert (found.layout, found.head_dims, found.rectangular) == ("bsd", (8, 16), False)
    assert engine_of(Attention(of_one_length)).judge(all_laws()[OUTPUT]).outcome == "holds"


def ignoring(query: Tensor, key: Tensor, value: Tensor, dropout_p: float = 0.0, window: object = None) -> Any:
    """Causal; takes what it says it does not, and does nothing with it."""
    return canonical_attention(query, key, value, is_causal=True)


def test_what_is_denied_is_asked_beside_what_every_call_has() -> None:
    """A call that is not asked for at all refuses nothing."""
    declared = Attention(ignoring, always={"is_causal": True}, dropout=False, window=False)
    law = all_laws()["attention/features/what-is-declared-unsupported-is-refused"]
    row = engine_of(declared).judge(law)
    assert (row.outcome, row.reason) == ("breaks", "dropout, window: declared absent, and answered")


def test_no_axis_is_no_traceback() -> None:
    """Empty axes, and more sequences than the layout can say, are not applicable."""
    declared = Attention(lambda q, k, v: canonical_attention(q[None], k[None], v[None])[0], layout="hsd")
    row = engine_of(declared).judge(all_laws()["attention/accuracy/empty-axes-are-allowed-or-refused"])
    assert row.outcome in ("holds", "not-applicable")


@pytest.mark.parametrize(
    ("declared", "told"),
    [
        ({"always": {"window": 2}}, r"always=\{'window': 2\} is no window; such as \{'window': \(2, 0\)\}"),
        ({"always": {"softcap": 0}}, "is no softcap"),
        ({"always": {"is_causal": "yes"}}, "is no is_causal"),
        ({"always": {"scale": (1, 2)}}, "is no scale"),
        ({"always": {"dropout_p": 0.5}}, "always='dropout_p' is not a convention"),
        ({"layout": "bsd", "output_layout": "hsd"}, "is no order of the axes of layout='bsd'"),
        ({"output_layout": "b(hd)s"}, r"ends with all heads on one axis, as 'bs\(hd\)'"),
    ],
)
def test_what_cannot_be_is_refused_where_it_is_declared(declared: dict[str, Any], told: str) -> None:
    """In one line that names the cure."""
    with pytest.raises(SubjectError, match=told):
        Attention(repeating, **declared)


def test_a_function_without_gradients_is_asked_about_inference_mode_in_a_copy() -> None:
    """What is another there breaks the law; a buffer that was made before is written here as ever."""

    def attend(query: Tensor, key: Tensor, value: Tensor, scale: float | None = None) -> Tensor:
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, scale=scale).detach()

    def unscaled_there(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return attend(query, key, value, 1.0 if torch.is_inference_mode_enabled() else None)

    kept: dict[torch.Size, Tensor] = {}

    def buffered(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        output = attend(query, key, value)
        return kept.setdefault(output.shape, torch.empty_like(output)).copy_(output).clone()

    for function, outcome in ((unscaled_there, "breaks"), (buffered, "conforms")):
        subject = headcheck.Attention(function, gradients=False)
        verdict = headcheck.verify(
            subject, profile="quick", dtype="float32", laws=("inference-mode", "one-key", "same-call")
        )
        assert verdict.verdict == outcome, repr(verdict)


@pytest.mark.parametrize("wrong", ["float32", "bfloat16"])
def test_an_answer_of_another_shape_in_one_dtype_is_judged_there(wrong: str) -> None:
    """It works in other dtypes, so that this one is not one that is not supported; of attention and of others."""
    dtype = getattr(torch, wrong)

    def attention(query: Tensor, key: Tensor, value: Tensor) -> Any:
        output = canonical_attention(query, key, value)
        return output.transpose(1, 2) if query.dtype == dtype else output

    def softmax(x: Tensor, dim: int) -> Tensor:
        weights = torch.softmax(x, dim)
        return weights[None] if x.dtype == dtype else weights

    assert wrong in role.prepare(Attention(attention), dtypes=(), device="cpu", seed=0)[0].dtypes
    assert wrong in softmax_role.prepare(Softmax(softmax), dtypes=(), device="cpu", seed=0)[0].dtypes
