"""Encoders and decoders: what is found out about them before they are judged."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import headcheck
from headcheck import verify
from headcheck.console import short
from headcheck.errors import SubjectError
from headcheck.modules.encoder import NEEDLESS
from headcheck.roles import role
from headcheck.verdict import IF_MEANT, Hint
from tests.roles import RIGHT
from tests.roles.causal_lm import Small
from tests.roles.decoder import Layer
from tests.roles.encoder import Block


def notes_on(of: str, function: Any, **declared: Any) -> list[str]:
    """What the preparation says of a function, or of what it makes."""
    of_role = role(of)
    _, notes = of_role.prepare(of_role.declaration(function, **declared), dtypes=(), device="cpu", seed=0)
    return notes


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("encoder/registers", "only_tokens", False),
        ("encoder/quiet", "only_tokens", False),
        ("encoder/additive-beside-causal", "mask_kind", "additive"),
        ("encoder/required-mask", "true_means", "padding"),
        ("decoder/table-of-positions", "max_length", 24),
    ],
)
def test_a_convention_that_is_not_declared_is_hinted(name: str, field: str, value: Any) -> None:
    """One hint, that of the field that is missing; none where it is declared."""
    entry = RIGHT[name]
    rest = {each: said for each, said in entry.declares.items() if each != field}
    (hint,) = [note for note in notes_on(entry.role, entry.function, **rest) if isinstance(note, Hint)]
    assert hint.endswith(f"right with --declare {field}={value}, {IF_MEANT}")
    notes = notes_on(entry.role, entry.function, **entry.declares)
    assert not any(isinstance(note, Hint) for note in notes)


class Hidden(Layer):
    """True in the mask of the memory hides."""

    def forward(self, x: Tensor, memory: Tensor, context_mask: Tensor | None = None) -> Tensor:  # type: ignore[override]
        return super().forward(x, memory, None, None if context_mask is None else ~context_mask)


class Padding(Layer):
    """True in both masks is padding, as nothing says."""

    def forward(  # type: ignore[override]
        self,
        x: Tensor,
        memory: Tensor,
        padding_mask: Tensor | None = None,
        memory_padding_mask: Tensor | None = None,
    ) -> Tensor:
        masks = [each if each is None else ~each for each in (padding_mask, memory_padding_mask)]
        return super().forward(x, memory, *masks)


def test_what_true_means_in_the_mask_of_a_memory_is_hinted() -> None:
    """Where the name says that it is real."""
    cure = f"a plain call is right with --declare true_means=padding, {IF_MEANT}"
    assert cure in notes_on("decoder", Hidden)


def test_what_true_means_is_taken_where_the_name_leaves_it_open() -> None:
    """Of libraries that call a mask padding_mask some have True at padding, and some at what is real."""
    asked: Any = {"dtypes": (), "device": "cpu", "seed": 0}
    of_role = role("decoder")
    for function, real in ((RIGHT["decoder/padding-in-the-name"].function, True), (Padding, False)):
        subject, notes = of_role.prepare(of_role.declaration(function), **asked)
        assert {form.real_is_true for form in subject.forms.values()} == {real}
        said = "True at what is real" if real else "True at what is padding"
        assert any(note.endswith(said) for note in notes)
        assert not any(isinstance(note, Hint) for note in notes)


def test_registers_are_not_taken_for_positions() -> None:
    """The order of the input does not count beside them, so what is named is what explains them."""
    verdict = verify(RIGHT["encoder/registers"].function, role="encoder", profile="quick", laws="copies-of")
    assert not verdict.conforms
    assert "only_tokens=False" in short(verdict)
    assert "positions=True" not in short(verdict)


@pytest.mark.parametrize("name", ["by-the-book", "registers", "quiet"])
def test_weights_that_sum_to_one_are_told_where_they_are_declared_not_to(name: str) -> None:
    """Then a law is not asked that could be, as of linear attention that divides by its whole sum."""
    notes = notes_on("encoder", RIGHT[f"encoder/{name}"].function, only_tokens=False)
    assert (NEEDLESS in notes) == (name == "by-the-book")


def test_a_limit_that_was_tried_is_said_once() -> None:
    """What torch raises in a law would say it again."""
    function = RIGHT["decoder/table-of-positions"].function
    verdict = verify(function, role="decoder", profile="quick", laws="another-call-between")
    assert not verdict.conforms
    assert len([note for note in verdict.notes if "max_length=24" in note]) == 1


@pytest.mark.parametrize("name", ["decoder/masks-of-numbers", "encoder/by-the-book", "encoder/own-positions"])
def test_where_plain_calls_are_right_nothing_is_hinted(name: str) -> None:
    """Nor where positions alone are not declared: the law of the order names them."""
    assert not any(isinstance(note, Hint) for note in notes_on(RIGHT[name].role, RIGHT[name].function))


class MaskLost(Layer):
    """It takes booleans alone, and forgets them: no other form of a mask would make it right."""

    def hide(self, scores: Tensor, is_real: Tensor | None) -> Tensor:
        assert is_real is None or is_real.dtype == torch.bool
        return super().hide(scores, None)


def test_a_declaration_under_which_a_mask_is_not_given_is_no_hint() -> None:
    """An additive mask is refused there, so that none would be tried."""
    notes = notes_on("decoder", MaskLost)
    assert "is_real is given as boolean (batch, length), True at what is real" in notes
    assert not any(isinstance(note, Hint) for note in notes)


class OwnName(nn.Module):
    """A mask under a name that is not known, beside one that is."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = Layer()

    def forward(
        self, x: Tensor, memory: Tensor, memory_mask: Tensor | None = None, pad: Tensor | None = None
    ) -> Any:
        return self.layer(x, memory, pad, memory_mask)


