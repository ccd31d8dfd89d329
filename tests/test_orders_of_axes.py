"""What plain calls show of the order of the axes of a log-sum-exp, and where axes are lacking."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from headcheck.attention.role import role
from headcheck.declarations import Attention
from headcheck.verdict import Hint


def with_rows_first(query: Tensor, key: Tensor, value: Tensor, return_lse: bool = False) -> Any:
    """The log-sum-exp is (batch, length, heads)."""
    scores = query @ key.mT * query.shape[-1] ** -0.5
    output = scores.softmax(dim=-1) @ value
    return (output, scores.logsumexp(dim=-1).transpose(1, 2)) if return_lse else output


def wrong_on_matrices(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Columns are divided by the sums of rows, which raises where they are not as many."""
    raised = (query @ key.mT * query.shape[-1] ** -0.5).exp()
    return raised / raised.sum(dim=1) @ value


@pytest.mark.parametrize(
    ("function", "declared", "hinted"),
    [(with_rows_first, {}, "log_sum_exp_layout=bsh"), (wrong_on_matrices, {"layout": "sd"}, "")],
)
def test_an_order_of_axes_is_hinted_at_where_there_is_such_a_one(
    function: Callable[..., Any], declared: dict[str, Any], hinted: str
) -> None:
    """And of tensors that lack axes no other order is looked for that has them."""
    _, notes = role.prepare(Attention(function, **declared), dtypes=("float32",), device="cpu", seed=0)
    told = [note for note in notes if "layout" in note]
    assert all(isinstance(note, Hint) for note in told)
    assert [hinted in note for note in told] == [True] * bool(hinted)


def test_a_log_sum_exp_of_every_call_is_told_by_its_numbers_in_its_order() -> None:
    """Where all calls return it, and its axes are declared."""

    def always(query: Tensor, key: Tensor, value: Tensor) -> Any:
        return with_rows_first(query, key, value, return_lse=True)

    declared = Attention(always, log_sum_exp_layout="bsh")
    prepared, _ = role.prepare(declared, dtypes=("float32",), device="cpu", seed=0)
    assert prepared.declaration.returns == ("output", "log_sum_exp")


def test_a_sink_without_an_axis_of_heads_is_one_number() -> None:
    """How scores are rounded beside it is asked of one head."""

    def attend(query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None = None) -> Tensor:
        scores = query @ key.mT * query.shape[-1] ** -0.5
        if sinks is not None:
            scores = torch.cat([scores, sinks.to(scores).expand(*scores.shape[:-1], 1)], dim=-1)
        return scores.softmax(dim=-1)[..., : key.shape[-2]] @ value

    declared = Attention(attend, layout="bsd", sinks=True)
    prepared, _ = role.prepare(declared, dtypes=("bfloat16",), device="cpu", seed=0)
    assert set(prepared.arithmetic) == {"bfloat16"}
