"""Probing finds a subject's real conventions, and claims nothing that it cannot tell."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import headcheck
from headcheck.attention.probe import Probed
from headcheck.attention.scale_shown import other_scale
from headcheck.attention.subject import AttentionSubject
from headcheck.attention.trying import PLAIN
from headcheck.command import main
from headcheck.engine import Profile
from headcheck.errors import SubjectError
from headcheck.reference import rotary, sinusoidal_at
from tests import kernels

KERNELS = Path(kernels.__file__)


def found(probed: Probed) -> dict[str, Any]:
    return {each.topic: each.value for each in probed.findings if each.told}


def untold(probed: Probed) -> dict[str, str]:
    return {each.topic: each.how for each in probed.findings if not each.told}


def test_torchs_conventions_are_found() -> None:
    """What torch documents is what the probes find."""
    expected = {
        "layout": "bhsd",
        "value_dim": True,
        "rectangular": True,
        "default scale": "1 / sqrt(head_dim)",
        "scale": True,
        "true_means": "keep",
        "masks": ("boolean", "additive"),
        "causal": "top-left",
        "empty_rows": "zeros",
        "grouped_heads": "interleaved",
        "gradients": True,
        "dropout": True,
        "deterministic": True,
        "under_autocast": "in bfloat16",
        "two_dtypes": "refused",
    }
    conventions = found(headcheck.probe(scaled_dot_product_attention))
    assert {topic: conventions.get(topic) for topic in expected} == expected


def test_other_conventions_are_found_and_make_the_subject_conform() -> None:
    """The declaration that a probe prints is one under which a subject of other conventions conforms."""
    probed = headcheck.probe(kernels.other_conventions)
    expected = {"layout": "bshd", "true_means": "block", "causal": "bottom-right", "empty_rows": "mean"}
    conventions = found(probed)
    assert {topic: conventions[topic] for topic in expected} == expected
    names = {"headcheck": headcheck, "other_conventions": kernels.other_conventions}
    exec(probed.pasted, names)
    profile = Profile("tiny", seeded=6, drawn=2)
    laws = ("masks/causal-equals", "masks/boolean-equals", "default-scale", "masks/padding")
    verdict = headcheck.verify(names["subject"], profile=profile, laws=laws, dtype="float32")
    assert verdict.conforms, verdict
    assert headcheck.verify(kernels.other_conventions, profile=profile, laws=laws, dtype="float32").broken


def with_scale(scale: float) -> Any:
    return lambda q, k, v: scaled_dot_product_attention(q, k, v, scale=scale)


def square_causal(q: Tensor, k: Tensor, v: Tensor, is_causal: bool = False) -> Tensor:
    if is_causal and q.shape[2] != k.shape[2]:
        raise ValueError("square only")
    return scaled_dot_product_attention(q, k, v, is_causal=is_causal)


def ignores_its_mask(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None) -> Tensor:
    return scaled_dot_product_attention(q, k, v)


def refuses_both(
    q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False
) -> Tensor:
    if is_causal and attn_mask is not None:
        raise NotImplementedError("one at a time")
    return scaled_dot_product_attention(q, k, v, attn_mask, is_causal=is_causal)


def stops_nan(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor) -> Tensor:
    seen = attn_mask.expand(*q.shape[:3], k.shape[2]).any(dim=2)[..., None]
    return scaled_dot_product_attention(q, k.where(seen, 0), v.where(seen, 0), attn_mask)


def only_float64(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    if q.dtype != torch.float64:
        raise TypeError("float64, please")
    return scaled_dot_product_attention(q, k, v)


def without_gradient(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return scaled_dot_product_attention(q.detach(), k.detach(), v.detach())


def optional_mask(function: Any) -> Any:
    def attention(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        return scaled_dot_product_attention(q, k, v) if attn_mask is None else function(q, k, v, attn_mask)

    return attention


def always_causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Length before heads, key heads shared, each call causal and aligned at the last key: a decoder's own."""
    query, key, value = (x.transpose(1, 2) for x in (q, k, v))
    lengths = query.shape[2], key.shape[2]
    seen = torch.ones(lengths, dtype=torch.bool).tril(lengths[1] - lengths[0])
    return scaled_dot_product_attention(query, key, value, seen, enable_gqa=True).transpose(1, 2)


