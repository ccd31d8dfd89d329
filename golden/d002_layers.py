"""Document 002, lines 158 to 185: the residual stream, and layer normalization."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import mpmath
import sympy
import torch
from torch import Tensor, nn

from headcheck.golden.derived import Derived, holds
from headcheck.golden.exact import matrix, normalised, widely
from headcheck.golden.ledger import Run, Section
from headcheck.golden.stated import EPSILON, HOLDS, all_near, exactly
from headcheck.reference import Encoder, LayerConfig, Residual, layer_norm

STREAM = Section("002", "residual-stream")
NORM = Section("002", "layer-norm")

PRE = LayerConfig(d_model=4, num_heads=2, d_ff=8, norm_order="pre", activation="gelu")
POST = LayerConfig(d_model=4, num_heads=2, d_ff=8, norm_order="post", activation="gelu")
AnyModule = TypeVar("AnyModule", bound=nn.Module)
F = sympy.Function("f")
THREE = torch.tensor([1.0, 2.0, 6.0], dtype=torch.float64)
X = torch.tensor([[[1.0, 2.0, 6.0, -3.0], [0.5, -1.0, 2.0, 4.0]]], dtype=torch.float64)


def seeded(build: Callable[[], AnyModule]) -> AnyModule:
    """A module in float64 with the parameters of seed 0; the global generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return build().double()


def _stream(updates: int) -> sympy.Expr:
    """x, updated so many times."""
    stream = sympy.Symbol("x")
    for update in sympy.symbols(f"f:{updates}"):
        stream = stream + update
    return stream


def _residual_is(config: LayerConfig) -> Derived:
    """The row 1, 2, 6, -3 through a residual connection around f(x) = 2x, by algebra and by the reference."""
    row = sympy.Matrix([[1, 2, 6, -3]])
    want = row + 2 * normalised(row) if config is PRE else normalised(3 * row)
    eps_free = replace(config, norm_eps=0.0)
    return holds(
        lambda: sympy.simplify(sum(want) - (sum(row) if config is PRE else 0)) == 0,
        None,
        lambda: all_near(list(want), Residual(eps_free).double()(X[0, :1], lambda x: 2 * x)[0], 64 * EPSILON),
    )


def _skip(config: LayerConfig) -> Tensor:
    """The Jacobian of a residual connection whose sub-layer adds nothing."""
    residual = seeded(lambda: Residual(config))
    found: Tensor = torch.func.jacrev(lambda x: residual(x, torch.zeros_like))(X[:, :1])
    return found.reshape(4, 4)


def _contributions() -> tuple[Tensor, Tensor]:
    """Of a pre-norm stack of two layers without a final norm: what it returns, and x + all that was added to it."""
    stack = seeded(lambda: Encoder(PRE, 2, final_norm=False))
    added: list[Tensor] = []
    for module in stack.modules():
        if isinstance(module, Residual):
            module.dropout.register_forward_hook(lambda _module, _given, out: added.append(out))
    output = stack(X)
    return output, X + sum(added)


def _normalised_again(row: list[int]) -> list[mpmath.mpf]:
    """By the sum and the sum of squares."""
    total, squares, size = sum(row), sum(each**2 for each in row), len(row)
    return [(size * each - total) / mpmath.sqrt(size * squares - total**2) for each in row]


def _mean_and_variance() -> Derived:
    """Of the row 1, 2, 6, -3, normalised with eps = 0."""
    row = [1, 2, 6, -3]
    return Derived(
        lambda: _moments(list(normalised(sympy.Matrix([row])))),
        widely(lambda: _moments(_normalised_again(row))),
        lambda: _moments(layer_norm(X[0, 0], eps=0.0).tolist()),
    )


def _moments(row: list) -> list:  # type: ignore[type-arg]  # of any numbers
    mean = sum(row) / len(row)
    return [mean, sum((each - mean) ** 2 for each in row) / len(row)]


