"""`--declare`: conventions told on the command line."""

from contextlib import suppress
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import headcheck
from headcheck.arithmetic import named
from headcheck.command import main
from headcheck.declaring import declaring
from headcheck.errors import HeadcheckError, SubjectError
from headcheck.judging import make_plan
from headcheck.preparing import subject_of

HERE = str(Path(__file__))


def of_the_field(q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
    """Heads after the length, and the causal diagonal at the last key."""
    q, k, v = (each.transpose(1, 2) for each in (q, k, v))
    keep = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool)
    keep = keep.tril(k.shape[-2] - q.shape[-2]) if causal else keep
    output = scaled_dot_product_attention(q, k, v, keep).nan_to_num()
    return output.transpose(1, 2)


def added(q: Tensor, k: Tensor, v: Tensor, attn_bias: Tensor | None = None) -> Tensor:
    scores = q @ k.mT / q.shape[-1] ** 0.5 + (0.0 if attn_bias is None else attn_bias)
    return torch.softmax(scores, -1).nan_to_num() @ v


def added_object(q: Tensor, k: Tensor, v: Tensor, attn_bias: object = None) -> Tensor:
    if isinstance(attn_bias, Tensor):
        raise TypeError("attn_bias is None or a LowerTriangularMask")
    return scaled_dot_product_attention(q, k, v)


def of_packs(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor) -> Tensor:
    ends = zip(cu_seqlens_q.tolist(), cu_seqlens_k.tolist(), strict=True)
    parts, (start, begin) = [], next(ends)
    for stop, end in ends:
        packs = (x.transpose(0, 1) for x in (q[start:stop], k[begin:end], v[begin:end]))
        parts.append(scaled_dot_product_attention(*packs, enable_gqa=True).nan_to_num().transpose(0, 1))
        start, begin = stop, end
    return torch.cat(parts)


BOTH = ("--declare", "layout=bshd", "--declare", "causal=bottom-right")
BRIEF = ("--law", "masks/the-future", "--dtype", "float32", "--profile", "quick")


def test_python_takes_a_declaration_in_three_forms() -> None:
    """One FIELD=VALUE, several, or a mapping."""
    forms = ("layout=bshd", ["layout=bshd"], {"layout": "bshd"}, {"layout": "bshd", "masks": ("boolean",)})
    declared = [make_plan(added, declare=each).declared for each in forms]
    assert declared[:3] == [("layout=bshd",)] * 3
    assert declaring(headcheck.Attention(added), declared[3]).masks == ("boolean",)


def test_a_value_that_cannot_be_typed_belongs_into_the_declaration() -> None:
    """A function has no text that could be read again."""
    with pytest.raises(
        HeadcheckError,
        match=r"arithmetic is no plain value.* headcheck.Attention\(function, arithmetic=...\)",
    ):
        make_plan(of_the_field, declare={"arithmetic": named("eager")})


def test_a_convention_is_said_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    """The subject is held to it, and the lines to paste say it too."""
    assert main(["verify", f"{HERE}:of_the_field", *BRIEF, *BOTH]) == 0
    assert main(["verify", f"{HERE}:of_the_field", *BRIEF, "--declare", "layout=bshd"]) == 1
    told = capsys.readouterr().out
    assert "a plain call is right with --declare causal=bottom-right, and wrong without it" in told
    (line,) = [line for line in told.splitlines() if line.startswith("  replay: ")]
    assert line.endswith("--dtype float32 --declare layout=bshd")
    plan = make_plan(f"{HERE}:of_the_field", declare=["layout=bshd"])
    assert subject_of(plan).declaration.layout == "bshd"
    assert plan.probe.endswith(":of_the_field --declare layout=bshd`")
    brief = {"laws": "masks/the-future", "dtype": "float32", "profile": "quick"}
    assert headcheck.verify(of_the_field, declare=BOTH[1::2], **brief).conforms


def test_values_are_words_or_python() -> None:
    """One of a field of several needs no comma."""
    declaration = headcheck.Attention(added)
    said = ("masks=boolean,additive", "head_dims=64", "dropout=False", "arguments={'attn_mask': 'attn_bias'}")
    changed = declaring(declaration, said)
    assert (changed.masks, changed.head_dims, changed.dropout) == (("boolean", "additive"), (64,), False)
    assert changed.arguments == {"attn_mask": "attn_bias"}
    assert declaring(changed, ["arguments.scale=factor"]).arguments == {
        "attn_mask": "attn_bias",
        "scale": "factor",
    }
    assert declaring(declaration, ["always.is_causal=True", "always.scale=1.0"]).always == {
        "is_causal": True,
        "scale": 1.0,
    }
    assert declaring(headcheck.Encoder(torch.nn.Identity()), ["mask_rank=2"]).mask_rank == 2
    assert declaring(changed, ["masks=()"]).masks == ()
    assert declaring(changed, ["masks=None"]).masks is None


