"""One table and another: what is asked for changes how much there is of it, never what stands in it."""

from collections.abc import Iterator

import torch

from headcheck.comparison import Comparison, within
from headcheck.functions.sinusoidal import SinusoidalSubject
from headcheck.functions.sinusoidal_inputs import SinusoidalInputs
from headcheck.given import at_least
from headcheck.laws import law

PURE = "a call is a function of its arguments"


def _longer(table: SinusoidalSubject, x: SinusoidalInputs) -> SinusoidalInputs:
    return x.but(length=min(table.longest, x.length + (1, 7, 600, 3000)[x.case.seed % 4]))


@law(
    source="row p depends on p only",
    formula="f(long)[: short] = f(short)",
    guards="A base or a scale that depends on the length, positions divided by the length.",
)
def longer_tables_extend_shorter_ones(table: SinusoidalSubject, x: SinusoidalInputs) -> Comparison:
    """A longer table begins with the shorter one."""
    longer = _longer(table, x)
    limit = table.bound(x) + table.bound(longer)[: x.length]
    return within(table(longer)[: x.length], table(x), limit)


@law(
    source=PURE,
    formula="f(l, d), f(l, d'), f(l, d): each as in a longer table",
    guards="A table kept by the length alone, or by the width alone: the second model of a process gets the first's.",
    given=(at_least(d_model=4),),
)
def each_size_has_its_own_table(table: SinusoidalSubject, x: SinusoidalInputs) -> Iterator[Comparison]:
    """Calls with other sizes in between change no table."""
    wider = x.but(d_model=x.d_model + 2)
    first, second, again = table(x), table(wider), table(x)
    fresh = _longer(table, wider)
    limit = table.bound(wider) + table.bound(fresh)[: x.length]
    yield within(again, first, 2 * table.bound(x), "output, the second time")
    yield within(second, table(fresh)[: x.length], limit, "the wider table")


@law(
    source="the base belongs to the call",
    formula="f(l, d, b), f(l, d, b'), f(l, d, b): each as if it were alone",
    guards="A table kept by its sizes: the second model of a process runs with the base of the first.",
    needs=("base",),
    given=(at_least(d_model=4, length=2),),
    share=0.5,
)
def each_call_has_its_own_base(table: SinusoidalSubject, x: SinusoidalInputs) -> Iterator[Comparison]:
    """A call with another base gives its own table, and so does the one after it."""
    other = x.but(base=37.0 if table.base != 37.0 else 11.0)
    for number, each in enumerate((x, other, x), start=1):
        yield table.against_the_oracle(each, f"output, call {number}")


@law(
    source="a call gives a tensor of its own",
    formula="y changed in place: f(length, d_model) is what it was",
    guards="A kept table handed out itself: `pe += x` changes the code of every later sequence.",
)
def a_table_may_be_changed_by_its_owner(table: SinusoidalSubject, x: SinusoidalInputs) -> Comparison:
    """Writing into a table that was handed out does not change the next one."""
    with torch.no_grad():
        handed_out = table.run(x, {})
        before = handed_out.clone()
        if not any(stride == 0 for stride in handed_out.stride()):
            handed_out.add_(1.0)
    return within(table(x), before, 2 * table.bound(x), "the table, after an earlier one was changed")
