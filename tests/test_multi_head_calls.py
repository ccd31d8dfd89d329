"""The role multi_head_attention: what plain calls show of a module, and which declaration they name."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headcheck import Encoder, MultiHeadAttention, verify
from headcheck.errors import SubjectError
from headcheck.verdict import IF_MEANT
from tests.roles import RIGHT
from tests.roles.multi_head_attention import AlwaysCausal, AMaskForEachSequence, CausalUnlessMasked, Plain
from tests.test_multi_head import ROLE, FusedByHead, Interleaved, LengthFirst, of_corpus, prepared


class Blocks(Plain):
    """True hides."""

    def masked(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        return super().masked(scores, None if mask is None else ~mask)


class KeepsItsTokens(Plain):
    """A mask of the keys by torch's name, in which True keeps."""

    def forward(  # type: ignore[override]
        self, query: Tensor, key: Tensor, value: Tensor, key_padding_mask: Tensor | None = None
    ) -> Any:
        mask = None if key_padding_mask is None else key_padding_mask[:, None]
        return super().forward(query, key, value, mask)


class ShowsScores(Plain):
    """Scores come second, not weights."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Any:
        q, k, _ = self.projected(query, key, value)
        return super().forward(query, key, value, mask), self.scores(q, k)


class FillsByItsPadding(Plain):
    """Numbers are added to the scores; beside a mask of queries and keys, one of the keys has to be booleans."""

    def forward(  # type: ignore[override]
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        attn_mask: Tensor | None = None,
    ) -> Any:
        if key_padding_mask is not None:
            padding = key_padding_mask[:, None, None]
            attn_mask = padding if attn_mask is None else attn_mask.masked_fill(padding, -torch.inf)
        return super().forward(query, key, value, attn_mask)

    def masked(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        if mask is None or mask.dtype != torch.bool:
            return scores if mask is None else scores + mask
        return scores.masked_fill(mask, -torch.inf)


def notes_of(subject: Any) -> str:
    """All that the preparation says."""
    _, notes = ROLE.prepare(ROLE.declare(subject, "subject"), dtypes=(), device="cpu", seed=0)
    return "\n".join(notes)


@pytest.mark.parametrize(
    ("module", "hint"),
    [
        (AlwaysCausal, "a plain call is right with --declare causal=True"),
        (CausalUnlessMasked, "a plain call is right with --declare causal=unless-masked"),
        (LengthFirst, "a plain call is right with --declare batch_first=False"),
        (Blocks, "a call with a mask is right with --declare true_means=block"),
        (KeepsItsTokens, "a call with a mask is right with --declare key_true_means=keep"),
        (ShowsScores, "a plain call is right with --declare weights=False"),
        (FillsByItsPadding, "a call with both masks is right with --declare key_masks=boolean"),
    ],
)
def test_the_declaration_that_makes_it_right_is_named(module: type[nn.Module], hint: str) -> None:
    """One that conforms with it, and that calls without it show to be wrong."""
    notes = notes_of(MultiHeadAttention(module))
    assert f"{hint}, {IF_MEANT}" in notes
    assert notes.count(IF_MEANT) == 1
    assert "rounds inside" not in notes


class MergedWrongly(FusedByHead):
    """Without the transpose, heads are mixed with tokens."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (self.num_heads, 3, -1)).permute(3, 0, 2, 1, 4)
        return self.proj(nn.functional.scaled_dot_product_attention(q, k, v).reshape(x.shape))  # type: ignore[no-any-return]


@pytest.mark.parametrize("sizes", [(16, 2), (32, 4)])
def test_float32_is_no_excuse_for_what_is_wrong_there_too(sizes: tuple[int, int]) -> None:
    """A causal module is told to be one, and a fault is told nothing."""
    assert f"right with --declare causal=True, {IF_MEANT}" in notes_of(FusedByHead(*sizes, causal=True))
    assert IF_MEANT not in notes_of(MergedWrongly(*sizes))


class Rectified(AlwaysCausal):
    """What is above zero in place of the softmax."""

    def weigh(self, scores: Tensor) -> Tensor:
        return scores.relu()


def test_weights_that_do_not_sum_to_one_are_told() -> None:
    """And how such a module is judged; heads that are merged wrongly sum to one all the same."""
    told = "the weights do not sum to one"
    notes = notes_of(Rectified)
    assert told in notes
    assert "--declare skip_path=False --declare only_tokens=False --declare causal=True" in notes
    encoder = Encoder(Rectified(16, 2), skip_path=False, only_tokens=False, causal=True)
    assert verify(encoder, profile="quick", laws="symmetry").conforms
    assert told not in notes_of(MergedWrongly(16, 2))


