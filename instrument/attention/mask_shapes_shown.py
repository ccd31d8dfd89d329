"""In which shapes a function takes a mask: declared, or, where it is not, as plain calls show."""

from collections.abc import Mapping, Sequence

from headcheck.attention.case import Case
from headcheck.attention.forms import mask_shapes_of
from headcheck.attention.subject import AttentionSubject
from headcheck.attention.trying import PLAIN, built, refuses_an_argument
from headcheck.calling import NAMES_STRIDES
from headcheck.comparison import Failure, failure_of
from headcheck.declarations import BROADCAST_SHAPES, FOUR_AXES, Attention

WHOLE_MASKS = ("bhqk", "hqk", "qk")
"""A mask of each rank, with no axis of one."""
OTHER_MASKS = ("bqk", "bk", "b1k")
"""What is tried where none of those works."""
PLAINLY = ", as a plain call shows:"
BY_SEQUENCE = (
    "takes an attn_mask of three axes as (batch, q_len, kv_len), which torch takes as (heads, q_len, kv_len): where "
    "batch and heads are equal, the same mask means another thing"
)
UNLIKE = PLAIN.but(batch=2, heads=5, kv_heads=5, q_len=4, kv_len=4)
"""A case in which an axis is not taken for another."""


def as_masked(trial: AttentionSubject) -> tuple[Attention, list[str]]:
    """The declaration with `mask_shapes`, where plain calls do not take all of them and none is declared; and notes."""
    declaration = trial.declaration
    if declaration.mask_shapes is not None or not trial.has("attn_mask") or trial.is_packed:
        return declaration, []
    kinds = [kind for kind in ("boolean", "additive") if trial.has(kind)]
    unlike = [UNLIKE.but(dtype=trial.dtypes[0], mask="all-true", mask_form=kind) for kind in kinds]
    if fewer := mask_shapes_of(declaration.layout):
        return _of_fewer_axes(trial, unlike, fewer)
    for case in unlike:
        if None in _failures(trial, case, WHOLE_MASKS).values():
            return _narrowed(trial, case)
    return _of_other_axes(trial, unlike)


Failures = Mapping[str, Failure | None]


def _failures(trial: AttentionSubject, masked: Case, shapes: Sequence[str]) -> Failures:
    """Shape -> why a call with such a mask does not work, or None if it does."""
    return {shape: failure_of(trial, built(trial, masked.but(mask_axes=shape))) for shape in shapes}


def _narrowed(trial: AttentionSubject, unlike: Case) -> tuple[Attention, list[str]]:
    """Of a function that takes one of the whole masks. What fails for several sequences alone is for laws to say."""
    declaration = trial.declaration
    whole = _failures(
        trial, PLAIN.but(dtype=unlike.dtype, mask=unlike.mask, mask_form=unlike.mask_form), WHOLE_MASKS
    )
    smaller = _failures(trial, unlike, FOUR_AXES[1:])
    # Kernels of a device refuse masks that are expanded; on the CPU that is for laws to say.
    there = trial.device != "cpu"
    by_strides = {shape: why for shape, why in smaller.items() if there and NAMES_STRIDES.search(str(why))}
    if whole["bhqk"] is None and all(refuses_an_argument(each, "mask") for each in smaller.values()):
        why = next(iter(smaller.values()))
        return declaration.but(mask_shapes=("bhqk",)), [f"takes no attn_mask with axes of one{PLAINLY} {why}"]
    failing = {shape: failure for shape, failure in whole.items() if failure is not None}
    if not refuses_an_argument(whole["bhqk"], "mask"):
        failing.pop("bhqk", None)  # Four axes are the rule: that they crash is for laws to say.
    ranks = {len(shape): failure for shape, failure in failing.items()}
    left = tuple(s for s in BROADCAST_SHAPES if len(s) not in ranks and s not in by_strides)
    if left == BROADCAST_SHAPES:
        return declaration, []
    notes = [f"takes no attn_mask of {rank} axes{PLAINLY} {failure}" for rank, failure in ranks.items()]
    notes += [f"takes no attn_mask in the shape {shape}{PLAINLY} {why}" for shape, why in by_strides.items()]
    if "hqk" in failing and _failure(trial, [unlike], "bqk") is None:
        notes.append(BY_SEQUENCE)
    return declaration.but(mask_shapes=left), notes


def _of_fewer_axes(
    trial: AttentionSubject, masked: Sequence[Case], shapes: Sequence[str]
) -> tuple[Attention, list[str]]:
    """Of a function whose tensors have no axis for heads or for a batch.

    That the first shape crashes, where another works, is for laws to say.
    """
    failures = {shape: _failure(trial, masked, shape) for shape in shapes}
    failing = {shape: failure for shape, failure in failures.items() if failure is not None}
    if len(failing) == len(shapes):
        return _of_other_axes(trial, masked)
    if not refuses_an_argument(failing.get(shapes[0]), "mask"):
        failing.pop(shapes[0], None)
    if not failing:
        return trial.declaration, []
    notes = [f"takes no attn_mask in the shape {shape}{PLAINLY} {why}" for shape, why in failing.items()]
    return trial.declaration.but(mask_shapes=tuple(s for s in shapes if s not in failing)), notes


def _of_other_axes(trial: AttentionSubject, masked: Sequence[Case]) -> tuple[Attention, list[str]]:
    """Of a function that takes none of the whole masks."""
    for shape in OTHER_MASKS:
        if _failure(trial, masked, shape) is None:
            note = f"takes attn_mask in the shape {shape}: as if declared, mask_shapes={shape}"
            return trial.declaration.but(mask_shapes=(shape,)), [note]
    return trial.declaration, []


def _failure(trial: AttentionSubject, masked: Sequence[Case], shape: str) -> Failure | None:
    """Why no call with a mask of a shape works, or None if one does, of one kind at least."""
    subject = trial.but(declaration=trial.declaration.but(mask_shapes=(shape,)))
    failures = [failure_of(subject, built(subject, case)) for case in masked]
    return None if None in failures else failures[0]
