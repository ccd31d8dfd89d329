"""How a module takes the mask of what is padding: a rank, a kind, and what True says."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

import torch
from torch import Tensor

from headcheck.comparison import Failure, NotApplicable
from headcheck.modules.subject import problem_of

DeclaredKind = Literal["boolean", "number", "additive"]
MaskKind = DeclaredKind | Literal["lengths"]
SIDES = ("right", "left")
"""On which padding may stand."""
RANKS = (2, 4, 3)
"""(batch, length), (batch, 1, 1, length), (batch, 1, length), in the order in which they are tried."""
SQUARE = (4, 3, 2)
"""Of a mask that holds the causal one: (batch, 1, length, length), (batch, length, length), or (length, length), which
says nothing of padding."""
CAUSAL_ALONE = "takes the causal mask alone"
"""What is said of one of the last form."""
KINDS: tuple[MaskKind, ...] = ("boolean", "number")
"""The kinds that are tried; an additive mask must be declared, since many modules take it for numbers."""
LENGTHS = (
    *("valid_lens", "valid_len", "valid_length", "lengths", "input_lengths"),
    *("seq_lens", "seq_lengths", "x_lens", "ilens"),
)
"""Names of what says how many of each sequence are real, from the first on (d2l, espnet)."""
OF_SOURCE = (
    *("src_lens", "src_lengths", "src_valid_lens", "src_valid_len", "source_lens", "source_lengths"),
    *("enc_valid_lens", "enc_lens", "encoder_lengths", "hlens"),
    *("memory_lens", "memory_lengths", "memory_valid_lens"),
)
"""Names of such lengths that are of a source, or of what an encoder makes of it."""
OF_TARGET = (
    *("tgt_lens", "tgt_lengths", "tgt_valid_lens", "tgt_valid_len", "trg_lens", "trg_lengths"),
    *("target_lens", "target_lengths", "dec_valid_lens", "dec_lens", "ys_in_lens"),
)
"""And of a target."""
COUNTS = {*LENGTHS, *OF_SOURCE, *OF_TARGET}
"""The names of all of them."""
ROWS = 7
"""Sequences in a call that shows how a mask is taken: as many heads, along which it could be broadcast, are not usual."""
LOOK_AHEAD = "look_ahead_mask"
WITH_CAUSAL = ("tgt_mask", "trg_mask", "target_mask", LOOK_AHEAD)
"""Masks of a target that, where a module asks for them, hold the causal mask too."""
CAUSAL = "causal_mask"
"""The argument that takes the causal mask beside one of what is padding."""
CAUSAL_BESIDE = ("causal_mask", "subsequent_mask", "future_mask", "self_attn_mask", "attn_mask")
"""Names of a causal mask that stands beside one of what is padding, as those of WITH_CAUSAL may."""
PADDING_IS_TRUE = ("key_padding_mask", "encoder_padding_mask")
"""Endings of the names of masks that are True at padding, as torch and fairseq have them."""
OPEN, SETTLED = ("padding_mask", "pad_mask", LOOK_AHEAD), "key_padding_mask"
"""How a name ends that leaves open what True says, unless it ends as torch's own."""