class ForgetsItsMask(Plain):
    """As torch's tutorial of building blocks does."""

    def masked(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        return scores


def test_a_mask_that_changes_nothing_has_no_meaning() -> None:
    notes = notes_of(ForgetsItsMask)
    assert "mask changes nothing in a plain call" in notes
    assert "True means" not in notes


class Turned(Plain):
    """Queries and keys are multiplied by numbers of their places; causal; the mask is added."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Any:  # type: ignore[override]
        q, k, v = self.projected(x, x, x)
        place = torch.arange(1, x.shape[1] + 1)[:, None]
        scores = self.scores(q * place, k / place) + (0.0 if mask is None else mask)
        future = torch.ones(scores.shape[2:], dtype=torch.bool).triu(1)
        return self.w_o(self.merge(self.weigh(scores.masked_fill(future, -torch.inf)) @ v))


def test_positions_inside_are_told() -> None:
    """No reference has them: another role judges such a module, with these declarations."""
    declared = "skip_path=False", "positions=True", "causal=True", "mask_kind=additive"
    said = " ".join(f"--declare {each}" for each in declared)
    assert f"judged without a reference by --role encoder {said}" in notes_of(MultiHeadAttention(Turned))
    assert "--role encoder" not in notes_of(MultiHeadAttention(Interleaved))


class CutsItsMask(Plain):
    """The mask (q_len, kv_len) may be larger than the scores."""

    def masked(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        q_len, kv_len = scores.shape[2:]
        return super().masked(scores, None if mask is None else mask[:q_len, :kv_len])


def test_a_slice_lets_no_mask_of_other_axes_pass() -> None:
    """The batch is longer than what is cut off."""
    assert prepared(MultiHeadAttention(CutsItsMask)).found.mask_shapes == ("qk",)


def test_a_mask_of_self_attention_is_tried_there() -> None:
    """Where another mask belongs to keys of another sequence, that one is given in cross calls."""
    found = prepared(MultiHeadAttention(AMaskForEachSequence)).found
    assert found.of_self
    assert set(found.mask_shapes) == {"qk", "b1qk", "bhqk", "bqk", "b11k", "b1k"}
    assert not of_corpus("Whole").found.of_self


class IgnoredInCrossCalls(AMaskForEachSequence):
    """Its mask is dropped where keys of another sequence are given, and no other takes its place."""

    def forward(  # type: ignore[override]
        self, x: Tensor, encoder_hidden_states: Tensor | None = None, attention_mask: Tensor | None = None
    ) -> Tensor:
        return super().forward(x, encoder_hidden_states, attention_mask)


def test_a_mask_that_cross_calls_drop_is_a_fault() -> None:
    """Nobody could say what is hidden there."""
    verdict = verify(
        MultiHeadAttention(IgnoredInCrossCalls), profile="quick", laws="masked-keys-do-not-matter"
    )
    assert not verdict.conforms
    assert any("acts in self-attention alone" in note for note in verdict.notes)


def test_no_mask_is_given_where_none_is_declared() -> None:
    """masks=() is a declaration like any other."""
    notes = notes_of(MultiHeadAttention(Plain, masks=()))
    assert "mask" not in notes


def called_once(d_model: int, num_heads: int) -> nn.Module:
    """A maker that cannot cut a width into heads, as the first call cannot."""
    torch.zeros(d_model).view(num_heads, -1)
    return Plain(d_model, num_heads)


def test_a_view_that_fails_in_the_maker_refuses_a_width() -> None:
    """As one of the first call does."""
    assert verify(MultiHeadAttention(called_once), profile="quick", laws="widths-that-heads").conforms


def two_parts(d_model: int, num_heads: int) -> nn.Module:
    """A fused weight that is not divided into three."""
    module = RIGHT["multi_head_attention/Fused"].function(d_model, num_heads)
    module.to_qkv = nn.Linear(d_model, 3 * d_model + 1)
    return module


def test_a_weight_that_does_not_divide_asks_for_load() -> None:
    """In one line."""
    with pytest.raises(SubjectError, match=r"rows of a weight are not 3 parts.*load=function of module"):
        prepared(two_parts)


def test_what_load_raises_is_said_of_it() -> None:
    """And how many heads its weights are of, as kv_heads may be wrong."""

    def load(module: nn.Module, weights: Any) -> None:
        raise ValueError("no such weight")

    with pytest.raises(SubjectError, match=r"no such weight \(in the declared load, for 2 heads, 2 of key"):
        prepared(MultiHeadAttention(Plain, load=load, d_model=4, num_heads=2))


class ToAnother(Plain):
    """Attention to another sequence, whose padding is its only mask."""

    def forward(self, x: Tensor, context: Tensor, context_mask: Tensor | None = None) -> Any:  # type: ignore[override]
        return super().forward(x, context, context, None if context_mask is None else context_mask[:, None])


class HidesTooLate(ToAnother):
    """Weights are masked after the softmax, and do not sum to one."""

    def masked(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        self.hidden = None if mask is None else mask[:, None]
        return scores

    def weigh(self, scores: Tensor) -> Tensor:
        weights = super().weigh(scores)
        return weights if self.hidden is None else weights * self.hidden


@pytest.mark.parametrize(("module", "verdict"), [(ToAnother, "conforms"), (HidesTooLate, "breaks")])
def test_the_only_mask_of_a_cross_attention_is_judged(module: type[nn.Module], verdict: str) -> None:
    """Under the name of a mask of another sequence, where the module has no other."""
    judged = verify(MultiHeadAttention(module), profile="quick", laws=("masks/",))
    assert judged.verdict == verdict, repr(judged)
    assert any(row.outcome == "holds" for row in judged.laws)


class ToAnotherOrItself(ToAnother):
    """Without another sequence the mask of its padding plays no part."""

    def forward(  # type: ignore[override]
        self, x: Tensor, context: Tensor | None = None, context_mask: Tensor | None = None
    ) -> Any:
        return super().forward(x, x) if context is None else super().forward(x, context, context_mask)


class HidesItsMemory(ToAnother):
    """By torch's name of the mask, in which True hides; a query without keys sees all of them."""

    def forward(self, x: Tensor, memory: Tensor, memory_mask: Tensor | None = None) -> Any:  # type: ignore[override]
        return super().forward(x, memory, None if memory_mask is None else ~memory_mask)


@pytest.mark.parametrize("module", [ToAnotherOrItself, HidesItsMemory])
def test_a_mask_of_another_sequence_is_read_as_it_is_meant(module: type[nn.Module]) -> None:
    """It is not given where there is no other sequence, and True means what it means by that name."""
    judged = verify(MultiHeadAttention(module), profile="quick")
    assert judged.conforms, repr(judged)
