"""KernelBench's rule: five random trials of one shape, torch.allclose with a tolerance of the precision.

src/kernelbench/eval.py of ScalingIntelligence/KernelBench, commit 423217d9, run_and_check_correctness and
get_tolerance_for_precision: atol = rtol = 1e-4 in float32, 1e-2 in 16 bits; its scripts ask for five trials.
The shapes must be equal; there are no gradients.

Its two problems with attention at their core, scaled: level 1, 97 (attention of inputs uniform in [0, 1);
batch and heads 32 and 32 to 2 and 4, length 512 to 64, head dim 1024 to 128) and level 3, 43 (causal attention
between two linear layers, which stay torch's; batch 128 to 2, length 512 to 64, width 768 with 8 heads).
"""

import math
from functools import cache, partial

import torch
from torch import Tensor
from torch.nn.functional import linear, scaled_dot_product_attention

from benchmarks.peers.rules import Peer, Trial
from benchmarks.peers.subjects import Subject, Triple, three

TRIALS = 5
SEED = 42
WIDTH, HEADS = 768, 8


def tolerance(dtype: torch.dtype) -> float:
    return 1e-2 if dtype.itemsize == 2 else 1e-4


@cache
def uniform_inputs(trial: int) -> Triple:
    """Query, key and value of problem 97."""
    source = torch.Generator().manual_seed(SEED + trial)
    return three(torch.rand(2, 4, 64, 128, generator=source) for _ in range(3))


@cache
def layers() -> tuple[Tensor, Tensor]:
    """The weights of problem 43 as torch.nn.Linear draws them: to query, key and value, and back."""
    source = torch.Generator().manual_seed(SEED)
    reach = 1 / math.sqrt(WIDTH)
    wide, back = (torch.rand(rows, WIDTH, generator=source) * 2 - 1 for rows in (3 * WIDTH, WIDTH))
    return wide * reach, back * reach


@cache
def projected_inputs(trial: int) -> Triple:
    """Query, key and value of problem 43."""
    source = torch.Generator().manual_seed(SEED + trial)
    x = torch.rand(2, 64, WIDTH, generator=source)
    parts = linear(x, layers()[0]).chunk(3, dim=-1)
    return three(each.view(2, 64, HEADS, -1).transpose(1, 2) for each in parts)


def matches(subject: Subject, trial: int) -> None:
    """Problem 97."""
    tensors = converted(subject, uniform_inputs(trial))
    with torch.no_grad():
        close(subject(*copies(tensors)), scaled_dot_product_attention(*tensors))


def matches_in_a_block(subject: Subject, trial: int) -> None:
    """Problem 43: the outputs of the block are compared."""
    tensors = converted(subject, projected_inputs(trial))
    with torch.no_grad():
        output = subject(*copies(tensors), is_causal=True)
        close(mixed(output), mixed(scaled_dot_product_attention(*tensors, is_causal=True)))


def mixed(output: Tensor) -> Tensor:
    """Heads joined and mixed by the last layer."""
    return linear(output.transpose(1, 2).flatten(2), layers()[1].to(output.dtype))


def converted(subject: Subject, tensors: Triple) -> Triple:
    return three(each.to(subject.dtype(torch.float32)) for each in tensors)


def copies(tensors: Triple) -> Triple:
    return three(each.clone() for each in tensors)


def close(output: Tensor, expected: Tensor) -> None:
    allowed = tolerance(expected.dtype)
    assert output.shape == expected.shape, f"the shape is {tuple(output.shape)}"
    same = torch.allclose(expected, output, atol=allowed, rtol=allowed)
    assert same, f"off by {(output - expected).abs().max().item():.3g}"


def trials() -> list[Trial]:
    return [partial(each, trial=trial) for each in (matches, matches_in_a_block) for trial in range(TRIALS)]


PEER = Peer(
    name="kernelbench",
    title="KernelBench's rule",
    rule=(
        "Five trials of one shape with uniform inputs, `torch.allclose` with atol = rtol = 1e-4 in float32 (1e-2 in "
        "16 bits): its problems of plain attention and of causal attention in a block. No gradients."
    ),
    source="https://github.com/ScalingIntelligence/KernelBench/blob/423217d9fda91e0c2d67e4a43bf62f96f6d104f1/src/kernelbench/eval.py",
    trials=trials,
)
