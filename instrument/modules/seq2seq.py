"""The role `seq2seq`: a module from source and target tokens to the logits of the next target token."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from headcheck.comparison import NotApplicable
from headcheck.errors import SubjectError
from headcheck.modules import pair_hints
from headcheck.modules.copying import returned_by, takes_hooks
from headcheck.modules.lengths import MARGIN
from headcheck.modules.masks import CAUSAL, OF_SOURCE, OF_TARGET, ROWS, WITH_CAUSAL
from headcheck.modules.own_causal import OWN_NAMES
from headcheck.modules.returned import tensor_in
from headcheck.modules.role import ModuleRole
from headcheck.modules.settling import settled_masks
from headcheck.modules.subject import ModuleCase, ModuleInputs, problem_of
from headcheck.modules.token_hints import settle_pad, unrecognised
from headcheck.modules.tokens import TokenDeclaration, TokenSubject, other_tokens
from headcheck.recipes import option
from headcheck.signatures import needed_by, parameters_of

LONGEST = 65
TARGETS = ("target", "tgt", "trg", "targets", "y")
LOCAL = (nn.RNNBase, nn.Conv1d, nn.Conv2d)
"""Parts of which a state need not see the whole sequence."""
MEMORIES = ("memory", "encoder_output", "encoder_out", "enc_output", "enc_out", "enc_src", "context")


@dataclass(frozen=True)
class Seq2Seq(TokenDeclaration):
    """An encoder-decoder with its conventions.

    function: the module, a function without parameters that makes one, or f(source, target) itself.
    source (batch, source_len), target (batch, target_len) -> logits (batch, target_len, vocab): at t those of
    the token after target[t]. Masks are True at tokens. `vocab` is of the target.
    """

    source_vocab: int | None = None
    """How many tokens the source has; None: as many as the table that the source is read from."""
    causal_mask: bool | None = None
    """Whether the caller gives the causal mask, in an argument of its own beside a mask of what is padding, or within
    that of the target: (batch, 1, target_len, target_len), (batch, target_len, target_len), or (target_len, target_len),
    which says nothing of padding. None: where the module requires a mask of such a name as
    tgt_mask or look_ahead_mask."""
    full_context: bool = True
    """Whether every source token, and every earlier target token, counts."""
    positions: bool = True
    """Whether the order of the source counts."""
    encode: Callable[..., Tensor] | None = None
    """encode(module, source) -> memory; None: the module's own, where it has one that requires no more than that."""
    decode: Callable[..., Tensor] | None = None
    """decode(module, target, memory) -> logits; None: the module's own, where its parameters are named so."""

    role = "seq2seq"
    ARGUMENTS: ClassVar = {
        "source_is_real": (
            "source_is_real",
            "src_key_padding_mask",
            "source_key_padding_mask",
            "encoder_padding_mask",
            *("src_padding_mask", "src_pad_mask", "enc_padding_mask"),
            "attention_mask",
            "source_mask",
            "src_mask",
            *OF_SOURCE,
        ),
        "target_is_real": (
            "target_is_real",
            "tgt_key_padding_mask",
            "target_key_padding_mask",
            "decoder_attention_mask",
            *("tgt_padding_mask", "tgt_pad_mask"),
            *WITH_CAUSAL,
            *OF_TARGET,
        ),
        "memory_is_real": ("memory_is_real", "memory_key_padding_mask", "dec_padding_mask", "memory_mask"),
        "target": ("decoder_input_ids", "prev_output_tokens"),
        CAUSAL: OWN_NAMES,
    }


@dataclass(frozen=True)
class Seq2SeqCase(ModuleCase):
    """A batch of pairs of token sequences."""

    SIZES: ClassVar[tuple[str, ...]] = ("batch", "source_len", "target_len")

    source_len: int = option(2, 1, 2, 3, 4, 5, 7, 8, 12, 33, rarely=(48, LONGEST))
    target_len: int = option(2, 1, 2, 3, 4, 5, 7, 8, 12, 33, rarely=(48, LONGEST))
    split: int = option(1, 1, 2, 3, 4, 7)
    """Where the target is cut, for laws that cut it."""


