"""What a function says of itself, or was found to do: its pairs, its base, the dims it leaves alone."""

import cmath

import torch

from headcheck.calling import SubjectRaised
from headcheck.comparison import Comparison, LawBroken, NotApplicable, none, same, within
from headcheck.functions.planes import Pairs
from headcheck.functions.rotary import RotarySubject
from headcheck.functions.rotary_inputs import RotaryInputs
from headcheck.given import at_least, at_most, having, one_of
from headcheck.laws import law


@law(
    source="Su et al. 2021 (RoFormer), equation (12): (a + ib) e^(i m theta), with Python's complex numbers",
    formula="a' + ib' = (a + ib) e^(i p theta), for the pairs (a, b) of the declared pairing",
    guards="Halves for neighbours, or a sine with the other sign: relative laws are blind to both.",
    given=(at_most(batch=1, heads=2, length=3, dim=16), at_least(dim=4)),
)
def pairs_are_multiplied_as_complex_numbers(rotary: RotarySubject, x: RotaryInputs) -> Comparison:
    """The pairs of the declared pairing are complex numbers, each multiplied by that of its angle."""
    first, second, rest = rotary.pairs(x, x.x)
    frequencies, positions = rotary.frequencies(x).tolist(), x.positions.reshape(-1).tolist()
    expected_first, expected_second = torch.empty_like(first), torch.empty_like(second)
    for place in torch.cartesian_prod(*map(torch.arange, first.shape[1:])).tolist():
        _, token, pair = at = tuple(place)
        number = complex(float(first[0][at]), float(second[0][at]))
        product = number * cmath.rect(rotary.magnitude, positions[token] * frequencies[pair])
        expected_first[0][at], expected_second[0][at] = product.real, product.imag
    return within(rotary(x), Pairs(expected_first, expected_second, rest).joined(x.pairing), rotary.bound(x))


@law(
    source="a pairing is a choice of which dims make a pair",
    formula="f_half(P x) = P f_interleaved(x), P taking dims 0, 2, ..., 1, 3, ... in that order",
    guards="A flag for the pairing that is ignored, or turns the other way.",
    needs=("interleaved",),
    given=(at_least(dim=4), one_of("pairing", "interleaved", "half")),
    share=0.5,
)
def the_two_pairings_are_a_permutation_apart(rotary: RotarySubject, x: RotaryInputs) -> Comparison:
    """Each pairing is the other one with the dims in another order."""
    pairs, other = rotary.pairs(x, x.x), "half" if x.pairing == "interleaved" else "interleaved"
    swapped = x.but(
        x=pairs.joined(other).to(x.dtype),  # type: ignore[arg-type]
        pairing=other,
        case=x.case.but(pairing=other),
    )

    def back(output: torch.Tensor) -> torch.Tensor:
        return rotary.pairs(swapped, output).joined(x.pairing)

    return rotary.agree(swapped, x, back=back)


@law(
    source="Wang & Komatsuzaki 2021 (GPT-J): some dims are turned, the others pass",
    formula="x'_d = x_d for d >= rotary_dim, bit for bit",
    guards="A cast to 16 bits and back, or a scale, for the dims that only pass.",
    share=0.5,
)
def dims_that_are_not_turned_are_not_touched(rotary: RotarySubject, x: RotaryInputs) -> Comparison:
    """Of a partial rotation, the dims that are not turned come out bit for bit."""
    rest = rotary.pairs(x, x.x).rest
    if not rest.shape[-1]:
        raise NotApplicable("turns all dims")
    return same(rotary.pairs(x, rotary(x)).rest, rest, "dims that are not turned")


@law(
    source="the base belongs to the call",
    formula="f(x, p, b), f(x, p, b'), f(x, p, b): each as if it were alone",
    guards="A memo of cosines whose key lacks the base: the second model of a process runs with the first one's.",
    needs=("base",),
    given=(at_least(dim=4),),
    share=0.5,
)
def each_call_has_its_own_base(rotary: RotarySubject, x: RotaryInputs) -> list[Comparison]:
    """A call with another base gives its own answer, and so does the one after it."""
    other = 37.0 if x.base != 37.0 else 11.0
    second = x.but(base=other, case=x.case.but(base=other))
    return [
        rotary.against_the_oracle(each, f"output, call {number}")
        for number, each in enumerate((x, second, x), start=1)
    ]


@law(
    source="a feature that is declared unsupported raises",
    formula="f(x, unsupported positions) raises",
    guards="Fractions cut to whole numbers, or sequences turned by the first one's positions, without a word.",
    given=(at_least(batch=2, length=2), having(per_sequence=False, spacing=1.0)),
    share=0.5,
)
def what_is_declared_unsupported_is_refused(rotary: RotarySubject, x: RotaryInputs) -> Comparison:
    """A form of positions that the declaration rules out raises an exception."""
    forms = {
        "fractional": x.positions.float() + 0.5,
        "batched_positions": x.positions + torch.arange(x.x.shape[0])[:, None],
        "negative": -1 - x.positions,
    }
    ruled_out = [name for name in forms if getattr(rotary.declaration, name) is False]
    if not ruled_out:
        raise NotApplicable("declares no form of positions absent")
    for name in ruled_out:
        try:
            rotary(x.at(forms[name]))
        except (SubjectRaised, NotApplicable):
            continue
        raise LawBroken(f"{name}=False is declared, but such positions are taken")
    return none("forms of positions that are ruled out and taken")
