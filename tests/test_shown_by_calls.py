"""What plain calls show of a function, where nothing is declared, and what no call can be made of."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import headcheck
from headcheck.attention.forms import gradient_of_shape, in_broadcast_shape, of_shape, shape_for
from headcheck.attention.role import role
from headcheck.comparison import NotApplicable
from headcheck.declarations import Attention
from headcheck.engine import Profile
from headcheck.errors import SubjectError
from headcheck.functions.softmax import Softmax
from headcheck.functions.softmax import role as softmax_role
from headcheck.laws import all_laws, choose
from headcheck.reference.canonical import canonical_attention
from headcheck.verdict import Hint
from tests.engines import GRADIENTS, OUTPUT, engine_of

# Declared and inferred


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
    assert torch.equal(of_shape(keys, "b1k", (2, 4, 5, 2)), mask[:, None])
    with pytest.raises(
        NotApplicable, match="takes attn_mask in the shape qk only, which cannot say this one"
    ):
        shape_for(keys, ("qk",), (2, 4, 5, 2))
    for shape in ("bk", "b1k"):
        assert in_broadcast_shape(of_shape(keys, shape, (2, 4, 5, 2)), shape).shape == (2, 1, 1, 2)
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
        Attention(adding, mask_shapes=())
    with pytest.raises(SubjectError, match="output_layout='bsd' is no order of the axes"):
        Attention(adding, output_layout="bsd")


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


def filled(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Any:
    """As code that calls masked_fill, which takes boolean masks only and says so in a RuntimeError."""
    scores = query @ key.mT / query.shape[-1] ** 0.5
    return (scores if attn_mask is None else torch.where(attn_mask, scores, float("-inf"))).softmax(
        -1
    ) @ value


def filled_by_arithmetic(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Any:
    """As code that computes with the mask, which a boolean one does not let it do."""
    scores = query @ key.mT / query.shape[-1] ** 0.5
    return (scores if attn_mask is None else scores + (attn_mask - 0.0)).softmax(-1) @ value


def test_a_mask_that_an_operator_refuses_is_of_a_kind_that_is_not_taken() -> None:
    """torch raises RuntimeError for it, and speaks of booleans."""
    for function, lacking in ((filled, "additive"), (filled_by_arithmetic, "boolean")):
        prepared, _ = role.prepare(Attention(function), dtypes=("float32",), device="cpu", seed=0)
        assert str(prepared.lacks(lacking)).startswith(
            f"takes no {lacking} attn_mask, as a plain call shows: "
        )
        assert prepared.has("additive" if lacking == "boolean" else "boolean")


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
        (always_causal, {"is_causal": True}, "--declare always.is_causal=True, and wrong without it"),
        (unscaled, {"scale": 1.0}, "--declare always.scale=1.0 if that is what you mean"),
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


def turned(order: str, output: str = "") -> Callable[..., Any]:
    """As of a library that has its axes in another order, and looks at the heads of its keys."""

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Any:
        if query.shape[order.index("h")] != key.shape[order.index("h")]:
            raise ValueError("query and key have as many heads")
        found = canonical_attention(*(torch.einsum(f"{order}->bhsd", x) for x in (query, key, value)))
        return torch.einsum(f"bhsd->{output or order}", found)

    return attend


def merged(order: str) -> Callable[..., Any]:
    """The same with all heads on the last axis of the output."""
    return lambda query, key, value: turned("bhsd" if order == "bshd" else order, order)(
        query, key, value
    ).flatten(-2)


def as_llama(query: Tensor, key: Tensor, value: Tensor) -> Any:
    """Length before heads, which the output merges."""
    return turned("bshd")(query, key, value).flatten(-2)


def as_whisper(query: Tensor, key: Tensor, value: Tensor) -> Any:
    """Heads merged in the output, and the scores beside it."""
    return merged("bshd")(query, key, value), query @ key.mT


def as_flashinfer(query: Tensor, key: Tensor, value: Tensor) -> Any:
    """The tokens of one sequence."""
    return canonical_attention(*(torch.einsum("shd->hsd", x)[None] for x in (query, key, value)))[
        0
    ].transpose(0, 1)


def wrong_for_one_head(query: Tensor, key: Tensor, value: Tensor) -> Any:
    """A bug in a function of three axes."""
    return torch.bmm(query @ key.mT, value)


@pytest.mark.parametrize(
    ("function", "hinted", "layout", "output_layout"),
    [
        (turned("bshd"), True, "bshd", None),
        (turned("sbhd"), True, "sbhd", None),
        (turned("bhsd", "bshd"), True, None, "bshd"),
        (merged("bshd"), True, None, "bs(hd)"),
        (as_llama, False, "bshd", "bs(hd)"),
        (merged("sbhd"), False, "sbhd", "sb(hd)"),
        (as_whisper, False, None, "bs(hd)"),
        (as_flashinfer, False, "shd", None),
        (wrong_for_one_head, False, "bsd", None),
    ],
)
def test_the_layout_is_that_in_which_plain_calls_are_right(
    function: Callable[..., Any], hinted: bool, layout: str | None, output_layout: str | None
) -> None:
    """Where a call as declared is answered in its form, that is a hint alone: it may be a bug; and sizes are not
    looked for on the wrong axes.
    """
    prepared, notes = role.prepare(Attention(function), dtypes=("float32",), device="cpu", seed=0)
    fields = {"layout": layout, "output_layout": output_layout}
    words = [f"{name}={value}" for name, value in fields.items() if value]
    told = [note for note in notes if words[0] in note]
    assert all(isinstance(note, Hint) is hinted for note in told)
    assert all(word in told[0] for word in words)
    found = prepared.declaration
    taken = {"layout": found.layout, "output_layout": found.output_layout, "rectangular": found.rectangular}
    usual = {"layout": "bhsd", "output_layout": None, "rectangular": None}
    assert taken == usual | ({} if hinted else {name: value for name, value in fields.items() if value})


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
        ({"log_sum_exp_layout": "bqs"}, "is no order of the axes of layout='bhsd' but d"),
        ({"layout": "thd", "log_sum_exp_layout": "ht"}, "is no order of the axes of layout='thd' but d"),
    ],
)
def test_what_cannot_be_is_refused_where_it_is_declared(declared: dict[str, Any], told: str) -> None:
    """In one line that names the cure."""
    with pytest.raises(SubjectError, match=told):
        Attention(adding, **declared)


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
