"""A call of somebody else's function: timed, and whatever it throws or returns is a finding."""

import re
import signal
import sysconfig
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dis import opmap
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from headcheck import heard
from headcheck.comparison import Failure, LawBroken, NotApplicable
from headcheck.errors import SubjectError, first_line_of
from headcheck.signatures import parameters_of
from headcheck.time_limits import OutOfTime, time_limit

ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
"""Where an object stands in memory, as its repr tells: another place in each run, so that no two messages are equal."""


NOT_THE_USERS = (str(Path(__file__).parent), sysconfig.get_path("stdlib"), "<")
"""How the names of files begin of which no line is a user's."""
INSTALLED = ("site-packages", "dist-packages")
"""Folders that hold no file of a user's."""


class NoAnswer(LawBroken):
    """A call gave no tensor at all: it raised, returned something else, or cannot be made."""


class OtherDtype(LawBroken):
    """A call was answered, in another dtype than it was asked in."""


class DidNotReturn(NoAnswer):
    """A call took longer than it may."""


class NeverReturned(SubjectError):
    """The first call of a subject took longer than it may."""


OF_NUMPY, NO_GRADIENTS = (
    "call numpy() on Tensor that requires grad",
    "where it has no gradients, declare gradients=False",
)


class SubjectRaised(NoAnswer):
    """The subject threw an exception."""

    def __init__(self, problem: BaseException, cure: str = "") -> None:
        first_line = ADDRESS.sub("", first_line_of(problem))
        said = f"raised {type(problem).__name__}" + (f": {first_line}" if first_line else "")
        cure = cure or (NO_GRADIENTS if OF_NUMPY in said else "")
        super().__init__(f"{said} ({cure})" if cure else said)
        self.problem = problem

    @property
    def raised_at(self) -> str:
        """' (file.py, line 3)', the last line of the user's own that was reached; '' where there was none."""
        frames = traceback.extract_tb(self.problem.__traceback__)
        own = [
            each
            for each in frames
            if not each.filename.startswith(NOT_THE_USERS) and not {*INSTALLED} & {*Path(each.filename).parts}
        ]
        return f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""


REFUSES = "refuses the call"
"""How a reason begins that a law says nothing, as the subject may refuse what it asks for."""
REFUSALS = ValueError, AssertionError, NotImplementedError
"""By which a subject says that it is not made for such sizes."""
NAMES_STRIDES = re.compile(
    "^(?!.*(view size is not compatible|out of bounds)).*(stride|contiguous|storage.?offset)",
    re.IGNORECASE | re.DOTALL,
)
"""What a refusal says of a tensor that lies in memory as the function does not take it; a view that fails is none,
nor one that reads beyond its memory."""
SAYING_HOW_MANY = re.compile(
    r"at most|exceed|maximum|too (long|large|many)|up to|limit|support", re.IGNORECASE
)
"""What has to be said of a length that is too long, where it is no Python code of the subject that raises it."""


IN_TRAINING_ONLY = "cudnn RNN backward can only be called in training mode"
"""What torch says on a GPU of a model that has a recurrent part: a limit of cuDNN's."""


def was_raised(problem: BaseException) -> bool:
    """Whether a raise or an assert of Python threw it, and not a function in C that was called on the way."""
    trace = problem.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_code.co_code[trace.tb_lasti] == opmap["RAISE_VARARGS"]


def refuses_a_length(problem: BaseException) -> bool:
    """Whether an exception says that so many are not taken: raised by the subject's own code, or in so many words."""
    if SAYING_HOW_MANY.search(str(problem)):
        return isinstance(problem, (RuntimeError, *REFUSALS))
    return isinstance(problem, REFUSALS) and was_raised(problem)


def refused_on_purpose(problem: BaseException) -> bool:
    """Whether an exception refuses a call: raised by Python code, or by other code in so many words.

    Those of a class of its own, such as a compiler's that fails, refuse nothing.
    """
    if isinstance(problem, NotImplementedError):
        return True
    plain = type(problem) in (*REFUSALS, RuntimeError, TypeError)
    return plain and (was_raised(problem) or refuses_a_length(problem))


def is_refused(why: Failure) -> bool:
    """Whether a call that does not work is refused by the subject, or by a law for it."""
    raised = isinstance(why, SubjectRaised) and refused_on_purpose(why.problem)
    return raised or isinstance(why, NotApplicable)