def _changes_with_the_batch(norm: nn.Module) -> bool:
    """Whether a token is normalised differently when other tokens stand in the same batch."""
    return not torch.equal(norm(X[0])[0], norm(torch.cat((X[0], 3 * X[0])))[0])


def _own_stack() -> nn.Module:
    """Six layers of the reference, post-norm."""
    config = LayerConfig(d_model=16, num_heads=2, d_ff=64, norm_order="post", activation="relu")
    return seeded(lambda: Encoder(config, 6, final_norm=False))


def _torch_stack() -> nn.Module:
    """The same of torch."""
    return seeded(
        lambda: nn.TransformerEncoder(
            nn.TransformerEncoderLayer(16, 2, 64, dropout=0.0, batch_first=True),
            6,
            enable_nested_tensor=False,
        )
    )


def _first_losses(stack: nn.Module) -> list[float]:
    """Of a stack trained with Adam at 1e-3 from the first step, without warm-up."""
    target = torch.linspace(-1, 1, 160, dtype=torch.float64).view(1, 10, 16)
    optimizer = torch.optim.Adam(stack.parameters(), lr=1e-3)
    losses = []
    for _ in range(10):
        optimizer.zero_grad()
        loss = (stack(target.flip(1)) - target).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


# Lines 161 to 164

STREAM.confirmed(
    "adds-a-correction",
    161,
    "it adds a correction, a delta",
    "A sub-layer that adds nothing leaves its input as it is: the output is x + f(x).",
    HOLDS,
    holds(
        lambda: matrix("1 2 6 -3") + sympy.zeros(1, 4) == matrix("1 2 6 -3"),
        None,
        lambda: torch.equal(seeded(lambda: Residual(PRE))(X, torch.zeros_like), X),
    ),
    formula=r"x + f(x)",
)
STREAM.confirmed(
    "original-travels-on",
    161,
    "essentially untouched",
    "After any number of layers the embedding itself is one of the summands of the stream.",
    HOLDS,
    holds(
        lambda: _stream(3).coeff(sympy.Symbol("x")) == 1,
        None,
        lambda: all_near(*_contributions(), 64 * EPSILON),
    ),
    formula=r"x_n = x_0 + \sum_i f_i",
)
STREAM.confirmed(
    "two-paths",
    163,
    "the gradient flows through two paths",
    "The derivative of x + f(x) is 1 + f'(x): one through the skip, one through the sub-layer.",
    HOLDS,
    holds(
        lambda: (
            sympy.diff(sympy.Symbol("x") + F(sympy.Symbol("x")), "x")
            == 1 + sympy.diff(F(sympy.Symbol("x")), "x")
        ),
        lambda: abs(mpmath.diff(lambda x: x + mpmath.sin(x), 1) - 1 - mpmath.cos(1)) < mpmath.mpf(10) ** -20,
    ),
    formula=r"\frac{d}{dx} (x + f(x)) = 1 + f'(x)",
)
STREAM.confirmed(
    "skip-preserves-the-gradient",
    163,
    "which preserves it perfectly",
    "With a sub-layer that adds nothing, the Jacobian of a pre-norm residual connection is the identity.",
    exactly("1 0 0 0; 0 1 0 0; 0 0 1 0; 0 0 0 1"),
    Derived(
        lambda: sympy.Matrix(sympy.symbols("x:4")).jacobian(sympy.symbols("x:4")), None, lambda: _skip(PRE)
    ),
)
STREAM.not_checkable(
    "layers-of-gpt-3",
    163,
    "96 Transformer layers (like GPT-3)",
    "GPT-3 has 96 layers, and was trained successfully.",
    reason="A fact about a model that is not given.",
)
STREAM.confirmed(
    "gradients-vanish-without",
    163,
    "Without residual connections, gradients vanish",
    "Through 96 sub-layers of slope 1/2 the gradient is below 1e-28, and with residual connections above 1.",
    HOLDS,
    holds(
        lambda: sympy.Rational(1, 2) ** 96 < sympy.Rational(1, 10**28) and sympy.Rational(3, 2) ** 96 > 1,
        lambda: mpmath.exp(-96 * mpmath.log(2)) < mpmath.mpf("1e-28"),
    ),
    formula=r"(1/2)^{96} < 10^{-28}, \quad (1 + 1/2)^{96} > 1",
)
STREAM.not_checkable(
    "deep-networks-collapse",
    163,
    "deep networks collapse",
    "Without residual connections deep networks cannot be trained.",
    reason="It depends on a training and an initialisation that are not given.",
)
STREAM.confirmed(
    "sum-of-contributions",
    164,
    "the sum of all contributions plus the original input",
    "The output of a pre-norm stack is its input and all that was added to it; before a final norm.",
    HOLDS,
    holds(
        lambda: _stream(3) == sympy.Symbol("x") + sum(sympy.symbols("f:3")),
        None,
        lambda: all_near(*_contributions(), 64 * EPSILON),
    ),
    formula=r"x_n = x_0 + \sum_i f_i(x_{i-1})",
)

