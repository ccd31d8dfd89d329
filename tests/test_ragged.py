"""Sequences of several lengths in one call: the reference's, the edge of packed subjects, and their laws."""

import pytest
import torch
from torch import Tensor

import headcheck
from headcheck.attention import packs, ragged
from headcheck.attention.case import Case
from headcheck.attention.inputs import Inputs, build
from headcheck.attention.role import role
from headcheck.attention.subject import AttentionSubject
from headcheck.calling import SubjectRaised
from headcheck.comparison import within
from headcheck.declarations import Attention
from headcheck.engine import Profile
from headcheck.errors import SubjectError
from headcheck.laws import all_laws, choose
from headcheck.reference import masks
from headcheck.reference.attention import attention
from headcheck.reference.packed import packed_attention
from headcheck.subjects import builtins
from tests.engines import TINY, engine_of
from tests.faults import FAULTS, Fault

MANY = Profile("many", seeded=60, drawn=3, shrinks=0, limit_s=5.0)
"""Enough for a fault that shows under two conditions; the first break ends it."""
Q_LENS, KV_LENS = [2, 0, 3, 1], [4, 2, 3, 0]


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def tokens() -> tuple[Tensor, Tensor, Tensor]:
    return drawn(6, 4, 3, seed=0), drawn(9, 2, 3, seed=1), drawn(9, 2, 5, seed=2)


def ids(lengths: list[int]) -> Tensor:
    return torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))[None]


# The reference


def test_packed_attention_is_attention_under_the_mask_of_its_documents() -> None:
    """Whole packs at once, each key of another document masked, give the same."""
    query, key, value = tokens()
    found = packed_attention(query, key, value, packs.starts(Q_LENS), packs.starts(KV_LENS), scale=0.7)
    keep = masks.document(ids(Q_LENS), ids(KV_LENS))
    whole = attention(
        *(x.transpose(0, 1)[None] for x in (query, key, value)), may_attend=keep, scale=0.7
    ).output
    torch.testing.assert_close(found, whole[0].transpose(0, 1))


def test_packed_attention_has_a_diagonal_for_each_sequence() -> None:
    """bottom-right: the last query of each sequence stands at its last key."""
    query, key, value = tokens()
    starts = packs.starts(Q_LENS), packs.starts(KV_LENS)
    found = packed_attention(query, key, value, *starts, causal="bottom-right")
    alone = attention(
        *(x.transpose(0, 1)[None] for x in (query[2:5], key[6:9], value[6:9])),
        may_attend=masks.causal(3, 3),
    ).output
    torch.testing.assert_close(found[2:5], alone[0].transpose(0, 1))


def test_queries_without_keys_give_zeros() -> None:
    """The last sequence has a query and no key."""
    query, key, value = tokens()
    found = packed_attention(query, key, value, packs.starts(Q_LENS), packs.starts(KV_LENS))
    assert not found[5].any()


def test_packs_that_do_not_match_are_refused() -> None:
    """As many sequences of keys as of queries, and no token left over."""
    query, key, value = tokens()
    with pytest.raises(ValueError, match="3 sequences of queries, 4 of keys"):
        packed_attention(query, key, value, packs.starts([2, 3, 1]), packs.starts(KV_LENS))
    with pytest.raises(ValueError, match="does not end with the last token"):
        packed_attention(query, key, value, packs.starts([2, 0, 3, 0]), packs.starts(KV_LENS))


# The edge


def prepared(name: str, dtype: str = "float64") -> AttentionSubject:
    return role.prepare(builtins()[name].declaration(), dtypes=(dtype,), device="cpu", seed=0)[0]


def test_a_packed_tensor_comes_back_as_it_was() -> None:
    """(batch, heads, length, dim) to (tokens, heads, dim) and back; the tokens of a sequence stand together."""
    x = drawn(2, 3, 4, 5, seed=0)
    packed = packs.packed(x)
    assert packed.shape == (8, 3, 5)
    assert torch.equal(packed[4], x[1, :, 0])
    assert torch.equal(packs.unpacked(packed, 2), x)
    assert packs.unpacked(packed[:0], 0).shape == (0, *x.shape[1:2], 0, *x.shape[3:])


def test_starts_are_the_running_sum_of_the_lengths() -> None:
    """As int32, from 0 to the number of tokens."""
    assert packs.starts([2, 0, 3]).tolist() == [0, 2, 2, 5]
    assert packs.starts([2]).dtype == torch.int32


def test_a_packed_subject_answers_in_canonical_form() -> None:
    """A plain case is a pack of sequences of one length; its output and gradients are the oracle's."""
    subject = prepared("reference-packed")
    x = build(Case(dtype="float64", batch=3, heads=4, kv_heads=2, q_len=2, kv_len=5, head_dim=3, value_dim=2))
    assert not within(subject(x), subject.expected(x), subject.bound(x)).broken
    found, exact = subject.gradients(x), x.problem.gradients(x.cotangent)
    assert found.key is not None
    assert not within(found.key, exact.key, subject.gradient_bounds(x).key).broken


def test_what_a_packed_call_has_no_form_for_is_not_applicable() -> None:
    """Masks, weights and the log-sum-exp; and lengths are nothing that other subjects take."""
    subject = prepared("reference-packed")
    assert subject.lacks("attn_mask") == "is called with packed sequences"
    assert subject.has("lengths")
    assert prepared("reference").lacks("lengths") == "takes no sequences of several lengths (layout='thd')"


