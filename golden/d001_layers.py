"""Document 001, lines 151 to 223: positional encoding and the encoder layer."""

from collections.abc import Callable
from typing import Any

import mpmath
import sympy
import torch

from headcheck.golden.derived import Derived, counted, holds, same
from headcheck.golden.exact import normalised, sinusoid, sinusoid_again, widely
from headcheck.golden.ledger import Run, Section
from headcheck.golden.stated import HOLDS, exactly, rounded, shape
from headcheck.reference import EncoderLayer, LayerConfig, layer_norm, rotary_angles, sinusoidal_at

PLACE = Section("001", "positions")
LAYER = Section("001", "encoder-layer")
END = Section("001", "reflections-on-positions")

WIDTH = 4
POST_NORM = LayerConfig(d_model=4, num_heads=2, d_ff=8, norm_order="post", activation="relu")
POSITIONS = (0, 1, 2, 7)


def _table(entry: Callable[[int, int, int], Any]) -> list[list[Any]]:
    return [[entry(position, dim, WIDTH) for dim in range(WIDTH)] for position in POSITIONS]


def _waves(distance: int, d_model: int, sign: int) -> mpmath.mpf:
    """The sum of the cosines of distance x 10000^(sign 2i/d): -1 is the formula's sign, 1 the code's."""
    return mpmath.fsum(
        mpmath.cos(distance * mpmath.power(10000, mpmath.mpf(sign * dim) / d_model))
        for dim in range(0, d_model, 2)
    )


def _turned(position: int, d_model: int, sign: int) -> list[mpmath.mpf]:
    """The sines and cosines of a position, as the table holds them."""
    angles = [position * mpmath.exp(sign * mpmath.log(10000) * dim / d_model) for dim in range(0, d_model, 2)]
    return [function(each) for each in angles for function in (mpmath.sin, mpmath.cos)]


def _neighbours_are_most_alike(sign: int) -> bool:
    """By the inner products of the rows of a table with that of position 5."""
    own = _turned(5, 64, sign)
    alike = [mpmath.fdot(own, _turned(5 + distance, 64, sign)) for distance in range(1, 101)]
    return bool(max(alike[1:]) < alike[0])


def _position_0(parity: int) -> Derived:
    """The encoding of position 0 in the even or the odd dims."""
    return Derived(
        exact=lambda: [sinusoid(0, dim, WIDTH) for dim in (parity, parity + 2)],
        again=widely(lambda: [sinusoid_again(0, dim, WIDTH) for dim in (parity, parity + 2)]),
        reference=lambda: sinusoidal_at(torch.tensor([0]), WIDTH)[0, parity::2],
    )


def _likeness(distance: int, d_model: int) -> sympy.Expr:
    """PE(p) . PE(p + k), which is the sum of the cosines of the differences of the angles."""
    return sum(sinusoid(distance, dim, d_model) for dim in range(1, d_model, 2))


class _Holder(torch.nn.Linear):
    """A linear layer with a buffer."""

    pe: torch.Tensor

    def __init__(self) -> None:
        super().__init__(1, 1)
        self.register_buffer("pe", torch.zeros(1, 3, 4))


def _loaded() -> _Holder:
    """A module with the state of another, whose buffer held sevens."""
    first, second = _Holder(), _Holder()
    first.pe.fill_(7)
    second.load_state_dict(first.state_dict())
    return second


def _trained() -> _Holder:
    """A module after a step of an optimizer over its parameters."""
    module = _Holder()
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    (module(torch.ones(1, 1)) + module.pe.sum()).sum().backward()
    optimizer.step()
    return module


# Lines 153 to 180

PLACE.confirmed(
    "formula",
    155,
    r"\text{PE}(pos, 2i) = \sin",
    "Sines in even dims, cosines in odd ones, of pos / 10000^(2i/d): as powers and as exponentials.",
    HOLDS,
    same(
        lambda: _table(sinusoid),
        lambda: _table(sinusoid_again),
        lambda: sinusoidal_at(torch.tensor(POSITIONS), WIDTH),
    ),
    formula=r"PE(pos, 2i) = \sin \frac{pos}{10000^{2i/d}}, \quad PE(pos, 2i + 1) = \cos \frac{pos}{10000^{2i/d}}",
)
PLACE.block("module", 158, 177, "The encoding as a module.", alone=Run())
PLACE.confirmed(
    "shape-position",
    166,
    "(max_len, 1)",
    "The positions as a column, here 3 of them.",
    shape(3, 1),
    counted(lambda: sympy.zeros(3, 1).shape, lambda: torch.arange(3).unsqueeze(1).shape),
)
PLACE.erratum(
    "the-code-computes-the-formula",
    167,
    "(math.log(10000.0) / d_model)",
    "The code's factors, for d_model 4 the numbers by which a position is multiplied, are those of line 155.",
    exactly("1 100"),
    Derived(
        lambda: [1 / sympy.Integer(10000) ** sympy.Rational(dim, WIDTH) for dim in (0, 2)],
        widely(lambda: [mpmath.exp(-mpmath.log(10000) * dim / WIDTH) for dim in (0, 2)]),
        lambda: rotary_angles(torch.tensor([1]), WIDTH)[0],
    ),
    slip="The minus in the exponent is missing: the position is multiplied by 10000^(2i/d) instead of divided by it. "
    "The waves get shorter from pair to pair instead of longer, by up to a factor of 10000.",
    gives=lambda: [sympy.Integer(10000) ** sympy.Rational(dim, WIDTH) for dim in (0, 2)],
    formula=r"e^{-2i \ln(10000) / d} = 10000^{-2i/d}",
)
for name, line, place, dim in (("even-dims", 168, "even dims", 0), ("odd-dims", 169, "odd dims", 1)):
    PLACE.confirmed(
        name,
        line,
        place,
        f"{'Cosines' if dim else 'Sines'} stand in the {'odd' if dim else 'even'} dims: the encoding of position 0.",
        rounded("1 1" if dim else "0 0"),
        _position_0(dim),
    )