# Lines 167 to 169

NORM.confirmed(
    "magnitudes-drift",
    167,
    "growing larger and larger",
    "Twelve independent updates of variance 1 (two in each of six layers) bring a stream of variance 1 to 13.",
    exactly("13"),
    Derived(lambda: sympy.Integer(1) + sum([sympy.Integer(1)] * 12), lambda: len(range(13))),
    formula=r"\text{Var}(x + f_1 + \dots + f_n) = 1 + n",
)
NORM.confirmed(
    "zero-mean-and-unit-variance",
    168,
    "normalizes to zero mean and unit variance",
    "Mean and variance of the row 1, 2, 6, -3, normalised (without the eps of the code, which makes it v / (v + eps)).",
    exactly("0 1"),
    _mean_and_variance(),
    formula=r"\frac{x - \mu}{\sigma}",
)
NORM.confirmed(
    "each-token-independently",
    168,
    "on each token independently",
    "A token is normalised as it is alone.",
    HOLDS,
    holds(
        lambda: torch.equal(nn.LayerNorm(4).double()(X)[0, 1], nn.LayerNorm(4).double()(X[0, 1])),
        None,
        lambda: torch.equal(layer_norm(X)[0, 1], layer_norm(X[0, 1])),
    ),
)
NORM.confirmed(
    "scale-and-shift-restore",
    168,
    "restore any useful scaling",
    "Scaled by its deviation and shifted by its mean, a normalised row is what it was.",
    exactly("1 2 6"),
    Derived(
        lambda: list(
            (normalised(sympy.Matrix([[1, 2, 6]])) * sympy.sqrt(sympy.Rational(14, 3))).applyfunc(
                lambda each: sympy.simplify(each) + 3
            )
        ),
        widely(lambda: [each * mpmath.sqrt(mpmath.mpf(14) / 3) + 3 for each in _normalised_again([1, 2, 6])]),
        lambda: layer_norm(THREE, THREE.new_full((3,), (14 / 3) ** 0.5), THREE.new_full((3,), 3.0), eps=0.0),
    ),
    formula=r"\gamma \frac{x - \mu}{\sigma} + \beta, \quad \gamma = \sigma, \beta = \mu",
)
NORM.confirmed(
    "not-of-the-batch",
    169,
    "doesn't depend on what other sentences",
    "Other tokens in the batch change nothing for layer norm, and do for batch norm.",
    HOLDS,
    holds(
        lambda: (
            _changes_with_the_batch(nn.BatchNorm1d(4).double())
            and not _changes_with_the_batch(nn.LayerNorm(4).double())
        ),
        None,
        lambda: torch.equal(layer_norm(X[0])[0], layer_norm(torch.cat((X[0], 3 * X[0])))[0]),
    ),
)

