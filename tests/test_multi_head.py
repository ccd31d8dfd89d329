"""The role multi_head_attention: where weights are found, which conventions are found out, what must be declared."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from headcheck import MultiHeadAttention, reference, verify
from headcheck.errors import SubjectError
from headcheck.modules.multi_head.projections import Layout, fits, found_projections
from headcheck.modules.multi_head.subject import MultiHeadSubject
from headcheck.roles import role
from tests.roles import RIGHT, WRONG
from tests.roles.multi_head_attention import Plain

ROLE: Any = role("multi_head_attention")


def prepared(subject: Any) -> MultiHeadSubject:
    """As the engine has it."""
    found: MultiHeadSubject
    found, _ = ROLE.prepare(ROLE.declare(subject, "subject"), dtypes=(), device="cpu", seed=0)
    return found


def of_corpus(name: str) -> MultiHeadSubject:
    return prepared(RIGHT[f"multi_head_attention/{name}"].declaration())


@pytest.mark.parametrize("layout", [Layout(), Layout("by-head", "out-in"), Layout("by-head")], ids=str)
def test_what_is_written_is_read_again(layout: Layout) -> None:
    """A canonical weight put into its place, fused or turned as it may be, comes back."""
    fused = RIGHT["multi_head_attention/Fused"].function(6, 3)
    for module in (fused, nn.MultiheadAttention(6, 3), RIGHT["multi_head_attention/AsInGpt2"].function(6, 3)):
        with torch.no_grad():
            for name, place in found_projections(module, 3, layout).items():
                weight = torch.randn(6, 6) if name[0] == "w" else torch.randn(6)
                place.write(weight)
                assert torch.equal(place.read(lambda parameter: parameter.detach()), weight)


def bare_fused(d_model: int, num_heads: int) -> nn.Module:
    """One bare weight (3 d_model, d_model), as F.linear has it."""
    module = RIGHT["multi_head_attention/Fused"].function(d_model, num_heads)
    weight = nn.Parameter(module.to_qkv.weight.detach())
    del module.to_qkv
    module.qkv_weight = weight
    module.to_qkv = lambda x: x @ module.qkv_weight.mT
    return module


def test_a_layout_whose_shapes_do_not_fit_is_not_tried() -> None:
    """Of a bare weight for q, k and v the shape says which axis is which."""
    module = bare_fused(6, 3)
    fitting = [bare for bare in ("in-out", "out-in") if fits(module, 3, Layout("by-part", bare))]
    assert fitting == ["out-in"]


def test_a_layer_within_a_layer_has_the_outer_name() -> None:
    """As labml has it: query.linear is a projection of queries, and output one of the output."""
    module = nn.ModuleDict(
        {each: nn.ModuleDict({"linear": nn.Linear(4, 4)}) for each in ("query", "key", "value")}
    )
    module["output"] = nn.Linear(4, 4)
    places = found_projections(module, 2, Layout())
    found = places["w_k"].read(lambda parameter: parameter.detach())
    assert torch.equal(found, module["key"]["linear"].weight)
    assert torch.equal(places["w_o"].read(lambda parameter: parameter.detach()), module["output"].weight)


def test_torchs_fused_weight_is_q_then_k_then_v() -> None:
    """in_proj_weight holds w_q, w_k, w_v one under the other."""
    module = nn.MultiheadAttention(4, 2)
    places = found_projections(module, 2, Layout())
    parts = [places[f"w_{letter}"].read(lambda parameter: parameter.detach()) for letter in "qkv"]
    assert torch.equal(torch.cat(parts), module.in_proj_weight)


def test_conventions_are_found_out() -> None:
    """Polarity by torch's names, shapes by what works, layouts by what is right."""
    torchs = prepared(nn.MultiheadAttention).found
    assert (torchs.true_means, torchs.key_true_means, torchs.weights) == ("block", "block", "averaged")
    assert torchs.mask_shapes == ("qk", "(bh)qk")
    keeps = of_corpus("TorchsNameTrueKeeps").found
    assert keeps.true_means == "keep"
    assert set(keeps.mask_shapes) == {"qk", "b1qk", "bhqk", "b11k"}
    assert of_corpus("FusedByHead").layout.fused == "by-head"
    assert of_corpus("MaskIsAdded").found.masks == ("additive",)
    assert of_corpus("Whole").found.key_masks == ("boolean", "additive")
    assert of_corpus("KeyMaskToBoolean").found.key_masks == ("boolean",)


