"""Kernels that take some calls only: what is found out of them is right for all that they are asked."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import headcheck
from headcheck.attention.sizes_shown import as_sized
from tests.test_sizes import FLOAT32, alike


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


def decodes_only(
    q: Tensor, k: Tensor, v: Tensor, scale: float | None = None, keys: int | None = None
) -> Tensor:
    """One query over a cache, and nothing else."""
    if q.shape[2] != 1:
        raise ValueError("decoding takes one query")
    return scaled_dot_product_attention(q, k[:, :, :keys], v[:, :, :keys], scale=scale)


def decodes_without_the_last_key(q: Tensor, k: Tensor, v: Tensor, scale: float | None = None) -> Tensor:
    """The same, but for the last key of the cache."""
    return decodes_only(q, k, v, scale, keys=-1 if k.shape[2] > 1 else None)


def no_more_queries_if_causal(
    q: Tensor, k: Tensor, v: Tensor, is_causal: bool = False, scale: float | None = None
) -> Tensor:
    """Causal masks are aligned at the last key, and there is one for every query."""
    q_len, kv_len = q.shape[2], k.shape[2]
    if is_causal and q_len > kv_len:
        raise ValueError("causal attention of more queries than keys")
    seen = torch.ones(q_len, kv_len, dtype=torch.bool).tril(kv_len - q_len) if is_causal else None
    return scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=scale)


def test_a_kernel_for_decoding_is_asked_for_one_query_only() -> None:
    """So are its dtypes and its scale found out, and its faults."""
    found, notes = as_sized(headcheck.Attention(decodes_only), FLOAT32, "cpu")
    assert found.rectangular == "only-one-query" and "decoding takes one query" in notes[0]
    right = headcheck.Attention(decodes_only, arguments={"scale": "scale"}, nan_scores="may-vanish")
    verdict = headcheck.verify(right, profile="quick", laws=("accuracy/", "memory/", "symmetry/"))
    assert verdict.conforms and not any("not supported" in note for note in verdict.notes)
    assert sum(row.outcome == "holds" for row in verdict.laws) > 10
    assert not headcheck.verify(
        decodes_without_the_last_key, profile="quick", laws=("accuracy/output",)
    ).conforms


def test_more_queries_than_keys_may_be_refused_if_causal() -> None:
    """Then a causal call has no dead rows; what calls that are not causal do is judged."""
    subject = headcheck.Attention(no_more_queries_if_causal, causal="bottom-right", nan_scores="may-vanish")
    assert as_sized(subject, FLOAT32, "cpu")[0].rectangular is None
    laws = ("caches/", "accuracy/output", "symmetry/")
    assert headcheck.verify(subject, profile="quick", dtype="float32", laws=laws).conforms

    def wrong(q: Tensor, k: Tensor, v: Tensor, is_causal: bool = False, scale: float | None = None) -> Tensor:
        output = no_more_queries_if_causal(q, k, v, is_causal, scale)
        return output * 1.01 if q.shape[2] > k.shape[2] else output

    subject = headcheck.Attention(wrong, causal="bottom-right", nan_scores="may-vanish")
    assert not headcheck.verify(subject, profile="quick", dtype="float32", laws=laws).conforms


def test_a_refusal_of_what_is_declared_breaks_the_law() -> None:
    """So does an exception that says nothing of sizes, though nothing is declared."""

    def slips(q: Tensor, k: Tensor, v: Tensor, is_causal: bool = False, scale: float | None = None) -> Tensor:
        if is_causal and q.shape[2] > k.shape[2]:
            return {}["no such key"]
        return no_more_queries_if_causal(q, k, v, is_causal, scale)

    declared = headcheck.Attention(
        no_more_queries_if_causal, causal="bottom-right", rectangular=True, empty_rows="zeros"
    )
    undeclared = headcheck.Attention(slips, causal="bottom-right")
    law = "caches/queries-before-the-first-key-follow-the-convention"
    for subject in (declared, undeclared):
        verdict = headcheck.verify(subject, profile="quick", dtype="float32", laws=(law,))
        assert [row.outcome for row in verdict.laws] == ["breaks"]


def test_what_needs_a_flag_or_a_mask_takes_several_queries() -> None:
    """A plain call alone says nothing of one query."""

    def causal_prefill(
        q: Tensor, k: Tensor, v: Tensor, is_causal: bool = False, scale: float | None = None
    ) -> Tensor:
        if not is_causal and q.shape[2] > 1:
            raise ValueError("only causal prefill is supported")
        return scaled_dot_product_attention(q, k, v, is_causal=is_causal, scale=scale)

    def masked_prefill(
        q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, scale: float | None = None
    ) -> Tensor:
        if attn_mask is None and q.shape[2] > 1:
            raise ValueError("prefill needs attn_mask")
        return scaled_dot_product_attention(q, k, v, attn_mask=attn_mask, scale=scale)

    for function in (causal_prefill, masked_prefill):
        assert as_sized(headcheck.Attention(function), FLOAT32, "cpu")[0].rectangular is None


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
