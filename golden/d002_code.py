"""Document 002, lines 246 to 330: the encoder in code."""

import inspect

import sympy
import torch
from torch import nn

from headcheck.golden.derived import Derived, holds
from headcheck.golden.exact import contracted
from headcheck.golden.ledger import Run, Section
from headcheck.golden.stated import HOLDS, exactly, shape
from headcheck.reference import split_heads

CODE = Section("002", "encoder-code")

LEVELS = "0000 01 2222222222 1 22222222 3 2222 012 2 33333 212 0112 2222 1 222 012 22222 33 222 1 22222 2 3 2"


def _deviations() -> tuple[float, float]:
    """Of the tables of tokens and of positions, as torch starts them."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        tokens, positions = nn.Embedding(2000, 512), nn.Embedding(512, 512)
    return float(tokens.weight.detach().std()), float(positions.weight.detach().std())


# Lines 248 to 324: the code

CODE.block("encoder", 248, 323, "The encoder and its parts. It is only defined.", levels=LEVELS, alone=Run())
CODE.block(
    "usage",
    325,
    330,
    "Two sequences of 128 tokens, and the number of parameters.",
    levels="000000",
    alone=Run(error="NameError: name 'TransformerEncoder' is not defined"),
    in_order=Run(prints=("torch.Size([2, 128, 512])", "Parameters: 34,537,472")),
)
for name, place, axes, derived in (
    (
        "projected",
        "(B, N, d_model)",
        (2, 3, 8),
        Derived(
            lambda: contracted("bnd,de->bne", (2, 3, 8), (8, 8)),
            lambda: nn.Linear(8, 8)(torch.zeros(2, 3, 8)).shape,
        ),
    ),
    (
        "heads",
        "(B, n_heads, N, d_k)",
        (2, 4, 3, 2),
        Derived(
            lambda: (2, 4, 3, sympy.Integer(8) / 4),
            lambda: torch.zeros(2, 3, 8).view(2, 3, 4, 2).transpose(1, 2).shape,
            lambda: split_heads(torch.zeros(2, 3, 8), 4).shape,
        ),
    ),
):
    CODE.confirmed(
        f"shape-{name}",
        266,
        place,
        f"The shape, {name}: here of 2 sequences, 3 tokens, 8 dims and 4 heads.",
        shape(*axes),
        derived,
    )
CODE.behaviour(
    "indivisible-heads-are-refused",
    255,
    "A d_model that the heads do not divide is refused.",
    blocks=("encoder",),
    probe='try:\n    MultiHeadSelfAttention(4, 3)\nexcept AssertionError:\n    print("AssertionError")',
    prints="AssertionError",
)
CODE.behaviour(
    "attention-is-the-equation",
    270,
    "Without dropout, the module is the equation of line 46 in each head, between its projections.",
    blocks=("encoder",),
    probe="""
mha, x = MultiHeadSelfAttention(4, 2).eval(), torch.randn(2, 3, 4)
heads = [w(x).unflatten(-1, (2, 2)).transpose(1, 2) for w in (mha.W_q, mha.W_k, mha.W_v)]
weights = torch.softmax(heads[0] @ heads[1].mT / 2**0.5, dim=-1)
print(torch.allclose(mha(x), mha.W_o((weights @ heads[2]).transpose(1, 2).flatten(-2)), atol=1e-6))
""",
    prints="True",
)
CODE.behaviour(
    "block-is-the-formula",
    299,
    "Without dropout, the block is the two formulas of lines 198 and 199.",
    blocks=("encoder",),
    probe="""
block, x = EncoderBlock(4, 2, 8).eval(), torch.randn(2, 3, 4)
middle = x + block.attn(block.norm1(x))
print(torch.equal(block(x), middle + block.ffn(block.norm2(middle))))
""",
    prints="True",
)
CODE.behaviour(
    "causal-mask-hides-the-future",
    273,
    "With the mask of line 210 the output at a position does not change when later tokens do.",
    blocks=("encoder",),
    probe="""
