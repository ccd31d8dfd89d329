"""Whether a call goes through torch.utils.checkpoint, which computes again from its inputs as they are by then."""

import sys
from collections.abc import Callable
from typing import Any

from torch.utils import checkpoint


def is_checkpointed(call: Callable[[], object]) -> bool:
    """Whether this call does. It is not seen where a profiler of C watches this process, which could not be put back."""
    seen: set[str] = set()
    before: Any = sys.getprofile()
    if before is not None and not callable(before):
        return False
    sys.setprofile(lambda frame, event, _: seen.add(frame.f_code.co_filename))
    try:
        call()
    finally:
        sys.setprofile(before)
    return checkpoint.__file__ in seen
