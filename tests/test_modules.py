"""Roles whose subjects are modules: what is found out about a module before it is judged, and its noise."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import headcheck
from headcheck.comparison import LawBroken, NotApplicable
from headcheck.errors import SubjectError
from headcheck.laws import choose
from headcheck.modules.copying import aliased
from headcheck.modules.noise import measured, scaled
from headcheck.modules.subject import REMEMBERED
from headcheck.modules.token_caches import Found
from headcheck.roles import role
from headcheck.verdict import IF_MEANT
from tests.roles import RIGHT, WRONG
from tests.roles.causal_lm import Karpathy, MaskedAlways, Recurrent, Small, Torch, TransformersLike
from tests.roles.causal_lm_survivors import AlwaysKept, Kept
from tests.roles.seq2seq import CallersMasks, Pair


def prepared(module: Any, **declared: Any) -> Any:
    """The subject of a causal language model, and the notes of its preparation."""
    of_role: Any = role("causal_lm")
    return of_role.prepare(headcheck.CausalLM(module, **declared), dtypes=(), device="cpu", seed=0)


# Layers


@pytest.mark.parametrize(("length", "applies"), [(1, False), (2, True)])
def test_of_one_source_token_the_query_does_not_matter(length: int, applies: bool) -> None:
    """All weight is on it: the norm before the query is no layer that fell out, and is seen to count with two."""
    of_role: Any = role("seq2seq")
    declaration = RIGHT["seq2seq/reference-rotary"].declaration()
    subject, _ = of_role.prepare(declaration, dtypes=("float64",), device="cpu", seed=0)
    x = of_role.build(of_role.parse(f"dtype=float64 source_len={length} target_len=2"), subject)
    (law,) = (each for each in choose("seq2seq") if each.id.endswith("each-layer-of-a-stack-counts"))
    if applies:
        assert not any(each.broken for each in law.check(subject, x))
    else:
        with pytest.raises(NotApplicable, match="one key has all the weight"):
            list(law.check(subject, x))


# Noise


def test_weights_come_back_bit_for_bit() -> None:
    """Whatever they are multiplied by."""
    weight = nn.Parameter(torch.tensor([0.1, -1e-300, 3.0], dtype=torch.float64))
    before = weight.detach().clone()
    with scaled([weight], [1 / 3]):
        assert not torch.equal(weight, before)
    assert torch.equal(weight, before)


def test_weights_come_back_though_one_was_reshaped() -> None:
    """That one is a finding; those after it are put back all the same."""
    first, second = (nn.Parameter(torch.ones(3)) for _ in range(2))
    with (
        pytest.raises(LawBroken, match=r"changed a weight of shape \(3,\) to \(1,\)"),
        scaled([first, second], 2.0),
    ):
        first.data = first.data[:1]
    assert torch.equal(second, torch.ones(3))


@pytest.mark.parametrize("inside", [torch.float64, torch.float32, torch.bfloat16])
def test_the_bound_is_of_the_coarsest_format_inside(inside: torch.dtype) -> None:
    """A float64 module that computes in a narrower format is bounded by that one's eps."""
    torch.manual_seed(0)
    layer, x = nn.Linear(16, 16, dtype=torch.float64), torch.randn(4, 16, dtype=torch.float64)
    eps = torch.finfo(inside).eps

    def call() -> Tensor:
        return nn.functional.linear(*(each.to(inside) for each in (x, layer.weight, layer.bias))).double()

    with torch.no_grad():
        size = float(call().abs().max())
        least, most = (4, 64) if inside is torch.bfloat16 else (16, 1e4)
        assert least * eps * size <= measured(call, layer.parameters()).bound < most * eps * size


@pytest.mark.parametrize("rounds", [False, True], ids=["whole numbers", "others"])
@pytest.mark.parametrize("written", [False, True], ids=["made", "written into a buffer"])
def test_whole_numbers_of_a_narrower_format_do_not_widen_the_bound(rounds: bool, written: bool) -> None:
    """A mask or positions in float32 round nothing, however they came there; what is not whole does."""
    torch.manual_seed(0)
    layer, x = nn.Linear(16, 16, dtype=torch.float64), torch.randn(4, 16, dtype=torch.float64)
    numbers = torch.arange(16.0) + (1 / 3 if rounds else 0)

    def call() -> Tensor:
        added = numbers
        if written:
            added = torch.zeros(16)
            added[:] = numbers
        return layer(x) + added

    with torch.no_grad():
        eps = torch.finfo(torch.float32 if rounds else torch.float64).eps
        assert 16 * eps <= measured(call, layer.parameters()).bound < 1e5 * eps