def test_an_unknown_layout_is_refused() -> None:
    """Neither an order of the four axes nor packed."""
    with pytest.raises(SubjectError, match="neither 'thd' nor an order of the letters b, h, s and d"):
        Attention(attention, layout="bhd")


def sequences(subject: AttentionSubject, lengths: list[tuple[int, int]]) -> list[Inputs]:
    """Each with numbers of its own."""
    cases = [
        Case(dtype="float64", heads=2, kv_heads=2, q_len=5, kv_len=5, head_dim=3, value_dim=3, seed=seed)
        for seed in range(len(lengths))
    ]
    built = [build(case, subject.alignment) for case in cases]
    return [
        x.but(query=x.query[:, :, :q], key=x.key[:, :, :kv], value=x.value[:, :, :kv])
        for x, (q, kv) in zip(built, lengths, strict=True)
    ]


@pytest.mark.parametrize("name", ["reference-packed", "torch-nested", "torch-flex-document"])
def test_a_pack_gives_an_output_for_each_sequence(name: str) -> None:
    """Of its own length, and the oracle's."""
    subject = prepared(name)
    parts = sequences(subject, [(2, 3), (0, 4), (5, 1)])
    for part, output in zip(parts, ragged.outputs(subject, parts), strict=True):
        assert output.shape == (1, 2, part.q_len, 3)
        assert not within(output, subject.expected(part), subject.bound(part)).broken


def test_that_a_pack_ends_where_its_tensors_do_can_be_declared() -> None:
    """One whose last sequence reaches to the end of the buffer breaks a law by default, and claims nothing then."""
    fault = FAULTS["packs/last-reaches-to-the-end"]
    law = all_laws()["attention/ragged/tokens-behind-a-pack-do-not-matter"]
    outcomes = [
        engine_of(fault.declaration().but(spare_tokens=spare), TINY).judge(law).outcome
        for spare in (True, False)
    ]
    assert outcomes == ["breaks", "not-applicable"]


def test_tokens_behind_the_last_sequence_may_be_refused() -> None:
    """The reference says that the last sequence does not end with the last token."""
    subject = prepared("reference-packed")
    with pytest.raises(SubjectRaised, match="does not end with the last token"):
        ragged.outputs(subject, sequences(subject, [(2, 3), (1, 1)]), spare=2)


# The laws


@pytest.mark.parametrize("name", ["reference-packed", "torch-nested", "torch-flex-document"])
def test_right_packed_functions_keep_every_law(name: str) -> None:
    """One after another, as nested tensors, and under a mask of documents."""
    engine = engine_of(builtins()[name].declaration().but(dtypes=("float32",)), TINY)
    rows = [engine.judge(law) for law in choose("attention", ["attention/ragged/"])]
    assert not [(row.id, row.reason) for row in rows if row.outcome == "breaks"]
    assert "holds" in {row.outcome for row in rows}


@pytest.mark.parametrize("fault", [each for each in FAULTS.values() if each.family in ("packs", "autocast")])
def test_a_wrong_function_breaks_the_law_that_it_is_made_for(fault: Fault) -> None:
    """Every fault of packs and of autocast, by the first law that it names."""
    declaration = fault.declaration()
    subject = role.prepare(declaration, dtypes=(), device="cpu", seed=0)[0]
    engine = engine_of(declaration.but(dtypes=subject.dtypes), MANY)
    law = all_laws()[f"attention/{fault.breaks[0]}"]
    assert engine.judge(law).outcome == "breaks"


@pytest.mark.parametrize("missing", ["query", "key", "value"])
def test_a_gradient_that_a_pack_is_without_is_a_break(missing: str) -> None:
    """As it is in a call of one sequence."""

    def detached(
        query: Tensor, key: Tensor, value: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor
    ) -> Tensor:
        given = {"query": query, "key": key, "value": value}
        given[missing] = given[missing].detach()
        return packed_attention(**given, query_starts=cu_seqlens_q, key_starts=cu_seqlens_k)

    (law,) = choose("attention", ["each-sequence-of-a-pack-has-its-own-gradients"])
    row = engine_of(Attention(detached, layout="thd"), TINY).judge(law)
    assert (row.outcome, row.reason) == ("breaks", f"the output carries a gradient, but none for {missing}")


def of_one_start(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, max_seqlen: int | None = None
) -> Tensor:
    """Self-attention: queries and keys begin at the same places."""
    return packed_attention(q, k, v, cu_seqlens, cu_seqlens)


def of_one_sequence(q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor) -> Tensor:
    """All tokens see each other."""
    return of_one_start(q, k, v, cu_seqlens[[0, -1]])


def test_one_argument_for_where_sequences_begin_means_as_many_queries_as_keys() -> None:
    """Undeclared and declared; what looks at no lengths is told from it."""
    alone = "ragged/each-sequence-of-a-pack-is-what-it-is-alone"
    asked = {"profile": "quick", "dtype": "float32", "laws": ("accuracy", "ragged/each-sequence")}
    for right in (of_one_start, Attention(of_one_start, layout="thd")):
        verdict = headcheck.verify(right, **asked)
        assert verdict.conforms, repr(verdict)
        assert any("cu_seqlens is all that says where sequences begin" in note for note in verdict.notes)
        assert alone in {row.name_in_role for row in verdict.laws if row.outcome == "holds"}
    broken = headcheck.verify(of_one_sequence, **asked).broken
    assert alone in {row.name_in_role for row in broken}
