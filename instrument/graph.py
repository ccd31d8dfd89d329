"""What autograd recorded of a call, as far as it tells how gradients are added up."""

import math
from collections import Counter, deque
from typing import Any

from torch import Tensor

SCATTERING = ("Unfold", "Index", "IndexSelect", "Gather", "AsStrided", "Take")
"""Operations that hand out one number several times, and add up its gradients in their own type."""


def parts_in_sixteen_bits(output: Tensor) -> int:
    """The most gradients that autograd itself adds up, in 16 bits, into that of one tensor of a call's graph.

    A tensor that is used, or cut, several times gets a gradient from each use. One that is unfolded or
    indexed gets as many as there are copies of it, on the average. A function with a backward of its own is
    a single node: how it adds up is its own matter.
    """
    parts: Counter[tuple[Any, int]] = Counter()
    waiting, seen = deque([output.grad_fn]), set()
    while waiting:
        node = waiting.popleft()
        if node is None or node in seen:
            continue
        seen.add(node)
        scatters = node.name().removesuffix("Backward0") in SCATTERING
        for next_node, number in node.next_functions:
            parts[next_node, number] += _copies(node, next_node, number) if scatters else 1
            waiting.append(next_node)
    return max((count for (node, number), count in parts.items() if _is_narrow(node, number)), default=1)


def _copies(node: Any, next_node: Any, number: int) -> int:
    """How many copies of its input an operation hands out."""
    if next_node is None:
        return 1
    given, made = math.prod(_gradient_of(next_node, number).shape), math.prod(_gradient_of(node, 0).shape)
    copies: int = math.ceil(made / max(given, 1))
    return copies


def _is_narrow(node: Any, number: int) -> bool:
    """Whether the gradient that a node is handed has 16 bits."""
    if node is None:
        return False
    size: int = _gradient_of(node, number).dtype.itemsize
    return size == 2


def _gradient_of(node: Any, number: int) -> Any:
    """What is known of the gradient that a node is handed: its shape and dtype."""
    return node.variable if hasattr(node, "variable") else node._input_metadata[number]  # noqa: SLF001  # told nowhere else
