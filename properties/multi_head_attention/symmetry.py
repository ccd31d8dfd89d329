"""Without positions there is no order; each query is answered by itself; values come from the values."""

import torch

from headcheck.comparison import Comparison
from headcheck.given import at_least, having, one_of
from headcheck.laws import law
from headcheck.modules.multi_head.cases import MultiHeadInputs
from headcheck.modules.multi_head.oracle import projected, put_out
from headcheck.modules.multi_head.subject import MultiHeadSubject

UNORDERED = "Vaswani et al. 2017, section 3.5: without positions there is no order"


@law(
    source=UNORDERED,
    formula="f(P x, P M P^T) = P f(x, M)",
    guards="Heads merged by a view without the transpose, so that tokens are mixed (FuxiCTR 30).",
    needs=("free",),
    given=(having(mode="self"), at_least(q_len=2)),
)
def permuting_tokens_permutes_the_output(attention: MultiHeadSubject, x: MultiHeadInputs) -> Comparison:
    """Self-attention of tokens in another order gives the outputs in that order."""
    order = torch.randperm(x.query.shape[1], generator=x.generator("order"))
    return attention.close(attention(x.with_keys(order)), attention(x)[:, order], x)


@law(
    source=UNORDERED,
    formula="f(q, P k, P v, M P^T) = f(q, k, v, M)",
    guards="Keys read in another order than values, a mask that stays where the keys were; hidden positions.",
    needs=("cross", "free"),
    given=(one_of("mode", "cross", "separate"), at_least(kv_len=2)),
)
def permuting_keys_and_values_changes_nothing(attention: MultiHeadSubject, x: MultiHeadInputs) -> Comparison:
    """Keys in another order, with their values and masks, give the same output."""
    order = torch.randperm(x.keys.shape[1], generator=x.generator("order"))
    return attention.close(attention(x.with_keys(order)), attention(x), x)


@law(
    source="Vaswani et al. 2017, section 3.2.3: queries of one sequence, keys of another",
    formula="f(q, k, v)_i = f(q_i, k, v)",
    guards="q_len and kv_len confused, a softmax over the queries (labml 146); wrong only where they differ.",
    needs=("cross",),
    given=(one_of("mode", "cross", "separate"), at_least(q_len=2)),
)
def each_query_is_answered_by_itself(attention: MultiHeadSubject, x: MultiHeadInputs) -> Comparison:
    """In cross-attention a query among others gives what it gives alone, whatever the lengths are."""
    place = x.case.seed % x.query.shape[1]
    one = slice(place, place + 1)
    mask = None if x.may_attend is None else x.may_attend[:, :, one]
    alone = x.masked(mask).but(query=x.query[:, one])
    return attention.close(attention(alone), attention(x)[:, one], x)


@law(
    source="Vaswani et al. 2017, section 3.2.2: head_i = Attention(Q W_q^i, K W_k^i, V W_v^i)",
    formula="v_j = c for every j: f(q, k, v) = W_o (W_v c + b_v) + b_o, whatever q and k are",
    guards="Values projected from the keys' tensor, or from the queries'.",
    needs=("separate",),
    given=(having(mode="separate"),),
)
def equal_values_come_out_whatever_the_keys_are(
    attention: MultiHeadSubject, x: MultiHeadInputs
) -> Comparison:
    """Where all values of a sequence are one vector, the output is its projection."""
    equal = x.but(value=x.values[:, :1].expand(-1, x.keys.shape[1], -1).clone())
    expected = put_out(equal, projected(equal, "v")[:, :, :1])
    return attention.close(attention(equal), expected.expand(x.query.shape), equal)
