"""What rotations have in common, whatever their angles: no law here needs to know a frequency."""

from collections.abc import Iterator

import torch

from headcheck.comparison import Comparison, same, within
from headcheck.functions.planes import Pairs
from headcheck.functions.rotary import RotarySubject
from headcheck.functions.rotary_inputs import RotaryInputs
from headcheck.given import at_least, one_of
from headcheck.laws import law

ROTATION = "a rotation of the plane; Su et al. 2021 (RoFormer), equations (13) and (15)"
RELATIVE = "Su et al. 2021 (RoFormer), equation (16): R(m)^T R(n) = R(n - m)"
SHIFTS = (1, 3, 128, 1000, 100_000)
EXACTLY = one_of("spacing", 1.0, 2.0, 13.0, 1000.0, 0.5, 0.25)
"""Positions to which a shift can be added without rounding."""


@law(
    source=ROTATION,
    formula="|R(p) x| = |x|, of each pair and of the whole; times the magnitude, where one is declared",
    guards="A sine and a cosine of different angles, a factor on one of them, a pair in which one term is missing.",
)
def norms_are_kept(rotary: RotarySubject, x: RotaryInputs) -> Iterator[Comparison]:
    """Turning changes the length of no pair, and of no vector."""
    turned, off, before = rotary(x).double().cpu(), rotary.bound(x), rotary.lengthened(x, x.x)
    now, was, pair_off = (rotary.pairs(x, each) for each in (turned, before, off))
    lengths = [torch.hypot(each.first, each.second) for each in (now, was, pair_off)]
    own = 4 * torch.finfo(torch.float64).eps * lengths[1]
    yield within(lengths[0], lengths[1], lengths[2] + own, "length of a pair")
    own = (x.x.shape[-1] + 4) * torch.finfo(torch.float64).eps * before.norm(dim=-1)
    yield within(turned.norm(dim=-1), before.norm(dim=-1), off.norm(dim=-1) + own, "length")


@law(
    source=RELATIVE,
    formula="<R(m) q, R(n) k> = <R(m + s) q, R(n + s) k>, pair by pair",
    guards="Positions rounded in bfloat16 from 257 on (huggingface/transformers 29285), a second start for keys.",
    given=(EXACTLY,),
)
def dot_products_depend_on_the_distance_only(rotary: RotarySubject, x: RotaryInputs) -> Comparison:
    """Moving a query and a key by the same number of positions does not change their dot product."""
    key = x.but(x=x.normal(x.output_shape, "key"), positions=x.positions.flip(-1))
    shift = rotary.room(x, SHIFTS[x.case.seed % len(SHIFTS)])
    (here, here_off), (there, there_off) = (
        _products(rotary, x.at(x.positions + by), key.at(key.positions + by)) for by in (0, shift)
    )
    return within(there, here, here_off + there_off, "dot product of a pair")


def _products(
    rotary: RotarySubject, query: RotaryInputs, key: RotaryInputs
) -> tuple[torch.Tensor, torch.Tensor]:
    """The dot product of each pair of dims, and how far it may be off."""
    q, k, q_off, k_off = (
        rotary.pairs(query, each)
        for each in (rotary(query), rotary(key), rotary.bound(query), rotary.bound(key))
    )
    off = sum(
        qo * ki.abs() + ko * qi.abs() + qo * ko + 4 * torch.finfo(torch.float64).eps * (qi * ki).abs()
        for qi, ki, qo, ko in zip(q[:2], k[:2], q_off[:2], k_off[:2], strict=True)
    )
    return q.first * k.first + q.second * k.second, torch.as_tensor(off)


@law(
    source=RELATIVE,
    formula="R(m) R(n) = R(m + n)",
    guards="Keys turned again in decode although they were turned before (flashinfer 504b99036), wrong positions.",
    given=(EXACTLY,),
)
def turns_add_up(rotary: RotarySubject, x: RotaryInputs) -> Comparison:
    """Turning by one position and then by another is turning once by their sum."""
    more = rotary.room(x, SHIFTS[x.case.seed % len(SHIFTS)])
    once = rotary(x)
    then, together = x.but(x=once, positions=torch.full_like(x.positions, more)), x.at(x.positions + more)
    limit = rotary.bound(then) + rotary.turned_further(x, rotary.bound(x))
    limit = limit + rotary.lengthened(x, rotary.bound(together))
    return within(rotary(then), rotary.lengthened(x, rotary(together)), limit)


@law(
    source=ROTATION,
    formula="S R(p) S R(p) x = x, S changing the sign of the second of each pair",
    guards="A matrix that is no rotation: [cos, sin; sin, cos], a sign lost in one of the terms.",
)
def a_mirrored_turn_leads_back(rotary: RotarySubject, x: RotaryInputs) -> Comparison:
    """Turning, mirroring, turning by the same position and mirroring again gives back what there was."""
    back = x.but(x=_mirrored(rotary, x, rotary(x)).to(x.dtype))
    limit = rotary.turned_further(x, rotary.bound(x)) + rotary.bound(back)
    expected = rotary.lengthened(x, x.x, times=2)
    limit = limit + torch.finfo(torch.float64).eps * expected.abs()
    return within(_mirrored(rotary, x, rotary(back)), expected, limit)


