"""What can go wrong outside a verdict: one clear line each, naming the cure."""


class HeadcheckError(Exception):
    """A message for the user, to be printed without a traceback; the command then exits with 2."""


class SubjectError(HeadcheckError):
    """The subject cannot be found, imported, understood or called at all."""


class CaseError(HeadcheckError):
    """A case that was typed cannot be read."""


def first_line_of(problem: BaseException) -> str:
    """What an exception says first, of TorchScript last; nothing, where even that raises."""
    try:
        lines = str(problem).strip().split("\n")
        last = lines[-1].removeprefix(f"{type(problem).__name__}: ")
        return last if "TorchScript interpreter" in lines[0] else lines[0]
    except Exception:  # noqa: BLE001 - it is the subject's own.
        return ""
