"""Each token is turned by its own position, whatever the others have."""

from collections.abc import Iterator

import torch

from headcheck.calling import SubjectRaised
from headcheck.comparison import Comparison, NotApplicable, within
from headcheck.functions.rotary import RotarySubject
from headcheck.functions.rotary_inputs import RotaryInputs
from headcheck.given import at_least, having, one_in, one_of
from headcheck.laws import law

OWN = "the angle of a token is that of its own position"


@law(
    source=OWN,
    formula="f(x, p)[a:b] = f(x[a:b], p[a:b])",
    guards="Positions counted from 0 in each call: in decode every token has position 0 (Blaizzy/mlx-vlm 1983).",
    given=(at_least(length=2),),
)
def a_slice_is_turned_as_in_the_whole(rotary: RotarySubject, x: RotaryInputs) -> Comparison:
    """The last tokens alone, with their positions, give what they give among all."""
    begin = 1 + x.case.seed % (x.x.shape[2] - 1)
    part = x.but(x=x.x[:, :, begin:], positions=x.positions[..., begin:])
    return rotary.agree(x, part, back=lambda output: output[:, :, begin:])


@law(
    source=OWN,
    formula="f(P x, P p) = P f(x, p)",
    guards="A start and a length in place of positions: packed documents, gaps, speculative branches are misplaced.",
    given=(at_least(length=2),),
)
def tokens_may_come_in_any_order(rotary: RotarySubject, x: RotaryInputs) -> Comparison:
    """Tokens in another order, each with its position, are turned the same."""
    order = x.permutation(x.x.shape[2])
    moved = x.but(x=x.x[:, :, order], positions=x.positions[..., order])
    return rotary.agree(moved, x, back=lambda output: output[:, :, order.argsort()])


@law(
    source=OWN,
    formula="p' = p at i implies f(x, p')_i = f(x, p)_i",
    guards="Frequencies or a scale that depend on the largest position in the call (lucidrains/x-transformers c5baa0d).",
    given=(at_least(length=2),),
)
def the_positions_of_others_do_not_matter(rotary: RotarySubject, x: RotaryInputs) -> Comparison:
    """A token is turned the same when another one stands elsewhere, far behind all others even."""
    positions = x.positions.clone()
    positions[..., -1] += rotary.room(x, (1, 100, 5000, 100_000)[x.case.seed % 4])
    moved = x.at(positions)
    limit = (rotary.bound(x) + rotary.bound(moved))[:, :, :-1]
    return within(rotary(moved)[:, :, :-1], rotary(x)[:, :, :-1], limit)


@law(
    source=OWN,
    formula="f(x, [p; p'])_b = f(x_b, p_b)",
    guards="A batch padded on the left in which all share the first row's positions (unslothai/unsloth 3699).",
    needs=("batched_positions",),
    given=(at_least(batch=2), having(per_sequence=True), one_in(2, at_least(batch=3))),
    share=0.75,
)
def each_sequence_has_its_own_positions(rotary: RotarySubject, x: RotaryInputs) -> Iterator[Comparison]:
    """A sequence with positions of its own is turned as it is alone, also where all begin and end alike, or the others
    share theirs.
    """
    if x.positions.ndim == 1:
        raise NotApplicable("its positions reach too little far for two sequences")
    batch, way = x.x.shape[0], x.case.seed // 22 % 3
    one = batch // 2 if way == 2 else x.case.seed % batch
    if way == 1:
        ends = torch.zeros(x.positions.shape[1], dtype=torch.bool)
        ends[0] = ends[-1] = True
        x = x.at(torch.where(ends, x.positions[:1], x.positions))
    elif way == 2:
        others = (torch.arange(batch) != one)[:, None]
        x = x.at(torch.where(others, x.positions[:1], x.positions))
    together, bound = rotary(x), rotary.bound(x)
    for number in {0, one, batch - 1}:  # Whose positions the others may have been given.
        row = slice(number, number + 1)
        alone = x.but(x=x.x[row], positions=x.positions[row])
        yield within(together[row], rotary(alone), bound[row] + rotary.bound(alone))