def require_willing(problem: BaseException, *, may_refuse: bool) -> None:
    """NotApplicable: an exception refuses a call of a subject that is declared to do so."""
    if may_refuse and refused_on_purpose(problem):
        raise NotApplicable(f"{REFUSES}: {SubjectRaised(problem)}") from problem


def is_for_laws(problem: Failure | None, of_all: Mapping[str, Failure | None]) -> bool:
    """Whether a dtype is judged, by what is wrong with a plain call in it: nothing, a hang, or, if it works in any dtype,
    an answer of another form. One that raises is not supported; an answer in another dtype has a law of its own.
    """
    if problem is None or isinstance(problem, DidNotReturn):
        return True
    return None in of_all.values() and not isinstance(problem, NoAnswer | NotApplicable | OtherDtype)


def require_callable(
    attempts: Iterable[Failure | None],
    canonical: str,
    cure: str = "or say its role with --role",
) -> None:
    """SubjectError: none of these plain calls gives a tensor, and not all are refused, which is no mistake.

    attempts: why each of them does not work, or None if it does, the plainest first; they end at one that is
    for laws to judge. canonical: the call, as a user would write it. cure: what else may help.
    """
    reasons = []
    for why in attempts:
        if not isinstance(why, NoAnswer | NotApplicable):
            return
        reasons += [why] if isinstance(why, NoAnswer) else []
    if reasons and "not compiled with CUDA" in str(reasons[0]):
        raise SubjectError(f"the subject needs CUDA, which torch does not have here: {reasons[0]}")
    if reasons:
        line = reasons[0].raised_at if isinstance(reasons[0], SubjectRaised) else ""
        raise SubjectError(
            f"the subject cannot be called as {canonical}: {str(reasons[0]).removeprefix('raised ')}{line}; "
            f"where it is called otherwise, put a function around it (docs/adapting.md has examples), {cure}"
        )


