"""In which layout a function takes its tensors, where it takes none of four axes."""

from collections.abc import Iterable, Sequence
from functools import partial

from headcheck.arithmetic import named
from headcheck.attention.returning import as_returned
from headcheck.attention.sizes_shown import fate_apart
from headcheck.attention.subject import AttentionSubject
from headcheck.attention.trying import PLAIN, SIZES, attempt
from headcheck.declarations import Attention

USUAL = "bhsd"
FEWER_AXES = ("bsd", "sd")
"""What is tried where every plain call with four axes fails: one head, then one sequence as well."""


def as_laid_out(
    declaration: Attention, dtypes: Iterable[str], device: str = "cpu"
) -> tuple[Attention, list[str]]:
    """The declaration with the layout that plain calls show, where none with four axes works; and a note of it."""
    tried = tuple(dtypes)
    if declaration.layout != USUAL or declaration.output_layout or declaration.may_refuse:
        return declaration, []
    # What works is not looked at further; what hangs or ends the process is for others to say.
    if fate_apart(partial(_works, declaration, tried, device), device) != "no":
        return declaration, []
    for layout in FEWER_AXES:
        fewer = declaration.but(layout=layout)
        if fate_apart(partial(_works, fewer, tried, device), device) == "yes":
            return fewer, [f"takes no tensors of four axes: as if declared, layout={layout}"]
    return declaration, []


def _works(declaration: Attention, dtypes: Sequence[str], device: str) -> bool:
    """Whether a plain call works in any of the dtypes."""
    declaration, _ = as_returned(declaration, dtypes, device)
    for dtype in dtypes:
        subject = AttentionSubject(
            declaration, dtypes=(dtype,), arithmetic={dtype: named("native")}, device=device
        )
        for length, dim in SIZES:
            sizes = {"q_len": length, "kv_len": length, "head_dim": dim, "value_dim": dim}
            if attempt(subject, PLAIN.but(dtype=dtype, **sizes)) is None:
                return True
    return False
