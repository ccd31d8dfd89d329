"""Which sizes a function takes: declared, or, where it is not, all but those that plain calls refuse in so many words."""

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from headcheck.attention.accepting import accepted_arguments
from headcheck.attention.case import Case
from headcheck.attention.inputs import build
from headcheck.attention.layout_shown import is_turned
from headcheck.attention.sizes import SQUARE, axes_of_one, listed
from headcheck.attention.subject import AttentionSubject
from headcheck.calling import NAMES_STRIDES, REFUSALS, SubjectRaised, refuses_a_length, was_raised
from headcheck.comparison import LawBroken, NotApplicable
from headcheck.declarations import NO_MORE_QUERIES, ONE_QUERY, ONLY_ONE_QUERY, PACKED, Attention
from headcheck.forks import asked_apart, fate_apart

DIMS = (1, 2, 3, 4, 5, 8, 10, 12, 16, 20, 24, 32, 33, 40, 64, 65, 80, 96, 128, 129, 160, 192, 256, 320)
"""The head dims that are tried where one of the first look is refused: all that cases are drawn with."""
LENGTHS = (1, 2, 3, 4, 7, 8, 16, 17, 24, 32, 48, 64, 96, 128, 192, 256)
LONGER = (*LENGTHS, 384, 512, 768, 1024, 2048, 4096)
"""The lengths of which the longest that is taken is sought where `BEYOND` is refused."""
SHORTEST = 16
"""Of a limit that is one: who takes fewer refuses most calls, which is for laws to tell."""
FIRST_DIMS, FIRST_LENGTHS, BEYOND = (3, 320), (1, 17, 96), 4097
BELOW_A_LIMIT = (5, 20, 33, 80, 129)
"""Where these are taken, all are that are no larger than the largest; of a kernel that compiles each call is dear."""
BLOCKS = (16, 32, 64, 128)
"""Blocks of which some kernels take a part where all of a sequence is shorter: min(64, length) divides the length."""
WHOLE_BLOCKS = (
    *((128, 64), (256, 128), (16, 16), (128, 128), (64, 32), (3, 64), (3, 16), (128, 4), (16, 8)),
    (128, 256),
)
"""Length and dim of calls that kernels of few sizes take."""
FEW_SIZES = ((3, 4), *WHOLE_BLOCKS)
SAYING_SO = re.compile(
    r"head.?(dim|size)|multiple|power of|divisible|divide|support|same (shape|length|dim|size)|stride|contiguous",
    re.IGNORECASE,
)
"""What a RuntimeError of code in C has to say to be a refusal of a size: others are findings."""


def as_sized(declaration: Attention, dtypes: Iterable[str], device: str) -> tuple[Attention, list[str]]:
    """The declaration with the sizes that plain calls show, where it leaves them open; and notes of what is refused.

    Nothing is tried of subjects whose every call is slow; nor where the axes are in another order, as what is refused is
    then said of others. Of what may refuse any call only the dims and the blocks of lengths are left out that no call,
    a causal one neither, takes: all else is asked, call by call.
    """
    declaration, notes = _packed(declaration) if declaration.layout == PACKED else (declaration, [])
    if declaration.effort < 1:
        return declaration, notes
    tried = tuple(dtypes)

    def only_one_query() -> bool:
        return bool(_one_query_only(declaration, tried, device)[1])

    # Copies are dear, and hardly any subject refuses anything: whether it does at all is asked of one. What hangs is for
    # laws to tell.
    at_all = fate_apart(lambda: only_one_query() or _refuses_something(declaration, tried, device), device)
    if at_all in ("no", "hung"):
        return declaration, notes
    if asked_apart(only_one_query, device):
        declaration, notes = _one_query_only(declaration, tried, device)
    if not asked_apart(lambda: _refuses_something(declaration, tried, device), device):
        return declaration, notes
    if declaration.layout != PACKED and is_turned(declaration, tried, device):
        return declaration, notes
    found: list[tuple[Attention, list[str]]] = []
    for dtype in tried:
        if (shown := _narrowed(declaration, dtype, device, whole=not found)) is not None:
            found.append(shown)
    told = dict.fromkeys(note for _, each in found for note in each)
    return _strictest(declaration, [each for each, _ in found]), [*notes, *told]


def _narrowed(
    declaration: Attention, dtype: str, device: str, *, whole: bool
) -> tuple[Attention, list[str]] | None:
    """What calls in one dtype show; None where none of a few sizes is answered. whole: beside head dims and blocks."""
    trial = _Trial(declaration, dtype, device)
    size = next((each for each in FEW_SIZES if trial.answers(*each)), None)
    return None if size is None else trial.narrowed(*size, whole=whole)


