"""What autograd recorded of a call, as far as it tells how gradients are added up."""

from collections import Counter, deque
from typing import Any

from torch import Tensor


def parts_in_sixteen_bits(output: Tensor) -> int:
    """The most gradients that autograd itself adds up, in 16 bits, into that of one tensor of a call's graph.

    A tensor that is used, or cut, several times gets a gradient from each use. A function with a backward
    of its own is a single node: how it adds up is its own matter.
    """
    uses: Counter[tuple[Any, int]] = Counter()
    waiting, seen = deque([output.grad_fn]), set()
    while waiting:
        node = waiting.popleft()
        if node is None or node in seen:
            continue
        seen.add(node)
        for next_node, number in node.next_functions:
            uses[next_node, number] += 1
            waiting.append(next_node)
    return max((count for (node, number), count in uses.items() if _is_narrow(node, number)), default=1)


def _is_narrow(node: Any, number: int) -> bool:
    """Whether the gradient that a node is handed has 16 bits."""
    if node is None:
        return False
    given = node.variable if hasattr(node, "variable") else node._input_metadata[number]  # noqa: SLF001  # told nowhere else
    size: int = given.dtype.itemsize
    return size == 2