def _mirrored(rotary: RotarySubject, x: RotaryInputs, tensor: torch.Tensor) -> torch.Tensor:
    first, second, rest = rotary.pairs(x, tensor)
    return Pairs(first, -second, rest).joined(x.pairing)


@law(
    source=ROTATION,
    formula="R(-p) R(p) = 1",
    guards="A distance whose sign is dropped; a table that is read from its end for a position below zero.",
    needs=("negative",),
    share=0.5,
)
def a_position_below_zero_turns_back(rotary: RotarySubject, x: RotaryInputs) -> Comparison:
    """Turning by a position and then by its negative gives back what there was."""
    back = x.but(x=rotary(x).cpu(), positions=-x.positions)
    limit = rotary.turned_further(x, rotary.bound(x)) + rotary.bound(back)
    return within(rotary(back), rotary.lengthened(x, x.x, times=2), limit)


@law(
    source=ROTATION,
    formula="R(0) x = x",
    guards="Positions counted from one; an offset that is added twice.",
    share=0.5,
)
def position_zero_changes_nothing(rotary: RotarySubject, x: RotaryInputs) -> Comparison:
    """At position 0 every vector stays as it is."""
    there = x.at(torch.zeros_like(x.positions))
    return within(rotary(there), rotary.lengthened(x, x.x), rotary.bound(there))


@law(
    source="a rotation is linear",
    formula="R(p) (2 x - y) = 2 R(p) x - R(p) y",
    guards="A normalisation or a clamp inside, an angle that depends on x.",
)
def turning_is_linear(rotary: RotarySubject, x: RotaryInputs) -> Comparison:
    """Turning a sum is summing what was turned."""
    y = x.but(x=x.normal(x.output_shape, "y"))
    exact = 2 * x.x.double() - y.x.double()
    combined = x.but(x=exact.to(x.dtype))
    rounded = (combined.x.double() - exact).abs() + torch.finfo(torch.float64).eps * exact.abs()
    parts = 2 * rotary.bound(x) + rotary.bound(y)
    limit = rotary.bound(combined) + rotary.turned_further(x, rounded) + parts
    return within(rotary(combined), 2 * rotary(x).double() - rotary(y).double(), limit)


@law(
    source=ROTATION,
    formula="x = 0 outside of pair i implies R(p) x = 0 outside of pair i",
    guards="Dims paired in one way and turned in another: halves swapped between neighbours.",
    given=(at_least(dim=4),),
)
def each_pair_turns_in_its_own_plane(rotary: RotarySubject, x: RotaryInputs) -> Comparison:
    """What stands in one pair of dims never gets into another."""
    first, second, rest = rotary.pairs(x, x.x)
    only = torch.arange(first.shape[-1]) == x.case.seed % first.shape[-1]
    alone = Pairs(first * only, second * only, torch.zeros_like(rest)).joined(x.pairing)
    turned = rotary.pairs(x, rotary(x.but(x=alone.to(x.dtype))))
    strays = torch.cat((turned.first * ~only, turned.second * ~only, turned.rest), dim=-1)
    return same(strays, torch.zeros_like(strays), "what another pair, or a dim that is not turned, got")


@law(
    source="the angle depends on the position only",
    formula="f(x)_head = f(x_head)",
    guards="The last block of heads left out (flashinfer b27a2cc27), heads taken for positions.",
    given=(at_least(heads=2),),
    share=0.5,
)
def heads_are_turned_alike(rotary: RotarySubject, x: RotaryInputs) -> Comparison:
    """Each head is turned as it is turned alone."""
    head = slice(x.case.seed % x.x.shape[1], x.case.seed % x.x.shape[1] + 1)
    alone = x.but(x=x.x[:, head])
    limit = rotary.bound(x)[:, head] + rotary.bound(alone)
    return within(rotary(x)[:, head], rotary(alone), limit)


@law(
    source="the angle depends on the position only",
    formula="NaN in one token: the others are what they were",
    guards="A sum or a scale over tokens, a tile in which one number spoils the others.",
    given=(at_least(length=2),),
    share=0.5,
)
def tokens_do_not_see_each_other(rotary: RotarySubject, x: RotaryInputs) -> Comparison:
    """NaN or an infinity in one token leaves the others as they were."""
    spoiled = x.x.clone()
    spoiled[:, :, 0] = (torch.nan, torch.inf)[x.case.seed % 2]
    limit = 2 * rotary.bound(x)[:, :, 1:]
    return within(rotary(x.but(x=spoiled))[:, :, 1:], rotary(x)[:, :, 1:], limit)