def _strictest(declaration: Attention, found: Sequence[Attention]) -> Attention:
    """What every dtype takes: sizes are asked of all alike."""
    changes: dict[str, Any] = {}
    if dims := [set(each.head_dims) for each in found if each.head_dims]:
        changes["head_dims"] = tuple(sorted(set.intersection(*dims))) or found[0].head_dims
    if multiples := [each.length_multiple for each in found if each.length_multiple]:
        changes["length_multiple"] = math.lcm(*multiples)
    if limits := [each.max_length for each in found if each.max_length]:
        changes["max_length"] = min(limits)
    for field, strict in (
        ("rectangular", (False, ONLY_ONE_QUERY, ONE_QUERY, NO_MORE_QUERIES)),
        ("value_dim", (False,)),
        ("contiguous", (True,)),
        ("any_strides", (False,)),
        ("may_refuse", (True,)),
    ):
        values = [getattr(each, field) for each in found]
        changes |= (
            {field: next(value for value in strict if value in values)} if set(strict) & {*values} else {}
        )
    return declaration.but(**changes)


def _packed(declaration: Attention) -> tuple[Attention, list[str]]:
    """The declaration of packed sequences: where one argument says where they begin, it does so for queries and keys."""
    taken = accepted_arguments(declaration.function, declaration.arguments)
    if declaration.rectangular is not None or "cu_seqlens_q" not in taken or "cu_seqlens_k" in taken:
        return declaration, []
    why = f"{taken['cu_seqlens_q']} is all that says where sequences begin"
    return declaration.but(rectangular=False), [f"q_len other than kv_len: not asked for ({why})"]


def _one_query_only(
    declaration: Attention, dtypes: Sequence[str], device: str
) -> tuple[Attention, list[str]]:
    """The declaration of a kernel for decoding, which answers no call of as many queries as keys, but of one query."""
    if declaration.rectangular is not None or "s" not in declaration.layout:
        return declaration, []
    square = {dtype: _Trial(declaration, dtype, device) for dtype in dtypes}
    if any(trial.answers_somehow(*size) for trial in square.values() for size in FEW_SIZES):
        return declaration, []
    decoding = declaration.but(rectangular=ONLY_ONE_QUERY)
    for dtype, trial in square.items():
        decodes = _Trial(decoding, dtype, device)
        for size in FEW_SIZES:  # What is refused of several queries alone, all else alike.
            if (said := trial.refuses(*size)) and decodes.answers(*size):
                return decoding, [f"q_len other than 1: not asked for ({said})"]
    return declaration, []


def _refuses_something(declaration: Attention, dtypes: Sequence[str], device: str) -> bool:
    """Whether no plain call returns, or one of a few other sizes is refused."""
    trials = [_Trial(declaration, dtype, device) for dtype in dtypes]
    return any(
        not each.answers(3, 4) or each.narrowed(3, 4, whole=each is trials[0])[0] != declaration
        for each in trials
    )


def _multiple_of(taken: Sequence[int]) -> int:
    """Of what all lengths that are taken are multiples, a single query apart, or all that are no shorter; else 1."""
    for lengths in (taken, [each for each in taken if each > 1]):
        if (multiple := math.gcd(*lengths)) > 1 and _are_multiples(lengths, multiple):
            return multiple
    in_part = (block for block in BLOCKS if [*taken] == [n for n in LENGTHS if n % block == 0 or n < block])
    return next(in_part, 1)


def _are_multiples(taken: Sequence[int], multiple: int) -> bool:
    """Whether the lengths are all that are a multiple, up to the longest: who takes some of them only, or a single short
    one, refuses the others for another reason, which is for laws to tell.
    """
    expected = [each for each in LENGTHS if each % multiple == 0 and each <= taken[-1]]
    return list(taken) == expected and (len(taken) > 1 or taken[0] >= SHORTEST)


