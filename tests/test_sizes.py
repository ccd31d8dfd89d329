"""Functions that take some sizes only, as most kernels do: declared, or refused by plain calls in so many words."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import headcheck
from headcheck.attention.case import Case
from headcheck.attention.sizes import sized
from headcheck.attention.sizes_shown import as_sized
from headcheck.calling import refused_on_purpose
from headcheck.errors import SubjectError
from headcheck.verdict import Hint

FLOAT32 = ("float32",)


def tiled(q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
    """As the flash kernel of a tutorial: four head dims, whole blocks."""
    assert q.shape[-1] in (16, 32, 64, 128)
    assert q.shape[-2] % 16 == 0 and k.shape[-2] % 16 == 0
    return scaled_dot_product_attention(q, k, v, is_causal=causal)


def tiled_wrongly(q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
    """The same, that forgets the last block of three or more."""
    keys = k.shape[-2] - 16 if k.shape[-2] > 32 else k.shape[-2]
    return tiled(q, k[..., :keys, :], v[..., :keys, :], causal)


def alike(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """One shape for all three."""
    if not q.shape == k.shape == v.shape:
        raise ValueError("one shape for all three")
    return scaled_dot_product_attention(q, k, v)


def in_eights(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Refused as CUDA code does."""
    if q.shape[-1] % 8:
        raise RuntimeError("head_size should be a multiple of 8")
    return scaled_dot_product_attention(q, k, v)