PLACE.confirmed(
    "shape-table",
    170,
    "(1, max_len, d_model)",
    "The table with an axis for the batch, here of 3 positions and 4 dims.",
    shape(1, 3, 4),
    counted(lambda: (1, *sympy.zeros(3, 4).shape), lambda: torch.zeros(3, 4).unsqueeze(0).shape),
)
PLACE.confirmed(
    "broadcast-add",
    180,
    "broadcast-add to a batch",
    "A table (1, seq_len, d_model) adds to each of 2 sequences.",
    shape(2, 3, 4),
    counted(
        lambda: tuple(max(pair) for pair in zip((1, 3, 4), (2, 3, 4), strict=True)),
        lambda: (torch.zeros(1, 3, 4) + torch.zeros(2, 3, 4)).shape,
    ),
)
for name, line, place, what, derived in (
    (
        "buffer-is-saved",
        171,
        "saved with the model",
        "A buffer is in the state of its module.",
        holds(lambda: "pe" in _Holder().state_dict(), lambda: bool((_loaded().pe == 7).all())),
    ),
    (
        "buffer-is-not-trained",
        171,
        "but not trainable",
        "A buffer is no parameter and asks for no gradient.",
        holds(lambda: "pe" not in dict(_Holder().named_parameters()), lambda: not _Holder().pe.requires_grad),
    ),
    (
        "buffer-moves",
        180,
        "moves with `model.to(device)`",
        "A buffer goes where its module goes.",
        holds(
            lambda: str(_Holder().to("meta").pe.device) == "meta",
            lambda: _Holder().to_empty(device="meta").pe.is_meta,
        ),
    ),
    (
        "buffer-is-not-updated",
        180,
        "updated by the optimizer",
        "An optimizer over the parameters of a module holds no buffer.",
        holds(
            lambda: all(each.shape != (1, 3, 4) for each in _Holder().parameters()),
            lambda: not _trained().pe.any(),
        ),
    ),
):
    PLACE.confirmed(name, line, place, what, HOLDS, derived)
PLACE.behaviour(
    "table-of-the-code",
    167,
    "The table of d_model 4 at position 1: dims 2 and 3 hold sin 100 and cos 100, where the formula has sin 0.01 and "
    "cos 0.01.",
    blocks=("module",),
    probe="print([round(each, 4) for each in PositionalEncoding(4).pe[0, 1].tolist()])",
    prints="[0.8415, 0.5403, -0.5064, 0.8623]",
)
PLACE.behaviour(
    "shape-at-run-time",
    177,
    "The encoding has the shape of what it is added to.",
    blocks=("module",),
    probe="print(tuple(PositionalEncoding(4)(torch.zeros(2, 3, 4)).shape))",
    prints="(2, 3, 4)",
)
PLACE.latent_fault(
    "sign-of-the-exponent",
    167,
    "The exponent lacks its minus: the second pair of d_model 4 turns by 100 radians from token to token.",
    blocks=("module",),
    probe="print(round(PositionalEncoding(4).pe[0, 1, 2].item(), 4), round(math.sin(1 / 100), 4))",
    prints="-0.5064 0.01",
    fault="sinusoidal/sign-lost",
)
PLACE.latent_fault(
    "odd-width",
    169,
    "An odd d_model fails: there is one cosine more than there are odd dims.",
    blocks=("module",),
    probe="try:\n    PositionalEncoding(3)\nexcept RuntimeError:\n    print('RuntimeError')",
    prints="RuntimeError",
    fault="sinusoidal/odd-refused",
)

# Lines 182 to 216