class _Trial:
    """Plain calls of one dtype and of many sizes."""

    def __init__(self, declaration: Attention, dtype: str, device: str) -> None:
        self.declaration, self.dtype = declaration, dtype
        # What raises is told by what it says of a size, whether or not the dtype is declared, or any call may be refused.
        anything = {"head_dims": None, "length_multiple": None, "max_length": None}
        self.subject = AttentionSubject(
            declaration.but(**anything, dtypes=(dtype,), may_refuse=False), dtypes=(dtype,), device=device
        )

    def failure(self, length: int, dim: int, **fields: Any) -> BaseException | None:
        """What a call raises, or None if it returns anything."""
        queries = 1 if self.declaration.rectangular == ONLY_ONE_QUERY else length
        sizes = {"q_len": queries, "kv_len": length, "head_dim": dim, "value_dim": dim}
        plain = {"dtype": self.dtype, "batch": 1, "heads": 2, "kv_heads": 2}
        x = build(
            Case(**{**plain, **sizes, **fields, **axes_of_one(self.declaration), **self.declaration.always}),
            self.subject.alignment,
        )
        try:
            with torch.no_grad():
                self.subject.returned(x, self.subject.arguments_for(x))
        except SubjectRaised as raised:
            return raised.problem
        except (LawBroken, NotApplicable) as problem:
            return problem
        return None

    def answers(self, length: int, dim: int) -> bool:
        return self.failure(length, dim) is None

    def answers_somehow(self, length: int, dim: int) -> bool:
        """Whether a plain call returns, or one with is_causal or a mask, which some calls need."""
        more: list[dict[str, Any]] = [{"is_causal": True}] if self.subject.has("is_causal") else []
        masked = [{"mask": "random", "mask_form": form} for form in ("boolean", "bias")]
        more += masked if self.subject.has("attn_mask") else []
        return any(self.failure(length, dim, **each) is None for each in ({}, *more))

    def refusals(self, sizes: Sequence[tuple[int, int]], **more: Any) -> dict[tuple[int, int], str]:
        """Length and dim of calls that are refused -> in which words."""
        failures = {size: self.failure(*size, **more) for size in sizes}
        if self.declaration.may_refuse and self.subject.has("is_causal"):
            causal = {
                size: self.failure(*size, **more, is_causal=True) for size, why in failures.items() if why
            }
            failures |= {size: None for size, why in causal.items() if why is None}
        return {
            size: _said(each) for size, each in failures.items() if each is not None and refuses_a_size(each)
        }

    def narrowed(self, length: int, dim: int, *, whole: bool) -> tuple[Attention, list[str]]:
        """The declaration with what is refused left out. A call of that length and that dim returns."""
        changes, notes = self._dims_and_blocks(length, dim)
        if self.declaration.may_refuse or not whole:
            return self.declaration.but(**changes), notes
        return self._all_else(length, dim, changes, notes)

    def _dims_and_blocks(self, length: int, dim: int) -> tuple[dict[str, Any], list[str]]:
        """What most calls are refused for."""
        changes: dict[str, Any] = {}
        notes: list[str] = []
        if self.declaration.head_dims is None and (refused := self._dims_refused(length)):
            changes["head_dims"] = taken = tuple(each for each in DIMS if (length, each) not in refused)
            notes.append(
                f"head_dims: {listed(taken)}, as plain calls show; others: {next(iter(refused.values()))}"
            )
        if self.declaration.length_multiple is None and (refused := self._lengths_refused(dim)):
            taken = tuple(each for each in LENGTHS if (each, dim) not in refused)
            if (multiple := _multiple_of(taken)) > 1:
                changes["length_multiple"] = multiple
                said = next(iter(refused.values()))
                notes.append(f"lengths: multiples of {multiple}, as plain calls show; others: {said}")
        return changes, notes

    def _all_else(
        self, length: int, dim: int, changes: dict[str, Any], notes: list[str]
    ) -> tuple[Attention, list[str]]:
        if self.declaration.rectangular is None and (said := self.refuses(length, dim, kv_len=2 * length)):
            if self._decodes(2 * length, dim):
                changes["rectangular"] = ONE_QUERY
                notes.append(f"q_len other than kv_len: not asked for, but for one query ({said})")
                causal = {"q_len": 1, "is_causal": True}
                if self.subject.has("is_causal") and (said := self.refuses(length, dim, **causal)):
                    changes["may_refuse"] = True
                    notes.append(f"is_causal with one query is refused ({said}): so may any call be")
            else:
                changes["rectangular"] = False
                notes.append(f"q_len other than kv_len: not asked for ({said})")
        elif self.declaration.rectangular is None and (said := self._refuses_more_queries(length, dim)):
            changes["rectangular"] = NO_MORE_QUERIES
            notes.append(f"more queries than keys: not asked for ({said})")
        found = self.declaration.but(**changes)
        multiple = found.length_multiple or 1
        beyond = -(-BEYOND // multiple) * multiple
        if found.max_length is None and (said := self._too_long(beyond, length, dim, found)):
            fitting = [each for each in LONGER if each >= length and not each % multiple]
            taken = tuple(each for each in fitting if not self._too_long(each, length, dim, found))
            if max(taken, default=0) >= SHORTEST and fitting[: len(taken)] == [*taken]:
                changes["max_length"] = taken[-1]
                notes.append(f"lengths: at most {taken[-1]}, as plain calls show; longer ones: {said}")
        other = next(
            (
                each
                for each in changes.get("head_dims") or self.declaration.head_dims or (dim + 1,)
                if each != dim
            ),
            dim,
        )
        if self.declaration.value_dim is None and (said := self.refuses(length, dim, value_dim=other)):
            changes["value_dim"] = False
            notes.append(f"value_dim other than head_dim: not asked for ({said})")
        if self.declaration.contiguous is None and (said := self._scattered(length, dim, "transposed")):
            changes["contiguous"] = True
            notes.append(f"tensors that are not contiguous: not asked for ({said})")
        elif self.declaration.any_strides is None and (
            said := self.refuses(length, dim, strides="dim-first")
        ):
            changes["any_strides"] = False
            notes.append(f"a last axis whose stride is not 1: not asked for ({said})")
        return self.declaration.but(**changes), notes

    def _dims_refused(self, length: int) -> dict[tuple[int, int], str]:
        first = self.refusals([(length, dim) for dim in FIRST_DIMS])
        if not first:
            return {}
        if {dim for _, dim in first} == {FIRST_DIMS[-1]}:  # A limit, by all signs: a few calls show it.
            taken = (dim for dim in reversed(DIMS) if not self.refusals([(length, dim)]))
            limit = next(taken, FIRST_DIMS[0])
            if not self.refusals([(length, dim) for dim in BELOW_A_LIMIT if dim < limit]):
                return self.refusals([(length, dim) for dim in DIMS if dim > limit])
        return self.refusals([(length, dim) for dim in DIMS])

    def _lengths_refused(self, dim: int) -> dict[tuple[int, int], str]:
        if not self.refusals([(length, dim) for length in FIRST_LENGTHS]):
            return {}
        return self.refusals([(length, dim) for length in LENGTHS])

    def _decodes(self, length: int, dim: int) -> bool:
        """Whether one query over so many keys is answered, and as many queries are."""
        return self.failure(length, dim) is None and self.failure(length, dim, q_len=1) is None

    def _too_long(self, length: int, short: int, dim: int, found: Attention) -> str:
        """In which words so many keys are refused, or as many queries and keys; '' where neither are."""
        multiple = found.length_multiple or 1
        square = min(length, -(-SQUARE // multiple) * multiple)
        short = 1 if found.rectangular in (ONE_QUERY, ONLY_ONE_QUERY) else short
        lengths = [(square, square)] if found.rectangular != ONLY_ONE_QUERY else []
        lengths += [(short, length)] if found.rectangular is not False else []
        failures = (self.failure(length, dim, q_len=q_len, kv_len=kv_len) for q_len, kv_len in lengths)
        return next((_said(each) for each in failures if each is not None and refuses_a_length(each)), "")

    def _refuses_more_queries(self, length: int, dim: int) -> str:
        """In which words more queries than keys are refused, where so many of both are answered."""
        more = {"q_len": 2 * length}
        if self.failure(length, dim, **more, kv_len=2 * length) is not None:
            return ""
        return self.refuses(length, dim, **more)

    def _scattered(self, length: int, dim: int, strides: str) -> str:
        """In which words strides that are not contiguous are refused: not by a slip, as of a view of it."""
        failure = self.failure(length, dim, strides=strides)
        if failure is None or not (NAMES_STRIDES.search(str(failure)) or was_raised(failure)):
            return ""
        return _said(failure) if refuses_a_size(failure) else ""

    def refuses(self, length: int, dim: int, **fields: Any) -> str:
        """In which words a call with other sizes, or other strides, is refused; '' where it is not."""
        return next(iter(self.refusals([(length, dim)], **fields).values()), "")


def refuses_a_size(problem: BaseException) -> bool:
    """Whether an exception says that such sizes are not taken; others are for the laws to tell."""
    if isinstance(problem, NotImplementedError):
        return True
    if not isinstance(problem, (RuntimeError, *REFUSALS)):
        return False
    raised = type(problem) in (RuntimeError, *REFUSALS) and was_raised(problem)
    return raised or bool(SAYING_SO.search(str(problem)))


def _said(problem: BaseException) -> str:
    return str(SubjectRaised(problem))
