"""What a score is made of: queries, keys, their biases, and the root of head_dim."""

import torch

from headcheck.comparison import Comparison, NotApplicable
from headcheck.given import at_least, having, one_of
from headcheck.laws import law
from headcheck.modules.multi_head.asking import answer_beside_causal, with_numbers_added
from headcheck.modules.multi_head.cases import MultiHeadInputs
from headcheck.modules.multi_head.oracle import projected, put_out
from headcheck.modules.multi_head.subject import MultiHeadSubject

UNMASKED = having(mask="none", padding=False)


@law(
    source="Vaswani et al. 2017, equation (1) and section 3.2.2: 1 / sqrt(d_k), d_k = d_model / h",
    formula="two keys: log(P_1 / P_0) = q . (k_1 - k_0) / sqrt(head_dim)",
    guards="The root of d_model in place of head_dim's (vit-pytorch 65), a multiplication (perceiver-io 9), no scale.",
    given=(UNMASKED, at_least(heads=2, head_dim=2), having(q_len=2, kv_len=2)),
)
def scores_are_divided_by_the_root_of_head_dim(attention: MultiHeadSubject, x: MultiHeadInputs) -> Comparison:
    """Of two keys, the odds are the exponent of the difference of the dot products over the root of head_dim."""
    q, k, v = (projected(x, letter) for letter in "qkv")
    difference = (q * (k[:, :, 1:] - k[:, :, :1])).sum(dim=-1, keepdim=True) * x.head_dim**-0.5
    mixed = v[:, :, :1] + torch.sigmoid(difference) * (v[:, :, 1:] - v[:, :, :1])
    return attention.close(attention(x)[:, -1:], put_out(x, mixed)[:, -1:], x, "output of the last query")


@law(
    source="nothing but the biases is left of an input of zeros",
    formula="f(0, 0, 0) = W_o b_v + b_o",
    guards="Biases that are made and not used, used twice, or used in another projection.",
    needs=("bias",),
)
def inputs_of_zeros_give_what_the_biases_give(attention: MultiHeadSubject, x: MultiHeadInputs) -> Comparison:
    """For inputs of zeros the output is the output projection of the values' bias."""
    zeros = {
        n: torch.zeros_like(each) for n in ("query", "key", "value") if (each := getattr(x, n)) is not None
    }
    nothing = x.but(**zeros)
    expected = put_out(nothing, projected(nothing, "v")[:, :, :1])
    return attention.close(attention(nothing), expected.expand(x.query.shape), nothing)


@law(
    source="softmax is invariant to a common shift, and q . b_k is common to all keys",
    formula="f(b_k + c) = f(b_k)",
    guards="The keys' bias added to the values, or after the heads were split wrongly.",
    needs=("bias",),
)
def the_bias_of_the_keys_changes_nothing(attention: MultiHeadSubject, x: MultiHeadInputs) -> Comparison:
    """Whatever the bias of the keys is, the output is the same."""
    bias = x.weights["b_k"]
    other = x.weighing(b_k=bias + x.random("bias", len(bias)).double())
    return attention.close_between(attention(other), attention(x), x, other)


@law(
    source="the weights of a query sum to one",
    formula="f(b_v + c) = f(b_v) + W_o c",
    guards="Weights that do not sum to one: a wrong axis of softmax (labml 146), masked keys in the sum.",
    needs=("bias",),
)
def a_shift_of_all_values_passes_through(attention: MultiHeadSubject, x: MultiHeadInputs) -> Comparison:
    """What is added to the values' bias appears in the output by way of the output projection."""
    bias = x.weights["b_v"]
    shift = x.random("bias", len(bias)).double()
    other = x.weighing(b_v=bias + shift)
    passed = (
        torch.unflatten(shift, 0, (x.kv_heads, -1)).repeat_interleave(x.heads // x.kv_heads, dim=0).flatten()
    )
    return attention.close_between(
        attention(other), attention(x).double() + x.weights["w_o"] @ passed, x, other
    )


@law(
    source="torch.nn.MultiheadAttention: a mask of floats is added to the attention weights, and is_causal hides",
    formula="f(x, b, is_causal) = Concat(softmax(Q K^T / sqrt(head_dim) + b, over j <= i) V) W_o; or it is refused",
    guards="Two masks made one by their infinities alone, so that the numbers of the one become zeros.",
    needs=("is_causal", "additive"),
    given=(
        having(mode="self", flag=False),
        at_least(q_len=2),
        one_of("values", "normal", "integers", "tiny"),
    ),
    share=0.5,
)
def numbers_beside_is_causal_are_added(attention: MultiHeadSubject, x: MultiHeadInputs) -> Comparison:
    """Beside is_causal a mask of finite numbers is added to the scores of what is not hidden, too."""
    biased, exact = with_numbers_added(attention, x)
    both = attention.beside_causal(biased)
    if both is None:
        raise NotApplicable("is_causal is said beside a mask that says so too")
    seen = attention.visible(both).any(dim=-1).all(dim=1)[..., None]
    found, expected = answer_beside_causal(attention, both), exact(both)
    return attention.close(
        torch.where(seen, found, expected), expected, both, "output, is_causal beside a mask"
    )
