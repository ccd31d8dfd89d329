"""Document 003, lines 297 to 1126: statements between those of the other modules."""

import torch
from torch import nn

from headcheck.golden.derived import Derived
from headcheck.golden.ledger import Section
from headcheck.golden.stated import count
from headcheck.reference import MultiHeadAttention

HEADS = Section("003", "multi-head")
LAYER = Section("003", "encoder-layer")
SCHEDULE = Section("003", "schedule")
GPT = Section("003", "decoder-only")

HEADS.not_checkable(
    "as-described",
    297,
    "as described in",
    "The module is the paper's multi-head attention.",
    reason="A matter of words: the paper's projections have no biases and its section 5.4 no dropout on the weights, "
    "and this module has both.",
)
HEADS.erratum(
    "combined-projections",
    308,
    "Linear projections for Q, K, V (combined",
    "How many layers project to queries, keys and values: one, combined.",
    count(1),
    Derived(
        lambda: len({id(layer) for layer in _projections(MultiHeadAttention(4, 2))}),
        lambda: torch.nn.MultiheadAttention(4, 2).in_proj_weight.shape[0] // 4,
    ),
    slip="Three layers are called one after the other. Combined, they would be one matrix of 3 d_model rows, as in "
    "torch's module. What is combined are the heads: the claim combined-for-efficiency.",
    gives=lambda: sum("in_proj_weight" in name for name, _ in nn.MultiheadAttention(4, 2).named_parameters()),
)
HEADS.behaviour(
    "three-projections",
    308,
    "The module has four linear layers: one for each of query, key and value, and the last.",
    blocks=("module",),
    probe="print([name for name, each in mha.named_children() if isinstance(each, nn.Linear)])",
    prints="['W_q', 'W_k', 'W_v', 'W_o']",
)
for name, place, what, source in (
    ("layers-of-the-original", "6 encoder layers", "The paper's encoder has 6 layers.", "section 3.1"),
    (
        "layers-of-bert-base",
        "BERT-base uses 12",
        "BERT-base has 12 layers.",
        "section 3 of Devlin et al. 2019",
    ),
    (
        "layers-of-bert-large",
        "BERT-large uses 24",
        "BERT-large has 24 layers.",
        "section 3 of Devlin et al. 2019",
    ),
):
    LAYER.not_checkable(
        name, 567, place, what, reason=f"A fact about a publication that is not given: {source} says so."
    )
SCHEDULE.not_checkable(
    "formula-of-the-paper",
    926,
    "Formula from the paper",
    "The formula is the paper's.",
    reason="A fact about a paper that is not given: it is its equation 3. That the code computes line 909 is checked.",
)

GPT.not_checkable(
    "often-tied",
    1126,
    "often tied with input embedding weights",
    "The output layer often shares its weight with the table of tokens.",
    reason="A usage. That this model does is line 1129's.",
)


def _projections(module: MultiHeadAttention) -> tuple[nn.Linear, nn.Linear, nn.Linear]:
    return module.w_q, module.w_k, module.w_v
