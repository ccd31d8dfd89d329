"""Two subjects on the same inputs: each may be off by its own bound, so they may be apart by the sum of both."""

from collections.abc import Iterator

import torch
from torch import Tensor

from headcheck.agreement.pair import PairSubject
from headcheck.attention.inputs import Inputs
from headcheck.comparison import Comparison, within
from headcheck.laws import law

TRIANGLE = "triangle inequality: |a - b| <= |a - exact| + |b - exact|"


@law(
    source=TRIANGLE,
    formula="|O_1 - O_2| <= bound_1 + bound_2",
    guards="Backends of one function that part at the edges: masks, lengths, scales, dead rows (pytorch 110213).",
    share=2.0,
)
def outputs_agree(pair: PairSubject, x: Inputs) -> Comparison:
    """Both give the same output, as far as the arithmetic that each declares allows."""
    limit = pair.one.bound(x) + pair.other.bound(x)
    return within(pair.one(x), pair.other(x), limit, "output")


@law(
    source=TRIANGLE,
    formula="|dQ_1 - dQ_2|, |dK_1 - dK_2|, |dV_1 - dV_2| <= the sum of both bounds",
    guards="A model that trains with one backend and not with another (pytorch 133671).",
)
def gradients_agree(pair: PairSubject, x: Inputs) -> Iterator[Comparison]:
    """Both give the same gradients of query, key and value."""
    if not (pair.one.claims_gradients(x) and pair.other.claims_gradients(x)):
        return
    found = [side.gradients(x) for side in pair.sides]
    bounds = [side.gradient_bounds(x) for side in pair.sides]
    for name in ("query", "key", "value"):
        one, other = (_given(getattr(each, name), getattr(x, name)) for each in found)
        limit = getattr(bounds[0], name) + getattr(bounds[1], name)
        yield within(one, other, limit, f"gradient of {name}")


def _given(gradient: Tensor | None, of: Tensor) -> Tensor:
    """A gradient that autograd leaves out stands for zero."""
    return torch.zeros_like(of) if gradient is None else gradient


@law(
    source=f"{TRIANGLE}; Dao et al. 2022 (FlashAttention), algorithm 1: L = m + log l",
    formula="|L_1 - L_2| <= bound_1 + bound_2",
    guards="Base 2 in one backend and base e in another, of which parts are merged (vllm 26042).",
    needs=("log_sum_exp",),
)
def log_sum_exps_agree(pair: PairSubject, x: Inputs) -> Comparison:
    """Both return the same log-sum-exp."""
    limits = [side.log_sum_exp_bound(x) for side in pair.sides]
    return within(pair.one.log_sum_exp(x), pair.other.log_sum_exp(x), limits[0] + limits[1], "log-sum-exp")


@law(
    source=TRIANGLE,
    formula="|W_1 - W_2| <= bound_1 + bound_2",
    guards="Weights of another path than the output's (pytorch 42929).",
    needs=("weights",),
)
def weights_agree(pair: PairSubject, x: Inputs) -> Comparison:
    """Both return the same weights."""
    limits = [side.forward_bounds(x).weights for side in pair.sides]
    dead = (pair.one.special_rows(x) | pair.other.special_rows(x))[..., None]
    limit = torch.where(dead, torch.inf, limits[0] + limits[1])
    return within(pair.one.weights(x), pair.other.weights(x), limit, "weights")


@law(
    source="the canonical call: a query that may attend to nothing gives what is declared",
    formula="no key for query i, and one convention: O_1i = O_2i",
    guards="Zeros in one backend, NaN or the mean of all values in another (pytorch 103749, 110213).",
    needs=("attn_mask",),
    share=0.5,
)
def dead_rows_agree(pair: PairSubject, x: Inputs) -> Comparison | None:
    """Both give the same for a query whose keys are all masked, where they declare one convention."""
    pair.require_one_convention_for_dead_rows()
    if x.attn_mask is None or x.case.mask_form == "lowest":
        return None
    y = x.with_a_dead_row()
    limit = pair.one.strict_bound(y) + pair.other.strict_bound(y)
    one, other = (torch.where(y.dead_rows[..., None], side(y).cpu(), 0.0) for side in pair.sides)
    return within(one, other, limit, "output of a query without keys")
