"""Functions that take some sizes only, as most kernels do: declared, or refused by plain calls in so many words."""

from itertools import pairwise
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
        (no_more_queries, {}),
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


def few_dims(q: Tensor, k: Tensor, v: Tensor, scale: float | None = None) -> Tensor:
    """As kernels refuse that mean it: weights rounded before they meet the values."""
    if q.shape[-1] not in (16, 32, 64, 128):
        raise NotImplementedError("head_dim is 16, 32, 64 or 128")
    scores = (q.float() @ k.float().mT) * (q.shape[-1] ** -0.5 if scale is None else scale)
    weights = (scores - scores.amax(dim=-1, keepdim=True)).exp()
    return (weights.to(v.dtype).float() @ v.float() / weights.sum(dim=-1, keepdim=True)).to(q.dtype)


@pytest.mark.parametrize("may_refuse", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_sizes_are_found_in_any_dtype_and_where_calls_may_be_refused(dtype: str, may_refuse: bool) -> None:
    """That a dtype is not declared, or that any call may be refused, is no reason for a size to be unknown."""
    declaration = headcheck.Attention(few_dims, gradients=False, may_refuse=may_refuse)
    found, _ = as_sized(declaration, (dtype,), "cpu")
    assert found.head_dims == (16, 32, 64, 128) and found.may_refuse is may_refuse
    verdict = headcheck.verify(declaration, profile="quick", dtype=dtype, laws=("accuracy/",))
    assert verdict.conforms
    assert all("inferred as wide" not in note for note in verdict.notes)


def prefill_or_decode(
    q: Tensor, k: Tensor, v: Tensor, scale: float | None = None, decoded: int | None = None
) -> Tensor:
    """Whole sequences, and one query over a cache."""
    if q.shape[2] not in (1, k.shape[2]):
        raise NotImplementedError("q_len is kv_len, or one")
    keys = decoded if q.shape[2] == 1 and k.shape[2] > 1 else None
    return scaled_dot_product_attention(q, k[:, :, :keys], v[:, :, :keys], scale=scale)


def forgets_the_last_key(q: Tensor, k: Tensor, v: Tensor, scale: float | None = None) -> Tensor:
    """The same, but for the last key of the cache."""
    return prefill_or_decode(q, k, v, scale, decoded=-1)


def test_decoding_is_asked_for_where_other_rectangles_are_refused() -> None:
    """One query over a cache is what such a kernel is made for."""
    found, notes = as_sized(headcheck.Attention(prefill_or_decode), FLOAT32, "cpu")
    assert found.rectangular == "one-query" and "but for one query" in notes[0]
    laws = ("accuracy/output", "distribution/")
    right = headcheck.Attention(prefill_or_decode, arguments={}, nan_scores="may-vanish")
    assert headcheck.verify(right, profile="quick", dtype="float32", laws=laws).conforms
    assert not headcheck.verify(forgets_the_last_key, profile="quick", dtype="float32", laws=laws).conforms


def in_blocks_but_for_decoding(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Whole blocks of as many queries and keys; one query over a cache of whole blocks."""
    if k.shape[2] % 16 or q.shape[2] not in (1, k.shape[2]):
        raise ValueError("lengths must be multiples of 16, or one query")
    return scaled_dot_product_attention(q, k, v)


def in_blocks_if_longer(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The block is the sequence where that is shorter."""
    assert all(x.shape[2] % max(1, min(64, x.shape[2])) == 0 for x in (q, k))
    return scaled_dot_product_attention(q, k, v)


def wider_in_single_precision(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """In half precision vectors are read in eights."""
    if q.dtype == torch.float16 and q.shape[-1] % 8:
        raise ValueError("in half precision head_dim must be a multiple of 8")
    return scaled_dot_product_attention(q, k, v)


def up_to_512_keys(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Whole sequences, or one query, over a cache of a fixed size."""
    if q.shape[2] not in (1, k.shape[2]):
        raise ValueError("q_len must be kv_len, or 1")
    if k.shape[2] > 512:
        raise ValueError("kv_len is at most 512")
    return scaled_dot_product_attention(q, k, v)


EIGHTS = (8, 16, 24, 32, 40, 64, 80, 96, 128, 160, 192, 256, 320)


@pytest.mark.parametrize(
    ("function", "found"),
    [
        (in_blocks_but_for_decoding, {"length_multiple": 16, "rectangular": "one-query", "max_length": None}),
        (in_blocks_if_longer, {"length_multiple": 64, "rectangular": None, "max_length": None}),
        (wider_in_single_precision, {"head_dims": EIGHTS, "length_multiple": None}),
        (up_to_512_keys, {"rectangular": "one-query", "max_length": 512}),
    ],
)
def test_what_holds_of_some_calls_only_is_found_out(function: Any, found: dict[str, Any]) -> None:
    """Of blocks, of one query, of one dtype: and what is found is right for all that is asked."""
    shown, _ = as_sized(headcheck.Attention(function), ("float32", "float16"), "cpu")
    assert {field: getattr(shown, field) for field in found} == found
    subject = headcheck.Attention(function, nan_scores="may-vanish", dtypes=("float32", "float16"))
    assert headcheck.verify(subject, profile="quick", laws=("accuracy/output", "symmetry/")).conforms


def wide_heads_if_causal(
    q: Tensor, k: Tensor, v: Tensor, is_causal: bool = False, scale: float | None = None
) -> Tensor:
    """Heads of more than 64 for causal calls alone, in which the last key is lost."""
    wide = q.shape[-1] > 64
    if wide and not is_causal:
        raise NotImplementedError("head_dim of more than 64 for causal attention only")
    keys = -1 if wide and k.shape[2] > 1 else None
    return scaled_dot_product_attention(q, k[:, :, :keys], v[:, :, :keys], is_causal=is_causal, scale=scale)


def test_what_some_call_takes_is_asked_for_though_calls_may_be_refused() -> None:
    """A size that a plain call refuses may be taken by a causal one; of rectangles, strides and values each is asked."""
    subject = headcheck.Attention(wide_heads_if_causal, may_refuse=True)
    found, _ = as_sized(subject, FLOAT32, "cpu")
    assert found.head_dims is None
    alike_alone = headcheck.Attention(alike, may_refuse=True)
    assert as_sized(alike_alone, FLOAT32, "cpu") == (alike_alone, [])


def of_packs(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, causal: bool = False
) -> Tensor:
    """Packed sequences in half precision, of the head dims that flash-attention takes."""
    if q.dtype not in (torch.float16, torch.bfloat16):
        raise RuntimeError("FlashAttention only support fp16 and bf16 data type")
    if q.shape[-1] % 8:
        raise RuntimeError("head_size should be a multiple of 8")
    bounds = zip(pairwise(cu_seqlens_q.tolist()), pairwise(cu_seqlens_k.tolist()), strict=True)
    alone = [(q[a:b], k[c:d], v[c:d]) for (a, b), (c, d) in bounds]
    return torch.cat(
        [q.new_empty(0, q.shape[1], v.shape[2]), *(_of_one_pack(*each, causal=causal) for each in alone)]
    )


def _of_one_pack(q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Tensor:
    query, key, value = (x.transpose(0, 1).float() for x in (q, k, v))
    seen = torch.ones(len(q), len(k), dtype=torch.bool).tril(len(k) - len(q) if causal else len(k))
    scores = (query @ key.mT * q.shape[-1] ** -0.5).masked_fill(~seen, -torch.inf)
    weights = scores.softmax(dim=-1).nan_to_num()
    return (weights.to(v.dtype).float() @ value).transpose(0, 1).to(q.dtype)


def test_a_kernel_of_packs_and_few_sizes_is_judged() -> None:
    """Its head dims are found out as those of others: no plain call of one number would be answered."""
    declaration = headcheck.Attention(of_packs, layout="thd", causal="bottom-right", gradients=False)
    found, _ = as_sized(declaration, ("float16",), "cpu")
    assert found.head_dims is not None and all(dim % 8 == 0 for dim in found.head_dims)
    verdict = headcheck.verify(declaration, profile="quick", laws=("ragged/", "accuracy/output"))
    assert verdict.conforms


def test_an_arithmetic_that_no_call_shows_is_not_the_narrowest() -> None:
    """Where every case that would tell is refused, the widest is taken, and that is said."""

    def for_laws_alone(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if k.shape[2] != 1 or q.shape[-1] != 4:
            raise NotImplementedError("one key of four numbers")
        return few_dims(q.repeat(1, 1, 1, 4), k.repeat(1, 1, 1, 4), v.repeat(1, 1, 1, 4))[..., :4]

    subject = headcheck.Attention(for_laws_alone, may_refuse=True, gradients=False, head_dims=(3, 4))
    verdict = headcheck.verify(subject, profile="quick", dtype="float16", laws=("accuracy/output",))
    (note,) = (note for note in verdict.notes if "no call that tells its arithmetic was answered" in note)
    assert note.endswith("held to replace(named('opwise'), scaled='input')")


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
