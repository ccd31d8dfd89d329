"""The role `attention`: what the engine needs to judge an attention function."""

import copy
from collections.abc import Iterator
from random import Random
from typing import Any

from hypothesis.strategies import SearchStrategy
from torch import Tensor, nn

from headcheck.attention import drawing, inputs, simpler, strides, trial
from headcheck.attention.accepting import accepted_arguments
from headcheck.attention.case import Case
from headcheck.attention.inputs import TENSORS, Inputs
from headcheck.attention.patterns import PATTERNS
from headcheck.attention.sizes import limited
from headcheck.attention.subject import DEAD_ROWS, AttentionSubject
from headcheck.attention.values import REGIMES
from headcheck.declarations import BROADCAST_SHAPES, PACKED, Attention
from headcheck.numbers import shown
from headcheck.signatures import must_be_given

OPTIONS = {
    "values": REGIMES,
    "mask": ("none", *PATTERNS),
    "mask_form": ("boolean", *inputs.BIAS_FORMS),
    "mask_axes": BROADCAST_SHAPES,
    "strides": (*strides.STRIDES, *strides.MIXED),
    "mask_strides": strides.MASK_STRIDES,
    "cotangent_strides": strides.STRIDES,
}
"""What the fields of a case that are text may be."""


class AttentionRole:
    """Case: `headcheck.attention.case.Case`; inputs: `Inputs`; subject: `AttentionSubject`."""

    name = "attention"

    def recognises(self, attribute: Any) -> bool:
        return "attention" in getattr(attribute, "__name__", "")

    def declare(self, attribute: Any, name: str) -> Attention:
        if isinstance(attribute, Attention):
            return attribute
        attribute, notes = _in_evaluation(attribute)
        packed = "cu_seqlens_q" in must_be_given(attribute, accepted_arguments(attribute, {}))
        return Attention(attribute, name=name, layout=PACKED if packed else "bhsd", notes=notes)

    def prepare(
        self, declaration: Attention, *, dtypes: tuple[str, ...], device: str, seed: int
    ) -> tuple[AttentionSubject, list[str]]:
        return trial.prepare(declaration, dtypes=dtypes, device=device, seed=seed)

    def limited(self, subject: AttentionSubject) -> tuple[str, ...]:
        return limited(subject.declaration)

    def draw(self, random: Random, subject: AttentionSubject) -> Case:
        return drawing.draw(random, subject)

    def drawn(self, subject: AttentionSubject) -> SearchStrategy[Case]:
        return drawing.drawn(subject)

    def fit(self, case: Case, subject: AttentionSubject) -> Case:
        return drawing.fit(case, subject)

    def build(self, case: Case, subject: AttentionSubject) -> Inputs:
        return inputs.build(case, subject.alignment, dead_rows=DEAD_ROWS not in subject.avoids)

    def simpler(self, case: Case, subject: AttentionSubject) -> Iterator[Case]:
        return simpler.simpler(case, subject)

    def parse(self, text: str) -> Case:
        return Case.parse(text, OPTIONS)

    def show(self, inputs: Inputs) -> dict[str, Any]:
        """Each argument of the call that is not at its default."""
        told: dict[str, Any] = {}
        for name in TENSORS:
            tensor: Tensor | None = getattr(inputs, name)
            if tensor is not None:
                told[name] = shown(tensor, inputs.case.dtype)
        for name in ("is_causal", "scale", "window", "softcap", "key_lengths"):
            if getattr(inputs, name) is not None and getattr(inputs, name) is not False:
                told[name] = getattr(inputs, name)
        return told


def _in_evaluation(attribute: Any) -> tuple[Any, str]:
    """A module that is in training, as it is made, in evaluation, and a note: what it drops is no fault. It is a copy."""
    if not isinstance(attribute, nn.Module) or not attribute.training:
        return attribute, ""
    try:
        return copy.deepcopy(attribute).eval(), "a copy of the module is judged, in evaluation"
    except Exception as problem:  # noqa: BLE001 - what a module holds may refuse to be copied in any way
        return attribute, f"judged in training: the module cannot be copied ({problem})"


role = AttentionRole()
