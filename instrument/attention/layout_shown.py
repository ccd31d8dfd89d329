"""In which layout a function takes its tensors, where it takes none of four axes."""

from collections.abc import Iterable, Sequence
from functools import partial

from headcheck.arithmetic import named
from headcheck.attention.returning import as_returned
from headcheck.attention.sizes_shown import fate_apart
from headcheck.attention.subject import AttentionSubject
from headcheck.attention.trying import PLAIN, SIZES, built, failure_of
from headcheck.calling import NoAnswer
from headcheck.comparison import NotApplicable
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
    # What answers is not looked at further, be the answer of a wrong form; what hangs or ends the process is for others.
    if fate_apart(partial(_answers, declaration, tried, device), device) != "no":
        return declaration, []
    for layout in FEWER_AXES:
        fewer = declaration.but(layout=layout)
        if fate_apart(partial(_answers, fewer, tried, device, rightly=True), device) == "yes":
            return fewer, [f"takes no tensors of four axes: as if declared, layout={layout}"]
    return declaration, []


def _answers(declaration: Attention, dtypes: Sequence[str], device: str, *, rightly: bool = False) -> bool:
    """Whether a plain call in any of the dtypes gives a tensor. rightly: of the right form."""
    declaration, _ = as_returned(declaration, dtypes, device)
    for dtype in dtypes:
        subject = AttentionSubject(
            declaration, dtypes=(dtype,), arithmetic={dtype: named("native")}, device=device
        )
        for length, dim in SIZES:
            sizes = {"q_len": length, "kv_len": length, "head_dim": dim, "value_dim": dim}
            failure = failure_of(subject, built(subject, PLAIN.but(dtype=dtype, **sizes)))
            if failure is None or not (rightly or isinstance(failure, NoAnswer | NotApplicable)):
                return True
    return False
