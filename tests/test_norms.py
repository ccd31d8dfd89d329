"""The roles of norms: how a function's signature is read, what is found out about it, what the bound admits."""

import time
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from headcheck.comparison import within
from headcheck.errors import SubjectError
from headcheck.functions.layer_norm import LayerNormCase
from headcheck.functions.norm_hints import EPS_BESIDE, FIRST_OF_MORE, LESS_ONE
from headcheck.functions.norms import NormCase, NormInputs
from headcheck.functions.role import FunctionRole
from headcheck.pasting import found_out
from headcheck.python_front import verify
from headcheck.roles import role
from headcheck.verdict import Hint
from tests.roles import RIGHT


def of(name: str) -> FunctionRole[Any, Any]:
    found: Any = role(name)
    return found


def prepared(name: str, function: Any, *dtypes: str, **declares: Any) -> tuple[Any, list[str]]:
    declaration = of(name).declaration(function, **declares)
    return of(name).prepare(declaration, dtypes=dtypes or ("float32",), device="cpu", seed=0)


def test_an_eps_that_is_no_argument_is_measured() -> None:
    """In as few digits as tell it, and the verdict says so."""

    def norm(x: Tensor) -> Tensor:
        return functional.rms_norm(x, x.shape[-1:], eps=3e-6)

    subject, notes = prepared("rms_norm", norm)
    assert subject.own_eps == 3e-6
    assert notes == ["eps: 3e-06, measured (it is no argument, and not declared)"]


def test_a_measured_eps_is_not_cut_short() -> None:
    """That of float32 is in no three digits; where torch is given none, each format has its own."""
    odd, _ = prepared("rms_norm", lambda x: functional.rms_norm(x, x.shape[-1:], eps=1.23456e-5))
    assert odd.own_eps == 1.23456e-5
    subject, notes = prepared(
        "rms_norm", lambda x: functional.rms_norm(x, x.shape[-1:]), "float32", "float64"
    )
    own = {dtype: subject.eps_in(dtype) for dtype in (torch.float32, torch.float64)}
    assert own == {dtype: torch.finfo(dtype).eps for dtype in own}
    assert notes == ["eps: 1.1920929e-07, measured (it is no argument, and not declared)"]
    assert of("rms_norm").found(subject)["eps"] is None


