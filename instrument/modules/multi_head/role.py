"""The role `multi_head_attention`: what the engine asks of it."""

from typing import Any

import torch
from torch import nn

from headcheck.calling import refuses_a_length
from headcheck.comparison import Failure
from headcheck.declarations import Declaration
from headcheck.modules.multi_head.cases import MultiHeadCase, MultiHeadInputs, drawn_tensors
from headcheck.modules.multi_head.conventions import MultiHeadAttention
from headcheck.modules.multi_head.finding import find, works_with_a_mask_of_nothing
from headcheck.modules.multi_head.hints import hints
from headcheck.modules.multi_head.masks import KEY_SHAPES
from headcheck.modules.multi_head.subject import MultiHeadSubject
from headcheck.modules.multi_head.weighted import require_whole_heads
from headcheck.modules.role import ModuleRole
from headcheck.modules.subject import ModuleSubject

TORCHS = {
    "masks": ("boolean", "additive"),
    "mask_shapes": ("qk", "(bh)qk"),
    "true_means": "block",
    "empty_rows": "undefined",
    "weights": "averaged",
}
"""What torch.nn.MultiheadAttention documents; a row without keys is NaN or zeros, by the path that it takes."""


LENGTHS = (*range(1, 18), 24, 32, 33, 48, 64, 65, 96, 128, 129, 192, 256, 257)
"""Of which the longest that a module takes is sought: all that cases are drawn with, and usual ones between."""


class MultiHeadRole(ModuleRole[MultiHeadCase, MultiHeadInputs]):
    """Case, declaration and subject of multi-head attention."""

    name = "multi_head_attention"
    case = MultiHeadCase
    declaration = MultiHeadAttention
    subject = MultiHeadSubject
    moves = False  # It makes modules of other sizes as it goes on.
    classes = True
    """A class is made with (d_model, num_heads)."""
    kinds = (nn.MultiheadAttention,)
    aliases = ("multiheadattention", "multiheadedattention", "multiheadselfattention", "mha")

    def declare(self, attribute: Any, name: str) -> Declaration:
        """Torch's own module, made or to be made, has torch's conventions."""
        if isinstance(attribute, nn.MultiheadAttention) or attribute is nn.MultiheadAttention:
            conventions: dict[str, Any] = TORCHS
            return MultiHeadAttention(attribute, name=name, **conventions)
        return super().declare(attribute, name)

    def to_try(self, subject: MultiHeadSubject) -> MultiHeadSubject:
        """Itself: a case whose weights it has not yet has a module of its own."""
        return subject

    def found(self, subject: MultiHeadSubject) -> dict[str, Any]:
        found = subject.found
        masks: dict[str, Any] = {}
        if found.mask_shapes:
            masks = {"masks": found.masks, "mask_shapes": found.mask_shapes, "true_means": found.true_means}
        if subject.has("key_mask") and not subject.counts_keys:
            masks |= {"key_masks": found.key_masks, "key_true_means": found.key_true_means}
        weights = {"weights": found.weights} if found.weights else {}
        return {**super().found(subject), **masks, "empty_rows": found.empty_rows, **weights}

    def limits(self, subject: MultiHeadSubject) -> list[str]:
        def of_length(length: int) -> MultiHeadInputs:
            case = MultiHeadCase(seed=1, batch=2, q_len=length, kv_len=length)
            return self.build(self.fit(case, subject), subject)

        return [*subject.settle_length(of_length, LENGTHS, refuses_a_length), *subject.refused_sizes()]

    def _plain_problem(self, subject: ModuleSubject[MultiHeadInputs], batch: int) -> Failure | None:
        """As of any module; one that asks for a mask, and not for None, is given a mask of nothing."""
        problem = super()._plain_problem(subject, batch)
        assert isinstance(subject, MultiHeadSubject)
        return None if problem and works_with_a_mask_of_nothing(self.build, subject) else problem

    def notes(self, subject: MultiHeadSubject) -> list[str]:
        """The conventions that it shows by itself, and what may be declared where it is wrong without it."""
        return [*find(self.build, subject), *hints(self.build, subject)]

    def settle(self, case: MultiHeadCase, subject: MultiHeadSubject) -> MultiHeadCase:
        """Of the subject's sizes, with what it takes."""
        case = self._sized(case, subject)
        case = case.but(q_len=subject.fitting(case.q_len), kv_len=subject.fitting(case.kv_len))
        if case.mode == "separate" and not subject.has("separate"):
            case = case.but(mode="cross")
        if case.mode != "self" and not subject.has("cross"):
            case = case.but(mode="self")
        if case.mode == "self":
            case = case.but(kv_len=case.q_len)
        if case.padding and not subject.has("key_mask"):
            case = case.but(padding=False)
        if case.need_weights and not subject.has("need_weights"):
            case = case.but(need_weights=False)
        return self._masked(case, subject)

    def _sized(self, case: MultiHeadCase, subject: MultiHeadSubject) -> MultiHeadCase:
        require_whole_heads(subject)
        if subject.heads is not None:
            case = case.but(heads=subject.heads)
        if subject.d_model is not None:
            heads = case.heads if subject.d_model % case.heads == 0 else 1
            return case.but(heads=heads, head_dim=subject.d_model // heads)
        heads, head_dim = subject.made_near(case.heads, case.head_dim)
        return case.but(heads=heads, head_dim=head_dim)

    def _masked(self, case: MultiHeadCase, subject: MultiHeadSubject) -> MultiHeadCase:
        shapes = subject.found.mask_shapes
        flag = case.flag and case.mask == "causal" and case.q_len == case.kv_len and subject.has("is_causal")
        if flag and not shapes:
            return case.but(flag=True, mask_shape="qk", mask_kind="boolean")
        if not shapes or case.mask == "none":
            kind = case.mask_kind if case.padding and subject.has("additive_key_mask") else "boolean"
            return case.but(mask="none", mask_shape="qk", mask_kind=kind, flag=False)
        if case.mask_shape not in shapes:
            case = case.but(mask_shape=shapes[case.seed % len(shapes)])
        case = case.but(mask_kind=subject.found.kind_for(case.mask_shape, case.mask_kind))
        if case.mask_shape in KEY_SHAPES:
            return case.but(mask="keys", flag=False)
        by_head = case.mask == "by-head" and "h" not in case.mask_shape
        return case.but(flag=flag, mask="random" if by_head else case.mask)

    def build(self, case: MultiHeadCase, subject: MultiHeadSubject) -> MultiHeadInputs:
        """The inputs of a case; the next call is made with a new module."""
        dtype = getattr(torch, case.dtype)
        anchor, counted = subject.anchor(case), subject.counts_keys
        x = drawn_tensors(case, subject.shapes(case), dtype, anchor=anchor, counted=counted)
        subject.begin(x)
        return x

    def show(self, inputs: MultiHeadInputs) -> dict[str, Any]:
        """And the weights, where they are small."""
        few = sum(each.numel() for each in inputs.weights.values()) <= 64
        weights = {name: each.tolist() for name, each in inputs.weights.items()} if few else {}
        return super().show(inputs) | weights


role = MultiHeadRole()