@law(
    source=OWN,
    formula="f(x, p) = f(x, [p; p; ...])",
    guards="Positions broadcast along heads where they should along sequences.",
    needs=("batched_positions", "shared_positions"),
    given=(having(per_sequence=False),),
    share=0.5,
)
def shared_positions_are_those_of_each(rotary: RotarySubject, x: RotaryInputs) -> Comparison:
    """Positions given once are the same as given for each sequence."""
    return rotary.agree(x.at(x.positions.expand(x.x.shape[0], -1)), x)


@law(
    source=OWN,
    formula="f(x, [p]) = f(x, p)",
    guards="One row of positions for all sequences, as it is handed on from one, taken for the row of the first.",
    needs=("batched_positions", "shared_positions"),
    given=(having(per_sequence=False), at_least(batch=2)),
    share=0.5,
)
def one_row_of_positions_is_that_of_each(rotary: RotarySubject, x: RotaryInputs) -> Comparison:
    """Positions (1, length) turn each sequence of a batch as positions (length,) do, or are refused."""
    one_row = x.at(x.positions[None])
    try:
        observed = rotary(one_row)
    except SubjectRaised as refusal:
        raise NotApplicable(f"refuses positions of one row for several sequences: {refusal}") from refusal
    return within(observed, rotary(x), 2 * rotary.bound(x))


@law(
    source="a whole number is a number",
    formula="f(x, float(p)) = f(x, p)",
    guards="A branch for floats that scales or shifts them.",
    needs=("fractional",),
    given=(one_of("spacing", 1.0, 2.0, 13.0),),
    share=0.5,
)
def whole_positions_may_be_floats(rotary: RotarySubject, x: RotaryInputs) -> Comparison:
    """Whole positions in float32 turn as the same positions in int64 do."""
    return rotary.agree(x.at(x.positions.float()), x)


@law(
    source="a whole number is a number",
    formula="f(x, int32(p)) = f(x, p)",
    guards="Positions of 4 bytes read as if they had 8: two are one.",
    given=(one_of("spacing", 1.0, 2.0, 13.0),),
    share=0.5,
)
def whole_positions_may_be_narrow(rotary: RotarySubject, x: RotaryInputs) -> Comparison:
    """Positions in int32 turn as the same positions in int64 do, or are refused."""
    narrow = x.at(x.positions.int())
    try:
        observed = rotary(narrow)
    except SubjectRaised as refusal:
        raise NotApplicable(f"refuses positions in int32: {refusal}") from refusal
    return within(observed, rotary(x), rotary.bound(narrow) + rotary.bound(x))


@law(
    source=OWN,
    formula="f(x, p), p strided or expanded, = f(x, contiguous p)",
    guards="A kernel that reads positions with a stride of 1, or the rows of expanded ones as if they were there.",
    given=(at_least(length=2),),
    share=0.5,
)
def strided_positions_are_read_right(rotary: RotarySubject, x: RotaryInputs) -> Iterator[Comparison]:
    """Positions that are a slice of something, or expanded for all sequences, are read as they are."""
    there = x.positions.to(rotary.device)  # Before they are strided: a move closes the gaps.
    forms = {"positions": torch.stack((there, torch.zeros_like(there)), dim=-1)[..., 0]}
    if x.positions.ndim == 1 and rotary.has("batched_positions"):
        forms["expanded positions"] = there.expand(x.x.shape[0], -1)
    if x.positions.ndim == 1 and rotary.lacks("shared_positions"):
        forms = {}
    with torch.no_grad():
        for what, positions in forms.items():
            given = {**rotary.tensors_for(x), "positions": positions}
            strided = rotary.run(x, given)
            yield within(strided, rotary(x), 2 * rotary.bound(x), f"output, {what} strided")
