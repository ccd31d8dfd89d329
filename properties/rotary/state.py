"""Tables of cosines are kept between calls; what is kept must not answer for another call."""

from collections.abc import Iterator

import torch

from headcheck.comparison import Comparison, NotApplicable, compared_gradients, none, same, within
from headcheck.functions.rotary import RotarySubject
from headcheck.functions.rotary_inputs import FRESH_DIMS, RotaryInputs
from headcheck.given import at_least, at_most, having, one_of
from headcheck.laws import law

PURE = "a call is a function of its arguments"


def _afresh(rotary: RotarySubject, x: RotaryInputs) -> torch.Tensor:
    """The answer of a call of another shape: each token twice."""
    twice = x.but(x=torch.cat((x.x, x.x), dim=2), positions=torch.cat((x.positions, x.positions), dim=-1))
    return rotary(twice)[:, :, : x.x.shape[2]]


@law(
    source=PURE,
    formula="f(x, p), f(x, p'), f(x, p): each as if it were alone",
    guards="Cosines kept by the length of the call: other positions of the same number get the first ones'.",
)
def other_positions_are_answered_for_themselves(
    rotary: RotarySubject, x: RotaryInputs
) -> Iterator[Comparison]:
    """Calls of one shape with different positions each get their own angles."""
    moved = x.at(x.positions + rotary.room(x, (1, 17, 1000)[x.case.seed % 3]))
    first, second, again = rotary(x), rotary(moved), rotary(x)
    yield within(second, _afresh(rotary, moved), 2 * rotary.bound(moved), "the second output")
    yield within(again, first, 2 * rotary.bound(x), "output, the second time")


@law(
    source=PURE,
    formula="f(short), f(long), f(short): the first is the last; and so f(long), f(short), f(long)",
    guards="A table that is grown with other numbers, or a base that a long call has left behind.",
    given=(at_least(length=3), at_most(batch=2)),
)
def short_and_long_calls_take_turns(rotary: RotarySubject, x: RotaryInputs) -> Comparison:
    """A short call gives the same before and after a long one, and a long one before and after a short one."""
    short = x.but(x=x.x[:, :, :1], positions=x.positions[..., :1])
    far = x.at(x.positions + rotary.room(x, (0, 600, 9000)[x.case.seed % 3]))
    one, other = (short, far) if x.case.seed % 2 else (far, short)
    before, _, after = rotary(one), rotary(other), rotary(one)
    return within(after, before, 2 * rotary.bound(one))


@law(
    source=PURE,
    formula="f(x in a coarser dtype), f(x in its own): the second as if it were alone",
    guards="A table made in the dtype of the first call: float32 is then turned by cosines of 16 bits.",
    given=(one_of("dim", *FRESH_DIMS[::2]),),
    share=0.5,
)
def each_dtype_has_its_own_table(rotary: RotarySubject, x: RotaryInputs) -> Comparison:
    """After a call that differs in its dtype only, the accuracy is that of a call's own dtype."""
    step = torch.finfo(x.x.dtype).eps
    coarser = [name for name in rotary.dtypes if torch.finfo(getattr(torch, name)).eps > step]
    names = coarser or rotary.dtypes
    name = names[x.case.seed % len(names)]
    rotary(x.but(x=x.x.to(getattr(torch, name)), case=x.case.but(dtype=name)))
    return rotary.against_the_oracle(x, f"output after a call in {name}")


@law(
    source="decoding: each new token stands one position further on",
    formula="f(x, n - 1), f(x, n) for n = 16, 32, ..., 4096: each as if it were alone",
    guards="A table that grows one position too late: the first one past its end is clipped to the last row.",
    given=(one_of("dim", *FRESH_DIMS[1::2]), having(spacing=1.0), at_most(batch=2, heads=2, length=1)),
    share=0.2,
)
def each_step_past_a_length_is_answered(rotary: RotarySubject, x: RotaryInputs) -> Iterator[Comparison]:
    """One token after another, the first position past any power of two is turned by its own angle."""
    start = x.idle()
    for length in (2**power for power in range(4, 13)):
        for position in (length - 1, length):
            if rotary.room(start, position) == position:
                yield rotary.against_the_oracle(
                    start.at(start.positions + position), f"output at position {position}"
                )


@law(
    source=PURE,
    formula="p changed in place between two calls: the second answers for what it is given",
    guards="Cosines kept by the address of the positions, which a decode loop changes in place.",
    share=0.5,
)
def positions_changed_in_place_are_read_again(rotary: RotarySubject, x: RotaryInputs) -> Comparison:
    """New positions in the same tensor are read anew."""
    moved = x.at(x.positions + rotary.room(x, 5))
    positions = rotary.plain(x)["positions"]
    with torch.no_grad():
        rotary.run(x, {**rotary.tensors_for(x), "positions": positions})
        positions.copy_(rotary.plain(moved)["positions"])
        second = rotary.run(moved, {**rotary.tensors_for(moved), "positions": positions})
    return within(second, _afresh(rotary, moved), 2 * rotary.bound(moved))


@law(
    source="torch.autograd.function: save_for_backward sees to it that what was changed in place is not read",
    formula="R(p) x, then p changed in place: backward is refused, or gives R(p)^T dy of what p was",
    guards="Positions kept for backward as an attribute: a loop counts them up before the gradient is asked for.",
    share=0.5,
)
def positions_changed_before_backward_are_noticed(
    rotary: RotarySubject, x: RotaryInputs
) -> Iterator[Comparison]:
    """After positions were changed in place, backward is refused or gives the gradient of what they were."""
    if rotary.tables is not None:
        raise NotApplicable("is given tables, not positions")
    if rotary.is_checkpointed(x):
        raise NotApplicable(
            "is checkpointed: it is computed again from what it was given, as that is by then"
        )
    exact, bounds = rotary.exact_gradients(x, x.cotangent), rotary.gradient_bounds(x, x.cotangent.double())
    yield none("changes that went unnoticed")
    found = rotary.gradients_after_a_change(x, "positions")
    if found is not None:
        yield from compared_gradients(found, exact, bounds, ", positions having been changed in place")


@law(
    source="a call changes nothing that it is given",
    formula="positions after the call = before",
    guards="An offset added in place: the next layer, which is handed the same positions, stands further on.",
    given=(at_least(length=2),),
    share=0.5,
)
def positions_are_not_changed(rotary: RotarySubject, x: RotaryInputs) -> Comparison:
    """Positions hold after the call what they held before."""
    positions = rotary.plain(x)["positions"]
    before = positions.clone()
    with torch.no_grad():
        rotary.run(x, {**rotary.tensors_for(x), "positions": positions})
    return same(positions, before, "positions")
