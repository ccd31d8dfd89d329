"""A function that no plain call of its role works on is an input error, told in one line; all else is for laws."""

import re
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import headcheck
from headcheck.attention import trial
from headcheck.calling import SubjectRaised
from headcheck.command import main
from headcheck.errors import SubjectError
from headcheck.functions.rotary import Rotary
from headcheck.loading import load
from headcheck.roles import role
from tests.kernels import refuses_all, right

ATTENTION = r"cannot be called as f\(query, key, value\): "


def two(q: Tensor, k: Tensor) -> Tensor:
    return q + k


def nothing(q: Tensor, k: Tensor, v: Tensor) -> None:
    return None


def an_array(q: Tensor, k: Tensor, v: Tensor) -> Any:
    return v.float().numpy()


def a_slip(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    raise NameError("name 'kk' is not defined")


def by_tables(x: Tensor, cos: Tensor, sin: Tensor, position_ids: Tensor) -> Tensor:
    return x * cos[position_ids] + x.flip(-1) * sin[position_ids]


def of_nothing() -> int:
    return 1


CALLS = {
    two: ATTENTION + r"TypeError: two\(\) takes 2 positional arguments but 3 were given",
    nothing: ATTENTION + r"returned None \(is a return missing\?\), expected a torch.Tensor",
    an_array: ATTENTION + r"returned a ndarray \(torch.from_numpy makes a tensor of it\)",
    a_slip: ATTENTION + "NameError: name 'kk' is not defined",
}


@pytest.mark.parametrize(
    ("function", "message"), CALLS.items(), ids=lambda each: getattr(each, "__name__", "")
)
def test_what_can_never_be_called_is_no_finding(function: Callable[..., Any], message: str) -> None:
    """Where every plain call raises, or gives what is no tensor, one line says why, and no law is judged."""
    with pytest.raises(SubjectError, match=message) as caught:
        headcheck.verify(function, profile="quick")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("declares", [{}, {"dtypes": ("float32",)}])
def test_a_declared_dtype_does_not_hide_it(declares: dict[str, Any]) -> None:
    """A dtype that is declared is held to work, and still the call must be one that can be made."""
    with pytest.raises(SubjectError, match=ATTENTION):
        trial.prepare(headcheck.Attention(two, **declares), dtypes=(), device="cpu", seed=0)


OTHERS = {
    "rotary": (by_tables, r"f\(x, positions\): TypeError: .*'sin'"),
    "softmax": (of_nothing, r"f\(x, dim\): "),
    "sinusoidal": (of_nothing, r"f\(length, d_model\): takes no length"),
    "layer_norm": (of_nothing, r"f\(x, weight, bias, eps\): "),
    "rms_norm": (of_nothing, r"f\(x, weight, eps\): "),
}


@pytest.mark.parametrize("name", OTHERS)
def test_so_is_it_for_the_other_functions(name: str) -> None:
    """Each role says its own canonical call; verify and probe say the same."""
    function, message = OTHERS[name]
    for front in (headcheck.verify, headcheck.probe):
        with pytest.raises(SubjectError, match="cannot be called as " + message):
            front(function, role=name)


def test_the_command_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    """As for every input error: the exit code of untested, and one line."""
    assert main([f"{__file__}:by_tables", "--role", "rotary", "-n", "1", "-q"]) == 2
    assert main(["probe", f"{__file__}:by_tables", "--role", "rotary"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["headcheck", "headcheck"]


def test_a_forced_kernel_that_refuses_every_plain_call_is_not_applicable() -> None:
    """What is declared to be allowed is no mistake."""
    declared = headcheck.Attention(refuses_all, may_refuse=True, dtypes=("float32",))
    assert headcheck.verify(declared, profile="quick", laws="right-form").verdict == "untested"
    with pytest.raises(SubjectError, match=ATTENTION + "NotImplementedError: this kernel takes no call"):
        headcheck.verify(declared.but(may_refuse=False), profile="quick")


def swapped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return right(q, k, v).transpose(1, 2)


def test_a_wrong_form_is_for_laws() -> None:
    """A tensor of another shape breaks laws."""
    assert headcheck.verify(swapped, profile="quick", laws="right-form").verdict == "breaks"


def widened(x: Tensor, positions: Tensor) -> Tensor:
    return torch.cat([x, x])


def test_a_wrong_form_is_noted() -> None:
    """What was found out of calls of a wrong form is not to be trusted, and a note says so."""
    _, notes = role("rotary").prepare(Rotary(widened), dtypes=(), device="cpu", seed=0)
    assert notes[0].startswith("no plain call, f(x, positions), works: output has shape")


def test_the_line_that_raised_is_told() -> None:
    """The last of the user's own, and no line of a library's."""
    with pytest.raises(RuntimeError) as caught:
        torch.zeros(2).view(3)
    assert re.fullmatch(r" \(test_cannot_be_called\.py, line \d+\)", SubjectRaised(caught.value).raised_at)
    assert SubjectRaised(ValueError("never raised")).raised_at == ""
    with pytest.raises(statistics.StatisticsError, match="at least two") as caught_elsewhere:
        statistics.linear_regression([], [])
    assert re.fullmatch(
        r" \(test_cannot_be_called\.py, line \d+\)", SubjectRaised(caught_elsewhere.value).raised_at
    )


def test_what_takes_nothing_is_told_the_roles_of_modules() -> None:
    """It may make one, as nobody who names it has said yet."""
    with pytest.raises(
        SubjectError, match=r"^of_nothing is a function that takes nothing; .*--role: multi_head"
    ):
        headcheck.verify(of_nothing)


KERNELBENCH = """
from torch import nn

class Model(nn.Module):
    def __init__(self, width, heads, length):
        super().__init__()
        self.layer = nn.Linear(width, width)

    def forward(self, x):
        return self.layer(x)

def get_init_inputs():
    return [16, 2, 64]
"""


def test_a_class_of_kernelbench_is_told_how_it_is_made(tmp_path: Path) -> None:
    """Beside get_init_inputs; an instance where the role has functions, and softmax among roles of one input."""
    (tmp_path / "model.py").write_text(KERNELBENCH, encoding="utf-8")
    model = load(f"{tmp_path}/model.py:Model")[0]
    for role_name, made in (("encoder", "lambda: "), ("multi_head_attention", "lambda: "), ("rms_norm", "")):
        said = rf"KernelBench's form: subject = {made}Model\(\*get_init_inputs\(\)\)$"
        with pytest.raises(SubjectError, match=said):
            headcheck.verify(model, role=role_name)
    with pytest.raises(SubjectError, match=r"rms_norm, layer_norm, softmax, or attention$"):
        headcheck.verify(model)
