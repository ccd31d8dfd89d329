"""The output is the reference's."""

from headcheck.comparison import Comparison
from headcheck.laws import law
from headcheck.modules.multi_head.cases import MultiHeadInputs
from headcheck.modules.multi_head.subject import MultiHeadSubject


@law(
    source="Vaswani et al. 2017, section 3.2.2",
    formula="f(q, k, v) = Concat(head_1, ..., head_h) W_o, in float64, with the same weights",
    guards="Anything that the other laws do not name; their conditions all at once.",
    share=4.0,
)
def output_is_the_references(attention: MultiHeadSubject, x: MultiHeadInputs) -> Comparison:
    """With the same weights the output is that of headcheck.reference.MultiHeadAttention in float64."""
    return attention.close(attention(x), attention.exact(x), x)