@dataclass(frozen=True, eq=False)
class PairInputs(ModuleInputs):
    """source (batch, source_len), target (batch, target_len); masks of the same shapes or None, True at tokens."""

    source: Tensor
    target: Tensor
    source_is_real: Tensor | None = None
    target_is_real: Tensor | None = None

    @property
    def cut(self) -> int:
        """A place inside the target: at least one token stands before it and, where there are two, behind it."""
        split: int = self.case.split
        return max(1, min(split, self.target.shape[1] - 1))

    def other(self, side: str, vocab: int) -> Tensor:
        """Tokens of the shape of the source or the target that differ from these everywhere."""
        return other_tokens(getattr(self, side), vocab, self.generator(f"other {side}"))


class Seq2SeqSubject(TokenSubject[PairInputs]):
    """Laws see source, target and logits."""

    MASKS = ("source_is_real", "target_is_real")
    MAY_HOLD_CAUSAL = "target_is_real"
    FEATURES: ClassVar = {
        "source_is_real": "takes no mask of what is padding in the source",
        "target_is_real": "takes no mask of what is padding in the target",
        "left_padding": "is not padded on the left",
        "pad": "has no token that is known to be padding, as pad_token says",
        "right_padding": "is not padded on the right",
        "full_context": "does not see all of its past",
        "positions": "does not see the order",
        "halves": "has no encode(source) and decode(target, memory)",
        "memory": "has no encode(source), nor a part called encoder that holds no recurrence or convolution",
        "tables": "has no embedding whose gradient could be asked for",
    }

    def __init__(self, declaration: Any, *, dtypes: tuple[str, ...], device: str = "cpu") -> None:
        super().__init__(declaration, dtypes=dtypes, device=device)
        self.form_what_is_required(_plain(ROWS, 3, 3))
        self.settle_causal(lambda: pair_hints.is_blind(self, _plain(2, 3, 3)))
        self.lacks("halves")  # One that is declared without the other is refused here.

    @property
    def with_causal(self) -> bool:
        """Whether the mask of the target holds the causal one."""
        if self.has_own_causal:
            return False
        if self.declaration.causal_mask is not None:
            return bool(self.declaration.causal_mask) and self.places["target_is_real"] is not None
        return "target_is_real" in self.required and self.places["target_is_real"] in WITH_CAUSAL

    @cached_property
    def classes(self) -> int:
        """How many logits there are at each position."""
        return self(_plain(1, 2, 2)).shape[-1]

    @cached_property
    def vocab(self) -> int:
        """How many tokens the target has, padding apart."""
        target = self._read[-1] if self._read else None
        rows = self.classes if target is None else min(target.num_embeddings, self.classes)
        return (self.declaration.vocab or rows) - (self.pad is not None)

    @cached_property
    def source_vocab(self) -> int:
        """How many tokens the source has, padding apart."""
        rows = self._read[0].num_embeddings if self._read else self.declaration.vocab or self.classes
        return (self.declaration.source_vocab or rows) - (self.pad is not None)

    @cached_property
    def _read(self) -> list[nn.Embedding]:
        """The table that the source is read from, and that of the target, where they can be told."""
        x = _plain(1, 3, 2)
        source, target = (self._reading(x, self.given(tokens)) for tokens in (x.source, x.target))
        return [source, target] if source is not None and target is not None else []

    def _reading(self, x: PairInputs, tokens: Tensor) -> nn.Embedding | None:
        """The first table that is asked for the vectors of these very tokens."""
        found: list[nn.Embedding] = []

        def watch(table: nn.Module, given: tuple[Tensor, ...], vectors: Tensor) -> None:
            read = given[0] if given else None  # Some are asked for a length, or for tokens (length, batch).
            if (
                not isinstance(table, nn.Embedding)
                or not isinstance(read, Tensor)
                or read.ndim != tokens.ndim
            ):
                return
            if torch.equal(read, tokens) or torch.equal(read.t(), tokens):
                found.append(table)

        handles = [table.register_forward_hook(watch) for table in self.tables]
        try:
            self(x)
        finally:
            for handle in handles:
                handle.remove()
        return next(iter(found), None)

    def unread_tables(self, x: PairInputs) -> list[str]:
        """The names of tables for tokens on which the logits do not depend."""
        assert self.module is not None
        rows = {self.classes, *(each.num_embeddings for each in self._read)}
        named = {
            name: each.weight
            for name, each in self.module.named_modules()
            if isinstance(each, nn.Embedding) and each.num_embeddings in rows and each.weight.requires_grad
        }
        logits = self.output(x)
        if not named or not logits.requires_grad:
            raise NotApplicable("no table of tokens carries a gradient")
        found = self.clock.call(torch.autograd.grad, logits.sum(), list(named.values()), allow_unused=True)
        return [name for name, gradient in zip(named, found, strict=True) if gradient is None]

    def lacks(self, feature: str) -> str | None:
        if feature == "tables":
            return None if self._read else self.FEATURES[feature]
        if feature == "halves":
            return None if self.halves is not None else self.FEATURES[feature]
        if feature == "memory":
            return None if (self.halves or self._encoder) is not None else self.FEATURES[feature]
        return super().lacks(feature)

    def output(self, x: PairInputs) -> Tensor:
        source = self.given(x.source, x.source_is_real)
        target = self.given(x.target, x.target_is_real)
        masks = {
            "source_is_real": self._mask("source_is_real", x.source, x.source_is_real),
            "target_is_real": self._target_mask(x),
            "memory_is_real": self._mask("memory_is_real", x.source, x.source_is_real),
            CAUSAL: self.own_causal(*x.target.shape),
        }
        if self.places["target"]:
            returned = self.call(source, target=target, **masks)
        else:
            returned = self.call(source, target, **masks)
        return self.logits_in(returned, tuple(x.target.shape))

    def another(self, x: PairInputs) -> PairInputs:
        """A call with other tokens, and one more of them on either side."""
        room = [slice(0, 1 if self.room(each.shape[1]) else 0) for each in (x.source, x.target)]
        source, target = (
            torch.cat([each.flip(1), each[:, more]], dim=1)
            for each, more in zip((x.source, x.target), room, strict=True)
        )
        return PairInputs(x.case, (source + 1) % self.source_vocab, (target + 1) % self.vocab)

    def gradient_of_targets(self, x: PairInputs, place: int) -> Tensor:
        """Of a random combination of the logits at one place, with respect to the vector of each target token."""
        shape = len(x.target), self.classes
        cotangent = torch.randn(shape, generator=x.generator("cotangent"), dtype=torch.float64)
        return self.gradient_of_table(
            lambda: self.output(x)[:, place], self._read[-1:], self.given(x.target), cotangent
        )

    @cached_property
    def halves(self) -> tuple[Callable[[Tensor], Any], Callable[[Tensor, Any], Any]] | None:
        """source -> memory and (target, memory) -> logits, where the module offers them."""
        encode, decode = self._encode(), self._decode()
        if encode is not None and decode is not None:
            return encode, decode
        declared = [name for name in ("encode", "decode") if getattr(self.declaration, name) is not None]
        if declared:
            other = "decode(target, memory)" if declared == ["encode"] else "encode(source)"
            raise SubjectError(f"{declared[0]} is declared, and the module has no {other}: declare it, too")
        return None

    def _encode(self) -> Callable[[Tensor], Any] | None:
        """As declared, or the module's own."""
        declared, own = self.declaration.encode, getattr(self.function, "encode", None)
        if declared is not None:
            return lambda source: declared(self.function, source)
        return own if callable(own) and len(needed_by(own) or ()) == 1 else None

    def _decode(self) -> Callable[[Tensor, Any], Any] | None:
        """As declared, or the module's own."""
        declared, own = self.declaration.decode, getattr(self.function, "decode", None)
        if declared is not None:
            return lambda target, memory: declared(self.function, target, memory)
        takes = (parameters_of(own) or {}) if callable(own) else {}
        target, memory = (next((n for n in names if n in takes), None) for names in (TARGETS, MEMORIES))
        if own is None or target is None or memory is None or len(needed_by(own) or ()) != 2:
            return None
        return lambda tokens, states: own(**{target: tokens, memory: states})

    def memory(self, source: Tensor) -> Any:
        """What the encoder makes of a source."""
        assert self.halves is not None
        with torch.no_grad():
            return self.clock.call(self.halves[0], self.given(source))

    def decoded(self, target: Tensor, memory: Any) -> Tensor:
        """The logits of a target, given the memory of its source."""
        assert self.halves is not None
        with torch.no_grad():
            returned = self.clock.call(self.halves[1], self.given(target), memory)
        return self.logits_in(returned, tuple(target.shape)).detach().cpu().clone()

    @cached_property
    def _encoder(self) -> nn.Module | None:
        """The part that is called encoder, where nothing in it goes one way, or reaches so far only, on purpose."""
        parts = self.module.named_modules() if self.module is not None else ()
        called = (part for name, part in parts if name.split(".")[-1] == "encoder" and takes_hooks(part))
        found = next(called, None)
        return None if found is None or any(isinstance(each, LOCAL) for each in found.modules()) else found

    def states_of(self, x: PairInputs) -> Tensor:
        """The memory as a tensor (batch, source_len, d_model), or, in a call, what the part called encoder gives."""
        memory = self.memory(x.source) if self.halves is not None else self._of_encoder(x)
        memory = memory if isinstance(memory, Tensor) else tensor_in(memory, ("last_hidden_state",))
        shapes = {tuple(x.source.shape): memory, tuple(x.source.shape[::-1]): memory.transpose(0, 1)}
        states = shapes.get(tuple(memory.shape[:2]))
        if states is None or (self.halves is not None and states is not memory):
            raise NotApplicable("the memory has no state for each source token")
        return states.detach().cpu().double()

    def _of_encoder(self, x: PairInputs) -> Any:
        """NotApplicable: it is not run once."""
        assert self._encoder is not None
        returned = returned_by(self._encoder, lambda: self(x))
        if len(returned) != 1:
            raise NotApplicable(f"its part called encoder is run {len(returned)} times")
        return returned[0]

    def _mask(self, argument: str, tokens: Tensor, is_real: Tensor | None) -> Tensor | None:
        if is_real is None and argument in self.required:
            is_real = torch.ones_like(tokens, dtype=torch.bool)
        return self.mask(argument, is_real)

    def _target_mask(self, x: PairInputs) -> Tensor | None:
        if not self.with_causal:
            return self._mask("target_is_real", x.target, x.target_is_real)
        real = torch.ones_like(x.target, dtype=torch.bool) if x.target_is_real is None else x.target_is_real
        dtype: torch.dtype = getattr(torch, self.dtypes[0])
        return self.forms["target_is_real"].with_causal(real, dtype).to(self.device)