def test_a_mask_whose_numbers_are_read_as_booleans_is_boolean() -> None:
    """Minus infinity alone does not show it; whoever adds numbers on one path at least means to read them."""

    class Blocked(nn.Module):
        def __init__(self, d_model: int, num_heads: int) -> None:
            super().__init__()
            self.heads = num_heads
            self.w_q, self.w_k, self.w_v, self.w_o = (nn.Linear(d_model, d_model) for _ in range(4))

        def forward(self, query: Tensor, attn_mask: Tensor | None = None) -> Tensor:
            q, k, v = (
                w(query).unflatten(-1, (self.heads, -1)).transpose(1, 2)
                for w in (self.w_q, self.w_k, self.w_v)
            )
            scores = q @ k.mT * q.shape[-1] ** -0.5
            if attn_mask is not None:
                scores = scores.masked_fill(attn_mask.bool(), -torch.inf)
            mixed = scores.softmax(dim=-1) @ v
            output: Tensor = self.w_o(mixed.transpose(1, 2).flatten(2))
            return output

    assert prepared(MultiHeadAttention(Blocked)).found.masks == ("boolean",)
    on_one_path = WRONG["multi_head_attention/NumbersHideWithoutWeights"].declaration()
    assert "additive" in prepared(on_one_path).found.masks


def test_the_kinds_of_the_two_masks_are_declared_apart() -> None:
    """An additive attn_mask beside a mask of the keys that is converted to bool."""
    whole = RIGHT["multi_head_attention/Whole"].function
    assert prepared(MultiHeadAttention(whole, masks=("additive",))).found.key_masks == ("boolean", "additive")
    both = ("boolean", "additive")
    forced = prepared(MultiHeadAttention(RIGHT["multi_head_attention/KeyMaskToBoolean"].function, masks=both))
    assert forced.found.key_masks == both
    apart = prepared(MultiHeadAttention(whole, masks=both, key_masks=("boolean",)))
    assert (apart.found.masks, apart.found.key_masks) == (both, ("boolean",))


def test_what_was_made_is_shown_where_a_width_is_not_refused() -> None:
    """The width that the heads do not divide, in the words and in the call."""
    maker = WRONG["multi_head_attention/CutOff"].function
    verdict = verify(maker, role="multi_head_attention", laws="widths-that-heads-do-not-divide")
    (row,) = verdict.broken
    assert "a module of d_model = 3 with num_heads = 2 was made, and called, without a word" in row.reason


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("ByThePaper", 2.0**-53),
        ("SoftmaxInFloat32", 2.0**-24),
        ("OnlyFloat32", 2.0**-24),
        ("InsideBfloat16", 2.0**-8),
    ],
)
def test_the_unit_is_that_of_the_coarsest_format_inside(name: str, unit: float) -> None:
    """What the module computes in, whatever it is given, is found."""
    assert of_corpus(name).found.unit == unit


class FusedByHead(nn.Module):
    """Self-attention of one size, the weights of a head one after the other."""

    def __init__(self, d_model: int, num_heads: int, causal: bool = False) -> None:
        super().__init__()
        self.num_heads, self.causal = num_heads, causal
        self.qkv, self.proj = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (self.num_heads, 3, -1)).permute(3, 0, 2, 1, 4)
        merged = scaled_dot_product_attention(q, k, v, is_causal=self.causal).transpose(1, 2).flatten(2)
        return self.proj(merged)  # type: ignore[no-any-return]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("sizes", [(16, 2), (32, 4)])
def test_an_output_that_does_not_move_by_chance_makes_no_unit_coarse(
    sizes: tuple[int, int], dtype: str
) -> None:
    """One of some hundred: within the bound of a coarse unit, any layout would do."""
    found = prepared(MultiHeadAttention(FusedByHead(*sizes), dtypes=(dtype,)))
    assert found.found.unit == torch.finfo(getattr(torch, dtype)).eps / 2
    assert found.layout.fused == "by-head"


def test_a_module_of_one_size_is_judged_at_that_size() -> None:
    """d_model is read off its weights and num_heads off its attribute."""
    subject = prepared(reference.MultiHeadAttention(12, 3))
    assert (subject.d_model, subject.heads) == (12, 3)
    case = ROLE.fit(ROLE.case(heads=2, head_dim=8), subject)
    assert (case.heads, case.head_dim) == (3, 4)


def nameless(d_model: int, num_heads: int) -> nn.Module:
    """A module whose weights have no name that says what they are."""
    module = reference.MultiHeadAttention(d_model, num_heads)
    module.register_parameter("alpha", nn.Parameter(torch.zeros(d_model)))
    return module


def test_what_cannot_be_known_is_asked_for_in_one_line() -> None:
    """Weights without a known name, and heads that nobody counts, must be declared."""
    with pytest.raises(SubjectError, match=r"alpha has no known name.*load=function of module and weights"):
        prepared(nameless)
    uncounted = reference.MultiHeadAttention(4, 2)
    del uncounted.num_heads
    with pytest.raises(SubjectError, match=r"how many heads .* --declare num_heads=N"):
        prepared(uncounted)