def test_float64_that_is_float32_in_part_is_told() -> None:
    """T5's variance is of float32, and what it multiplies of float64: one law breaks, and its hint names the cure."""

    def t5(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return weight * (x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)

    subject, notes = prepared("rms_norm", t5, "float64", "float32")
    assert subject.dtypes == ("float32",)
    assert any("--declare dtypes=float32" in note for note in notes if isinstance(note, Hint))
    verdict = verify(of("rms_norm").declaration(t5), profile="quick", laws="dtypes")
    assert [row.name for row in verdict.broken] == ["doubles-are-computed-as-doubles"]


def test_sums_over_rows_are_seen_without_a_bias() -> None:
    """torch's layer norm keeps the weight's gradient in 16 bits; what is pasted is a declaration that is taken."""
    subject, _ = prepared("layer_norm", RIGHT["layer_norm/without-a-bias"].function, "bfloat16")
    assert str(subject.arithmetic["bfloat16"]) == "replace(named('opwise'), rescale='input')"
    found = found_out(
        of("layer_norm").declaration(RIGHT["layer_norm/without-a-bias"].function, dtypes=("bfloat16",))
    )
    assert "replace(named('opwise'), rescale='input')" in found.pasted


def test_sums_in_sixteen_bits_are_told() -> None:
    """No model that is inferred allows for them, and native does."""

    def by_welford(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        mean, squares = torch.zeros_like(x[..., :1]), torch.zeros_like(x[..., :1])
        for number, each in enumerate(x.split(1, dim=-1), start=1):
            before, mean = mean, mean + (each - mean) / number
            squares = squares + (each - before) * (each - mean)
        return (x - mean) / torch.sqrt(squares / x.shape[-1] + eps) * weight + bias

    _, notes = prepared("layer_norm", by_welford, "bfloat16")
    assert any("--declare arithmetic.bfloat16=native" in note for note in notes if isinstance(note, Hint))


def test_the_first_of_a_tuple_is_judged() -> None:
    """The rest is what a backward pass needs, and a note says so."""
    subject, notes = prepared("layer_norm", RIGHT["layer_norm/with-its-cache"].function)
    assert FIRST_OF_MORE in notes
    assert subject.returns_more


def test_what_is_slow_is_tried_with_narrow_rows() -> None:
    """A loop over features: laws still ask for wide rows."""

    def by_loop(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        if x.shape[-1] > 100:
            time.sleep(0.1)
            widths.append(x.shape[-1])
        return functional.rms_norm(x, x.shape[-1:], weight, eps)

    widths: list[int] = []
    subject, _ = prepared("rms_norm", by_loop, "bfloat16")
    assert len(widths) < 20
    assert of("rms_norm").fit(NormCase(dim=4096), subject).dim == 4096


def test_an_eps_of_zero_is_measured() -> None:
    """Rows of zeros are then 0 / 0: they must not come back as NaN, unless that eps is declared."""

    def directions(x: Tensor) -> Tensor:
        return x / x.norm(dim=-1, keepdim=True) * x.shape[-1] ** 0.5

    subject, notes = prepared("rms_norm", directions)
    assert subject.own_eps == 0.0
    assert notes == ["eps: 0, measured (it is no argument, and not declared)"]
    declare = of("rms_norm").declaration
    zeros = "a-row-of-zeros"
    assert verify(declare(directions), laws=zeros, profile="quick").verdict == "breaks"
    assert verify(declare(directions, eps=0.0), laws=zeros, profile="quick").verdict != "breaks"


def test_an_eps_beside_the_root_is_noted() -> None:
    """The laws break, and the note says what it is that they break of."""

    def beside(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return x / (x.square().mean(dim=-1, keepdim=True).sqrt() + eps) * weight

    assert prepared("rms_norm", beside)[1] == [EPS_BESIDE]
    assert prepared("rms_norm", RIGHT["rms_norm/by-the-book"].function)[1] == []


def test_a_deviation_over_n_less_one_is_told() -> None:
    """It is what torch.std gives unless it is asked for another, and many layer norms by hand have it."""

    def by_hand(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        return weight * (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True) + eps).sqrt() + bias

    def beside(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        return weight * (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + eps) + bias

    for each in (by_hand, beside):
        assert prepared("layer_norm", each)[1] == [LESS_ONE]
    assert prepared("layer_norm", RIGHT["layer_norm/two-passes"].function)[1] == []


def test_a_bound_that_is_no_number_is_not_shown() -> None:
    """It is computed of what the subject gives, where a law speaks of its statistics."""

    def by_hand(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        variance = x.var(-1, keepdim=True) * torch.nan
        return weight * (x - x.mean(-1, keepdim=True)) / (variance + eps).sqrt() + bias

    verdict = verify(
        of("layer_norm").declaration(by_hand), laws="the-mean-square-is-what-eps", profile="quick"
    )
    assert [law.reason for law in verdict.broken] == ["mean square[0, 0, 0] is nan, expected 0"]


def test_a_width_that_is_refused_aloud_is_not_asked_for() -> None:
    """Nor are others than those that are declared; where one width alone is taken, the message names the cure."""
    refusing, notes = prepared("layer_norm", RIGHT["layer_norm/by-batch-norm"].function)
    assert refusing.avoids == (1,)
    assert notes[0].startswith("rows of 1: not asked for (raised ValueError")
    assert of("layer_norm").fit(LayerNormCase(dim=1), refusing).dim == 2
    declared, _ = prepared("layer_norm", nn.LayerNorm(24), dims=(24,))
    assert of("layer_norm").fit(LayerNormCase(dim=7), declared).dim == 24
    assert verify(declared.declaration, laws="normalised-row-has-mean", profile="quick").verdict == "conforms"


@pytest.mark.parametrize("name", ["layer_norm", "rms_norm"])
def test_a_function_of_one_width_needs_it_declared(name: str) -> None:
    """A weight of 24 makes 24 of a row of one, and cannot be multiplied with other rows."""
    weight = torch.ones(24)
    with pytest.raises(SubjectError, match=r"dims=\(24,\) in its declaration"):
        prepared(name, lambda x: functional.rms_norm(x, x.shape[-1:]) * weight)


def test_a_declared_eps_is_not_measured() -> None:
    """It is held to what it declares."""

    def norm(x: Tensor) -> Tensor:
        return functional.rms_norm(x, x.shape[-1:], eps=3e-6)

    subject, notes = prepared("rms_norm", norm, eps=1e-6)
    assert subject.own_eps == 1e-6
    assert not notes
    verdict = verify(of("rms_norm").declaration(norm, eps=1e-6), laws="eps-stands", profile="quick")
    assert verdict.verdict == "breaks"


def test_a_parameter_is_read_by_its_name_before_its_place() -> None:
    """Where eps stands in the place of the bias, it is no bias."""

    def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return functional.layer_norm(x, x.shape[-1:], weight, None, eps)

    subject, _ = prepared("layer_norm", norm)
    assert subject.places == {"weight": "weight", "bias": None, "eps": "eps"}
    assert subject.lacks("bias") == "takes no bias"


def test_parameters_of_other_names_are_given_by_place() -> None:
    """x, weight, bias and eps, in the order of the canonical call."""

    def norm(h: Tensor, p: Tensor, q: Tensor, r: float) -> Tensor:
        return functional.layer_norm(h, h.shape[-1:], p, q, r)

    subject, _ = prepared("layer_norm", norm)
    assert subject.places == {"weight": 1, "bias": 2, "eps": 3}
    assert verify(norm, role="layer_norm", laws="affine", dtype="float32", profile="quick").conforms


def test_torch_s_functions_are_given_their_shape() -> None:
    """A parameter named normalized_shape gets the size of the last axis."""
    for name in ("layer_norm", "rms_norm"):
        subject, _ = prepared(name, getattr(functional, name))
        x = of(name).build(of(name).fit(of(name).case(dim=4), subject), subject)
        assert subject(x).shape == (1, 1, 4)


def test_whether_a_weight_may_be_missing_is_tried() -> None:
    """A function that refuses None for its weight is never given None."""

    def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return functional.rms_norm(x, x.shape[-1:], None, eps) * weight

    subject, _ = prepared("rms_norm", norm)
    assert subject.lacks("weightless") == "does not go without a weight"
    assert of("rms_norm").fit(NormCase(weight="none"), subject).weight == "ones"
    assert prepared("rms_norm", functional.rms_norm)[0].has("weightless")


def test_the_models_of_arithmetic_are_told_apart() -> None:
    """Rounded once, rounded before the weight as in Llama, stored at each step, rows added up in 16 bits."""

    def rounded(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        h = x.float()
        return weight * (h * torch.rsqrt(h.square().mean(dim=-1, keepdim=True) + eps)).to(x.dtype)

    def stored(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return weight * (x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + eps))

    found = {
        "wide": ("rms_norm", functional.rms_norm),
        "flash": ("rms_norm", rounded),
        "opwise": ("rms_norm", stored),
        "replace(named('opwise'), rescale='input')": ("layer_norm", functional.layer_norm),
    }
    for model, (name, function) in found.items():
        subject, _ = prepared(name, function, "bfloat16")
        assert str(subject.arithmetic["bfloat16"]) == model


def test_the_bound_grows_with_the_mean_and_not_with_its_square() -> None:
    """Two passes stay far within it at a mean of 4096 spreads; mean x^2 - mean^2 does not, whose error is kappa^2 u."""

    def two_passes(x: Tensor) -> Tensor:
        c = x - x.mean(dim=-1, keepdim=True)
        return c * torch.rsqrt(c.square().mean(dim=-1, keepdim=True) + 1e-5)

    def one_pass(x: Tensor) -> Tensor:
        mean = x.mean(dim=-1, keepdim=True)
        spread = x.square().mean(dim=-1, keepdim=True) - mean.square()
        return (x - mean) * torch.rsqrt(spread.clamp(min=0.0) + 1e-5)

    x = torch.tensor([[[1.0, -1.0, 2.0, -2.0, 0.5, -0.5, 1.5, -1.5]]]) + 4096.0
    subject, _ = prepared("layer_norm", two_passes, eps=1e-5)
    inputs = NormInputs(NormCase(dim=8), x)
    exact, bound = subject.expected(inputs), subject.bound(inputs)
    assert within(two_passes(x), exact, bound).ratio < 0.5
    assert within(one_pass(x), exact, bound).ratio > 2


def test_nothing_is_claimed_where_a_step_overflows() -> None:
    """A square beyond float16 is infinite when it is stored, and fine in float32."""
    x = torch.tensor([[[300.0, 1.0], [30.0, 1.0]]], dtype=torch.float16)
    inputs = NormInputs(NormCase(dim=2, dtype="float16"), x)
    opwise, _ = prepared("rms_norm", functional.rms_norm, "float16", arithmetic="opwise")
    wide, _ = prepared("rms_norm", functional.rms_norm, "float16", arithmetic="wide")
    assert opwise.bound(inputs)[0].isinf().tolist() == [[True, True], [False, False]]
    assert wide.bound(inputs).isfinite().all()


@pytest.mark.parametrize("name", ["layer_norm", "rms_norm"])
def test_a_function_of_that_name_is_recognised(name: str) -> None:
    """torch's functions and classes spelled in either way."""
    assert of(name).recognises(getattr(functional, name))
    assert of(name).recognises(getattr(torch.nn, {"layer_norm": "LayerNorm", "rms_norm": "RMSNorm"}[name]))


def test_squares_that_overflow_are_told() -> None:
    """Eager code in float16 loses rows of large entries: it is allowed for, and a note says so."""

    def squared_in_half(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight

    _, notes = prepared("rms_norm", squared_in_half, "float16")
    assert any("entries of 300 are not normalised" in note for note in notes)
    _, notes = prepared("rms_norm", functional.rms_norm, "float16")
    assert not any("entries of 300" in note for note in notes)


class OfChannels(nn.Module):
    """A norm along axis 1, as of images, with a weight for each channel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x.mT, x.shape[1:2], self.weight, eps=1e-5).mT


def test_another_axis_is_told() -> None:
    """Of a function and of a class with a weight along that axis; not where the weight lies along the last one."""

    def told(role_name: str, function: Any) -> bool:
        return any("works along axis" in note for note in prepared(role_name, function)[1])

    def layer_norm(x: Tensor) -> Tensor:
        return functional.layer_norm(x.mT, x.shape[1:2]).mT

    assert told("layer_norm", layer_norm)
    assert told("rms_norm", OfChannels)
    assert not told("rms_norm", lambda x, weight: weight * layer_norm(x))
    assert not told("rms_norm", lambda x, weight: functional.rms_norm(x, weight.shape, weight))
