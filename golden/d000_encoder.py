"""Document 000, lines 592 to 696: the encoder block, residual connections, and the order of the norms."""

from typing import Literal

import sympy
import torch
from torch import nn

from headcheck.golden.derived import Derived, counted, holds
from headcheck.golden.exact import contracted
from headcheck.golden.ledger import Run, Section
from headcheck.golden.pieces import attention_parameters, feed_forward_parameters, parameters, random_tensor
from headcheck.golden.stated import HOLDS, count, exactly, shape
from headcheck.reference import EncoderLayer, FeedForward, LayerConfig, Residual, layer_norm

ENCODER = Section("000", "encoder-block")

X = sympy.Symbol("x", real=True)


def _config(norm_order: Literal["pre", "post"] = "pre") -> LayerConfig:
    return LayerConfig(d_model=64, num_heads=8, d_ff=256, norm_order=norm_order, activation="relu")


def _around(norm_order: Literal["pre", "post"]) -> torch.Tensor:
    """The reference's residual connection around doubling."""
    doubled: torch.Tensor = Residual(_config(norm_order)).double()(random_tensor(2, 3, 64), lambda x: 2 * x)
    return doubled


def _near(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Within 64 roundings of numbers up to ten."""
    return bool((left - right).abs().max() <= 64 * 10 * 2**-53)


def _norm_of(*row: int) -> list[sympy.Expr]:
    """The layer norm of a row, without the small number under the root."""
    mean = sympy.Rational(sum(row), len(row))
    deviation = sympy.sqrt(sum((each - mean) ** 2 for each in row) / len(row))
    return [(each - mean) / deviation for each in row]


def _tokens_apart() -> bool:
    """The feed-forward of a sequence is that of its tokens one by one."""
    feed_forward, x = FeedForward(64, 256, "relu").double(), random_tensor(1, 5, 64)
    one_by_one = torch.cat([feed_forward(x[:, i : i + 1]) for i in range(5)], dim=1)
    return _near(feed_forward(x), one_by_one)


def _hears(layer: EncoderLayer, changed: int) -> list[bool]:
    """Which tokens' outputs change with one token."""
    x = random_tensor(1, 4, 64)
    other = x.clone()
    other[0, changed] += 1
    return [bool(each) for each in (layer(x) != layer(other)).any(dim=-1)[0]]


def _gradient_through(layers: int, *, residual: bool) -> float:
    """The length of the gradient of the sum of 16 dims through so many feed-forward networks of the reference."""
    x = torch.linspace(-1, 1, 16, dtype=torch.float64, requires_grad=True)
    y: torch.Tensor = x
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for _ in range(layers):
            added = FeedForward(16, 64, "relu").double()(y)
            y = y + added if residual else added
    return float(torch.autograd.grad(y.sum(), x)[0].norm())


def _gradient_past_the_sublayer() -> bool:
    """With a sub-layer whose gradient is zero, the gradient through the residual connection is one."""
    x = random_tensor(1, 2, 64).requires_grad_()
    residual = Residual(_config()).double()
    return torch.equal(torch.autograd.grad(residual(x, torch.zeros_like).sum(), x)[0], torch.ones(1, 2, 64))


# Lines 596 to 615

for name, line, place in (
    ("every-token-talks", 596, "every token talks to every other token"),
    ("consults-all", 602, "every token consults all other tokens"),
    ("attends-to-each-other", 615, "tokens attend to each other"),
):
    ENCODER.confirmed(
        name,
        line,
        place,
        "A change of one token changes the outputs of all.",
        HOLDS,
        holds(
            lambda: sympy.exp(X).is_positive,
            None,
            lambda: all(all(_hears(EncoderLayer(_config()).double(), each)) for each in range(4)),
        ),
    )
for name, line, place in (
    ("independently", 596, "every token processes its own information independently"),
    ("refines-its-own", 603, "each token independently refines"),
    ("position-wise", 615, "each token is independently transformed"),
    ("no-exchange", 696, "no information exchange between tokens"),
):
    ENCODER.confirmed(
        name,
        line,
        place,
        "The feed-forward of a sequence is that of its tokens, each by itself.",
        HOLDS,
        holds(
            lambda: sympy.diff(sympy.Max(0, sympy.Symbol("other")), X) == 0,
            None,
            _tokens_apart,
        ),
    )
for name, line, place in (
    ("keeps-the-notes", 604, "adds new info rather than replacing old info"),
    ("gradients-flow-directly", 615, "gradients can flow directly"),
    ("gradient-of-the-addition", 634, "(gradient = 1)"),
):
    ENCODER.confirmed(
        name,
        line,
        place,
        "The derivative of x + f(x) is 1 + f'(x).",
        HOLDS,
        holds(
            lambda: sympy.diff(X + sympy.Function("f")(X), X) == 1 + sympy.diff(sympy.Function("f")(X), X),
            None,
            _gradient_past_the_sublayer,
        ),
        formula=r"\frac{d}{dx} (x + f(x)) = 1 + f'(x)",
    )
ENCODER.not_checkable(
    "six-to-twelve",
    606,
    "Stack 6–12 of these blocks",
    "Six to twelve blocks give richer representations.",
    reason="What is learnt depends on a training that is not given.",
)
ENCODER.block(
    "compressed",
    610,
    613,
    "An encoder block in two lines of pseudo-code, without norms.",
    alone=Run(error="NameError: name 'x' is not defined"),
    in_order=Run(error="NameError: name 'attention' is not defined"),
)
ENCODER.confirmed(
    "two-sublayers",
    615,
    "two sub-layers",
    "Sub-layers of an encoder block.",
    count(2),
    counted(lambda: len(("attention", "feed-forward")), None, lambda: len(EncoderLayer(_config()).residuals)),
)
ENCODER.confirmed(
    "diagram-is-post-norm",
    620,
    "Add & Norm",
    "The diagram's order, norm after the addition, is the paper's and not that of the block below it: around doubling, "
    "the row 1, 3 becomes -1, 1 in the one and -1, 5 in the other.",
    HOLDS,
    holds(
        lambda: (
            _norm_of(3, 9) == [-1, 1]
            and [a + 2 * b for a, b in zip((1, 3), _norm_of(1, 3), strict=True)] == [-1, 5]
        ),
        None,
        lambda: not _near(_around("pre"), _around("post")),
    ),
    formula=r"x + f(\text{norm}(x)) \ne \text{norm}(x + f(x))",
)

# Lines 628 to 640

ENCODER.confirmed(
    "residual",
    630,
    "F(x) = H(x) - x",
    "x + F(x) is H(x).",
    HOLDS,
    holds(
        lambda: X + (sympy.Function("H")(X) - X) == sympy.Function("H")(X),
        None,
        lambda: _near(_around("pre"), random_tensor(2, 3, 64) + (_around("pre") - random_tensor(2, 3, 64))),
    ),
    formula=r"x + F(x) = H(x)",
)
ENCODER.confirmed(
    "every-sublayer",
    630,
    "the output is x + SubLayer(x)",
    "The output is x and what the sub-layer gives, which with its norm (line 632) is here twice -1, 1.",
    HOLDS,
    holds(
        lambda: [a + 2 * b for a, b in zip((1, 3), _norm_of(1, 3), strict=True)] == [1 - 2, 3 + 2],
        None,
        lambda: _near(_around("pre") - random_tensor(2, 3, 64), 2 * layer_norm(random_tensor(2, 3, 64))),
    ),
)
for name, line, place in (
    ("pre-norm-equation", 632, r"\text{SubLayer}(\text{LayerNorm}(x))"),
    ("pre-norm", 636, "x + SubLayer(LayerNorm(x))"),
    ("pre-norm-in-words", 640, "applying LayerNorm before each sub-layer"),
):
    ENCODER.confirmed(
        name,
        line,
        place,
        "Pre-norm is x + f(norm(x)): of the row 1, 3 and doubling, -1, 5.",
        HOLDS,
        holds(
            lambda: [a + 2 * b for a, b in zip((1, 3), _norm_of(1, 3), strict=True)] == [-1, 5],
            lambda: [1 + 2 * -1, 3 + 2 * 1] == [-1, 5],
            lambda: _near(_around("pre"), random_tensor(2, 3, 64) + 2 * layer_norm(random_tensor(2, 3, 64))),
        ),
        formula=r"x + f(\text{norm}(x))",
    )
ENCODER.confirmed(
    "post-norm",
    636,
    "LayerNorm(x + SubLayer(x))",
    "Post-norm is norm(x + f(x)): of the row 1, 3 and doubling, -1, 1.",
    HOLDS,
    holds(
        lambda: _norm_of(3, 9) == [-1, 1],
        lambda: [(each - 6) / sympy.Integer(3) for each in (3, 9)] == [-1, 1],
        lambda: _near(_around("post"), layer_norm(3 * random_tensor(2, 3, 64))),
    ),
    formula=r"\text{norm}(x + f(x))",
)
ENCODER.confirmed(
    "gradient-highway",
    634,
    "prevents vanishing gradients even in 100+ layer models",
    "Through 100 sub-layers of slope one half the gradient grows with residual connections, and is below 10^-30 "
    "without; so through 100 feed-forward networks as they are initialised.",
    HOLDS,
    holds(
        lambda: sympy.Rational(3, 2) ** 100 > 1 and sympy.Rational(1, 2) ** 100 < sympy.Rational(1, 10**30),
        None,
        lambda: _gradient_through(100, residual=True) > 1 and _gradient_through(100, residual=False) < 1e-30,
    ),
    formula=r"(1 + a)^n > 1 > a^n, \quad 0 < a < 1",
)
for name, line, place, what, reason in (
    (
        "96-layers",
        630,
        "Transformers can be 96+ layers",
        "There are transformers of 96 layers and more.",
        "A fact about published models.",
    ),
    (
        "easier-to-learn",
        630,
        "much easier than learning a full identity mapping",
        "A residual near zero is easier to learn than the identity.",
        "What is easy to learn depends on a training that is not given.",
    ),
    (
        "untrainable",
        634,
        "deeper than 6 layers become essentially untrainable",
        "Without residual connections more than 6 layers cannot be trained.",
        "It depends on a training that is not given; with other initial weights deeper ones have been trained.",
    ),
    (
        "who-uses-pre-norm",
        636,
        "GPT-2, LLaMA",
        "GPT-2 and LLaMA are pre-norm.",
        "A fact about published models; LLaMA's norm is RMSNorm, not LayerNorm.",
    ),
    (
        "more-stable",
        636,
        "avoids the need for careful learning rate warmup",
        "Pre-norm trains more stably, without warm-up.",
        "It depends on a training that is not given.",
    ),
    (
        "more-reliable",
        640,
        "train more reliably",
        "Pre-norm trains more reliably.",
        "It depends on a training that is not given.",
    ),
):
    ENCODER.not_checkable(name, line, place, what, reason=reason)

# Lines 642 to 696

ENCODER.block(
    "module",
    642,
    694,
    "The encoder block, and a demonstration of 2 sequences of 10 tokens.",
    alone=Run(
        prints=(
            "Input shape:  torch.Size([2, 10, 64])",
            "Output shape: torch.Size([2, 10, 64])",
            "Parameters:   49984",
        )
    ),
)
ENCODER.confirmed(
    "parameters",
    694,
    "sum(p.numel()",
    "The parameters, which the block prints and the text does not.",
    count(49_984),
    counted(
        lambda: attention_parameters(64) + feed_forward_parameters(64, 256) + 2 * 2 * 64,
        lambda: parameters(nn.TransformerEncoderLayer(64, 8, 256, device="meta")),
        lambda: parameters(EncoderLayer(_config())),
    ),
    formula=r"16640 + 33088 + 2 \cdot 128",
)
for name, line in (("input", 692), ("output", 693)):
    ENCODER.confirmed(
        f"shape-{name}",
        line,
        "[2, 10, 64]",
        f"The shape of the {name}.",
        shape(2, 10, 64),
        counted(
            lambda: contracted("bnf,fd->bnd", (2, 10, 256), (256, 64)),
            lambda: nn.TransformerEncoderLayer(64, 8, 256, batch_first=True)(torch.zeros(2, 10, 64)).shape,
            lambda: EncoderLayer(_config()).double()(random_tensor(2, 10, 64)).shape,
        ),
    )
ENCODER.confirmed(
    "four-times",
    696,
    "typically 4× larger",
    "The demonstration's d_ff of 256 is so many times its d_model of 64.",
    exactly("4"),
    Derived(
        lambda: sympy.Rational(256, 64),
        None,
        lambda: EncoderLayer(_config()).feed_forward.w_1.out_features / 64,
    ),
)
ENCODER.confirmed(
    "four-times-in-bert",
    696,
    "d_model=768 and d_ff=3072",
    "BERT-base: 3072 is so many times 768.",
    exactly("4"),
    Derived(lambda: sympy.Rational(3072, 768), lambda: torch.zeros(3072).view(-1, 768).shape[0]),
)
ENCODER.latent_fault(
    "only-padding",
    677,
    "A sequence that is all padding gives NaN.",
    blocks=("module",),
    probe="block = TransformerEncoderBlock(2, 1, 2)\n"
    "print(block(torch.ones(1, 1, 2), src_key_padding_mask=torch.tensor([[True]])).isnan().all().item())",
    prints="True",
    fault="dead_rows/plain",
)
ENCODER.latent_fault(
    "weights-for-nothing",
    674,
    "The weights are computed and thrown away: need_weights is left True, which keeps torch from its fused attention.",
    blocks=("module",),
    probe="""
calls, fused = [], F.scaled_dot_product_attention
F.scaled_dot_product_attention = lambda *args, **options: (calls.append(1), fused(*args, **options))[1]
encoder_block(torch.ones(1, 1, 64))
print(len(calls))
encoder_block.self_attn(*[torch.ones(1, 1, 64)] * 3, need_weights=False)
print(len(calls))
F.scaled_dot_product_attention = fused
""",
    setting="import torch.nn.functional as F",
    prints="0\n1",
    why_no_fault="The output is right; no law asks which kernel ran.",
)