def test_what_is_causal_in_every_call_is_found_with_all_that_depends_on_it() -> None:
    """The layout and the diagonal are seen only as if each call were causal; then there is a declaration to paste."""
    found_out = found(headcheck.probe(always_causal))
    told = ("always", "layout", "causal", "rectangular", "grouped_heads")
    assert [found_out[topic] for topic in told] == [
        {"is_causal": True},
        "bshd",
        "bottom-right",
        True,
        "interleaved",
    ]


def as_llama(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """Length before heads, which the output merges; whatever the mask holds is added; rounded to float32 within."""
    query, key, value = (x.transpose(1, 2) for x in (q, k, v))
    scores = query @ key.mT / q.shape[-1] ** 0.5
    scores = scores if mask is None else scores + mask
    return (scores.float().softmax(-1).to(q.dtype) @ value).transpose(1, 2).flatten(-2)


def test_an_output_of_merged_heads_and_float64_in_float32_are_found_and_make_the_subject_conform() -> None:
    """What is printed is enough to be judged by."""
    declared = headcheck.probe(as_llama).declaration
    assert (declared.layout, declared.output_layout, declared.masks) == ("bshd", "bs(hd)", ("additive",))
    assert declared.empty_rows == "nan"
    assert "float64" not in declared.dtypes
    laws = ("accuracy/output", "masks/boolean-equals", "dtypes", "memory/output")
    verdict = headcheck.verify(declared, profile=Profile("tiny", seeded=6, drawn=2), laws=laws)
    assert verdict.conforms, verdict


def of_one_sequence(q: Tensor, k: Tensor, v: Tensor, return_lse: bool = False) -> Any:
    """(length, heads, dim), and a log-sum-exp (length, heads)."""
    scores = torch.einsum("qhd,khd->hqk", q, k) / q.shape[-1] ** 0.5
    output = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v)
    return (output, scores.logsumexp(-1).T) if return_lse else output


def test_the_layout_of_one_sequence_is_found() -> None:
    """A log-sum-exp in another order than it is documented in is not taken for one because two sizes are equal."""
    probed = headcheck.probe(of_one_sequence)
    assert found(probed)["layout"] == "shd"
    assert "log_sum_exp of shape" in untold(probed)["log_sum_exp"]


def test_nothing_is_to_be_pasted_while_the_layout_is_unknown() -> None:
    """What else was seen may be an effect of it."""
    printed = str(headcheck.probe(lambda q, k, v: scaled_dot_product_attention(q, k, v).flip(1)))
    assert "could not tell: layout" in printed
    assert "no declaration to paste" in printed
    assert "headcheck.Attention(" not in printed