encoder, mask = TransformerEncoder(9, 4, 2, 2, 8).eval(), torch.tril(torch.ones(3, 3))
a, b = (encoder(torch.tensor([[1, 2, last]]), mask) for last in (3, 4))
print(torch.equal(a[:, :2], b[:, :2]), torch.equal(a[:, 2], b[:, 2]))
""",
    prints="True False",
)
CODE.behaviour(
    "final-norm",
    324,
    "The norm after the last block: when it starts, every output has mean 0 and variance 1.",
    blocks=("encoder",),
    probe="""
out = TransformerEncoder(9, 64, 2, 2, 8).eval()(torch.tensor([[1, 2, 3]]))
mean, variance = out.mean(dim=-1), out.var(dim=-1, unbiased=False)
print(torch.allclose(mean, torch.zeros(3), atol=1e-5), torch.allclose(variance, torch.ones(3), atol=1e-4))
""",
    prints="True True",
)
CODE.behaviour(
    "output-is-not-the-sum",
    323,
    "Of this encoder the final output is not the sum of line 164: the last norm comes after it.",
    blocks=("encoder",),
    probe="""
encoder, stream = TransformerEncoder(9, 4, 2, 1, 8).eval(), []
encoder.layers[0].register_forward_hook(lambda module, given, out: stream.append(out))
out = encoder(torch.tensor([[1, 2]]))
print(torch.allclose(out, stream[0]), torch.equal(out, encoder.final_norm(stream[0])))
""",
    prints="False True",
)
CODE.confirmed(
    "view-and-transpose-split",
    324,
    "splitting the d_model dimensions into separate heads",
    "Split this way, head h has the dims h d_k to (h + 1) d_k - 1: of 0 to 3, the second of two heads has 2 and 3.",
    exactly("2 3"),
    Derived(
        lambda: list(range(4))[2:],
        lambda: list(torch.arange(4).view(1, 1, 2, 2).transpose(1, 2)[0, 1, 0]),
        lambda: split_heads(torch.arange(4.0).view(1, 1, 4), 2)[0, 1, 0],
    ),
)
CODE.erratum(
    "tokens-would-be-dwarfed",
    324,
    "dwarfed by the positional encodings",
    "Without the factor sqrt(d_model) the positions of this code would be much larger than the tokens.",
    HOLDS,
    holds(
        lambda: _deviations()[0] < _deviations()[1] / 2,
        lambda: inspect.signature(nn.init.normal_).parameters["std"].default / 2 > 1,
    ),
    slip="Both tables start with deviation 1: without the factor they are equally large, and with it the tokens are 22.6 "
    "times as large as the positions. It holds of a table of tokens that starts with variance 1 / d_model.",
    formula=r"\sqrt{512} = 22.6",
)
CODE.not_checkable(
    "detail-of-the-paper",
    324,
    "a detail from the original paper",
    "The paper multiplies its embeddings by sqrt(d_model).",
    reason="A fact about a paper that is not given: its section 3.4 does.",
)

# Latent faults

CODE.latent_fault(
    "dead-row",
    273,
    "A query whose keys are all masked gives NaN.",
    blocks=("encoder",),
    probe="x = torch.ones(1, 1, 2)\nprint(MultiHeadSelfAttention(2, 1)(x, torch.zeros(1, 1)).isnan().all().item())",
    prints="True",
    fault="dead_rows/plain",
)
CODE.latent_fault(
    "a-dead-row-spreads",
    273,
    "A token that may attend to nothing and that no other may attend to is NaN after one layer; after two all are.",
    blocks=("encoder",),
    probe="""
mask = torch.tensor([[0, 0], [0, 1]])
for layers in (1, 2):
    out = TransformerEncoder(9, 4, 2, layers, 8).eval()(torch.tensor([[0, 1]]), mask)
    print(out.isnan().any(dim=-1)[0].tolist())
