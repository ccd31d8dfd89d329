"""In which shapes a function takes a mask: declared, or, where it is not, as plain calls show."""

from collections.abc import Mapping, Sequence

from headcheck.attention.case import Case
from headcheck.attention.forms import mask_shapes_of
from headcheck.attention.subject import AttentionSubject
from headcheck.attention.trying import PLAIN, built, failure_of, is_refusal
from headcheck.comparison import LawBroken, NotApplicable
from headcheck.declarations import BROADCAST_SHAPES, FOUR_AXES, Attention

WHOLE_MASKS = ("bhqk", "hqk", "qk")
"""A mask of each rank, with no axis of one."""
OTHER_MASKS = ("bqk", "bk")
"""What is tried where none of those works."""
UNLIKE = PLAIN.but(batch=2, heads=5, kv_heads=5, q_len=4, kv_len=4)
"""A case in which an axis is not taken for another."""


def as_masked(trial: AttentionSubject) -> tuple[Attention, list[str]]:
    """The declaration with `mask_shapes`, where plain calls do not take all of them and none is declared; and notes."""
    declaration = trial.declaration
    if declaration.mask_shapes is not None or not trial.has("attn_mask") or trial.is_packed:
        return declaration, []
    plain = UNLIKE.but(dtype=trial.dtypes[0], mask="all-true")
    masked = [plain.but(mask_form=kind) for kind in ("boolean", "additive") if trial.has(kind)]
    if fewer := mask_shapes_of(declaration.layout):
        return _of_fewer_axes(trial, masked, fewer)
    for case in masked:
        tried = _failures(trial, case, WHOLE_MASKS)
        if None in tried.values():
            return _narrowed(trial, case, tried)
    return _of_other_axes(trial, masked)


Failures = Mapping[str, LawBroken | NotApplicable | None]


def _failures(trial: AttentionSubject, masked: Case, shapes: Sequence[str]) -> Failures:
    """Shape -> why a call with such a mask does not work, or None if it does."""
    return {shape: failure_of(trial, built(trial, masked.but(mask_axes=shape))) for shape in shapes}


def _narrowed(trial: AttentionSubject, masked: Case, whole: Failures) -> tuple[Attention, list[str]]:
    """Of a function that takes one of the whole masks."""
    declaration = trial.declaration
    smaller = _failures(trial, masked, FOUR_AXES[1:])
    if whole["bhqk"] is None and all(map(is_refusal, smaller.values())):
        why = next(iter(smaller.values()))
        note = f"takes no attn_mask with axes of one, as a plain call shows: {why}"
        return declaration.but(mask_shapes=("bhqk",)), [note]
    failing = {shape for shape, failure in whole.items() if failure is not None}
    if not is_refusal(whole["bhqk"]):
        failing.discard("bhqk")  # Four axes are the rule: that they crash is for laws to say.
    if not failing:
        return declaration, []
    ranks = {len(shape) for shape in failing}
    return declaration.but(mask_shapes=tuple(s for s in BROADCAST_SHAPES if len(s) not in ranks)), []


def _of_fewer_axes(
    trial: AttentionSubject, masked: Sequence[Case], shapes: Sequence[str]
) -> tuple[Attention, list[str]]:
    """Of a function whose tensors have no axis for heads or for a batch."""
    taken = [shape for shape in shapes if _takes(trial, masked, shape)]
    if len(taken) in (0, len(shapes)):
        return trial.declaration, []
    return trial.declaration.but(mask_shapes=tuple(taken)), []


def _of_other_axes(trial: AttentionSubject, masked: Sequence[Case]) -> tuple[Attention, list[str]]:
    """Of a function that takes none of the whole masks."""
    for shape in OTHER_MASKS:
        if _takes(trial, masked, shape):
            note = f"takes attn_mask in the shape {shape}: as if declared, mask_shapes={shape}"
            return trial.declaration.but(mask_shapes=(shape,)), [note]
    return trial.declaration, []


def _takes(trial: AttentionSubject, masked: Sequence[Case], shape: str) -> bool:
    """Whether a call with a mask of a shape works, of one kind at least."""
    subject = AttentionSubject(
        trial.declaration.but(mask_shapes=(shape,)),
        dtypes=trial.dtypes,
        arithmetic=trial.arithmetic,
        device=trial.device,
    )
    return any(failure_of(subject, built(subject, case)) is None for case in masked)