def test_without_weights_the_bound_is_that_of_float32() -> None:
    """Nothing can be moved, so nothing is measured."""
    assert measured(lambda: torch.ones(3), []).bound > torch.finfo(torch.float32).eps


# What is found out


def test_lengths_that_are_refused_are_found() -> None:
    """A table of 17 positions, and a context of 8: no law asks for more."""
    subject, notes = prepared(lambda: Torch(norm_first=True))
    assert subject.max_length == 17
    assert (
        "sequences of more than 17 tokens are refused (raised IndexError: index out of range in self)"
        in notes
    )
    assert prepared(Karpathy)[0].max_length == 8
    assert prepared(Small)[0].max_length is None


def test_states_beyond_a_table_are_not_asked_for() -> None:
    """Sixteen positions: what is longer is not applicable, and what laws put beside a sequence finds room."""
    subject, notes = role("encoder").prepare(
        RIGHT["encoder/sixteen-positions"].declaration(), dtypes=(), device="cpu", seed=0
    )
    assert subject.max_length == 16
    assert any("more than 16 tokens" in note for note in notes)
    with pytest.raises(NotApplicable, match="at most 16"):
        subject(subject.plain(1, 17, subject.d_model))


def test_sizes_that_a_maker_refuses_are_not_made() -> None:
    """The next ones that are made take their place, and a note says so."""
    subject, notes = role("multi_head_attention").prepare(
        RIGHT["multi_head_attention/EvenHeads"].declaration(), dtypes=(), device="cpu", seed=0
    )
    assert any("others are tried" in note for note in notes)
    assert subject.made_near(3, 3) == (3, 4)


def test_noise_is_remembered_at_a_few_inputs() -> None:
    """Those of a whole verdict would fill the memory of a worker."""
    subject = prepared(Small())[0]
    x = role("causal_lm").build(role("causal_lm").parse("batch=2 length=3"), subject)
    for number in range(2 * REMEMBERED):
        subject._noises(x.but(case=x.case.but(seed=number)), 1.0)
    assert subject._noises.cache_info().currsize == REMEMBERED


def test_images_whose_answer_is_no_tensor_are_told_at_once() -> None:
    """By the size that works, with the keys; no larger image is tried."""
    sizes = []

    def returns_a_dict(images: Tensor) -> dict[str, Tensor]:
        sizes.append(images.shape[-1])
        if images.shape[-1] != 16:
            raise ValueError("16 x 16 only")
        return {"prediction": images.flatten(1)}

    with pytest.raises(SubjectError, match=r"a dict with prediction, .*for images of 16 x 16; name a module"):
        role("vision").prepare(headcheck.Vision(returns_a_dict, channels=1), dtypes=(), device="cpu", seed=0)
    assert max(sizes) == 16


class OfPadding(nn.TransformerEncoderLayer):
    """Its mask has a name of its own, and is True at what is padding."""

    def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:  # type: ignore[override]
        return super().forward(x, src_key_padding_mask=attention_mask)