def dense(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Refused as flash-attention does."""
    if q.stride(-1) != 1:
        raise RuntimeError("Input tensor must have contiguous last dimension")
    return scaled_dot_product_attention(q, k, v)


def few(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """A row of scores has room for 128 keys."""
    assert k.shape[-2] <= 128
    return scaled_dot_product_attention(q, k, v)


def few_in_blocks(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Whole blocks, and not many, refused as CUDA code does; as many keys as queries."""
    if q.shape[-2] % 16 or q.shape[-2] != k.shape[-2]:
        raise ValueError("lengths have to be alike, and multiples of 16")
    if q.shape[-2] > 100:
        raise RuntimeError("seqlen exceeds 100")
    return scaled_dot_product_attention(q, k, v)


def in_fours(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Small blocks."""
    assert q.shape[-2] % 4 == k.shape[-2] % 4 == 0
    return scaled_dot_product_attention(q, k, v)


def no_more_queries(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Any length, but never more queries than keys."""
    assert q.shape[-2] <= k.shape[-2]
    return scaled_dot_product_attention(q, k, v)


def in_one_block(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """As a kernel of a generated file begins."""
    assert q.is_contiguous() and k.is_contiguous() and v.is_contiguous()
    return scaled_dot_product_attention(q, k, v)


def viewed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """A view that does not work is no refusal, but a slip."""
    return scaled_dot_product_attention(q.view(q.numel()).view(q.shape), k, v)


def causal_in_squares(q: Tensor, k: Tensor, v: Tensor, is_causal: bool = False) -> Tensor:
    """A refusal of one kind of calls among others."""
    if is_causal and q.shape[-2] != k.shape[-2]:
        raise ValueError("causal attention has as many queries as keys")
    return scaled_dot_product_attention(q, k, v, is_causal=is_causal)


def too_long_for_its_buffer(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Many keys are no refusal, but a slip."""
    buffer = torch.zeros_like(k[..., :128, :])
    return scaled_dot_product_attention(q, k, v + (buffer if k.shape[-2] > 128 else 0))


def crashes(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """An odd head dim is no refusal, but a slip."""
    half = q.shape[-1] // 2
    return scaled_dot_product_attention(q.reshape(*q.shape[:-1], 2, half).flatten(-2), k, v)


def shown(function: Any, **declared: Any) -> tuple[headcheck.Attention, list[str]]:
    return as_sized(headcheck.Attention(function, **declared), FLOAT32, "cpu")


@pytest.mark.parametrize(
    ("function", "found"),
    [
        (tiled, {"head_dims": (16, 32, 64, 128), "length_multiple": 16}),
        (alike, {"rectangular": False, "value_dim": False}),
        (dense, {"any_strides": False}),
        (in_eights, {"head_dims": (8, 16, 24, 32, 40, 64, 80, 96, 128, 160, 192, 256, 320)}),
        (crashes, {}),
        (few, {"max_length": 128}),
        (in_one_block, {"contiguous": True}),
        (few_in_blocks, {"length_multiple": 16, "max_length": 96, "rectangular": False}),
        (in_fours, {"length_multiple": 4}),
        (no_more_queries, {"rectangular": "no-more-queries"}),
        (too_long_for_its_buffer, {}),
        (scaled_dot_product_attention, {}),
    ],
)
def test_what_plain_calls_refuse_is_not_asked_for(function: Any, found: dict[str, Any]) -> None:
    """By an assertion, a ValueError, or a RuntimeError that says so; a crash is a finding."""
    declaration, notes = shown(function)
    fields = (
        "head_dims",
        "length_multiple",
        "max_length",
        "rectangular",
        "value_dim",
        "any_strides",
        "contiguous",
    )
    assert {name: value for name in fields if (value := getattr(declaration, name)) is not None} == found
    assert len(notes) == len(found)


def test_what_is_declared_is_not_found_out() -> None:
    """It is what the author says, though more would work."""
    declaration, notes = shown(scaled_dot_product_attention, head_dims=(64,), length_multiple=8)
    assert (declaration.head_dims, declaration.length_multiple, notes) == ((64,), 8, [])


@pytest.mark.parametrize(
    "wrong", [{"head_dims": 64}, {"head_dims": ()}, {"length_multiple": 0}, {"max_length": 0}]
)
def test_sizes_that_are_none_are_refused(wrong: dict[str, Any]) -> None:
    """In one line, which names the field."""
    with pytest.raises(SubjectError, match=next(iter(wrong))):
        headcheck.Attention(tiled, **wrong)


def test_a_case_gets_the_nearest_sizes() -> None:
    """Dims from those that are taken, lengths up to the next multiple."""
    declaration = headcheck.Attention(tiled, head_dims=(16, 64), length_multiple=16, value_dim=False)
    case = sized(Case(q_len=1, kv_len=17, head_dim=40, value_dim=3), declaration)
    assert (case.q_len, case.kv_len, case.head_dim, case.value_dim) == (16, 32, 16, 16)


def test_a_case_is_no_longer_than_what_is_taken() -> None:
    """Down to the last whole block."""
    declaration = headcheck.Attention(few, max_length=100, length_multiple=16)
    case = sized(Case(q_len=1, kv_len=257), declaration)
    assert (case.q_len, case.kv_len) == (16, 96)


def test_lengths_become_equal_where_they_have_to_be() -> None:
    """Of two the larger one, so that a plain case of unequal lengths is one that is taken."""
    declaration = headcheck.Attention(alike, rectangular=False)
    case = sized(Case(q_len=3, kv_len=4), declaration)
    assert (case.q_len, case.kv_len) == (4, 4)


def masked_alike(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None) -> Tensor:
    """One length for both, and zeros where there are no keys."""
    assert q.shape == k.shape == v.shape
    return scaled_dot_product_attention(q, k, v, attn_mask)


def test_dead_rows_are_tried_in_sizes_that_are_taken() -> None:
    """A refusal of unequal lengths says nothing of queries without keys."""
    verdict = headcheck.verify(masked_alike, profile="quick", dtype="float32", laws="dead-rows")
    assert not any("dead rows" in note for note in verdict.notes)


def test_a_kernel_of_few_sizes_is_judged() -> None:
    """Nearly every law speaks of it; those of other sizes are not applicable, with the reason."""
    verdict = headcheck.verify(
        tiled, profile="quick", dtype="float32", laws=("masks", "accuracy", "symmetry")
    )
    broken = {row.name_in_role for row in verdict.broken}
    assert broken <= {"accuracy/the-mask-is-not-scaled"}, repr(verdict)  # torch's own, at a scale of zero.
    assert sum(row.outcome == "holds" for row in verdict.laws) > 15
    reasons = [row.reason for row in verdict.laws if row.outcome == "not-applicable"]
    assert any("takes lengths that are multiples of 16 only" in reason for reason in reasons)


def test_a_fault_of_such_a_kernel_is_found() -> None:
    """The counterexample is of sizes that it takes."""
    verdict = headcheck.verify(tiled_wrongly, profile="quick", dtype="float32", laws="accuracy")
    (row,) = (row for row in verdict.broken if row.name_in_role == "accuracy/output-is-within-the-bound")
    assert row.counterexample is not None
    assert "kv_len=48" in row.counterexample.case


def test_a_kernel_of_few_keys_is_judged() -> None:
    """Laws that put more beside them do so where there is room."""
    verdict = headcheck.verify(few, profile="quick", dtype="float32", seed=1, declare="nan_scores=may-vanish")
    assert not verdict.broken, repr(verdict)
    assert "lengths: at most 128" in "".join(verdict.notes)
    (row,) = (row for row in verdict.laws if row.name_in_role == "symmetry/duplicated-keys-change-nothing")
    assert row.outcome == "holds"
    reasons = {row.reason for row in verdict.laws if row.outcome == "not-applicable"}
    assert "takes no kv_len=1025, of which the law speaks" in reasons


def test_a_slip_of_strides_is_no_refusal() -> None:
    """A crash where tensors are not contiguous is for the laws."""
    assert shown(viewed)[0].contiguous is None


def test_what_is_refused_now_and_then_can_be_declared() -> None:
    """Undeclared it breaks laws, and a hint names the word; declared, such calls are not applicable."""
    asked = {"profile": "quick", "dtype": "float32", "laws": ("masks", "caches", "symmetry")}
    verdict = headcheck.verify(causal_in_squares, **asked)
    assert verdict.broken
    assert any("--declare may_refuse=True" in note for note in verdict.notes if isinstance(note, Hint))
    assert not headcheck.verify(causal_in_squares, declare="may_refuse=True", **asked).broken


def test_a_slip_is_no_refusal_though_refusals_are_declared() -> None:
    """What torch raises on the way is none."""
    verdict = headcheck.verify(
        viewed, profile="quick", dtype="float32", laws="memory", declare="may_refuse=True"
    )
    assert verdict.broken


def test_a_compiler_that_fails_refuses_nothing() -> None:
    """What is raised by Python code has to be of a plain class."""

    class Failed(RuntimeError):
        """As torch's compiler has of its own."""

    def throw(problem: Exception) -> None:
        raise problem

    def raised(problem: Exception) -> BaseException:
        with pytest.raises(type(problem)) as caught:
            throw(problem)
        return caught.value

    assert refused_on_purpose(raised(ValueError("one query at a time")))
    assert not refused_on_purpose(raised(Failed("is not supported")))


def test_memory_that_is_read_beyond_its_end_is_no_refusal() -> None:
    """Though what torch says of it names strides."""

    def strided(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        flat = k.as_strided((k.numel() * 2 if not k.is_contiguous() else k.numel(),), (1,))
        return scaled_dot_product_attention(q, k + 0 * flat.sum(), v)

    assert shown(strided)[0].contiguous is None


def test_a_module_that_drops_weights_is_judged_in_evaluation() -> None:
    """It is made in training, as every module is, and left so."""

    class Dropping(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.dropout = torch.nn.Dropout(0.5)

        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return scaled_dot_product_attention(q, k, self.dropout(v))

    given = Dropping()
    verdict = headcheck.verify(given, role="attention", profile="quick", dtype="float32", laws="symmetry")
    assert not verdict.broken
    assert given.training
    assert verdict.declaration["notes"] == "a copy of the module is judged, in evaluation"

    given.kept = torch.ones(2, requires_grad=True) * 2  # A tensor of a graph, which torch does not copy.
    told = headcheck.verify(given, role="attention", profile="quick", laws="hull").declaration["notes"]
    assert told.startswith("judged in training: the module cannot be copied (Only Tensors created explicitly")


def test_a_law_of_other_sizes_says_nothing() -> None:
    """One key alone is no case of a kernel of whole blocks."""
    verdict = headcheck.verify(tiled, profile="quick", dtype="float32", laws="one-key-gives-its-value")
    (row,) = verdict.laws
    assert (row.outcome, row.reason) == ("not-applicable", "takes no kv_len=1, of which the law speaks")