# Lines 171 to 176

for name, line, place, config, formula in (
    ("post-norm", 172, "output = LayerNorm(x + SubLayer(x))", POST, r"\text{norm}(x + f(x))"),
    ("pre-norm", 174, "output = x + SubLayer(LayerNorm(x))", PRE, r"x + f(\text{norm}(x))"),
):
    NORM.confirmed(
        name,
        line,
        place,
        "The reference's residual connection of that norm order is the formula, with f(x) = 2x.",
        HOLDS,
        _residual_is(config),
        formula=formula,
    )
NORM.not_checkable(
    "who-norms-where",
    171,
    "original 2017 paper places the normalization after",
    "The paper norms after the addition; most modern models, GPT-2, GPT-3 and LLaMA among them, before it.",
    reason="A fact about models that are not given.",
)
NORM.confirmed(
    "clean-shortcut",
    175,
    "clean identity shortcut",
    "With a sub-layer that adds nothing, the Jacobian is the identity in pre-norm order, and is not in post-norm.",
    HOLDS,
    holds(
        lambda: normalised(sympy.Matrix([[1, 2, 6]])) != sympy.Matrix([[1, 2, 6]]),
        None,
        lambda: (
            torch.equal(_skip(PRE), torch.eye(4).double())
            and not torch.allclose(_skip(POST), torch.eye(4).double())
        ),
    ),
    formula=r"\frac{\partial}{\partial x} (x + 0) = 1",
)
NORM.not_checkable(
    "no-warm-up-needed",
    175,
    "even at 100+ layers depth",
    "Pre-norm models train reliably without warm-up, with more than 100 layers too.",
    reason="It depends on trainings that are not given.",
)
NORM.erratum(
    "nan-without-warm-up",
    175,
    "the first few training steps produce NaN losses",
    "A post-norm model without warm-up has a loss of NaN within the first steps.",
    HOLDS,
    holds(
        lambda: any(map(math.isnan, _first_losses(_own_stack()))),
        lambda: any(map(math.isnan, _first_losses(_torch_stack()))),
    ),
    slip="Said too generally: a small post-norm stack of six layers, with Adam at 1e-3 from the first step, has a finite "
    "loss in each of its first ten. Its last operation is a norm, which bounds what it gives.",
)
NORM.block(
    "pre-norm-block",
    177,
    184,
    "The pre-norm residual connection as a module.",
    levels="00122212",
    alone=Run(),
)
NORM.behaviour(
    "block-is-the-formula",
    174,
    "The module is the formula of line 174, here with f(x) = 2x.",
    blocks=("pre-norm-block",),
    setting="import torch",
    probe="x = torch.randn(2, 3, 4)\nblock = PreNormBlock(4, lambda each: 2 * each)\n"
    "print(torch.equal(block(x), x + 2 * block.norm(x)))",
    prints="True",
)
NORM.behaviour(
    "x-passes-straight-through",
    185,
    "With a sub-layer that gives zero, the module gives back x, and its gradient.",
    blocks=("pre-norm-block",),
    setting="import torch",
    probe="x = torch.randn(2, 3, 4, requires_grad=True)\nout = PreNormBlock(4, torch.zeros_like)(x)\n"
    "print(torch.equal(out, x), torch.autograd.grad(out.sum(), x)[0].unique().tolist())",
    prints="True [1.0]",
)
NORM.latent_fault(
    "narrow-sublayer-broadcasts",
    184,
    "A sub-layer of width 1 is not refused: its one number is added to every dim.",
    blocks=("pre-norm-block",),
    setting="import torch",
    probe="x = torch.zeros(1, 2)\nprint(PreNormBlock(2, lambda each: each[..., :1] + 1)(x).tolist())",
    prints="[[1.0, 1.0]]",
    why_no_fault="The sub-layer is the caller's: no law of a block asks how wide one is.",
)
