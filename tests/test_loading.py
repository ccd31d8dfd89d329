"""A subject is found by what a user types, and each mistake is told in one line that names the cure."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headcheck.declarations import Attention
from headcheck.errors import SubjectError
from headcheck.loading import load
from headcheck.recognising import made, role_name
from headcheck.subjects import BuiltIn, builtin, builtins

KERNELS = Path(__file__).parent / "kernels.py"


def test_a_built_in_is_found_by_its_name() -> None:
    """A built-in name gives its declaration, and the name is what reports call it."""
    declaration, name = load("torch-sdpa")
    assert isinstance(declaration, Attention)
    assert name == "torch-sdpa"


def test_a_module_attribute_is_found() -> None:
    """package.module:attribute gives the attribute itself, dots in it allowed."""
    assert load("torch.nn:functional.scaled_dot_product_attention")[0] is (
        torch.nn.functional.scaled_dot_product_attention
    )


def test_a_module_of_the_working_directory_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The directory in which the command is given can be imported from, as with python -m."""
    (tmp_path / "module_beside_us.py").write_text("def f(q, k, v): return v\n")
    monkeypatch.chdir(tmp_path)
    assert load("module_beside_us:f")[0](1, 2, 3) == 3


def test_a_file_attribute_is_found_with_its_neighbours(tmp_path: Path) -> None:
    """A file may import what lies beside it, also when the function is called only later."""
    (tmp_path / "neighbour_one.py").write_text("one = 1\n")
    (tmp_path / "neighbour_two.py").write_text("two = 2\n")
    code = (
        "from neighbour_one import one\ndef f():\n    from neighbour_two import two\n    return one + two\n"
    )
    (tmp_path / "kernel.py").write_text(code)
    assert load(f"{tmp_path}/kernel.py:f")[0]() == 3


def test_a_file_does_not_replace_a_module_of_its_name(tmp_path: Path) -> None:
    """A user's random.py is loaded beside the standard library's, not in its place."""
    import random

    (tmp_path / "random.py").write_text("def f(q, k, v): return v\n")
    assert load(f"{tmp_path}/random.py:f")[0].__module__ != "random"
    assert sys.modules["random"] is random


def test_a_file_is_read_again(tmp_path: Path) -> None:
    """In a notebook the second load sees what was changed since the first."""
    file = tmp_path / "kernel.py"
    file.write_text("def f(): return 1\n")
    first = load(f"{file}:f")[0]()
    file.write_text("def f(): return 22\n")
    assert (first, load(f"{file}:f")[0]()) == (1, 22)


MISTAKES = {
    "torch-sdap": "no built-in subject 'torch-sdap' .did you mean torch-sdpa",
    "no_such_module_at_all:f": "no module 'no_such_module_at_all'",
    "torch.no_such_part:f": r"no module 'torch.no_such_part'",
    "no_such_file.py:f": "no file no_such_file.py",
    f"{KERNELS}": "names a file but no function in it; .*NAME being right, wrong_scale",
    f"{KERNELS}:rigth": r"no attribute 'rigth' \(did you mean right\?\)",
    f"{KERNELS}:NOT_CALLABLE": "is of type int, neither a callable nor a declaration",
    "collections:OrderedDict": "is a class of what cannot be called",
    ":f": "write package.module:attribute",
}


@pytest.mark.parametrize(("spec", "message"), MISTAKES.items())
def test_a_mistake_is_told_in_one_line(spec: str, message: str) -> None:
    """Each way to mistype a subject has a line of its own that says what to type instead."""
    with pytest.raises(SubjectError, match=message) as caught:
        load(spec)
    assert "\n" not in str(caught.value)


def test_what_a_file_defines_is_offered_before_its_imports(tmp_path: Path) -> None:
    """Functions, classes and declarations of the file itself; of what it imports nothing of torch."""
    (tmp_path / "crowded.py").write_text(
        "from collections import OrderedDict\n"
        "import headcheck\n"
        "import torch\n"
        "from torch import Tensor\n"
        "from torch.nn.functional import scaled_dot_product_attention\n"
        "def sparse(q, k, v): return v\n"
        "class MHA(torch.nn.Module): pass\n"
        "layer = torch.nn.Identity()\n"
        "declared = headcheck.Attention(sparse)\n"
    )
    with pytest.raises(SubjectError, match=r"\(it has: MHA, declared, sparse, OrderedDict, layer\)"):
        load(f"{tmp_path}/crowded.py:xyz")
    with pytest.raises(SubjectError, match=r"\(it has: .*AdaptiveAvgPool1d, "):
        load("torch.nn:xyz")