def test_a_convention_that_nobody_knows_is_refused() -> None:
    """Shapes and kinds of a mask are words of a list."""
    with pytest.raises(SubjectError, match="mask_shapes='kq' is not a convention"):
        MultiHeadAttention(nn.MultiheadAttention, mask_shapes=("kq",))


def test_a_module_that_cannot_be_made_is_told_apart_from_a_call() -> None:
    """A class that takes a configuration, and a maker that raises: construction failed, and the cure is named."""

    class Configured(nn.Module):
        def __init__(self, config: Any) -> None:
            super().__init__()

    def failing() -> nn.Module:
        raise RuntimeError("no weights file")

    cure = "; name an instance, or a function without parameters that makes one"
    with pytest.raises(
        SubjectError, match=r"no module could be made by Configured\(4, 2\): .*3 were given" + cure
    ):
        verify(Configured, role="multi_head_attention")
    for name in ("multi_head_attention", "causal_lm"):
        with pytest.raises(
            SubjectError, match=r"made by failing\(\): raised RuntimeError: no weights file" + cure
        ):
            verify(failing, role=name)


class LengthFirst(nn.Module):
    """(length, batch, dim); batches of two sizes are refused."""

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.w_q, self.w_k, self.w_v, self.w_o = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if key.shape[1] != query.shape[1]:
            raise RuntimeError("batches of two sizes")
        projected = (self.w_q(query), self.w_k(key), self.w_v(value))
        heads = [x.unflatten(-1, (self.num_heads, -1)).permute(1, 2, 0, 3) for x in projected]
        output: Tensor = self.w_o(scaled_dot_product_attention(*heads).permute(2, 0, 1, 3).flatten(-2))
        return output


def test_a_module_that_raises_while_its_rounding_is_measured_is_judged() -> None:
    """Undeclared, its axes are read in another order: that breaks laws, and is no error of headcheck."""
    law = "accuracy/output-is-the-references"
    assert not verify(MultiHeadAttention(LengthFirst), laws=law, profile="quick").conforms
    declared = MultiHeadAttention(LengthFirst, batch_first=False)
    assert verify(declared, laws=law, profile="quick").conforms


class Interleaved(nn.Module):
    """The heads are cut out of every slice, where each should have one."""

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(d_model, d_model) for _ in range(4))

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.num_heads)).permute(0, 3, 1, 2)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        heads = (self.split(each) for each in (self.q_proj(query), self.k_proj(key), self.v_proj(value)))
        output = scaled_dot_product_attention(*heads, attn_mask)
        return self.out_proj(output.transpose(1, 2).flatten(2))


class InterleavedWithinItself(Interleaved):
    """The same of one sequence."""

    def forward(self, query: Tensor, attn_mask: Tensor | None = None) -> Tensor:  # type: ignore[override]
        return super().forward(query, query, query, attn_mask)


@pytest.mark.parametrize("wrong", [Interleaved, InterleavedWithinItself])
def test_what_true_means_shows_of_a_module_that_is_wrong_otherwise(wrong: type[nn.Module]) -> None:
    """By what hidden keys do, where no answer is right."""
    assert prepared(wrong).found.true_means == "keep"


class WithPad(Plain):
    """A mask under a name of its own."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, pad: Tensor | None = None) -> Any:
        return super().forward(query, key, value, pad)


def test_what_is_not_recognised_is_told() -> None:
    """It would be left out, and nobody would know."""
    verdict = verify(MultiHeadAttention(WithPad), profile="quick", laws="output-is-the-references")
    told = "parameters not recognised, left at their defaults: pad; if one is a mask, "
    assert any(note.startswith(told) for note in verdict.notes)


class HidesThePadding(Plain):
    """True hides, in a mask of the keys under a name of its own."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, pad: Tensor | None = None) -> Any:
        return super().forward(query, key, value, None if pad is None else ~pad[:, None])


class KeepsTheRest(Plain):
    """True keeps, under the same name."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, pad: Tensor | None = None) -> Any:
        return super().forward(query, key, value, None if pad is None else pad[:, None])


@pytest.mark.parametrize(("module", "means"), [(HidesThePadding, "block"), (KeepsTheRest, "keep")])
def test_what_true_means_under_a_name_of_its_own_is_tried(module: type[nn.Module], means: str) -> None:
    """The name does not tell."""
    subject = prepared(MultiHeadAttention(module, arguments={"key_mask": "pad"}))
    assert subject.found.key_true_means == means