class LengthFirst(nn.Module):
    """It says nowhere that the length is its first axis."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.layer(x)
        return output


@pytest.mark.parametrize(
    ("module", "field", "value"),
    [
        (lambda: OfPadding(8, 2, 16, batch_first=True), "true_means", "padding"),
        (LengthFirst, "batch_first", False),
    ],
)
def test_what_would_make_plain_calls_right_is_a_hint(module: Any, field: str, value: Any) -> None:
    """The polarity of a mask, or the order of the axes."""
    asked: Any = {"dtypes": (), "device": "cpu", "seed": 0}
    notes = role("encoder").prepare(headcheck.Encoder(module), **asked)[1]
    assert f"a plain call is right with --declare {field}={value}, {IF_MEANT}" in notes
    notes = role("encoder").prepare(headcheck.Encoder(module, **{field: value}), **asked)[1]
    assert not any("wrong as it is" in note for note in notes)


def test_a_slip_at_many_tokens_is_no_limit_of_attention() -> None:
    """A causal table that is too short is a fault of document 003; a length that is refused in so many words is none."""
    limits = {}
    for name, entries in (("CausalTableEnds", WRONG), ("SixteenTokens", RIGHT)):
        entry = entries[f"multi_head_attention/{name}"]
        subject, _ = role(entry.role).prepare(entry.declaration(), dtypes=(), device="cpu", seed=0)
        limits[name] = subject.max_length
    assert limits == {"CausalTableEnds": None, "SixteenTokens": 16}


def test_a_gap_in_the_lengths_is_no_limit() -> None:
    """A module that fails at length 5 alone is not excused from it."""

    class Gap(Small):
        def forward(self, tokens: Tensor, is_real: Tensor | None = None) -> Tensor:
            if tokens.shape[1] == 5:
                raise ValueError("five")
            return super().forward(tokens, is_real)

    assert prepared(Gap)[0].max_length is None


def test_a_batch_that_does_not_fit_what_is_kept_is_found_and_a_slip_is_none() -> None:
    """A cache of eight rows; a number of rows that stands nowhere is for laws."""

    class Slip(Small):
        def forward(self, tokens: Tensor) -> Tensor:  # type: ignore[override]
            return super().forward(tokens.view(min(len(tokens), 8), -1))

    subject, notes = prepared(RIGHT["causal_lm/of-eight-rows-and-32-tokens"].function)
    assert (subject.max_batch, subject.max_length) == (8, 32)
    assert any(note.startswith("batches of more than 8 are refused (raised RuntimeError") for note in notes)
    assert any(note.startswith("sequences of more than 32 tokens are cropped (logits") for note in notes)
    case = role("causal_lm").parse("batch=17 length=65")
    assert role("causal_lm").fit(case, subject).batch == 8
    assert prepared(Slip)[0].max_batch is None


def test_an_answer_that_is_short_by_one_is_no_limit() -> None:
    """Beyond 16 tokens the last is lost: what is cropped is cropped to one length."""

    class Lost(Small):
        def forward(self, tokens: Tensor) -> Tensor:  # type: ignore[override]
            return super().forward(tokens[:, :-1] if tokens.shape[1] > 16 else tokens)

    assert prepared(Lost)[0].max_length is None


def test_what_true_says_is_found_where_names_leave_it_open() -> None:
    """By a trial, or by a name beside them that is torch's; the masks of one call have one polarity."""
    for name in ("masks-of-the-tutorial", "masks-of-open-names"):
        declaration = RIGHT[f"seq2seq/{name}"].declaration()
        subject, notes = role("seq2seq").prepare(declaration, dtypes=(), device="cpu", seed=0)
        assert not any(form.real_is_true for form in subject.forms.values())
        assert "src_padding_mask is given as boolean (batch, length), True at what is padding" in notes


def test_where_a_name_says_what_true_is_another_meaning_is_a_hint() -> None:
    """And so is a mask that is added."""

    class Turned(Pair):
        def forward(self, source: Tensor, target: Tensor, attention_mask: Any = None) -> Tensor:  # type: ignore[override]
            return super().forward(source, target, None if attention_mask is None else ~attention_mask)

    asked: Any = {"dtypes": (), "device": "cpu", "seed": 0}
    notes = role("seq2seq").prepare(headcheck.Seq2Seq(Turned), **asked)[1]
    assert f"a padded call is right with --declare true_means=padding, {IF_MEANT}" in notes
    notes = prepared(RIGHT["causal_lm/added-mask-asked-for"].function)[1]
    assert f"a padded call is right with --declare mask_kind=additive, {IF_MEANT}" in notes


def test_a_causal_mask_that_is_the_callers_is_told_apart_from_padding() -> None:
    """With a mask of padding, or with none, there is no causal one; it is named with what True says in it."""

    class Blind(MaskedAlways):
        def __init__(self) -> None:
            super().__init__()
            self.model = Small(mask=lambda model, real, new: real[:, None, None, :])

    class Told(RIGHT["causal_lm/mask-of-the-tutorial"].function().__class__):  # type: ignore[misc]
        def forward(self, src: Tensor, src_mask: Tensor | None = None) -> Tensor:
            found: Tensor = super().forward(src, src_mask)
            return found

    notes = prepared(Blind)[1]
    assert any(
        note.startswith("attention_mask is required, and given as a mask of padding") for note in notes
    )
    cure = "a plain call is right with --declare causal_mask=True --declare true_means=padding"
    assert any(note.startswith(cure) for note in prepared(Told)[1])
    by_default = RIGHT["causal_lm/mask-with-padding-of-the-callers"].function
    assert any(
        note.startswith("a plain call is right with --declare causal_mask=True,")
        for note in prepared(by_default)[1]
    )