class Unknown(Block):
    """One that is not known, with keywords that may be anything."""

    def forward(self, x: Tensor, pad: Tensor | None = None, **others: Any) -> Tensor:  # type: ignore[override]
        return super().forward(x, pad)


@pytest.mark.parametrize(("of", "module"), [("encoder", Unknown), ("decoder", OwnName)])
def test_parameters_that_are_not_recognised_are_told(of: str, module: type[nn.Module]) -> None:
    """A mask that is never tried is not passed over in silence."""
    told = (
        "parameters not recognised, left at their defaults: pad; "
        "if one is a mask of what is padding, --declare arguments.is_real=NAME"
    )
    assert told in notes_on(of, module)
    assert not any("not recognised" in note for note in notes_on(of, module, arguments={"is_real": "pad"}))


def test_a_gap_in_the_lengths_is_no_limit_to_declare() -> None:
    """What fails at one length, or at some, is a fault that no declaration names."""

    class Gap(Block):
        def forward(self, x: Tensor, is_real: Tensor | None = None) -> Tensor:
            return super().forward(x + torch.zeros(x.shape[1] % 7 or 9, 8), is_real)

    assert not any("max_length" in note for note in notes_on("encoder", Gap))


def test_a_mask_that_is_always_given_is_not_compared_with_none() -> None:
    """Where None does not work: the law about both says so, and a module that takes no form of a mask is named."""

    class Square(Block):
        def forward(self, x: Tensor, mask: Tensor) -> Tensor:  # type: ignore[override]
            assert mask.shape[-2:] == (x.shape[1], x.shape[1]), "queries and keys"
            return super().forward(x)

    asked = {"laws": ("padding/a-mask-of-nothing",), "profile": "quick"}
    (row,) = verify(RIGHT["encoder/a-mask-in-every-call"].declaration(), **asked).laws
    assert row.outcome == "not-applicable" and "is given a mask in every call" in row.reason
    with pytest.raises(
        SubjectError, match="requires mask, and no plain call works in any form that is tried"
    ):
        notes_on("encoder", Square)


@pytest.mark.parametrize(
    ("name", "note"),
    [
        (
            "decoder/causal-mask-of-the-callers-alone",
            "tgt_mask is given with the causal mask in it, True at what is hidden",
        ),
        (
            "decoder/two-masks-in-every-call",
            "trg_mask is given with the causal mask in it, True at what is seen",
        ),
        (
            "seq2seq/causal-mask-of-the-callers",
            "tgt_mask is given with the causal mask in it, True at what is hidden",
        ),
        (
            "causal_lm/mask-of-the-tutorial",
            "src_mask is given with the causal mask in it, True at what is hidden",
        ),
        (
            "causal_lm/causal-mask-beside-that-of-padding",
            "src_mask is given the causal mask, True at what is hidden",
        ),
        (
            "decoder/causal-mask-beside-those-of-padding",
            f"a plain call is right with --declare causal_mask=True, {IF_MEANT}",
        ),
        (
            "decoder/look-ahead-mask-and-padding-mask",
            "look_ahead_mask is given with the causal mask in it, True at what is hidden",
        ),
        (
            "seq2seq/all-masks-of-the-tutorial",
            "tgt_mask is given the causal mask, True at what is hidden",
        ),
        ("seq2seq/all-masks-of-the-tutorial", "src_mask is asked for, and given as None"),
    ],
)
def test_a_causal_mask_of_the_callers_is_given_as_it_is_taken(name: str, note: str) -> None:
    """What True says is found out where no padding could tell."""
    entry = RIGHT[name]
    assert note in notes_on(entry.role, entry.function)


def test_a_mask_of_attention_that_may_be_left_out_is_not_taken_for_padding() -> None:
    """A language model that makes its own causal mask where it is given none, and is told by True what is hidden."""

    class Told(Small):
        def forward(self, tokens: Tensor, attn_mask: Tensor | None = None) -> Tensor:  # type: ignore[override]
            if attn_mask is not None:
                self.mask = lambda real, new: ~attn_mask  # type: ignore[method-assign,assignment]
            return super().forward(tokens)

    declaration = headcheck.CausalLM(Told, padding=("right",))
    assert verify(declaration, laws=("causality", "padding"), profile="quick").conforms


def test_a_mask_that_is_asked_for_and_may_be_none_is_given_as_none() -> None:
    """Where it is taken in no form: a mask of torch's (length, length), as of its encoder layer."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)

        def forward(self, src: Tensor, src_mask: Tensor | None) -> Tensor:
            found: Tensor = self.layer(src, src_mask)
            return found

    assert verify(headcheck.Encoder(Layer), laws=("symmetry", "batch"), profile="quick").conforms


def test_two_sequences_are_not_taken_for_two_heads() -> None:
    """Masks (batch, 1, length) of the Annotated Transformer, whose layer puts in an axis for the heads."""

    class Annotated(Layer):
        def forward(  # type: ignore[override]
            self, x: Tensor, memory: Tensor, src_mask: Tensor, tgt_mask: Tensor
        ) -> Tensor:
            assert src_mask.ndim == 3 or len(x) == 2
            return super().forward(x, memory, None, src_mask.view(len(x), -1))

    assert "src_mask is given as boolean (batch, 1, length), True at what is real, in every call" in notes_on(
        "decoder", Annotated
    )
