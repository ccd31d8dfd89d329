"""What plain calls show of attention functions as projects write them: read off, or told with its cure."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import dropout as dropped
from torch.nn.functional import scaled_dot_product_attention

import headcheck
from headcheck.declarations import DTYPES
from headcheck.errors import SubjectError
from headcheck.roles import HOMES, OF_LENGTHS, role
from headcheck.verdict import Verdict

QUICK: dict[str, Any] = {"profile": "quick", "dtype": "float32"}


def judged(function: Any, laws: str, **options: Any) -> Verdict:
    return headcheck.verify(function, **QUICK | {"laws": laws} | options)


def eager(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    dropout: float = 0.0,
    training: bool = False,
) -> Tensor:
    """As transformers' interface has it: nothing is dropped unless it trains."""
    scores = query @ key.mT * query.shape[-1] ** -0.5
    scores = scores if attention_mask is None else scores + attention_mask
    return dropped(torch.softmax(scores, dim=-1), dropout, training) @ value


def test_who_drops_in_training_only_is_told_that_it_trains() -> None:
    """A rate without it would drop nothing; the law that the rate is kept is judged, and holds."""
    rows = {row.name: row.outcome for row in judged(eager, "dropout", declare="empty_rows=nan").laws}
    assert rows["the-rate-is-kept"] == "holds"
    assert "breaks" not in rows.values()


def test_a_module_in_the_place_of_a_rate_is_no_rate() -> None:
    """The Annotated Transformer is given nn.Dropout, or None."""

    def annotated(query: Tensor, key: Tensor, value: Tensor, dropout: Any = None) -> Tensor:
        weights = torch.softmax(query @ key.mT * query.shape[-1] ** -0.5, dim=-1)
        return (weights if dropout is None else dropout(weights)) @ value

    verdict = judged(annotated, "dropout")
    assert {row.outcome for row in verdict.laws} == {"not-applicable"}
    assert any(note.startswith("takes no dropout_p") for note in verdict.notes)


