"""Document 000, lines 449 to 510: torch's own module, self-attention and cross-attention."""

import inspect

import sympy
import torch
from torch import nn

from headcheck.golden.derived import Derived, counted, holds
from headcheck.golden.exact import contracted, softmax
from headcheck.golden.ledger import Run, Section
from headcheck.golden.stated import HOLDS, exactly, shape
from headcheck.reference import DecoderLayer, EncoderLayer, LayerConfig, MultiHeadAttention, attention, masks

BUILT_IN = Section("000", "built-in")
CROSS = Section("000", "cross-attention")

CONFIG = LayerConfig(d_model=64, num_heads=8, d_ff=256, norm_order="pre", activation="relu")


def _own(queries: int, keys: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and weights of torch's module: 2 sequences, 64 dims, 8 heads."""
    module = nn.MultiheadAttention(64, 8, batch_first=True)
    query, key = torch.zeros(2, queries, 64), torch.zeros(2, keys, 64)
    output, weights = module(query, key, key)
    return output, weights


def _weights(queries: int, keys: int) -> torch.Tensor:
    """The reference's weights, averaged over 8 heads as torch does."""
    query, key = torch.zeros(2, 8, queries, 8).double(), torch.zeros(2, 8, keys, 8).double()
    return attention(query, key, key).weights.mean(dim=1)


def _output_shape(queries: int, keys: int) -> Derived:
    return counted(
        lambda: contracted("bqk,bkd->bqd", (2, queries, keys), (2, keys, 64)),
        lambda: _own(queries, keys)[0].shape,
        lambda: MultiHeadAttention(64, 8)(torch.zeros(2, queries, 64), torch.zeros(2, keys, 64)).shape,
    )


def _weights_shape(queries: int, keys: int) -> Derived:
    return counted(
        lambda: contracted("bqd,bkd->bqk", (2, queries, 64), (2, keys, 64)),
        lambda: _own(queries, keys)[1].shape,
        lambda: _weights(queries, keys).shape,
    )


def _sequence_first() -> bool:
    """By default axis 0 is the sequence: with 2 x 3 inputs, the weights are 2 x 2 for each of 3."""
    x = torch.zeros(2, 3, 4)
    return bool(nn.MultiheadAttention(4, 1)(x, x, x)[1].shape == (3, 2, 2))


def _batch_first() -> bool:
    x = torch.zeros(2, 3, 4)
    return bool(nn.MultiheadAttention(4, 1, batch_first=True)(x, x, x)[1].shape == (2, 3, 3))


def _axes_exchanged() -> bool:
    """Given the same weights, the module that takes the batch first is the other on exchanged axes."""
    batch_first = nn.MultiheadAttention(4, 1, batch_first=True).double()
    sequence_first = nn.MultiheadAttention(4, 1).double()
    sequence_first.load_state_dict(batch_first.state_dict())
    x = torch.arange(24, dtype=torch.float64).view(2, 3, 4) / 24
    one, other = batch_first(x, x, x)[0], sequence_first(*[x.transpose(0, 1)] * 3)[0]
    return bool(torch.allclose(one, other.transpose(0, 1)))


def _takes_both_masks() -> bool:
    """A padding mask and a mask of queries and keys take the weights away."""
    x = torch.zeros(1, 3, 4)
    hidden, padded = torch.ones(3, 3).triu(1).bool(), torch.tensor([[True, False, False]])
    module = nn.MultiheadAttention(4, 1, batch_first=True)
    causal = module(x, x, x, attn_mask=hidden)[1][0]
    without_first = module(x, x, x, key_padding_mask=padded)[1][0]
    return torch.equal(causal == 0, hidden) and torch.equal(without_first == 0, padded.expand(3, 3))


# Lines 451 to 472

BUILT_IN.confirmed(
    "sequence-first",
    451,
    "[seq_len, batch, d_model] by default",
    "By default torch's module takes the sequence as axis 0.",
    HOLDS,
    holds(
        _sequence_first,
        lambda: inspect.signature(nn.MultiheadAttention).parameters["batch_first"].default is False,
    ),
)
BUILT_IN.confirmed(
    "batch-first",
    451,
    "batch_first=True",
    "With batch_first it takes the batch as axis 0.",
    HOLDS,
    holds(_batch_first, _axes_exchanged),
)
BUILT_IN.block(
    "module",
    453,
    470,
    "torch's module on 2 sequences of 10 tokens.",
    alone=Run(
        prints=("Output shape: torch.Size([2, 10, 64])", "Weights shape: torch.Size([2, 10, 10])"),
    ),
)
for name, line, place, axes, derived in (
    ("input", 459, "batch=2, seq_len=10, embed_dim=64", (2, 10, 64), _output_shape(10, 10)),
    ("output", 465, "[2, 10, 64]", (2, 10, 64), _output_shape(10, 10)),
    ("weights", 466, "[2, 10, 10]", (2, 10, 10), _weights_shape(10, 10)),
):
    BUILT_IN.confirmed(f"shape-{name}", line, place, f"The shape of the {name}.", shape(*axes), derived)
BUILT_IN.confirmed(
    "ten-weights",
    469,
    "attends to all 10 tokens",
    "Each of ten keys has a weight above zero, and there is no other.",
    HOLDS,
    holds(
        lambda: all(each.is_positive for each in softmax(sympy.symbols("s:10", real=True))),
        None,
        lambda: bool((_weights(10, 10)[0, 0] > 0).all()) and _weights(10, 10).shape[-1] == 10,
    ),
)
BUILT_IN.confirmed(
    "rows-sum-to-one",
    470,
    "Weights sum per row",
    "The mean over the heads of weights that sum to one sums to one.",
    exactly("1 1 1 1 1 1 1 1 1 1"),
    Derived(
        exact=lambda: [sum(sympy.Rational(1, 8) * sum([sympy.Rational(1, 10)] * 10) for _ in range(8))] * 10,
        reference=lambda: _weights(10, 10)[0].sum(dim=-1),
    ),
    formula=r"\frac{1}{h} \sum_h \sum_j \alpha_{hij} = 1",
)
BUILT_IN.confirmed(
    "masks",
    472,
    "supports key_padding_mask and attn_mask",
    "torch's module takes both kinds of mask.",
    HOLDS,
    holds(
        _takes_both_masks,
        lambda: (
            {"attn_mask", "key_padding_mask"}
            <= {*inspect.signature(nn.MultiheadAttention.forward).parameters}
        ),
    ),
)
BUILT_IN.not_checkable(
    "faster",
    472,
    "significantly faster than a manual implementation",
    "torch's module is faster, by its CUDA kernels.",
    reason="A time on hardware that is not named. Called as in line 464 it does not use torch's fused attention, see "
    "the latent fault weights-rule-out-the-fused-attention.",
)
BUILT_IN.latent_fault(
    "weights-rule-out-the-fused-attention",
    464,
    "Called for its weights, the default, torch's module in training computes product, softmax and product one by one: "
    "its fused attention is used with need_weights=False only.",
    blocks=("module",),
    probe="""
import torch.nn.functional as F
calls, fused = [], F.scaled_dot_product_attention
F.scaled_dot_product_attention = lambda *args, **options: (calls.append(1), fused(*args, **options))[1]
for need_weights in True, False:
    mha(x, x, x, need_weights=need_weights)
    print(len(calls))
F.scaled_dot_product_attention = fused
""",
    prints="0\n1",
    why_no_fault="The output is right; no law asks which kernel ran.",
)

# Lines 476 to 510

CROSS.confirmed(
    "encoder-self-attention",
    476,
    "every source token attends to every other source token",
    "Without a mask every weight is above zero.",
    HOLDS,
    holds(
        lambda: all(each.is_positive for each in softmax(sympy.symbols("s:3", real=True))),
        None,
        lambda: bool((_weights(10, 10) > 0).all()),
    ),
)
CROSS.confirmed(
    "decoder-self-attention",
    476,
    "every target token attends to previously generated target tokens",
    "Under the causal mask a token attends to those before it (and to itself), to no later one.",
    HOLDS,
    holds(
        lambda: softmax([sympy.Symbol("s", real=True), -sympy.oo])[1] == 0,
        None,
        lambda: torch.equal(
            attention(*torch.zeros(3, 1, 1, 4, 2).double(), may_attend=masks.causal(4, 4)).weights[0, 0] > 0,
            torch.ones(4, 4).tril().bool(),
        ),
    ),
)
CROSS.block(
    "calls",
    480,
    506,
    "Self-attention on 10 tokens, cross-attention from 8 to 10.",
    alone=Run(
        prints=(
            "Self-attention output: torch.Size([2, 10, 64])",
            "Cross-attention output: torch.Size([2, 8, 64])",
            "Cross-attention weights: torch.Size([2, 8, 10])",
        )
    ),
)
for name, line, place, axes, derived in (
    ("self-output", 493, "[2, 10, 64]", (2, 10, 64), _output_shape(10, 10)),
    ("cross-output", 504, "[2, 8, 64]", (2, 8, 64), _output_shape(8, 10)),
    ("cross-weights", 505, "[2, 8, 10]", (2, 8, 10), _weights_shape(8, 10)),
    ("cross-weights-in-words", 508, "[batch, target_len, source_len]", (2, 8, 10), _weights_shape(8, 10)),
):
    CROSS.confirmed(f"shape-{name}", line, place, f"The shape, {name}.", shape(*axes), derived)
CROSS.confirmed(
    "eight-to-ten",
    506,
    "Each of 8 decoder tokens attends to all 10 encoder tokens",
    "8 x 10 weights, every one above zero.",
    exactly("80"),
    counted(
        lambda: 8 * 10,
        lambda: int((_own(8, 10)[1][0] > 0).sum()),
        lambda: int((_weights(8, 10)[0] > 0).sum()),
    ),
)
CROSS.confirmed(
    "which-block-has-which",
    510,
    "Decoder blocks use both",
    "Attentions of an encoder and of a decoder block.",
    shape(1, 2),
    counted(
        lambda: (1, 1 + 1),
        lambda: tuple(
            sum(isinstance(each, nn.MultiheadAttention) for each in layer(8, 1, 8).modules())
            for layer in (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)
        ),
        lambda: tuple(
            sum(isinstance(each, MultiHeadAttention) for each in layer(CONFIG).modules())
            for layer in (EncoderLayer, DecoderLayer)
        ),
    ),
)
CROSS.not_checkable(
    "alignments",
    508,
    "interpretable alignment patterns",
    "The weights of a translator often show which words belong together.",
    reason="What is learnt depends on a training that is not given.",
)