@pytest.mark.parametrize(
    ("package", "cure"),
    [
        ("beside_the_examples", r"; it lies in \S*/project/src: run with PYTHONPATH=\S*/project/src, or "),
        (
            "nowhere_to_be_found",
            "; install nowhere_to_be_found, or run with PYTHONPATH=FOLDER, the folder that",
        ),
    ],
)
def test_an_import_that_is_missed_names_its_cure(package: str, cure: str, tmp_path: Path) -> None:
    """A file of a project that is not installed imports what lies in another folder of it."""
    project = tmp_path / "project"
    (project / "src" / "beside_the_examples").mkdir(parents=True)
    (project / "examples").mkdir()
    (project / "examples" / "kernel.py").write_text(f"import {package}.layers\n")
    with pytest.raises(SubjectError, match=cure):
        load(f"{project}/examples/kernel.py:f")


def test_a_class_of_modules_is_for_the_roles_that_make_them() -> None:
    """Multi-head attention is made by headcheck, of several sizes; of attention the user names an instance."""
    attribute, _ = load("torch.nn:MultiheadAttention")
    assert role_name(attribute) == "multi_head_attention"
    with pytest.raises(SubjectError, match="Bilinear3 is a class; make an instance"):
        role_name(Bilinear3)


class Bilinear3(nn.Module):
    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return query @ key.mT @ value