def _plain(batch: int, source_len: int, target_len: int) -> PairInputs:
    source, target = (torch.zeros(batch, length, dtype=torch.long) for length in (source_len, target_len))
    return PairInputs(None, source, target)


class Seq2SeqRole(ModuleRole[Seq2SeqCase, PairInputs]):
    """Case, declaration and subject of an encoder-decoder."""

    name = "seq2seq"
    case = Seq2SeqCase
    declaration = Seq2Seq
    subject = Seq2SeqSubject
    plain_call = "f(source, target)"
    aliases = ("seq2seq", "encoderdecoder")

    def settle(self, case: Seq2SeqCase, subject: Seq2SeqSubject) -> Seq2SeqCase:
        lengths = {side: subject.fitting(getattr(case, side)) for side in ("source_len", "target_len")}
        return case.but(batch=subject.rows(case.batch), **lengths)

    def notes(self, subject: Seq2SeqSubject) -> list[str]:
        settle_pad(subject, lambda source: PairInputs(None, source, torch.ones_like(source[:, :2])))
        return [
            *settled_masks(
                subject,
                partial(pair_hints.find_forms, plain=_plain(ROWS, 3, 3)),
                partial(pair_hints.padding_is_nothing, plain=_plain(2, 3, 3)),
                call="padded call",
                candidates=pair_hints.CANDIDATES,
            ),
            *subject.pad_notes(),
            *subject.settle_length(lambda length: _plain(2, length, length), range(1, LONGEST + MARGIN + 1)),
            *subject.settle_batch(lambda batch: _plain(batch, 3, 3), subject.module),
            *unrecognised(subject, inputs=2),
        ]

    def advice(self, subject: Seq2SeqSubject) -> str:
        square = _plain(3, 3, 3)  # The axes may be taken in either order.
        works = subject.form_what_is_required(square) and problem_of(subject, square) is None
        return pair_hints.TURNED if works else ""

    def sound(self, subject: Seq2SeqSubject) -> bool:
        real = torch.tensor([[False, True, True], [True, True, True]])
        for mask in subject.MASKS:
            for side in subject.sides if subject.has(mask) else ():
                kept = real if side == "left" else real.flip(1)
                x = _plain(2, 3, 3).but(**{mask: kept})
                if problem_of(subject, x) is None:
                    logits = subject(x)
                    if not (logits[kept] if mask == "target_is_real" else logits).isfinite().all():
                        return False
        return True

    def build(self, case: Seq2SeqCase, subject: Seq2SeqSubject) -> PairInputs:
        generator = torch.Generator().manual_seed(case.seed)
        source = torch.randint(subject.source_vocab, (case.batch, case.source_len), generator=generator)
        target = torch.randint(subject.vocab, (case.batch, case.target_len), generator=generator)
        return PairInputs(case, source, target)


role = Seq2SeqRole()