LAYER.block(
    "module",
    190,
    213,
    "The layer. It runs because it is only defined: it needs the module of another block, and torch by name.",
    alone=Run(),
)
LAYER.confirmed(
    "add-and-norm",
    186,
    "LayerNorm(x + MHA(x, x, x))",
    "After add and norm a row has mean 0 and variance 1: [1, 2, 6] becomes [-2, -1, 3] over the root of 14/3.",
    HOLDS,
    same(
        lambda: normalised(sympy.Matrix([[1, 2, 6]])),
        lambda: sympy.Matrix([[-2, -1, 3]]) / sympy.sqrt(sympy.Rational(4 + 1 + 9, 3)),
        lambda: layer_norm(torch.tensor([[1.0, 2.0, 6.0]], dtype=torch.float64), eps=0.0),
    ),
    formula=r"x \leftarrow \text{LayerNorm}(x + \text{MHA}(x, x, x))",
)
for name, line, step in (("step-1", 186, "attention"), ("step-2", 187, "feed-forward")):
    LAYER.behaviour(
        f"{name}-as-written",
        line,
        f"Without dropout, the {step} step of the code is the formula of that line.",
        blocks=(
            "001/scaled-dot-product/function",
            "001/multi-head/module",
            "module",
        ),
        probe="""
layer, x = EncoderLayer(4, 2, 8).eval(), torch.randn(2, 3, 4)
middle = layer.norm1(x + layer.self_attn(x, x, x)[0])
print(torch.equal(layer(x), layer.norm2(middle + layer.fc2(torch.relu(layer.fc1(middle))))))
""",
        prints="True",
    )
LAYER.behaviour(
    "shapes-are-preserved",
    216,
    "The output of the layer has the shape of its input.",
    blocks=("001/scaled-dot-product/function", "001/multi-head/module", "module"),
    probe="print(tuple(EncoderLayer(4, 2, 8)(torch.zeros(2, 3, 4)).shape))",
    prints="(2, 3, 4)",
)
LAYER.confirmed(
    "preserves-shapes",
    216,
    "the module preserves shapes",
    "Attention, a network back to d_model and norms keep (batch, seq_len, d_model).",
    shape(2, 3, 4),
    counted(
        lambda: (2, 3, 4),
        lambda: torch.nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)(torch.zeros(2, 3, 4)).shape,
        lambda: EncoderLayer(POST_NORM)(torch.zeros(2, 3, 4)).shape,
    ),
)
LAYER.behaviour(
    "where-dropout-is",
    216,
    "Dropout is applied three times: after attention, inside the feed-forward path, and after it.",
    blocks=("001/scaled-dot-product/function", "001/multi-head/module", "module"),
    probe="""
calls, layer = [], EncoderLayer(4, 2, 8)
layer.dropout.register_forward_hook(lambda module, given, out: calls.append(tuple(out.shape)))
layer(torch.zeros(1, 1, 4))
print(calls)
""",
    prints="[(1, 1, 4), (1, 1, 8), (1, 1, 4)]",
)
LAYER.behaviour(
    "needs-the-blocks-before",
    195,
    "Alone, the layer fails when it is made: its attention stands in another block.",
    blocks=("module",),
    probe="try:\n    EncoderLayer(4, 2, 8)\nexcept NameError as problem:\n    print(problem)",
    prints="name 'MultiHeadAttention' is not defined",
)

# Line 223

END.confirmed(
    "depends-on-the-distance",
    223,
    "notion of distance",
    "The product of two encodings depends on the distance of their positions alone.",
    HOLDS,
    holds(
        lambda: all(
            sympy.simplify(sum(sinusoid(p, c, 8) * sinusoid(p + k, c, 8) for c in range(8)) - _likeness(k, 8))
            == 0
            for p, k in ((1, 2), (3, 1))
        ),
        lambda: all(
            abs(
                mpmath.fsum(sinusoid_again(p, c, 8) * sinusoid_again(p + 2, c, 8) for c in range(8))
                - _waves(2, 8, -1)
            )
            < mpmath.mpf(10) ** -40
            for p in (0, 5, 4999)
        ),
    ),
    formula=r"PE(p) \cdot PE(p + k) = \sum_i \cos \frac{k}{10000^{2i/d}}",
)
END.confirmed(
    "neighbours-are-most-alike",
    223,
    "give a smooth notion of distance",
    "By the formula, with d_model 64, no distance from 2 to 100 has encodings so alike as distance 1.",
    HOLDS,
    holds(
        widely(lambda: all(_waves(1, 64, -1) > _waves(k, 64, -1) for k in range(2, 101))),
        lambda: _neighbours_are_most_alike(-1),
        lambda: (
            (sinusoidal_at(torch.arange(6, 106), 64) @ sinusoidal_at(torch.tensor([5]), 64)[0]).argmax() == 0
        ),
    ),
    formula=r"f(1) > f(k), \quad f(k) = \sum_i \cos \frac{k}{10000^{2i/d}}",
)
END.erratum(
    "neighbours-are-most-alike-in-the-code",
    223,
    "give a smooth notion of distance",
    "By the code too, with d_model 64, no distance from 2 to 100 has encodings so alike as distance 1.",
    HOLDS,
    holds(
        widely(lambda: all(_waves(1, 64, 1) > _waves(k, 64, 1) for k in range(2, 101))),
        lambda: _neighbours_are_most_alike(1),
    ),
    slip="It holds of the formula. With the exponent's minus lost (line 167) most waves turn more than once from token "
    "to token, and near tokens are no more alike than far ones.",
    formula=r"f(k) = \sum_i \cos (k \cdot 10000^{2i/d})",
)
END.not_checkable(
    "relative-order-is-inferred",
    223,
    "the model infers relative order",
    "The model infers relative order.",
    reason="What a model infers depends on a training that is not given.",
)