""",
    prints="[True, False]\n[True, True]",
    fault="dead_rows/plain",
)
CODE.latent_fault(
    "additive-mask",
    273,
    "An additive mask, 0 keeps and -inf drops, is read the wrong way round: token 0 sees the masked token 1 alone.",
    blocks=("encoder",),
    probe="""
mha, x = MultiHeadSelfAttention(2, 1).eval(), torch.randn(1, 2, 2)
out = mha(x, torch.tensor([0.0, -torch.inf]))
print(torch.allclose(out, mha.W_o(mha.W_v(x[:, 1:])).expand_as(out)))
""",
    prints="True",
    fault="documents/zero-drops-in-every-mask",
)
CODE.latent_fault(
    "padding-meets-queries",
    273,
    "A padding mask (batch, seq_len) is laid along the queries when batch = seq_len: in sequence 0, whose first token is "
    "padding, the second attends to it; with axes for heads and queries it does not.",
    blocks=("encoder",),
    probe="""
mha, x = MultiHeadSelfAttention(2, 1).eval(), torch.randn(2, 2, 2)
padding, changed = torch.tensor([[0, 1], [1, 1]]), x.clone()
changed[0, 0] = 9.0
for mask in (padding, padding[:, None, None]):
    print(torch.equal(mha(x, mask)[0, 1], mha(changed, mask)[0, 1]))
""",
    prints="False\nTrue",
    fault="documents/padding-meets-queries",
)
CODE.latent_fault(
    "three-axes-meet-heads",
    273,
    "A mask (batch, seq_len, seq_len) is broadcast as (heads, seq_len, seq_len) when batch = heads: sequence 1, whose "
    "keys are all visible, is masked in head 0 as sequence 0 is.",
    blocks=("encoder",),
    probe="""
mha, x = MultiHeadSelfAttention(2, 2).eval(), torch.randn(2, 2, 2)
mask = torch.ones(2, 2, 2)
mask[0, :, 1] = 0
alone = mha(x[1:], mask[1:, None])
print(torch.equal(mha(x, mask)[1:], alone), torch.equal(mha(x, mask[:, None])[1:], alone))
""",
    prints="False True",
    fault="broadcast/batch-meets-heads",
)
CODE.latent_fault(
    "beyond-max-len",
    319,
    "A sequence longer than max_len fails in the table of positions.",
    blocks=("encoder",),
    probe="""
try:
    TransformerEncoder(9, 4, 2, 1, 8, max_len=1)(torch.tensor([[1, 2]]))
except IndexError as problem:
    print(problem)
""",
    prints="index out of range in self",
    fault="encoder/table-ends",
)
CODE.latent_fault(
    "padding-on-the-left",
    317,
    "Positions count padding: padded on the left and masked, a sequence is not what it is alone; on the right it is.",
    blocks=("encoder",),
    probe="""
encoder = TransformerEncoder(9, 4, 2, 1, 8).eval()
alone = encoder(torch.tensor([[1, 2]]))
left = encoder(torch.tensor([[0, 1, 2]]), torch.tensor([0, 1, 1]))[:, 1:]
right = encoder(torch.tensor([[1, 2, 0]]), torch.tensor([1, 1, 0]))[:, :2]
print(torch.allclose(left, alone, atol=1e-6), torch.allclose(right, alone, atol=1e-6))
""",
    prints="False True",
    fault="encoder/positions-count-padding",
)
CODE.latent_fault(
    "drowned-positions",
    318,
    "Both tables start with deviation 1 and the tokens alone are scaled: with 64 dims they are 8 times the positions.",
    blocks=("encoder",),
    probe="""
encoder = TransformerEncoder(1000, 64, 2, 1, 8)
print(round((encoder.tok_emb.weight.std() * encoder.d_model**0.5 / encoder.pos_emb.weight.std()).item()))
""",
    prints="8",
    why_no_fault="The positions still count, and more than that no law asks: how large tables start is a choice.",
)
