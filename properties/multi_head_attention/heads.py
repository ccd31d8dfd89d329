"""The heads are attentions of their own, side by side."""

from collections.abc import Iterator

import torch
from torch import Tensor

from headcheck.comparison import Comparison, NotApplicable, within
from headcheck.given import at_least, having
from headcheck.laws import law
from headcheck.modules.multi_head.cases import MultiHeadCase, MultiHeadInputs
from headcheck.modules.multi_head.oracle import projected, put_out
from headcheck.modules.multi_head.subject import MultiHeadSubject
from headcheck.reference.attention import attention as single_attention

CONCATENATED = "Vaswani et al. 2017, section 3.2.2: Concat(head_1, ..., head_h) W_o"


def _run_one_by_one(attention: MultiHeadSubject, x: MultiHeadInputs) -> Tensor:
    """Every head an attention of its own slices, their outputs side by side."""
    q, k, v = (torch.split(projected(x, letter), 1, dim=1) for letter in "qkv")
    seen = torch.split(attention.visible(x).expand(-1, x.heads, -1, -1), 1, dim=1)
    heads = [
        single_attention(*each[:3], may_attend=each[3]).output for each in zip(q, k, v, seen, strict=True)
    ]
    return put_out(x, torch.cat(heads, dim=1))


@law(
    source=CONCATENATED,
    formula="f(x) = Concat(Attention(Q W_q^i, K W_k^i, V W_v^i) for i = 1 .. h) W_o + b_o",
    guards="Heads split or merged by a view without the transpose (jsbaan 6, ajhalthor 4, QAnet 2).",
    given=(at_least(heads=2),),
)
def heads_are_attentions_run_one_by_one(attention: MultiHeadSubject, x: MultiHeadInputs) -> Comparison:
    """The output is that of single attentions, one for each head's slices of the weights, concatenated."""
    return attention.close(attention(x), _run_one_by_one(attention, x), x)


@law(
    source=CONCATENATED,
    formula="h = 1: f(x) = Attention(Q W_q, K W_k, V W_v) W_o + b_o",
    guards="An axis squeezed away where it has length 1.",
    given=(having(heads=1),),
)
def one_head_is_single_attention(attention: MultiHeadSubject, x: MultiHeadInputs) -> Comparison:
    """With one head the output is that of a single attention."""
    if x.heads != 1:
        raise NotApplicable("has more than one head")
    return attention.close(attention(x), _run_one_by_one(attention, x), x)


@law(
    source=CONCATENATED,
    formula="f = sum_i f(W_o reads head i only) - (h - 1) b_o",
    guards="Heads that are mixed after the attention: averaged, normalised together, or merged twice.",
    needs=("many_heads",),
    given=(at_least(heads=2),),
)
def what_the_heads_give_adds_up(attention: MultiHeadSubject, x: MultiHeadInputs) -> Comparison:
    """What each head gives by itself through the output projection adds up to the whole."""
    parts = sum(attention(x.with_only(head)) for head in range(x.heads))
    bias = x.weights.get("b_o", torch.zeros(()))
    rounded = x.heads**2 * attention.bound(x)  # As many terms, each as large as the whole or its bias.
    return within(parts - (x.heads - 1) * bias, attention(x), rounded, "sum of the heads")


@law(
    source="a sum does not depend on the order of its terms",
    formula="f with heads and the columns of W_o permuted = f",
    guards="Weights, masks or scales that belong to a head's number; heads merged in another order than split.",
    needs=("many_heads",),
    given=(at_least(heads=2),),
)
def permuting_heads_with_the_output_projection_changes_nothing(
    attention: MultiHeadSubject, x: MultiHeadInputs
) -> Comparison:
    """Heads in another order, and the output projection's columns too, give the same output."""
    groups, group = x.kv_heads, x.heads // x.kv_heads
    order = torch.randperm(groups, generator=x.generator("order"))

    def moved(width: int) -> Tensor:
        return torch.arange(groups * width).reshape(groups, width)[order].flatten()

    wide, narrow = moved(group * x.head_dim), moved(x.head_dim)
    permuted = {"w_o": x.weights["w_o"][:, wide]}
    for name in ("w_q", "b_q", "w_k", "b_k", "w_v", "b_v"):
        if name in x.weights:
            permuted[name] = x.weights[name][wide if name[-1] == "q" else narrow]
    mask = x.may_attend
    if mask is not None and mask.shape[1] > 1:
        mask = mask[:, moved(group)]
    other = x.weighing(**permuted).but(may_attend=mask)
    return attention.close(attention(other), attention(x), x)


@law(
    source=CONCATENATED,
    formula="W_q^i, W_k^i, W_v^i changed: head j the same, j != i",
    guards="Heads that read each other's dims; grouped heads tiled for interleaved (onnx 7274).",
    needs=("many_heads",),
    given=(at_least(heads=2),),
)
def a_head_reads_its_own_slices_only(attention: MultiHeadSubject, x: MultiHeadInputs) -> Iterator[Comparison]:
    """Changing one head's slices of the projections changes no other head."""
    head = x.case.seed % x.kv_heads
    group = x.heads // x.kv_heads
    others = x.with_only(*(each for each in range(x.heads) if each // group != head))
    expected = attention(others)
    for letter, count in (("q", x.heads), ("k", x.kv_heads), ("v", x.kv_heads)):
        rows = torch.zeros(x.kv_heads, count // x.kv_heads * x.head_dim, 1, dtype=torch.bool)
        rows[head] = True
        weight = x.weights[f"w_{letter}"]
        changed = torch.where(rows.flatten(0, 1), -weight + 0.5, weight)
        other = others.weighing(**{f"w_{letter}": changed})
        yield attention.close_between(attention(other), expected, x, other)


def _all_alike(case: MultiHeadCase) -> MultiHeadCase:
    """Batch, heads and lengths of one size."""
    size = max(2, case.heads)
    return case.but(batch=size, heads=size, q_len=size, kv_len=size)


@law(
    source="axes are told apart by what they mean, not by their lengths",
    formula="batch = heads = q_len = kv_len: f([a; b])_a = f([a])",
    guards="Batch, heads or length confused: an error for other sizes, silent for these (AEMatter 3, mlx-lm 1467).",
    needs=("many_heads",),
    given=(_all_alike,),
)
def axes_of_one_length_are_not_confused(attention: MultiHeadSubject, x: MultiHeadInputs) -> Comparison:
    """Where batch, heads and lengths are one number, each sequence still gives what it gives alone."""
    row = torch.tensor([x.case.seed % len(x.query)])
    return attention.close(attention(x)[row], attention(x.picked(row)), x)