def test_a_function_is_named_by_where_it_stands(tmp_path: Path) -> None:
    """As a subject is."""
    (tmp_path / "model.py").write_text("def step(module, tokens, cache): ...\n")
    declaration = headcheck.CausalLM(added)
    assert declaring(declaration, [f"step={tmp_path}/model.py:step"]).step.__name__ == "step"
    assert declaring(declaration, ["step=None"]).step is None
    with pytest.raises(SubjectError, match=r"step is a function, as FILE\.py:NAME or MODULE:NAME or None"):
        declaring(declaration, ["step=decode"])
    with pytest.raises(SubjectError, match=r"model\.py has no attribute 'setp'"):
        declaring(declaration, [f"step={tmp_path}/model.py:setp"])


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("layout", "cannot read --declare 'layout'; write FIELD=VALUE, such as layout=bshd"),
        ("layuot=bshd", r"role attention declares no 'layuot' \(did you mean layout\?\)"),
        ("layout.h=bshd", "cannot take --declare 'layout.h=bshd'; layout is no mapping"),
        ("always.scale=foo", "always={'scale': 'foo'} is no scale; such as {'scale': 1.0}"),
        ("always.window=(2, -1)", r"always={'window': \(2, -1\)} is no window; such as {'window': \(2, 0\)}"),
        ("arguments.scale=2", "cannot take --declare 'arguments.scale=2'; arguments.scale is a word"),
        ("function=f", r"declares no 'function' \(there are: "),
        ("causal=left", "causal='left' is not a convention headcheck knows; choose one of"),
        ("gradients=maybe", "cannot take --declare 'gradients=maybe'; gradients is True or False or None"),
        ("head_dims=abc", "head_dims is several, each a whole number or None"),
        ("arguments=3", "arguments is a mapping, said entry by entry: FIELD.KEY=VALUE"),
        ("effort=-1", r"effort=-1 is no share of the examples; 1\.0 is all of them"),
        ("effort={[]}", "effort is a number"),
        ("layout=None", "layout is a word"),
        ("devices=()", r"devices=\(\) names no device"),
    ],
)
def test_a_mistake_is_told_with_its_cure(said: str, told: str) -> None:
    """In one line."""
    with pytest.raises(SubjectError, match=told):
        declaring(headcheck.Attention(added), [said])


def test_no_value_of_any_field_is_an_error_of_headcheck() -> None:
    """It is taken, or refused in one line."""
    vision = headcheck.Vision(torch.nn.Identity)
    assert declaring(vision, ["image_size=8", "patch_size=(2, 4)"]).patch_size == (2, 4)
    for declaration in (headcheck.Attention(added), headcheck.CausalLM(torch.nn.Identity), vision):
        for each in fields(declaration):
            for value in (
                "",
                "abc",
                "3",
                "-1",
                "None",
                "True",
                "false",
                "()",
                "(1, 2)",
                "[2, 3]",
                "{[]}",
                "{}",
                "a, b",
            ):
                with suppress(SubjectError):
                    declaring(declaration, [f"{each.name}={value}"])


def test_what_is_added_is_given_no_booleans() -> None:
    """A mask by the name attn_bias is an additive one, unless another kind is declared."""
    verdict = headcheck.verify(added, laws="masks", profile="quick", dtype="float32")
    assert verdict.exit_code == 0, verdict
    assert any("attn_bias is what is added" in row.reason for row in verdict.laws)


def test_a_mask_that_is_no_tensor_is_not_asked_for() -> None:
    """attn_bias may be an object, as xformers has it: given a tensor, the function refuses it."""
    verdict = headcheck.verify(added_object, laws=("masks", "accuracy/out"), profile="quick", dtype="float32")
    assert verdict.exit_code == 0, verdict


def test_a_function_of_packs_is_called_with_packs() -> None:
    """Its signature tells the layout: it cannot be called without the lengths."""
    verdict = headcheck.verify(of_packs, laws="output-is-within", profile="quick", dtype="float32")
    assert verdict.exit_code == 0, verdict
    assert verdict.declaration["layout"] == "thd"