class Patience:
    """How long calls of a subject are waited for that is not judged yet: as long as those before took together."""

    FIRST_S, LEAST_S, MOST_S, AFTER_A_HANG_S = 120.0, 5.0, 30.0, 2.0
    HANGS = 3
    """After so many a quarter of that is enough: there may be hundreds of calls."""

    def __init__(
        self, taken_s: float | None, timeout_s: float | None = None, least_s: float | None = None
    ) -> None:
        self.taken_s = taken_s
        """None where no call has come back yet: the first may compile for long."""
        self.timeout_s = timeout_s
        """What the user allows any call; None for the limits above."""
        self.least_s = least_s or self.LEAST_S
        self.hung = 0

    @property
    def limit_s(self) -> float:
        """Wall seconds for the next call: it may compile, as those before may have done."""
        if self.hung:
            limit_s = self.AFTER_A_HANG_S / (4 if self.hung > self.HANGS else 1)
            return min(limit_s, self.timeout_s or limit_s)
        if self.timeout_s or self.taken_s is None:
            return self.timeout_s or self.FIRST_S
        return max(min(max(self.taken_s, self.LEAST_S), self.MOST_S), self.least_s)

    def call(self, function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        """What the function returns. DidNotReturn: it does not come back. SubjectError: it never did."""
        began, limit_s = time.perf_counter(), self.limit_s
        try:
            with time_limit(limit_s):
                return function(*arguments, **keywords)
        except OutOfTime:
            if self.taken_s is None:
                raise NeverReturned(never_returned(limit_s)) from None
            self.hung += 1
            raise DidNotReturn(f"did not return within {limit_s:g} s") from None
        finally:
            self.taken_s = (self.taken_s or 0.0) + time.perf_counter() - began


def never_returned(limit_s: float) -> str:
    """What is said of a subject that hangs from the start."""
    said = f"the subject did not return from its first and plainest call in {limit_s:g} s"
    return f"{said}; where it needs longer, allow it more by --timeout (timeout= in Python)"


@contextmanager
def impatient(
    taken_s: float | None = None, timeout_s: float | None = None, least_s: float | None = None
) -> Iterator[None]:
    """No call of a subject is waited for in vain, though nothing is judged yet.

    taken_s: how long its calls have taken so far, compiling included; None before the first. timeout_s: what the
    user allows any call; by default as around this. least_s: for each call, where any may compile.
    """
    before = Clock.patience
    around_s = before.timeout_s if before else None
    Clock.patience = Patience(taken_s, timeout_s or around_s, least_s)
    try:
        yield
    finally:
        Clock.patience = before


class DeviceLost(BaseException):
    """A call has left the device unusable for this process, as an access beyond memory does: whatever is asked next would
    be answered with the same error, and blamed for it.
    """


def require_the_device(problem: BaseException, device: str) -> None:
    """DeviceLost: the device cannot be used any more, for what was raised."""
    if isinstance(problem, RuntimeError) and device.startswith("cuda"):
        try:
            torch.cuda.synchronize(device)
        except RuntimeError:
            raise DeviceLost(first_line_of(problem)) from problem


class Clock:
    """Wall time spent inside a subject."""

    patience: ClassVar[Patience | None] = None
    on_return: ClassVar[Callable[[], object]] = staticmethod(lambda: None)
    """Told of each call that came back, in every clock of the process."""

    def __init__(self, device: str = "cpu") -> None:
        self.device = device
        self.seconds = 0.0

    def call(self, function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        """What the function returns. SubjectRaised: it threw something."""
        if heard.is_listening():
            heard.note(_by_name(function, arguments, keywords))
        began, came_back = time.perf_counter(), False
        try:
            call = function if Clock.patience is None else partial(Clock.patience.call, function)
            returned = call(*arguments, **keywords)
            if self.device.startswith("cuda"):
                # What goes wrong there is told at a later call: it is waited for, on the stream that a caller would use.
                torch.cuda.current_stream(self.device).synchronize()
            came_back = True
            return returned
        except (NoAnswer, SubjectError, DeviceLost):
            raise
        except (Exception, SystemExit) as problem:
            require_the_device(problem, self.device)
            came_back = True
            if IN_TRAINING_ONLY in str(problem):
                raise NotApplicable(
                    f"gives no gradients in evaluation: {SubjectRaised(problem)}"
                ) from problem
            raise SubjectRaised(problem) from problem
        except KeyboardInterrupt as problem:
            if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
                raise  # The user's own: where the signal is ignored, only the subject can have raised it.
            raise SubjectRaised(problem) from problem
        finally:
            self.seconds += time.perf_counter() - began
            if came_back:
                Clock.on_return()


def _by_name(
    function: Callable[..., Any], arguments: Sequence[Any], keywords: Mapping[str, Any]
) -> dict[str, Any]:
    """What a call is given, by name or by place; of a gradient, what it begins with."""
    if function is torch.autograd.grad:
        return {heard.COTANGENT: arguments[2]} if len(arguments) > 2 else {}
    names = list(parameters_of(function) or ())
    by_place = {
        names[n] if n < len(names) else f"argument {n + 1}": value for n, value in enumerate(arguments)
    }
    return by_place | dict(keywords)


def kind_of(value: object) -> str:
    """What was returned, in words."""
    if isinstance(value, Tensor):
        return f"a {type(value).__name__}, a subclass that can postpone the work"
    if value is None:
        return "None (is a return missing?)"
    name = type(value).__name__
    return f"a {name} (torch.from_numpy makes a tensor of it)" if name == "ndarray" else f"a {name}"


PLAIN: tuple[type, ...] = (Tensor, torch.nn.Parameter)
"""What may be returned: subclasses may compute when they are looked at."""


def plain_tensor(returned: Any, shape: tuple[int, ...], dtype: torch.dtype, device: str) -> Tensor:
    """The returned tensor. LawBroken: it is none, or of another shape, dtype or device."""
    if type(returned) not in PLAIN:
        kind = LawBroken if isinstance(returned, Tensor) else NoAnswer
        raise kind(f"returned {kind_of(returned)}, expected a torch.Tensor")
    if tuple(returned.shape) != shape:
        raise LawBroken(f"output has shape {tuple(returned.shape)}, expected {shape}")
    if returned.dtype != dtype:
        raise OtherDtype(f"output has dtype {returned.dtype}, expected {dtype}")
    if returned.device.type != torch.device(device).type:
        raise LawBroken(f"output is on {returned.device}, expected {device}")
    tensor: Tensor = returned
    return tensor