@dataclass(frozen=True)
class MaskForm:
    """One form of a mask.

    boolean: True and False. number: 1.0 and 0.0. additive: 0 at what is real and the lowest finite number
    at padding, whatever `real_is_true` says. lengths: (batch,), how many are real.
    """

    rank: int
    kind: MaskKind
    real_is_true: bool

    def of(self, is_real: Tensor, dtype: torch.dtype) -> Tensor:
        """The mask, for is_real (batch, length), True at what is real.

        NotApplicable: it is of lengths, and padding stands elsewhere than behind a sequence.
        """
        if self.kind == "lengths":
            counted = is_real.sum(dim=1)
            if not torch.equal(is_real, torch.arange(is_real.shape[1]) < counted[:, None]):
                raise NotApplicable("takes lengths: padding stands behind each sequence")
            return counted
        said = is_real if self.real_is_true or self.kind == "additive" else ~is_real
        said = said.reshape(len(said), *(1,) * (self.rank - 2), -1)
        if self.kind == "boolean":
            return said
        if self.kind == "number":
            return said.to(dtype)
        return torch.zeros(said.shape, dtype=dtype).masked_fill(~said, torch.finfo(dtype).min)

    def problem(self, subject: Any, x: Any, argument: str) -> Failure | None:
        """Why a call with that mask in this form fails, or None; of lengths also one in which none fills the batch."""
        problem, real = problem_of(subject, x), getattr(x, argument)
        if problem is not None or self.kind != "lengths":
            return problem
        short = real & (torch.arange(real.shape[1]) < real.shape[1] - 1)
        return problem_of(subject, x.but(**{argument: short}))

    def with_causal(self, is_real: Tensor, dtype: torch.dtype) -> Tensor:
        """The mask with the causal one in it, of a rank of SQUARE. NotApplicable: it is of lengths."""
        if self.kind == "lengths":
            raise NotApplicable("takes lengths, which hold no causal mask")
        length = is_real.shape[1]
        seen = torch.ones(length, length, dtype=torch.bool).tril()
        if self.rank > min(SQUARE):
            seen = is_real[:, None, :] & seen
        seen = seen[:, None] if self.rank == max(SQUARE) else seen
        return self.of(seen.flatten(0, -2), dtype).reshape(seen.shape)

    def told_with_causal(self, keyword: str | None) -> str:
        """That a mask of that name is given in this form with the causal one in it."""
        return f"{keyword} is given with the causal mask in it{self._true_at}"

    def told_as_causal(self, keyword: str | None) -> str:
        """That a mask of that name is given as the causal one in this form."""
        return f"{keyword} is given the causal mask{self._true_at}"

    @property
    def _true_at(self) -> str:
        said = "seen" if self.real_is_true else "hidden"
        return "" if self.kind == "additive" else f", True at what is {said}"

    def __str__(self) -> str:
        if self.kind == "lengths":
            return "lengths (batch,)"
        axes = ", ".join(("batch", *("1",) * (self.rank - 2), "length"))
        if self.kind == "additive":
            return f"additive ({axes})"
        said = "real" if self.real_is_true else "padding"
        return f"{self.kind} ({axes}), True at what is {said}"


def tried_with(subject: Any, x: Any, bare: Any) -> tuple[Any, ...]:
    """A call of so many sequences that shows how a mask is taken, and one of two where `bare`, without it, is refused."""
    return (x,) if problem_of(subject, bare) is None else (x, x.picked(torch.arange(2)))


def leaves_open(keyword: str) -> bool:
    """Whether a mask of that name may be True at either."""
    return keyword.endswith(OPEN) and not keyword.endswith(SETTLED)


def real_is_true(keyword: str, declared: str | None, beside: Iterable[str] = ()) -> bool:
    """Whether True says real: as declared, otherwise as the name has it, or, where that leaves it open, one beside it."""
    if declared is not None:
        return declared == "real"
    names = (keyword, *beside) if leaves_open(keyword) else (keyword,)
    return not any(name.endswith(PADDING_IS_TRUE) for name in names)


def forms_to_try(
    said: Any, keyword: str, ranks: Sequence[int] = RANKS, beside: Iterable[str] = ()
) -> Iterator[MaskForm]:
    """The forms that a mask of that name, with others beside it, may have: as the declaration says, where it does."""
    if keyword in COUNTS:
        return iter([MaskForm(1, "lengths", real_is_true=True)])
    polarity = real_is_true(keyword, said.true_means, beside)
    kinds = (said.mask_kind,) if said.mask_kind else KINDS
    tried = (said.mask_rank,) if said.mask_rank else ranks
    return (MaskForm(rank, kind, polarity) for kind, rank in product(kinds, tried))


def huge(like: Tensor) -> float:
    """What stands in padding is so many times as large as what is real.

    Scores grow as much, which an added -1e9 still covers. Less in float16: what overflows is no mask's fault.
    """
    return min(1e4, math.sqrt(math.sqrt(torch.finfo(like.dtype).max)))