def test_numpy_inside_has_no_gradients() -> None:
    """torch says so in so many words, and they are not asked for."""

    def of_arrays(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        q, k, v = (np.asarray(each) for each in (query, key, value))
        scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        return torch.from_numpy((weights / weights.sum(-1, keepdims=True) @ v).astype(q.dtype))

    verdict = judged(of_arrays, "gradients/")
    assert {row.outcome for row in verdict.laws} == {"not-applicable"}
    assert any(
        note.startswith("gradients: not asked for (raised RuntimeError: Can't call") for note in verdict.notes
    )


def test_a_keyword_that_a_registered_operator_does_not_know_is_refused() -> None:
    """torch.library raises a RuntimeError where Python raises a TypeError."""

    def operator(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        for name in options:
            raise RuntimeError(f"Unknown keyword argument '{name}' for operator 'mine::attention'")
        return scaled_dot_product_attention(query, key, value)

    assert not judged(operator, "masks").broken


def test_a_diagonal_is_declared_of_functions_that_are_not_told_to_be_causal() -> None:
    """As for their ALiBi: no is_causal is given to them."""

    def plain(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return scaled_dot_product_attention(query, key, value)

    verdict = judged(plain, "causal", declare="causal=bottom-right")
    assert {row.outcome for row in verdict.laws} == {"not-applicable"}


@pytest.mark.parametrize(
    ("left", "right", "band"), [(2, 0, "(2, 0)"), (3, 3, "(3, 3)"), (None, 1, "(None, 1)")]
)
def test_a_window_of_every_call_is_told(left: int | None, right: int, band: str) -> None:
    """It is declared as it is printed, and then the subject conforms."""

    def local(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        ahead = torch.arange(key.shape[2]) - torch.arange(query.shape[2])[:, None]
        seen = (ahead <= right) & (ahead >= (-10_000 if left is None else -left))
        return scaled_dot_product_attention(query, key, value, seen)

    (hint,) = (note for note in judged(local, "accuracy").notes if "always.window" in note)
    assert f"--declare 'always.window={band}'" in hint
    assert judged(local, "accuracy", declare=f"always.window={band}").conforms


class Buffered(nn.Module):
    """GPT-2's: the mask is cut out of a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.ones(24, 24, dtype=torch.bool).tril())

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        assert isinstance(self.seen, Tensor)
        ahead = self.seen[: query.shape[2], : key.shape[2]].float().log()
        scores = query @ key.mT * query.shape[-1] ** -0.5 + ahead
        return torch.softmax(scores, dim=-1) @ value


def test_a_buffer_that_is_too_short_has_a_cure() -> None:
    """The hint names the length at which it ends; declared, the function conforms."""
    declared = {"declare": ["always.is_causal=True"], "role": "attention"}
    verdict = judged(Buffered(), "accuracy", **declared)
    assert any(note.endswith("--declare max_length=24") for note in verdict.notes)
    declared["declare"] = ["always.is_causal=True", "max_length=24"]
    assert judged(Buffered(), "accuracy", **declared).conforms


def test_the_roles_of_lengths_are_those_that_declare_one() -> None:
    """Where the hint names it, it can be declared."""
    for name in HOMES:
        kind = getattr(role(name), "declaration", headcheck.Attention)
        declares = hasattr(kind, "max_length") and name not in ("sinusoidal", "agreement")
        assert (name in OF_LENGTHS) == declares, name


def test_what_breaks_in_one_format_alone_is_told() -> None:
    """A fill of -1e9, which float16 does not hold."""

    def filled(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        scores = query @ key.mT * query.shape[-1] ** -0.5
        scores = scores if attn_mask is None else scores.masked_fill(~attn_mask, -1e9)
        return torch.softmax(scores, dim=-1) @ value

    verdict = judged(filled, "strided", dtype=None, declare=["masks=boolean", "empty_rows=mean"])
    hint = "all that breaks does so in float16: where it is not meant to work there, --declare dtypes="
    assert [note for note in verdict.notes if note.startswith(hint)] == [
        hint + ",".join(name for name in DTYPES if name != "float16")
    ]


def test_what_raises_in_one_format_alone_is_told_whatever_else_breaks() -> None:
    """The same of the Annotated Transformer's, whose rows without keys give the mean; without float16 nothing raises."""

    def attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
        scores = query @ key.mT * query.shape[-1] ** -0.5
        scores = scores if mask is None else scores.masked_fill(mask == 0, -1e9)
        return torch.softmax(scores, dim=-1) @ value

    verdict = judged(attention, "masks", dtype=None)
    hint = "all that raises does so in float16: where it is not meant to work there, --declare "
    (cure,) = (note.removeprefix(hint) for note in verdict.notes if note.startswith(hint))
    assert judged(attention, "masks", dtype=None, declare=[cure, "empty_rows=mean"]).conforms
    assert judged(attention, "autocast-to-half", dtype=None, declare=[cure]).verdict == "untested"


def test_a_backward_that_cannot_go_back_names_its_cure() -> None:
    """Weights that are divided in place, after exp kept them for its gradient."""

    def attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        weights = torch.exp(query @ key.mT * query.shape[-1] ** -0.5)
        weights /= weights.sum(dim=-1, keepdim=True)
        return weights @ value

    verdict = judged(attention, "gradients/gradients-are-within-the-bound")
    assert any(note.endswith("--declare gradients=False") for note in verdict.notes)


def test_a_dict_that_answers_to_any_name_is_no_tensor() -> None:
    """Its `dtype` is an entry that is not there."""

    class Answers(dict[str, Tensor]):
        __getattr__ = dict.__getitem__

    def answering(query: Tensor, key: Tensor, value: Tensor) -> Any:
        return Answers(context=scaled_dot_product_attention(query, key, value))

    with pytest.raises(SubjectError, match=r"returned a Answers, expected a torch\.Tensor"):
        judged(answering, "accuracy")
