"""Document 000, lines 935 to 967: causal masks."""

import sympy
import torch
from torch import nn

from headcheck.golden.derived import Derived, holds
from headcheck.golden.ledger import Run, Section
from headcheck.golden.pieces import random_weights
from headcheck.golden.stated import HOLDS, exactly
from headcheck.reference import attention, masks

CAUSAL = Section("000", "causal-mask")

BLOCKED = "0 1 1 1 1; 0 0 1 1 1; 0 0 0 1 1; 0 0 0 0 1; 0 0 0 0 0"


def _added(length: int) -> bool:
    """-inf added to the scores against a boolean mask: the same weights to the last bit."""
    generator = torch.Generator().manual_seed(0)
    query, key, value = torch.randn(3, 1, 1, length, 2, dtype=torch.float64, generator=generator)
    kept = masks.causal(length, length)
    left = attention(query, key, value, bias=masks.additive(kept)[None, None])
    return torch.equal(left.weights, attention(query, key, value, may_attend=kept).weights)


def _torch_own(length: int) -> torch.Tensor:
    return nn.Transformer.generate_square_subsequent_mask(length)


def _from_torch(mask: torch.Tensor) -> torch.Tensor:
    """The weights of torch's own module under a mask."""
    torch.manual_seed(0)
    x = torch.randn(1, 5, 4)
    weights: torch.Tensor = nn.MultiheadAttention(4, 1, batch_first=True)(x, x, x, attn_mask=mask)[1]
    return weights[0]


def _blocked_as_bool() -> bool:
    """True in torch's mask takes the weight away; False leaves it."""
    blocked = torch.ones(5, 5).triu(1).bool()
    return torch.equal(_from_torch(blocked) == 0, blocked)


def _blocked_as_float() -> bool:
    return torch.equal(_from_torch(_torch_own(5)) == 0, torch.ones(5, 5).triu(1).bool())


def _seen_by(row: int) -> Derived:
    """The keys that a token sees under the causal mask; a number where there is one."""
    seen = [j for j in range(5) if not j > row]
    return Derived(
        exact=lambda: seen if row else seen[0],
        reference=lambda: masks.causal(5, 5)[row].nonzero().squeeze(),
    )


BLOCKED_FUTURE = Derived(
    exact=lambda: sympy.Matrix(5, 5, lambda i, j: int(int(j) > int(i))),
    again=lambda: torch.ones(5, 5, dtype=torch.int64).triu(1),
    reference=lambda: 1 - masks.causal(5, 5).int(),
    inputs={"operation": "causal mask, 1 blocks", "length": "5"},
)

# Lines 937 to 967

