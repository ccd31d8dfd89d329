"""Which kernel ran: a subject that names one is held to it."""

from headcheck.attention.inputs import Inputs
from headcheck.attention.operators import operators_in, telling
from headcheck.attention.subject import AttentionSubject
from headcheck.comparison import Comparison, LawBroken, NotApplicable, none
from headcheck.laws import law


@law(
    source="torch.nn.attention.sdpa_kernel: a backend that cannot run raises, and no other runs in its place",
    formula="f(x) is answered: the operator declared is among those that the profiler saw",
    guards="A silent fallback: a faster kernel is asked for and the plain one runs, of the right numbers and slow.",
    share=0.3,
)
def the_declared_operator_runs(attention: AttentionSubject, x: Inputs) -> Comparison:
    """Every call runs the operator that the subject declares, and no other in its place."""
    wanted = attention.declaration.operator
    if not wanted:
        raise NotApplicable("operator='': no operator is declared")
    seen = operators_in(attention, x)
    if not any(wanted in each for each in seen):
        raise LawBroken(f"{wanted} did not run; what ran: {', '.join(telling(seen)) or 'nothing known'}")
    return none("other operators in its place")
