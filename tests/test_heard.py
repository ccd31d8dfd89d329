"""What a law itself chose is shown beside the inputs of its case."""

import torch
from torch import Tensor

from headcheck import heard
from headcheck.calling import Clock
from headcheck.console import call_lines
from headcheck.declarations import Attention
from headcheck.laws import all_laws
from headcheck.numbers import SMALL
from headcheck.verdict import LawResult
from tests.engines import GRADIENTS, engine_of


def unmasked(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> Tensor:
    """Attention that hears no is_causal."""
    return torch.nn.functional.scaled_dot_product_attention(query, key, value)


def detached(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attention whose weights carry no gradient."""
    return (query @ key.mT / query.shape[-1] ** 0.5).softmax(-1).detach() @ value


def broken(function: object, law_id: str) -> LawResult:
    row = engine_of(Attention(function)).judge(all_laws()[law_id])  # type: ignore[arg-type]
    assert row.outcome == "breaks"
    return row


def test_what_a_law_puts_into_the_future_is_shown() -> None:
    """The law of the future writes huge numbers into later keys: the counterexample has the call that did so."""
    example = broken(unmasked, "attention/masks/the-future-does-not-matter").counterexample
    assert example is not None
    (call,) = example.calls
    assert set(call) == {"key", "value"}
    assert max(torch.tensor(call["value"]).flatten().tolist()) > 1e29


def test_the_cotangent_is_shown() -> None:
    """A gradient begins with numbers that the law drew."""
    example = broken(detached, GRADIENTS).counterexample
    assert example is not None
    assert [list(call) for call in example.calls] == [["cotangent"]]


def test_only_what_differs_from_the_case_is_told() -> None:
    """A call with the case's own tensors, in whatever order of axes of size 1, tells nothing; False is not 0."""
    inputs = {"query": [[[[1.0], [2.0]]]], "b_k": [0.0]}
    calls: list[heard.Call] = [
        {"q": [[[1.0]], [[2.0]]]},
        {"q": [[1.0], [2.0]], "mask": [[False]]},
        {"q": [[2.0]], "is_causal": True},
        {"q": [[1.0], [2.0]], "mask": [[False]]},
    ]
    assert heard.told(calls, inputs) == [{"mask": [[False]]}, {"q": [[2.0]], "is_causal": True}]
    assert call_lines(heard.told(calls, inputs)) == [
        "the law also called it with",
        "  - mask (1, 1) = [False]",
        "  - q (1, 1) = [2]",
        "    is_causal = True",
    ]


def test_calls_that_differ_in_a_number_alone_are_told_as_one() -> None:
    """A law tries one scale after the other."""
    scales: list[heard.Call] = [{"q": [[1.0]], "scale": each} for each in (1.0, 2.0, 0.0)]
    assert heard.told(scales, {"query": [[1.0]]}) == [{"scale": "1.0, 2.0, 0.0"}]
    calls: list[heard.Call] = [{"scale": 2.0}, {"q": [[3.0]]}, {"scale": 0.0}]
    assert heard.told(calls, {}) == [{"scale": "2.0, 0.0"}, {"q": [[3.0]]}]


def test_a_call_is_heard_as_it_was_given() -> None:
    """What a subject writes into its inputs is not what it was given; numbers are told, large tensors left out."""
    clock, x = Clock(), torch.zeros(2)
    with heard.listening() as calls:
        clock.call(torch.Tensor.add_, x, 1.0)
        clock.call(lambda large: None, torch.zeros(SMALL + 1))
    clock.call(torch.Tensor.add_, x, 1.0)
    assert [list(call.values()) for call in calls] == [[[0.0, 0.0], 1.0], []]
