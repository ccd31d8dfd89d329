"""What can go wrong outside a verdict: one clear line each, naming the cure."""


class HeadcheckError(Exception):
    """A message for the user, to be printed without a traceback; the command then exits with 2."""


class SubjectError(HeadcheckError):
    """The subject cannot be found, imported, understood or called at all."""


class CaseError(HeadcheckError):
    """A case that was typed cannot be read."""


def first_line_of(problem: BaseException) -> str:
    """What an exception says first; nothing, where even that raises."""
    try:
        return str(problem).strip().split("\n", 1)[0]
    except Exception:  # noqa: BLE001 - it is the subject's own.
        return ""