class Computed(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return q @ k.mT @ v


class Callable3:
    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return q @ k.mT @ v


class Scaled(Computed):
    def __init__(self, scale: float) -> None:
        super().__init__()


class Raising:
    def __init__(self) -> None:
        raise OSError("no driver")

    def __call__(self) -> None: ...


def test_an_instance_is_made_where_that_takes_nothing() -> None:
    """As of a generated kernel's class; not where a role makes instances itself, of several sizes."""
    assert isinstance(made(Computed), Computed)
    assert isinstance(made(Callable3), Callable3)
    assert made(nn.MultiheadAttention) is nn.MultiheadAttention
    assert made(Scaled) is Scaled
    assert made(nn.Identity, "encoder") is nn.Identity
    with pytest.raises(SubjectError, match="making an instance of Raising failed: OSError: no driver"):
        made(Raising)


def normalize(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x


def fused(x: Tensor, gain: Tensor, beta: Tensor, eps: float = 1e-5) -> Tensor:
    return x


def turned(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return q


def spread(x: Tensor, dim: int) -> Tensor:
    return x


def attend(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    return a


def linear(query: Tensor, key: Tensor, value: Tensor, eps: float = 1e-6) -> Tensor:
    return query


@pytest.mark.parametrize(
    ("function", "roles"),
    [(normalize, "rms_norm or layer_norm"), (fused, "layer_norm"), (turned, "rotary"), (spread, "softmax")],
)
def test_a_function_whose_parameters_are_not_those_of_attention_is_refused(
    function: Callable[..., Any], roles: str
) -> None:
    """A norm by a name of its own would break every law of attention."""
    with pytest.raises(
        SubjectError, match=rf"takes \(.*\), not query, .* say it with --role: {roles}, or attention"
    ):
        role_name(function)
    assert role_name(attend) == role_name(linear) == "attention"


class SelfAttn(nn.Module):
    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        return hidden_states


class TinyGPT(nn.Module):
    def forward(self, idx: Tensor) -> Tensor:
        return idx


class Reader(nn.Module):
    def forward(self, input_ids: Tensor, mask: Tensor | None = None, cache: Any = None) -> Tensor:
        return input_ids


class BertLike(nn.Module):
    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return input_ids


class Patches(nn.Module):
    def forward(self, img: Tensor) -> Tensor:
        return img


class PositionalEncoding(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x


class MiniT5(nn.Module):
    def forward(
        self, input_ids: Tensor, decoder_input_ids: Tensor, attention_mask: Tensor | None = None
    ) -> Tensor:
        return decoder_input_ids


@pytest.mark.parametrize(
    ("kind", "role"),
    [
        (MiniT5, "seq2seq, or"),
        (BertLike, "encoder, with a module around it"),
        (Patches, "vision"),
        (PositionalEncoding, "sinusoidal or rotary, with a function around it"),
    ],
)
def test_a_module_is_told_how_it_is_named(kind: type[nn.Module], role: str) -> None:
    """Where the name of a class or of its input tells a role, no list of all roles stands there."""
    with pytest.raises(SubjectError, match=f"say it with --role: {role}"):
        role_name(kind)


@pytest.mark.parametrize("made", [lambda kind: kind, lambda kind: kind()], ids=["class", "instance"])
def test_a_module_is_recognised_as_its_class_is(made: Callable[[type[nn.Module]], Any]) -> None:
    """By the name of the class; where that tells nothing, a module that cannot take query, key, value is refused."""
    assert role_name(made(TinyGPT)) == "causal_lm"
    assert role_name(made(SelfAttn), "encoder") == "encoder"
    takes = r"takes \(hidden_states, attention_mask\), not query, key and value"
    with pytest.raises(SubjectError, match=takes + r".*; say it with --role: multi_head_attention, or"):
        role_name(made(SelfAttn))
    with pytest.raises(SubjectError, match=r"Reader is a module .* --role: causal_lm, or"):
        role_name(made(Reader))
    with pytest.raises(
        SubjectError,
        match=r"multi_head_attention, encoder, decoder, seq2seq, causal_lm, vision, rms_norm, layer_norm, softmax, or",
    ):
        role_name(made(nn.Identity))


def test_a_module_of_query_key_and_value_is_attention() -> None:
    """Also where keys and values are those of the query unless they are given."""

    class Own(nn.Module):
        def forward(self, q: Tensor, k: Tensor | None = None, v: Tensor | None = None) -> Tensor:
            return q

    assert role_name(Bilinear3()) == role_name(Own()) == "attention"


BROKEN_FILES = {
    "x = 1\ndef f(:\n": r"kernel.py, line 2: syntax error",
    "import math\nimport not_a_package_at_all\n": r"kernel.py, line 2\): ModuleNotFoundError: No module",
    "def g():\n    raise ValueError('why\\nmore')\ng()\n": r"kernel.py, line 2\): ValueError: why$",
    "raise SystemExit(3)\n": "SystemExit: 3",
}


@pytest.mark.parametrize(("code", "message"), BROKEN_FILES.items())
def test_a_file_that_cannot_be_imported_names_the_line(tmp_path: Path, code: str, message: str) -> None:
    """What is wrong in the user's file is told with its line, without a traceback."""
    (tmp_path / "kernel.py").write_text(code)
    with pytest.raises(SubjectError, match=message):
        load(f"{tmp_path}/kernel.py:f")


def test_a_file_of_a_package_is_named_by_its_package(tmp_path: Path) -> None:
    """Its relative imports fail where it is named as a file."""
    package = tmp_path / "kernels"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "attend.py").write_text("from .base import softmax\n")
    with pytest.raises(
        SubjectError, match=r"name it as kernels\.attend:NAME, with .* as the working directory"
    ):
        load(f"{package / 'attend.py'}:attention")


def test_what_a_module_makes_when_asked_for_may_raise(tmp_path: Path) -> None:
    """Be it the attribute that is asked for, or another one of which a hint would tell."""
    file = tmp_path / "lazy.py"
    file.write_text(
        "def __getattr__(name):\n"
        "    if name == 'attention':\n"
        "        raise ImportError('needs a package')\n"
        "    raise AttributeError(name)\n"
        "def __dir__():\n"
        "    return ['attention']\n"
    )
    with pytest.raises(
        SubjectError, match=r"importing .*lazy.py:attention failed.*ImportError: needs a package"
    ):
        load(f"{file}:attention")
    with pytest.raises(SubjectError, match=r"has no attribute 'attentoin' .did you mean attention"):
        load(f"{file}:attentoin")


def test_the_role_is_the_declarations() -> None:
    """A declaration says its role; a role asked for against it is refused, and a plain callable takes it."""
    declared = Attention(load(f"{KERNELS}:right")[0])
    assert role_name(declared) == role_name(len) == "attention"
    assert role_name(len, "softmax") == "softmax"
    with pytest.raises(SubjectError, match="declared as attention; leave out --role softmax"):
        role_name(declared, "softmax")


def test_two_built_ins_of_one_name_are_refused() -> None:
    """A name clash is found when the second one is registered."""
    builtins()
    with pytest.raises(ValueError, match="two built-in subjects are called torch-sdpa"):
        builtin("torch-sdpa", "Another.")(lambda: None)


def test_a_built_in_whose_package_is_missing_says_how_to_get_it() -> None:
    """It is known to be missing without an attempt to make it, and the line that installs it is named."""

    def make() -> Any:
        raise AssertionError

    absent = BuiltIn("absent", "", make, ("no_such_package_at_all",), "pip install the-package")
    assert absent.missing == ("no_such_package_at_all",)
    with pytest.raises(SubjectError, match="needs no_such_package_at_all; run: pip install the-package"):
        absent.declaration()


def test_listing_the_built_ins_makes_none_of_them() -> None:
    """`headcheck subjects` imports no framework but torch, which headcheck itself computes with."""
    code = (
        "import sys; from headcheck.command import main; main(['subjects'])\n"
        "print('heavy:', sorted({'jax', 'torch._dynamo', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "torch-sdpa" in done.stdout
    assert "heavy: []" in done.stdout


@pytest.mark.parametrize("name", ["gemm_half", "from_halo", "diff_from_halves"])
def test_letters_across_two_words_are_no_role(name: str) -> None:
    """A role's short name is told by a word of its own: gemm_half is no MHA."""

    def function(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return query

    function.__name__ = name
    assert role_name(function) == "attention"


def test_a_function_of_query_key_and_value_is_attention_whatever_its_name_is() -> None:
    """A softmax, a rotary attention, a fused MHA; what makes a module of its sizes is none."""

    def function(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return query

    def maker(d_model: int, num_heads: int) -> nn.Module:
        return nn.MultiheadAttention(d_model, num_heads)

    for name in ("softmax_over_queries", "rotary_attention", "fused_mha", "gpt_oss"):
        function.__name__ = name
        assert role_name(function) == "attention"
    maker.__name__ = "fused_mha"
    assert role_name(maker) == "multi_head_attention"