def test_a_token_that_is_padding_is_told_where_no_mask_is_given() -> None:
    """Its laws are asked once it is declared."""

    class Padded(Pair):
        src_pad_idx = 0

        def forward(self, source: Tensor, target: Tensor) -> Tensor:  # type: ignore[override]
            return super().forward(source, target)

    notes = role("seq2seq").prepare(headcheck.Seq2Seq(Padded), dtypes=(), device="cpu", seed=0)[1]
    assert any(note.startswith("token 0 is taken for padding, and stands in no sequence") for note in notes)


def test_a_causal_mask_of_the_callers_is_named_for_a_decoder() -> None:
    """It does not hide the future by itself, and with the mask that it takes it does."""

    class Told(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.TransformerDecoderLayer(8, 2, 16, 0.0, batch_first=True)

        def forward(self, x: Tensor, memory: Tensor, tgt_mask: Tensor | None = None) -> Tensor:
            hidden = (
                None if tgt_mask is None else ~tgt_mask.expand(-1, x.shape[1], -1).repeat_interleave(2, 0)
            )
            return self.layer(x, memory, tgt_mask=hidden)

    declaration = headcheck.Decoder(Told, mask_rank=3)
    notes = role("decoder").prepare(declaration, dtypes=(), device="cpu", seed=0)[1]
    assert f"a plain call is right with --declare causal_mask=True, {IF_MEANT}" in notes


def test_tokens_whose_length_comes_first_are_told() -> None:
    """By calls of both orders; a batch that mixes is no such order."""

    class LengthFirstTokens(Small):
        def forward(self, tokens: Tensor) -> Tensor:  # type: ignore[override]
            return super().forward(tokens.mT).transpose(0, 1)

    class Mixing(Small):
        def forward(self, tokens: Tensor) -> Tensor:  # type: ignore[override]
            logits = super().forward(tokens)
            return logits + logits.mean(dim=0)

    for module, told in ((LengthFirstTokens, True), (Mixing, False), (Small, False)):
        assert any("tokens are (length, batch)" in note for note in prepared(module)[1]) is told


class HoldsTheOriginal(Small):
    """Its head is called by a function that a copy has in common with it."""

    def __init__(self) -> None:
        super().__init__()
        head = self.head
        self.read = lambda x: head(x) + 0

    def logits(self, x: Tensor, real: Tensor) -> Tensor:
        return self.read(x)


def test_a_copy_that_runs_layers_of_the_original_is_told() -> None:
    """Their mode and their dtype are not the copy's: a hint names them, and a law breaks."""
    notes = prepared(HoldsTheOriginal)[1]
    assert any(note.startswith("a copy of the module runs layers of the original") for note in notes)
    assert any("(head)" in note for note in notes)
    assert not any("original" in note for note in prepared(Small)[1])
    verdict = headcheck.verify(
        HoldsTheOriginal, role="causal_lm", profile="quick", laws="a-copy-is-a-module-of-its-own"
    )
    assert "runs layers of the original, such as head" in verdict.laws[0].reason


def test_what_a_module_keeps_of_a_call_does_not_keep_it_from_being_copied() -> None:
    """The last weights of its attention, with their graph, also in a list."""

    class Keeps(Small):
        def logits(self, x: Tensor, real: Tensor) -> Tensor:
            self.last, self.all = x, {"x": [x]}
            return super().logits(x, real)

    model = Keeps()
    model(torch.zeros(1, 2, dtype=torch.long))
    subject, _ = prepared(model)
    assert not subject.module.last.requires_grad
    assert model.last.requires_grad


def test_what_is_asked_of_hooks_is_not_applicable_to_torchscript() -> None:
    """Training is not watched."""
    verdict = headcheck.verify(
        RIGHT["causal_lm/scripted"].function, role="causal_lm", profile="quick", laws="training-without"
    )
    assert [row.outcome for row in verdict.laws] == ["not-applicable"]
    assert "TorchScript" in verdict.laws[0].reason


def test_masks_are_numbers_where_booleans_raise() -> None:
    """1 - mask, as in transformers."""
    _, notes = prepared(TransformersLike)
    assert "attention_mask is given as number (batch, length), True at what is real" in notes


def test_true_is_padding_where_the_name_says_padding() -> None:
    """key_padding_mask is torch's; a declaration overrides the name."""
    real = torch.tensor([[True, False]])
    subject, _ = prepared(lambda: Torch(norm_first=True))
    assert subject.mask("is_real", real).tolist() == [[False, True]]
    subject, _ = prepared(lambda: Torch(norm_first=True), true_means="real")
    assert subject.mask("is_real", real).tolist() == [[True, False]]


def test_the_token_of_padding_stands_in_no_sequence() -> None:
    """Tokens of a case are numbered without it; where something is padding, the module gets it."""
    subject, _ = prepared(Small, pad_token=2)
    assert subject.vocab == 10
    assert subject.given(torch.tensor([[0, 1, 2, 9]])).tolist() == [[0, 1, 3, 10]]
    assert subject.given(torch.tensor([[0, 5]]), torch.tensor([[True, False]])).tolist() == [[0, 2]]


def test_a_mask_between_tokens_is_no_mask_of_padding() -> None:
    """A parameter called mask that does not take (batch, length)."""

    class Square(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.Embedding(5, 4), nn.Linear(4, 5)

        def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
            x = self.table(tokens)
            return self.head(x if mask is None else mask.expand(len(x), x.shape[1], x.shape[1]).to(x) @ x)

    subject, notes = prepared(Square)
    assert subject.lacks("is_real")
    assert any(note.startswith("mask is taken for no mask of padding") for note in notes)


def test_where_only_float64_is_nan_it_is_float32_that_is_judged() -> None:
    """The least float64 is -inf to a softmax in float32: rows of padding turn NaN, in float64 alone."""

    def attend(self: Small, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        scores = (query @ key.mT).masked_fill(~mask, torch.finfo(query.dtype).min)
        return torch.softmax(scores, -1, dtype=torch.float32).to(query.dtype) @ value

    subject, _ = prepared(lambda: Small(attend=attend))
    assert subject.dtypes == ("float32",)


def test_constant_weights_are_stirred() -> None:
    """Zeros as made hide what is behind them: gates, output layers, class tokens."""

    class Zeros(Recurrent):
        def __init__(self) -> None:
            super().__init__()
            self.gate = nn.Parameter(torch.tensor(0.0))
            nn.init.zeros_(self.head.weight)

    subject, _ = prepared(Zeros)
    assert subject.module.gate != 0
    assert subject.module.head.weight.unique().numel() > 1


def test_the_weights_of_a_function_are_those_of_the_modules_it_names() -> None:
    """lambda tokens: model(tokens)[0] is measured by the model's weights."""
    model = Recurrent().eval()
    subject, _ = prepared(lambda tokens: model(tokens)[0])
    assert len(subject.weights()) == len(list(model.parameters()))
    assert subject.vocab == model.head.out_features


def test_parameters_of_one_memory_are_named() -> None:
    """weight.data shared by two parameters; a parameter used twice is one."""
    model = Small(tied=True)
    assert not aliased(model)
    model.head.weight = nn.Parameter(model.table.weight.data)
    assert aliased(model) == "table.weight and head.weight"


def test_a_mask_that_is_required_and_works_in_no_form_is_asked_for_in_one_line() -> None:
    """Masks of three axes, declared to have four, which one sequence alone survives."""

    class Three(CallersMasks):
        def forward(self, src: Tensor, tgt: Tensor, src_mask: Tensor, tgt_mask: Tensor) -> Tensor:
            three = src_mask.reshape(1, 1, -1) if len(src) == 1 else src_mask
            batch, one, length = three.shape
            return super().forward(src, tgt, three.view(batch, one, 1, length), tgt_mask)

    of_role: Any = role("seq2seq")
    wrongly = headcheck.Seq2Seq(Three, mask_rank=4)
    with pytest.raises(SubjectError, match=r"requires src_mask, which works in no form .* declare mask_rank"):
        of_role.prepare(wrongly, dtypes=(), device="cpu", seed=0)


def test_one_half_that_is_declared_asks_for_the_other() -> None:
    """A declaration that would come to nothing is an error in one line."""

    class Whole(nn.Module):
        def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
            return torch.zeros(*tgt.shape, 5, dtype=torch.float64)

    of_role: Any = role("seq2seq")
    declared = headcheck.Seq2Seq(Whole, decode=lambda module, target, memory: memory, vocab=5, source_vocab=5)
    with pytest.raises(SubjectError, match=r"decode is declared, and the module has no encode\(source\)"):
        of_role.prepare(declared, dtypes=(), device="cpu", seed=0)


def test_images_of_other_outlines_are_asked_for_where_they_are_taken() -> None:
    """Not where a size is declared."""
    of_role: Any = role("vision")
    right = RIGHT["vision/of-any-size"]
    subject, notes = of_role.prepare(right.declaration(), dtypes=(), device="cpu", seed=0)
    assert set(subject.sizes) == {"usual", "tall", "wide", "column", "row"}
    assert "images of 3 x 4 x 4, patches of 2x2; also taken: 6 x 4, 4 x 6, 4 x 2, 2 x 4" in notes
    one_size, _ = of_role.prepare(
        headcheck.Vision(right.function, channels=3, image_size=4), dtypes=(), device="cpu", seed=0
    )
    assert set(one_size.sizes) == {"usual"}


def test_images_are_cut_into_several_patches_where_nothing_names_their_size() -> None:
    """A convolution of 8 x 8 takes one of 8 x 8, of which no law of patches could speak."""
    cut = nn.Sequential(nn.Conv2d(3, 4, 8, 8), nn.Flatten(2))
    subject, notes = role("vision").prepare(headcheck.Vision(cut), dtypes=(), device="cpu", seed=0)
    assert subject.has("patches")
    assert any(note.startswith("images of 3 x 16 x 16, patches of 8x8") for note in notes)


def test_no_other_size_of_image_is_asked_for_than_is_declared() -> None:
    """image_size is the caller's word, or the module names one; other sizes are open where neither is, and on demand."""
    of_role: Any = role("vision")
    for name, why in (("of-one-size", "as declared"), ("written-out", None), ("torch-encoder", "images, 12")):
        subject, _ = of_role.prepare(RIGHT[f"vision/{name}"].declaration(), dtypes=(), device="cpu", seed=0)
        lacking = subject.lacks("other_sizes")
        assert (lacking is None) if why is None else (why in lacking)


def test_logits_of_another_shape_are_refused_in_one_line() -> None:
    """The shape that came and the one that is meant."""
    with pytest.raises(SubjectError, match=r"logits have shape \(1, 11, 2\), expected \(1, 2, vocab\)"):
        prepared(lambda: Small(logits=lambda self, x, real: self.head(x).mT))


@pytest.mark.parametrize(("made", "mask_of"), [(Kept, "all"), (AlwaysKept, "new")])
def test_a_cache_of_its_own_names_is_found(made: type[nn.Module], mask_of: str) -> None:
    """With the tokens that a mask beside it is of."""
    subject, notes = prepared(made)
    assert subject.step == Found(mask_of)
    assert any("is taken for a cache that is returned last; declare step" in note for note in notes)


def test_what_is_no_cache_that_works_is_told_and_not_judged() -> None:
    """A flag by the name of a cache, and one that is wrong in its simplest use: no law can say which is meant."""

    class Flag(Small):
        def forward(self, tokens: Tensor, cache: bool | None = None) -> Tensor:  # type: ignore[override]
            return super().forward(tokens)

    class Empty(AlwaysKept):
        def forward(self, tokens: Tensor, past: Any = None) -> Any:  # type: ignore[override]
            return super().forward(tokens)

    for made, why in ((Flag, "no cache is returned"), (Empty, "other logits")):
        made.new_cache = None  # type: ignore[attr-defined]
        subject, notes = prepared(made)
        assert subject.lacks("step")
        assert any(f"it is not right ({why}); declare step" in note for note in notes), notes


def test_one_token_at_a_time_may_be_declared_or_found() -> None:
    """Of a declaration no law asks for more; of a model that raises, none is held against it."""
    of_role: Any = role("causal_lm")
    declared = RIGHT["causal_lm/one-token-after-a-cache"].declaration()
    subject, _ = of_role.prepare(declared, dtypes=(), device="cpu", seed=0)
    assert subject.pieces(3) == [1, 1, 1]
    assert subject.lacks("cached_chunks") == "takes one token at a time after a cache, as declared"
    refusing = RIGHT["causal_lm/more-than-one-token-is-refused"].declaration()
    verdict = headcheck.verify(refusing, profile="quick", laws="chunked-prefill")
    assert verdict.laws[0].reason.startswith("takes one token at a time after a cache, as is found")


# Training


class Trained(Small):
    """What happens in training: a problem is raised, or the answer is another, which a buffer or a pair may tell."""

    def __init__(
        self,
        problem: Exception | None = None,
        *,
        when_set: bool = False,
        counts: bool = False,
        pair: bool = False,
    ) -> None:
        super().__init__()
        self.problem, self.when_set, self.counts, self.pair = problem, when_set, counts, pair
        self.register_buffer("seen", torch.zeros(()))

    def train(self, mode: bool = True) -> Any:
        if mode and self.when_set and self.problem is not None:
            raise self.problem
        return super().train(mode)

    def logits(self, x: Tensor, real: Tensor) -> Tensor:
        if self.training and self.problem is not None:
            raise self.problem
        self.seen += self.training and self.counts
        return super().logits(x, real) * (2 if self.training else 1)

    def forward(self, tokens: Tensor, is_real: Tensor | None = None) -> Any:
        logits = super().forward(tokens, is_real)
        return (logits, logits) if self.training and self.pair else logits


@pytest.mark.parametrize(
    ("made", "outcome"),
    [
        ({}, "breaks"),
        ({"counts": True}, "not-applicable"),
        ({"pair": True}, "not-applicable"),
        ({"problem": NotImplementedError("inference only")}, "not-applicable"),
        ({"problem": NotImplementedError("inference only"), "when_set": True}, "not-applicable"),
        ({"problem": RuntimeError("NotImplementedError is told only")}, "breaks"),
        ({"problem": ValueError("no such mode"), "when_set": True}, "breaks"),
    ],
)
def test_what_training_refuses_is_not_asked_for_and_what_fails_there_breaks(
    made: dict[str, Any], outcome: str
) -> None:
    """Statistics, another kind of answer and NotImplementedError are a module's own affair; the rest is wrong."""
    law = "causal-lm/paths/training-without-dropout-gives-evaluation"
    verdict = headcheck.verify(lambda: Trained(**made), role="causal_lm", profile="quick", laws=law)
    (row,) = verdict.laws
    assert row.outcome == outcome, row.reason


class Unsteady(nn.Module):
    """Its sums are not always taken in one order: every other answer is off by one digit of the last place."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.layer(x) * (1 + self.calls % 2 * torch.finfo(x.dtype).eps)


def test_a_module_may_be_declared_to_give_other_bits() -> None:
    """Within the bound of its rounding; undeclared, the laws of state hold it to its bits."""
    laws = ("same-call-same-answer", "another-call-between")
    for steady, outcome in ((True, "breaks"), (False, "conforms")):
        declared = headcheck.Encoder(Unsteady(), d_model=8, deterministic=steady)
        assert headcheck.verify(declared, laws=laws, profile="quick").verdict == outcome


class WithoutAGraph(nn.TransformerEncoderLayer):
    """Gradients are not recorded."""

    def forward(self, *arguments: Any, **keywords: Any) -> Tensor:
        with torch.no_grad():
            return super().forward(*arguments, **keywords)


@pytest.mark.parametrize(("declared", "outcome"), [(True, "breaks"), (None, "not-applicable")])
def test_gradients_that_are_declared_are_held_to(declared: bool | None, outcome: str) -> None:
    """Where none are, a module without them is not asked for them."""
    layer = WithoutAGraph(8, 2, batch_first=True)
    verdict = headcheck.verify(
        headcheck.Encoder(layer, gradients=declared), laws=["gradients-of-the-weights"], profile="quick"
    )
    assert [row.outcome for row in verdict.laws] == [outcome]