CAUSAL.not_checkable(
    "two-types",
    937,
    "two types of masks",
    "There are two types of masks.",
    reason="A manner of counting; windows and documents are others.",
)
CAUSAL.confirmed(
    "silently-wrong",
    937,
    "will silently produce incorrect results",
    "A boolean mask read the other way round gives finite weights, and wrong ones.",
    HOLDS,
    holds(
        lambda: all((j <= i) != (j > i) for i in range(5) for j in range(5)),
        None,
        lambda: (
            random_weights((~masks.causal(5, 5)).expand(3, 1, 5, 5)).isfinite().all()
            and not torch.equal(
                random_weights((~masks.causal(5, 5)).expand(3, 1, 5, 5)),
                random_weights(masks.causal(5, 5).expand(3, 1, 5, 5)),
            )
        ),
    ),
)
CAUSAL.confirmed(
    "token-5",
    941,
    "must not see tokens 6, 7, 8",
    "Row 5 of the mask blocks 6, 7 and 8.",
    exactly("1 1 1"),
    Derived(
        lambda: [int(j > 5) for j in (6, 7, 8)],
        lambda: torch.ones(9, 9, dtype=torch.int64).triu(1)[5, 6:],
        lambda: (~masks.causal(9, 9)).int()[5, 6:],
    ),
)
CAUSAL.block(
    "function",
    943,
    965,
    "The mask as a function, for 5 tokens, and torch's own.",
    alone=Run(
        prints=(
            "tensor([[0, 1, 1, 1, 1],",
            "        [0, 0, 1, 1, 1],",
            "        [0, 0, 0, 1, 1],",
            "        [0, 0, 0, 0, 1],",
            "        [0, 0, 0, 0, 0]], dtype=torch.int32)",
            "tensor([[0., -inf, -inf, -inf, -inf],",
            "        [0., 0., -inf, -inf, -inf],",
            "        [0., 0., 0., -inf, -inf],",
            "        [0., 0., 0., 0., -inf],",
            "        [0., 0., 0., 0., 0.]])",
        )
    ),
)
for row, place in enumerate(
    ("0, 1, 1, 1, 1", "0, 0, 1, 1, 1", "0, 0, 0, 1, 1", "0, 0, 0, 0, 1", "0, 0, 0, 0, 0")
):
    CAUSAL.confirmed(
        f"row-{row}",
        956 + row,
        place,
        f"Row {row} of the mask; 1 blocks.",
        exactly(BLOCKED.split("; ")[row]),
        BLOCKED_FUTURE.at(row),
        formula=r"B_{ij} = [j > i]",
    )
for row, place in enumerate(
    (
        "can see only itself",
        "can see tokens 0-1",
        "can see tokens 0-2",
        "can see tokens 0-3",
        "can see all tokens",
    )
):
    CAUSAL.confirmed(
        f"token-{row}-sees",
        956 + row,
        place,
        f"What token {row} sees.",
        exactly(" ".join(str(each) for each in range(row + 1)) if row else "0"),
        _seen_by(row),
    )
CAUSAL.erratum(
    "as-printed",
    960,
    "[0, 0, 0, 0, 0]])",
    "The printed mask ends with the brackets.",
    HOLDS,
    holds(
        lambda: str(torch.zeros(5, 5).bool().int()).endswith("]])"),
        lambda: torch.zeros(5, 5).bool().int().dtype == torch.tensor([[0]]).dtype,
    ),
    slip="print adds dtype=torch.int32, which .int() gives and which is not torch's default.",
)
CAUSAL.confirmed(
    "upper-triangular",
    948,
    "True above the diagonal",
    "The mask of 5 tokens as a matrix.",
    exactly(BLOCKED),
    BLOCKED_FUTURE,
)
for name, line, place in (
    ("torch-helper", 962, "the same thing (as float -inf)"),
    ("torch-helper-again", 967, "-inf for blocked positions and 0 for allowed"),
):
    CAUSAL.confirmed(
        name,
        line,
        place,
        "torch's helper: -inf where the mask blocks, 0 elsewhere.",
        exactly(BLOCKED.replace("1", "-inf")),
        Derived(
            exact=lambda: sympy.Matrix(5, 5, lambda i, j: -sympy.oo if j > i else 0),
            again=lambda: _torch_own(5),
            reference=lambda: masks.additive(masks.causal(5, 5)),
        ),
    )
CAUSAL.confirmed(
    "true-blocks",
    967,
    'True (or -inf) means "block this position"',
    "In torch's module True and -inf block, False and 0 allow.",
    HOLDS,
    holds(_blocked_as_bool, _blocked_as_float),
)
CAUSAL.confirmed(
    "added-to-the-scores",
    967,
    "added directly to the attention scores before softmax",
    "A score to which -inf is added has no weight, one to which 0 is added keeps its own.",
    HOLDS,
    holds(
        lambda: sympy.exp(sympy.Integer(3) - sympy.oo) == 0 and sympy.exp(3 + 0) == sympy.exp(3),
        _blocked_as_float,
        lambda: _added(5),
    ),
    formula=r"e^{s - \infty} = 0, \quad e^{s + 0} = e^s",
)
