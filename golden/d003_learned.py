"""Document 003, lines 508 to 557: learned positions."""

import sympy
import torch

from headcheck.golden.derived import Derived, counted, holds
from headcheck.golden.ledger import Run, Section
from headcheck.golden.stated import HOLDS, exactly, shape
from headcheck.reference import LearnedPositions, sinusoidal

LEARNED = Section("003", "learned-positions")

SETTING = """
import torch
import torch.nn as nn
class SinusoidalPositionalEncoding(nn.Identity):
    pass
"""
"""A stand-in for the class of the block before, of which these probes ask nothing."""


def _refused(length: int) -> bool:
    """Torch's table of so many rows has none of that number."""
    try:
        torch.nn.Embedding(length, 1)(torch.tensor([length]))
    except IndexError:
        return True
    return False


def _refused_by_the_reference(length: int) -> bool:
    try:
        LearnedPositions(length, 1)(torch.tensor([length]))
    except ValueError:
        return True
    return False


def _added(length: int, *axes: int) -> Derived:
    """The shape of codes of so many positions added to sequences."""
    return counted(
        lambda: tuple(max(pair) for pair in zip((1, *axes[1:]), axes, strict=True)),
        lambda: (torch.nn.Embedding(length, axes[2])(torch.arange(axes[1])) + torch.zeros(axes)).shape,
        lambda: (LearnedPositions(length, axes[2])(torch.arange(axes[1])) + torch.zeros(axes)).shape,
    )


LEARNED.not_checkable(
    "similar-performance",
    510,
    "Both approaches achieve similar performance",
    "Which models have learned positions, and how well both kinds do.",
    reason="It takes trainings to compare, and none is given.",
)
LEARNED.confirmed(
    "a-table-by-position",
    510,
    "another embedding table indexed by position",
    "The code of position 2 is row 2 of the table: the row times the matrix that picks it.",
    HOLDS,
    holds(
        lambda: sympy.Matrix([[0, 0, 1]]) * sympy.Matrix([[1, 2], [3, 4], [5, 6]]) == sympy.Matrix([[5, 6]]),
        lambda: _row_2_is_looked_up(torch.nn.Embedding(3, 2)),
        lambda: _row_2_is_looked_up(LearnedPositions(3, 2)),
    ),
)
LEARNED.confirmed(
    "no-extrapolation",
    510,
    "don't extrapolate to unseen sequence lengths",
    "A table of 512 rows has none for position 512.",
    HOLDS,
    holds(lambda: 512 not in range(512), lambda: _refused(512), lambda: _refused_by_the_reference(512)),
)
LEARNED.block(
    "module",
    512,
    557,
    "The table as a module, beside the sinusoids. Alone it fails: their class stands in the block before.",
    needs=("matplotlib",),
    alone=Run(error="NameError: name 'SinusoidalPositionalEncoding' is not defined"),
    in_order=Run(
        prints=(
            "Input shape: torch.Size([2, 20, 256])",
            "After sinusoidal PE: torch.Size([2, 20, 256])",
            "After learned PE: torch.Size([2, 20, 256])",
            "Learned PE is trainable: True",
        )
    ),
)
LEARNED.confirmed(
    "position-ids",
    533,
    "[0, 1, 2, ..., seq_len-1]",
    "The position ids of 5 tokens.",
    exactly("0 1 2 3 4"),
    Derived(lambda: list(range(5)), lambda: torch.arange(5).unsqueeze(0)[0]),
)
LEARNED.confirmed(
    "shape-position-ids",
    535,
    "(batch, seq_len)",
    "The shape of the position ids of 2 sequences of 3 tokens.",
    shape(2, 3),
    counted(lambda: (2, 3), lambda: torch.arange(3).unsqueeze(0).expand(2, -1).shape),
)
LEARNED.confirmed(
    "shape-input",
    529,
    "(batch, seq_len, d_model)",
    "The shape of 2 sequences of 3 tokens and 4 dims with their positions.",
    shape(2, 3, 4),
    _added(5, 2, 3, 4),
)
LEARNED.confirmed(
    "shape-of-the-example",
    549,
    "batch=2, seq_len=20",
    "The shape of 2 sequences of 20 tokens and 256 dims with learned positions.",
    shape(2, 20, 256),
    _added(512, 2, 20, 256),
)
LEARNED.confirmed(
    "shape-of-the-example-sinusoidal",
    549,
    "batch=2, seq_len=20",
    "The same with sinusoids.",
    shape(2, 20, 256),
    counted(
        lambda: (2, *(20, 256)),
        lambda: (torch.zeros(2, 20, 256) + torch.zeros(1, 5000, 256)[:, :20]).shape,
        lambda: (torch.zeros(2, 20, 256) + sinusoidal(20, 256)).shape,
    ),
)
LEARNED.behaviour(
    "small-random-values",
    523,
    "The table starts at a standard deviation of 0.02.",
    setting=SETTING,
    blocks=("module",),
    probe="print(round(LearnedPositionalEmbedding(256).position_embeddings.weight.std().item(), 3))",
    prints="0.02",
)
LEARNED.behaviour(
    "trainable",
    557,
    "Learned positions get a gradient.",
    setting=SETTING,
    blocks=("module",),
    probe="learned_pe(x).sum().backward()\n"
    "print(bool(learned_pe.position_embeddings.weight.grad[:20].any()),\n"
    "      bool(learned_pe.position_embeddings.weight.grad[20:].any()))",
    prints="True False",
)
LEARNED.latent_fault(
    "table-ends",
    538,
    "A sequence longer than max_seq_len, 512 unless said otherwise, is refused by an error about an index.",
    setting=SETTING,
    blocks=("module",),
    probe="try:\n    LearnedPositionalEmbedding(1, 1)(torch.zeros(1, 2, 1))\nexcept IndexError as problem:\n"
    "    print(problem)",
    prints="index out of range in self",
    fault="encoder/table-ends",
)


def _row_2_is_looked_up(table: torch.nn.Embedding | LearnedPositions) -> bool:
    return torch.equal(table(torch.tensor([2]))[0], table.weight[2])