def scaled_by_its_dim(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """One over the dim, and not over its root."""
    return scaled_dot_product_attention(query, key, value, scale=1 / query.shape[-1])


def scaled_by_its_length(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """A scale that no convention has."""
    return scaled_dot_product_attention(query, key, value, scale=1.3 / key.shape[2])


def by_a_default(query: Tensor, key: Tensor, value: Tensor, sliding_window: int = 64) -> Tensor:
    """A window on both sides that is wider than plain calls are long."""
    back = torch.arange(query.shape[2])[:, None] - torch.arange(key.shape[2])
    return scaled_dot_product_attention(query, key, value, back.abs() < sliding_window)


@pytest.mark.parametrize(
    ("function", "topic", "value"),
    [
        (by_a_default, "always", {"window": (63, 63)}),
        (kernels.windows_alone, "empty_rows", "nan"),
        (with_scale(1.0), "always", {"scale": 1.0}),
        (with_scale(0.25), "always", {"scale": 0.25}),
        (scaled_by_its_dim, "default scale", "1 / head_dim"),
        (kernels.tiled_heads, "grouped_heads", "tiled"),
        (kernels.wrong_scale, "grouped_heads", False),
        (kernels.wrong_scale, "masks", ()),
        (refuses_both, "mask_with_causal", "refused"),
        (kernels.right, "mask_with_causal", "and"),
        (kernels.right, "dropout", False),
        (optional_mask(stops_nan), "masked_nan", "stopped"),
        (kernels.right, "masked_nan", "leaks"),
        (only_float64, "dtypes", ("float64",)),
        (without_gradient, "gradients", False),
    ],
)
def test_a_convention_is_found(function: Any, topic: str, value: Any) -> None:
    """One function for each convention that differs from torch's."""
    assert found(headcheck.probe(function))[topic] == value


@pytest.mark.parametrize(
    ("function", "topic", "why"),
    [
        (
            square_causal,
            "causal",
            "it works for as many queries as keys only (raised ValueError: square only)",
        ),
        (kernels.drops_the_mask, "mask_with_causal", "the mask is dropped, which is no convention"),
        (ignores_its_mask, "true_means", 'neither "keep" nor "block" fits'),
        (ignores_its_mask, "masks", "boolean and additive: taken, and of another effect"),
        (
            scaled_by_its_length,
            "default scale",
            'neither "1 / sqrt(head_dim)" nor "1" nor "1 / head_dim" nor "1 / sqrt(heads * head_dim)" fits',
        ),
    ],
)
def test_what_cannot_be_told_is_not_guessed(function: Any, topic: str, why: str) -> None:
    """Where no convention explains the answers, the declaration is silent and the report says why."""
    probed = headcheck.probe(function)
    assert untold(probed)[topic] == why
    assert f"could not tell: {topic}: {why}" in str(probed)
    assert f"{topic}=" not in probed.pasted


def test_a_call_that_raises_tells_no_scale() -> None:
    """Of a function that gives no answer, every scale would do."""

    def raises(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        raise ValueError("not today")

    subject = AttentionSubject(headcheck.Attention(raises), dtypes=("float32",))
    assert other_scale(subject, PLAIN.but(dtype="float32")) is None


def asserts_numbers(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Tensor:
    """As kernels do that would rather stop than spread NaN."""
    assert all(each.isfinite().all() for each in (query, key, value))
    return scaled_dot_product_attention(query, key, value, attn_mask)


def test_a_probe_that_is_answered_by_an_exception_tells_it() -> None:
    """One that refuses NaN is probed all the same."""
    told = untold(headcheck.probe(asserts_numbers))
    assert {"masked_nan", "nan_scores"} <= {*told}
    assert "AssertionError" in told["masked_nan"]


def test_a_subject_that_never_works_cannot_be_probed() -> None:
    """One line says why no plain call works."""
    with pytest.raises(SubjectError, match="no plain call of the subject works: raised TypeError"):
        headcheck.probe(kernels.takes_one)


def test_the_command_prints_the_declaration(capsys: pytest.CaptureFixture[str]) -> None:
    """`headcheck probe` ends with what can be pasted."""
    assert main(["probe", f"{KERNELS}:tiled_heads"]) == 0
    printed = capsys.readouterr().out
    assert "subject = headcheck.Attention(\n    tiled_heads,\n" in printed
    assert '    grouped_heads="tiled",\n' in printed
    names: dict[str, Any] = {"tiled_heads": kernels.tiled_heads}
    exec(printed, names)  # The findings beside it are comments.
    assert names["subject"].grouped_heads == "tiled"


def rotated(x: Tensor, positions: Tensor) -> Tensor:
    return rotary(x, positions, base=10000.0, pairing="half")


def own_eps(x: Tensor, weight: Tensor) -> Tensor:
    return torch.nn.functional.rms_norm(x, x.shape[-1:], weight, 0.01)


def other_table(length: int, d_model: int, base: float = 100.0) -> Tensor:
    return sinusoidal_at(torch.arange(length), d_model, base=base, layout="concatenated")


@pytest.mark.parametrize(
    ("subject", "role", "fields"),
    [
        (rotated, "rotary", {"pairing": "half", "base": 10000.0}),
        (own_eps, "rms_norm", {"eps": 0.01}),
        (other_table, "sinusoidal", {"layout": "concatenated", "base": 100.0}),
        (torch.softmax, "softmax", {"dtypes": ("float32", "float64", "bfloat16", "float16")}),
        (torch.nn.MultiheadAttention, None, {"key_true_means": "block", "weights": "averaged"}),
    ],
)
def test_other_roles_are_probed_too(subject: Any, role: str | None, fields: dict[str, Any]) -> None:
    """What a role finds out before it judges is printed as the declaration that says so."""
    probed = headcheck.probe(subject, role=role)
    assert {name: getattr(probed.declaration, name) for name in fields} == fields
    names: dict[str, Any] = {subject.__name__: subject}
    exec(probed.pasted, names)
    assert names["subject"] == probed.declaration.but(name=names["subject"].name)


DECLARED = """
import headcheck

def own(q, k, v, blocked=None):
    return headcheck.reference.attention(q, k, v).output if blocked is None else 0 * q

mapped = headcheck.Attention(own, arguments={"attn_mask": "blocked"}, effort=0.5)
turned = headcheck.Rotary(headcheck.reference.rotary, base=500.0)
"""


@pytest.mark.parametrize(
    ("name", "head", "kept"),
    [
        ("mapped", "headcheck.Attention(\n    own,", 'arguments={"attn_mask": "blocked"}'),
        ("turned", "headcheck.Rotary(\n    rotary,", "base=500.0"),
    ],
)
def test_of_a_declaration_the_function_is_printed(name: str, head: str, kept: str, tmp_path: Path) -> None:
    """A declaration around a declaration would not work when it is pasted: it stands around the function itself."""
    (tmp_path / "own_kernel.py").write_text(DECLARED)
    pasted = headcheck.probe(f"{tmp_path}/own_kernel.py:{name}").pasted
    assert head in pasted
    assert kept in pasted


def unknown_mask(q: Tensor, k: Tensor, v: Tensor, blocked: Tensor | None = None) -> Tensor:
    return scaled_dot_product_attention(q, k, v, None if blocked is None else ~blocked)


CURE = (
    "not recognised, left at their defaults: blocked; "
    "if blocked is the mask, --declare arguments.attn_mask=blocked"
)


def test_a_parameter_that_is_not_recognised_is_told() -> None:
    """A mask of another name is neither denied nor passed over: probe and verdict say how it is declared."""
    assert CURE in untold(headcheck.probe(unknown_mask))["masks"]
    assert any(
        CURE in note
        for note in headcheck.verify(
            unknown_mask, profile=Profile("tiny", seeded=6, drawn=2), laws="right-form"
        ).notes
    )
    declared = headcheck.Attention(unknown_mask, arguments={"attn_mask": "blocked"})
    assert found(headcheck.probe(declared))["true_means"] == "block"


def test_of_a_mask_with_torchs_name_it_is_told_what_true_says() -> None:
    """key_padding_mask is True at padding: with both declarations that the note names, it conforms."""

    def attention(
        query: Tensor, key: Tensor, value: Tensor, key_padding_mask: Tensor | None = None
    ) -> Tensor:
        hidden = None if key_padding_mask is None else ~key_padding_mask[:, None, None]
        return scaled_dot_product_attention(query, key, value, hidden)

    tiny = Profile("tiny", seeded=6, drawn=2)
    cure = "--declare arguments.attn_mask=key_padding_mask --declare true_means=block"
    assert any(cure in note for note in headcheck.verify(attention, profile=tiny, laws="right-form").notes)
    declared = headcheck.Attention(attention, arguments={"attn_mask": "key_padding_mask"}, true_means="block")
    assert headcheck.verify(declared, profile=tiny, laws="masks", dtype="float32").conforms


def test_an_argument_declared_under_a_name_that_is_none_is_refused() -> None:
    """In one line, with the names that there are; a function and a module of any role alike."""
    declared = headcheck.Attention(unknown_mask, arguments={"attn_mask": "hidden"})
    with pytest.raises(SubjectError, match="no parameter 'hidden'; it has: q, k, v, blocked"):
        headcheck.verify(declared, profile=Profile("tiny", seeded=6, drawn=2))
    turned = headcheck.Rotary(rotary, arguments={"base": "theta"})
    with pytest.raises(SubjectError, match=r"'base': 'theta'} is declared, .* it has: x, positions, base"):
        headcheck.verify(turned, profile=Profile("tiny", seeded=6, drawn=2))
    module = headcheck.Encoder(torch.nn.TransformerEncoderLayer(8, 2), arguments={"is_real": "hidden"})
    with pytest.raises(SubjectError, match="no parameter 'hidden'; it has: src, src_mask"):
        headcheck.verify(module, profile=Profile("tiny", seeded=6, drawn=2))


def bshd(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (each.transpose(1, 2) for each in (q, k, v))
    return scaled_dot_product_attention(q, k, v).transpose(1, 2)


LAYOUT = "the shapes are those of another layout: --declare layout=bshd"
AT_ONCE = "most laws break at their first example, often for a convention that is not declared: "


def of_whole_blocks(q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
    """As kernels are: half precision, two head dims, blocks of sixteen; aligned at the last key."""
    assert q.dtype in (torch.float16, torch.bfloat16) and q.shape[-1] in (64, 128)
    assert q.shape[2] % 16 == 0 and k.shape[2] % 16 == 0
    seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(k.shape[2] - q.shape[2])
    scores = q.float() @ k.float().mT * q.shape[-1] ** -0.5
    weights = (scores.masked_fill(~seen, -torch.inf) if causal else scores).softmax(dim=-1)
    return (weights.to(v.dtype).float() @ v.float()).to(q.dtype)


def test_a_kernel_of_few_calls_is_told_apart_too() -> None:
    """In 16 bits only, and in whole blocks: the default scale and the diagonal show all the same."""
    probed = headcheck.probe(of_whole_blocks)
    expected = {
        "default scale": "1 / sqrt(head_dim)",
        "causal": "bottom-right",
        "dtypes": ("bfloat16", "float16"),
    }
    assert {topic: found(probed)[topic] for topic in expected} == expected


def in_a_window(
    query: Tensor, key: Tensor, value: Tensor, sliding: int = 9, deterministic: bool = True
) -> Any:
    """Causal, each query with the eight keys before it; the log-sum-exp of no keys is +inf. In single precision."""
    back = torch.arange(query.shape[2])[:, None] - torch.arange(key.shape[2])
    scores = (query.float() @ key.float().mT * query.shape[-1] ** -0.5).masked_fill(
        (back < 0) | (back >= sliding), -torch.inf
    )
    log_sum_exp = scores.logsumexp(dim=-1).masked_fill(torch.tensor(key.shape[2] == 0), torch.inf)
    return (scores.softmax(dim=-1).nan_to_num() @ value.float()).to(query.dtype), log_sum_exp


def test_what_every_call_has_is_found_and_what_is_narrowed_is_told_once() -> None:
    """A window that no argument says, and a log-sum-exp as flash-attention's; a row for each field that is pasted."""
    probed = headcheck.probe(headcheck.Attention(in_a_window, log_sum_exp=True))
    expected = {
        "always": {"is_causal": True, "window": (8, 0)},
        "empty_log_sum_exp": "inf",
        "masks": (),
        "dtypes": ("float32", "bfloat16", "float16"),
    }
    assert {topic: found(probed)[topic] for topic in expected} == expected
    assert str(probed).count("# dtypes ") == 1


@pytest.mark.parametrize("isolate", [False, True])
def test_a_verdict_says_where_conventions_are_not_declared(isolate: bool) -> None:
    """Another layout is named, and where most laws break at their first example, so is the probe."""
    few: Any = {
        "profile": Profile("tiny", seeded=1, drawn=0, shrinks=0),
        "dtype": "float32",
        "laws": "accuracy",
    }
    notes = headcheck.verify(f"{__file__}:bshd", **few, isolate=isolate).notes
    assert LAYOUT in notes
    assert notes[-1].startswith(AT_ONCE + "`headcheck probe ")
    assert notes[-1].endswith("test_probe.py:bshd` tells")
    for right in (headcheck.Attention(bshd, layout="bshd"), kernels.right):
        notes = headcheck.verify(right, **few).notes
        assert not [note for note in notes if note == LAYOUT or note.startswith(AT_ONCE)]
