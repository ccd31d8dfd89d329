"""The angle of each pair, measured: unit vectors are turned, and where they point is read off."""

import torch

from headcheck.comparison import Comparison, NotApplicable, holds, within
from headcheck.functions.planes import Pairs, measured_angles
from headcheck.functions.rotary import RotarySubject
from headcheck.functions.rotary_inputs import RotaryInputs
from headcheck.given import at_least, at_most, having, one_of
from headcheck.laws import law

ANGLES = "Su et al. 2021 (RoFormer), section 3.2.2: theta_i = 10000^(-2i/d); Vaswani et al. 2017, section 3.5"
SIXTEEN_BITS = (torch.bfloat16, torch.float16)


def _unit_vectors(rotary: RotarySubject, x: RotaryInputs) -> RotaryInputs:
    """A one at the first place of every pair."""
    first, second, rest = rotary.pairs(x, torch.zeros_like(x.x))
    return x.but(x=Pairs(first + 1, second, rest).joined(x.pairing).to(x.dtype))


def _measured(rotary: RotarySubject, x: RotaryInputs) -> Comparison:
    """The direction of each turned unit vector against position x frequency."""
    x = _unit_vectors(rotary, x)
    turned, off = (
        rotary.pairs(x, rotary.lengthened(x, each, times=-1)) for each in (rotary(x), rotary.bound(x))
    )
    angles = rotary.angles(x).expand(turned.first.shape)
    measured, limit = measured_angles(turned.first, turned.second, off.first, off.second, angles)
    return within(measured, angles, limit, "angle")


@law(
    source=ANGLES,
    formula="the angle of pair i at p is p base^(-2i/dim)",
    guards="An exponent that counts dims in place of pairs, or all dims where some are turned (pie-project/pie 602).",
    given=(one_of("start", 0, 1, 7), one_of("spacing", 1.0, 2.0), having(order="rising")),
)
def each_pair_turns_by_its_frequency(rotary: RotarySubject, x: RotaryInputs) -> Comparison:
    """Near the start, where nothing wraps round, each pair has turned by its position times its frequency."""
    return _measured(rotary, x)


@law(
    source=ANGLES,
    formula="the angle of pair i at p is p base^(-2i/dim), for p of 100,000 and more",
    guards="Frequencies rounded to 16 bits (sgl-project/sglang-jax 1472): what they are off grows with the position.",
    given=(
        at_most(length=2, batch=2),
        at_least(length=2),
        having(spacing=100_000.0, order="rising"),
        one_of("start", 0, 1, 7, 3001),
    ),
)
def angles_far_out_are_as_exact_as_their_format(rotary: RotarySubject, x: RotaryInputs) -> Comparison:
    """A hundred thousand positions further each pair points where its frequency says."""
    return _measured(rotary, x)


@law(
    source=ANGLES,
    formula="the angle of pair i at p is p base^(-2i/dim), for p that are no whole numbers",
    guards="Positions cut to whole numbers on the way into a table.",
    needs=("fractional",),
    given=(one_of("spacing", 0.5, 0.25, 0.3),),
)
def fractions_of_a_position_turn_by_fractions(rotary: RotarySubject, x: RotaryInputs) -> Comparison:
    """A position between two whole numbers has its own angle between theirs."""
    return _measured(rotary, x)


@law(
    source="bfloat16 counts to 256 and float16 to 2048: beyond, whole numbers are missing",
    formula="the angle in 16 bits is that of p, not of p rounded to 16 bits",
    guards="Positions or angles in bfloat16, from autocast above all (huggingface/transformers 29285, vllm 863).",
    given=(
        one_of("dtype", "bfloat16", "float16"),
        one_of("start", 257, 301, 1023, 2049, 4099, 65_537, 100_003),
        having(spacing=1.0),
    ),
)
def sixteen_bits_do_not_round_positions(rotary: RotarySubject, x: RotaryInputs) -> Comparison:
    """In 16 bits too, a position that the format cannot hold turns by its own angle."""
    if x.dtype not in SIXTEEN_BITS:
        raise NotApplicable("takes no 16-bit dtype")
    return _measured(rotary, x)


@law(
    source="autocast lowers matrix products, of positions and frequencies too: huggingface/transformers 29285",
    formula="x in float32, under autocast to bfloat16: the angle of pair i at p is p base^(-2i/dim)",
    guards="Angles by a matrix product or an einsum that autocast reaches: they are rounded with the position.",
    needs=("autocast",),
    given=(having(dtype="float32", spacing=1.0), one_of("start", 257, 301, 1023, 4099)),
    share=0.5,
)
def autocast_does_not_round_angles(rotary: RotarySubject, x: RotaryInputs) -> Comparison:
    """Under autocast to bfloat16 vectors and their turns may be rounded to it, but not the angles."""
    if x.dtype != torch.float32:
        raise NotApplicable("takes no float32")
    return rotary.under_autocast_against_the_oracle(_unit_vectors(rotary, x))


@law(
    source="R(m) = R(n) would make two places one",
    formula="p != p' implies R(p) != R(p')",
    guards="Positions that collapse in 16 bits: all from 65,536 on (huggingface/diffusers 13922).",
    given=(at_least(length=2), one_of("order", "rising", "falling", "shuffled")),
    share=0.5,
)
def distinct_positions_turn_differently(rotary: RotarySubject, x: RotaryInputs) -> Comparison:
    """Two tokens at different positions point in different directions, where rounding leaves room for it."""
    x = _unit_vectors(rotary, x)
    found, off, exact = rotary(x).double().cpu(), rotary.bound(x), rotary.expected(x)
    apart, should = ((each[:, :, 1:] - each[:, :, :-1]).norm(dim=-1) for each in (found, exact))
    room = off[:, :, 1:].norm(dim=-1) + off[:, :, :-1].norm(dim=-1)
    return holds((apart > 0) | (should <= room), apart, "distance of two neighbours", expected=1.0)
