"""Plain calls of a multi-head module that have one right answer, and whether it gives that."""

from collections.abc import Callable

from torch import Tensor

from headcheck.calling import SubjectRaised
from headcheck.comparison import LawBroken, NotApplicable, within
from headcheck.modules.multi_head.bounds import output_bound
from headcheck.modules.multi_head.cases import MultiHeadCase, MultiHeadInputs
from headcheck.modules.multi_head.oracle import with_bias
from headcheck.modules.multi_head.subject import MultiHeadSubject

Build = Callable[[MultiHeadCase, MultiHeadSubject], MultiHeadInputs]


def trial(build: Build, subject: MultiHeadSubject, **changes: object) -> MultiHeadInputs:
    """A plain call in which no two axes that could be confused have the same length.

    The batch is the longest, so that a mask of four axes does not pass through a slice that is meant for two.
    """
    heads = subject.heads or 3
    head_dim = subject.d_model // heads if subject.d_model else 2
    if subject.d_model is None:
        heads, head_dim = subject.made_near(heads, head_dim)
    q_len, kv_len, batch = [n for n in (4, 5, 6, 7) if n != heads][:3]
    mode = "cross" if subject.has("cross") else "self"
    case = MultiHeadCase(
        dtype=subject.dtypes[0],
        batch=batch,
        heads=heads,
        head_dim=head_dim,
        q_len=q_len,
        kv_len=kv_len,
        mode=mode,
        values="normal",
        seed=1,
    ).but(**changes)
    return build(case.but(kv_len=q_len) if case.mode == "self" else case, subject)


def masked_trial(build: Build, subject: MultiHeadSubject, **changes: object) -> MultiHeadInputs:
    """A plain call with a mask: of self-attention where calls with another sequence ignore it."""
    return trial(build, subject, **({"mode": "self"} if subject.found.of_self else {}), **changes)


def agrees(subject: MultiHeadSubject, x: MultiHeadInputs) -> bool | None:
    """Whether a call gives the exact answer; None where it does not work at all."""
    return agrees_with(subject, x, subject.exact(x))


def agrees_with(subject: MultiHeadSubject, x: MultiHeadInputs, exact: Tensor) -> bool | None:
    """Whether a call gives this answer; None where it does not work at all."""
    try:
        return not within(subject(x), exact, output_bound(x, subject.found.unit)).broken
    except (SubjectRaised, LawBroken, NotApplicable):
        return None


def is_read(subject: MultiHeadSubject, x: MultiHeadInputs, kind: str, agreed: bool | None) -> bool:
    """Whether a kind of mask is one that the module means to read: booleans, unless it adds them as numbers."""
    if agreed or agreed is None or kind == "additive":
        return bool(agreed)
    block = subject.found.true_means if x.is_real is None else subject.found.key_true_means
    seen = x.visible()
    whole = subject.visible(x.nothing_hidden().but(is_real=None))
    exact = with_bias(x, (seen if block == "keep" else ~seen).double(), whole)
    return within(subject(x), exact, output_bound(x, subject.found.unit)).broken
