"""Document 003, lines 720 to 888: the decoder's layer and stack."""

from functools import partial

import sympy
import torch
from torch import nn

from headcheck.golden.d003_encoder import ATTENTION, PRINTED, SMALL
from headcheck.golden.d003_encoder_stack import POSITIONS
from headcheck.golden.d003_heads import weights_of
from headcheck.golden.derived import Derived, Worked, counted, holds, same
from headcheck.golden.exact import contracted, q, softmax
from headcheck.golden.ledger import Run, Section
from headcheck.golden.stated import HOLDS, count, exactly, shape
from headcheck.reference import (
    DecoderLayer,
    LayerConfig,
    attention,
    masks,
    next_token,
    token_probabilities,
)

LAYER = Section("003", "decoder-layer")
STACK = Section("003", "decoder")

TRIANGLE = "1 0 0 0; 1 1 0 0; 1 1 1 0; 1 1 1 1"
WHOLE = Worked("1 0; 0 2; 1 1; 2 0", "1 1; 0 3; 2 0; 1 2", "1 2; 3 4; 5 5; 0 7", may_attend=TRIANGLE)
PREFIX = Worked("1 0; 0 2; 1 1", "1 1; 0 3; 2 0", "1 2; 3 4; 5 5", may_attend="1 0 0; 1 1 0; 1 1 1")
"""A target of our own, and the same before its last token is there."""


def _layer_output(config: LayerConfig, batch: int, length: int, memory: int) -> Derived:
    """The shape of a decoder layer's output."""
    x, y = torch.zeros(batch, length, config.d_model), torch.zeros(batch, memory, config.d_model)
    return counted(
        lambda: (batch, length, config.d_model),
        lambda: (
            nn.TransformerDecoderLayer(config.d_model, config.num_heads, config.d_ff, batch_first=True)(
                x, y
            ).shape
        ),
        lambda: DecoderLayer(config)(x, y).shape,
    )


def _cross(batch: int, heads: int, q_len: int, kv_len: int, d_k: int) -> Derived:
    """The shape of the weights of cross-attention."""
    query, key = (batch, heads, q_len, d_k), (batch, heads, kv_len, d_k)
    return counted(
        lambda: contracted("bhqd,bhkd->bhqk", query, key),
        lambda: (torch.zeros(query) @ torch.zeros(key).mT).shape,
        lambda: attention(torch.zeros(query), torch.zeros(key), torch.zeros(key)).weights.shape,
    )


def _logits(batch: int, length: int, d_model: int, vocabulary: int) -> Derived:
    with torch.device("meta"):
        x, layer = torch.zeros(batch, length, d_model), nn.Linear(d_model, vocabulary)
    return counted(
        lambda: contracted("bnd,dv->bnv", (batch, length, d_model), (d_model, vocabulary)),
        lambda: layer(x).shape,
    )


def _laid_over(*mask: int) -> bool:
    """Whether a mask can be laid over the scores of 4 sequences, 8 heads, 15 queries and 20 keys."""
    return all(a == b or 1 in (a, b) for a, b in zip(mask, (4, 8, 15, 20), strict=True))


def _is_laid_over_by_torch(*mask: int) -> bool:
    try:
        torch.zeros(mask) + torch.zeros(4, 8, 15, 20)
    except RuntimeError:
        return False
    return True


PROBABILITIES = [q("0.25"), q("0.75")]


def _number_of_choices(temperature: float) -> int:
    """How many of two tokens of probabilities 1/4 and 3/4 the reference chooses in a hundred choices."""
    logits, generator = torch.tensor([[1.0, 3.0]]).log(), torch.Generator().manual_seed(0)
    return len({int(next_token(logits, temperature, generator)) for _ in range(100)})


# Lines 720 to 724

LAYER.confirmed(
    "three-sublayers",
    722,
    "Each decoder layer has three sub-layers",
    "The sub-layers of a decoder layer.",
    count(3),
    counted(
        lambda: len({"masked self-attention", "cross-attention", "feed-forward"}),
        lambda: sum("norm" in name for name, _ in nn.TransformerDecoderLayer(4, 2, 8).named_children()),
        lambda: len(DecoderLayer(SMALL).residuals),
    ),
)
for name, place in (
    ("one-at-a-time", "one token at a time"),
    ("previously-generated", "previously generated tokens"),
):
    LAYER.confirmed(
        name,
        722,
        place,
        "What the tokens so far give is the same whether the next one is there or not.",
        HOLDS,
        same(
            lambda: WHOLE.output.exact()[:3, :],
            PREFIX.output.exact,
            PREFIX.output.reference,
        ),
    )
for name, line, place in (
    ("looking-at-the-future", 722, "to prevent looking at future tokens"),
    ("position-i", 724, "position i can only attend to positions = i"),
):
    LAYER.confirmed(
        name,
        line,
        place,
        "Under the causal mask a weight is above zero where the key is at or before the query (the sign for 'at most' "
        "was lost in extraction and stands as =).",
        exactly(TRIANGLE),
        WHOLE.weights.map(
            lambda rows: [
                [int(bool(weight > 0)) for weight in row]
                for row in (rows if isinstance(rows, list) else rows.tolist())
            ]
        ),
        formula=r"\alpha_{ij} > 0 \iff j \le i",
    )
LAYER.confirmed(
    "teacher-forcing",
    724,
    '("teacher forcing")',
    "Under the mask the whole target in parallel gives each token what its own prefix alone gives.",
    HOLDS,
    same(
        lambda: WHOLE.output.exact()[1, :],
        Worked("0 2", "1 1; 0 3", "1 2; 3 4").output.exact,
        Worked("0 2", "1 1; 0 3", "1 2; 3 4").output.reference,
    ),
)
LAYER.confirmed(
    "the-mask-is-the-difference",
    724,
    "The key difference from the encoder is the causal mask",
    "In self-attention: without the mask the first of four tokens hears four, with it one.",
    exactly("4 1"),
    Derived(
        lambda: [sum(1 for _ in range(4)), sum(1 for j in range(4) if j <= 0)],
        lambda: [int(torch.ones(4, 4)[0].sum()), int(torch.ones(4, 4).tril()[0].sum())],
        lambda: [4, int(masks.causal(4, 4)[0].sum())],
    ),
)
LAYER.not_checkable(
    "why-decoder-only",
    724,
    "is why modern decoder-only models",
    "Why modern models are what they are.",
    reason="A reason given for the choices of others.",
)

# Lines 726 to 805

LAYER.block(
    "layer",
    726,
    805,
    "The decoder layer. Alone it fails: attention and network stand in earlier blocks.",
    alone=Run(error="NameError: name 'MultiHeadAttention' is not defined"),
    in_order=Run(
        prints=(
            "Decoder input: torch.Size([4, 15, 512])",
            "Encoder output: torch.Size([4, 20, 512])",
            "Decoder output: torch.Size([4, 15, 512])",
            "Self-attention weights: torch.Size([4, 8, 15, 15])",
            "Cross-attention weights: torch.Size([4, 8, 15, 20])",
        )
    ),
)
for name, line, place, axes, derived in (
    ("input", 759, "(batch, tgt_seq_len, d_model)", (2, 3, 4), _layer_output(SMALL, 2, 3, 5)),
    ("memory", 760, "(batch, src_seq_len, d_model)", (2, 3, 4), _layer_output(SMALL, 2, 3, 5)),
    ("output", 803, "Decoder output", (4, 15, 512), _layer_output(PRINTED, 4, 15, 20)),
    ("self-attention", 804, "(batch, heads, tgt, tgt)", (4, 8, 15, 15), weights_of(4, 8, 15, 64)),
    ("cross-attention", 805, "(batch, heads, tgt, src)", (4, 8, 15, 20), _cross(4, 8, 15, 20, 64)),
):
    sizes = "2 targets of 3 tokens and sources of 5, with 4 dims" if line < 800 else "the printed sizes"
    what = name if line > 800 else "output that such inputs give"
    LAYER.confirmed(
        f"shape-{name}", line, place, f"The shape of the {what}: of {sizes}.", shape(*axes), derived
    )
LAYER.confirmed(
    "causal-mask",
    794,
    "Create causal mask for decoder",
    "One at and below the diagonal, zero above: here for four tokens.",
    exactly(TRIANGLE),
    Derived(
        lambda: [[int(j <= i) for j in range(4)] for i in range(4)],
        lambda: torch.tril(torch.ones(4, 4, dtype=torch.int64)),
        lambda: masks.causal(4, 4).int(),
        inputs={"operation": "causal mask", "length": "4"},
    ),
)
LAYER.confirmed(
    "cross-attention-of-both",
    770,
    "query from decoder, key/value from encoder",
    "Two queries of the decoder on three keys of the encoder have two rows of three weights.",
    shape(1, 1, 2, 3),
    _cross(1, 1, 2, 3, 4),
)
DECODER_LAYER = (*ATTENTION, "003/encoder-layer/layer", "003/decoder-layer/layer")
for name, line, what in (
    ("self-attention", 764, "norm1(x + self-attention(x))"),
    ("cross-attention", 770, "norm2(x + cross-attention(x, memory))"),
    ("feed-forward", 776, "norm3(x + feed-forward(x))"),
):
    LAYER.behaviour(
        f"step-{name}",
        line,
        f"Without dropout, the step {what} of the code is LayerNorm(x + Sublayer(x)).",
        blocks=DECODER_LAYER,
        probe="layer, x, y = DecoderLayer(4, 2, 8).eval(), torch.randn(2, 3, 4), torch.randn(2, 5, 4)\n"
        "a = layer.norm1(x + layer.masked_self_attention(x, x, x)[0])\n"
        "b = layer.norm2(a + layer.cross_attention(a, y, y)[0])\n"
        "print(torch.equal(layer(x, y)[0], layer.norm3(b + layer.feed_forward(b))))",
        prints="True",
    )
LAYER.behaviour(
    "future-at-run-time",
    795,
    "Under the example's mask no weight above the diagonal is above zero.",
    blocks=DECODER_LAYER,
    probe="print(bool(self_attn.triu(1).any()))",
    prints="False",
)
LAYER.confirmed(
    "source-mask",
    761,
    "Padding mask for source",
    "As (4, 1, 1, 20) it is laid over the keys of the example's scores.",
    HOLDS,
    holds(partial(_laid_over, 4, 1, 1, 20), partial(_is_laid_over_by_torch, 4, 1, 1, 20)),
)
LAYER.latent_fault(
    "source-padding-meets-targets",
    773,
    "A source mask (batch, src_len) is laid along the target when batch = tgt_len: token 1 of target 0 sees source token "
    "1, which is padding for it.",
    blocks=DECODER_LAYER,
    probe="x, mask = torch.ones(2, 2, 1), torch.tensor([[1, 0], [1, 1]])\n"
    "print(DecoderLayer(1, 1, 1).eval()(x, x, src_mask=mask)[2][0, 0].tolist())",
    prints="[[1.0, 0.0], [0.5, 0.5]]",
    fault="documents/padding-meets-queries",
)
LAYER.latent_fault(
    "not-causal-by-itself",
    756,
    "Masked by name, the self-attention is not without a mask: by default the first token sees the second.",
    blocks=DECODER_LAYER,
    probe="x = torch.ones(1, 2, 1)\nprint(DecoderLayer(1, 1, 1).eval()(x, x)[1][0, 0].tolist())",
    prints="[[0.5, 0.5], [0.5, 0.5]]",
    fault="decoder/not-causal",
)

# Lines 807 to 888

STACK.confirmed(
    "reads-the-encoder",
    809,
    "each receiving the encoder output for cross-attention",
    "A token of the decoder hears all 5 tokens of the encoder.",
    exactly("5"),
    Derived(
        lambda: contracted("qd,kd->qk", (1, 4), (5, 4))[1],
        None,
        lambda: int((attention(*[torch.zeros(1, 1, n, 4) for n in (1, 5, 5)]).weights > 0).sum()),
    ),
)
STACK.confirmed(
    "next-token-probabilities",
    809,
    "followed by softmax to produce next-token probabilities",
    "The softmax of a token's logits sums to one: here of three.",
    exactly("1"),
    Derived(
        lambda: sympy.simplify(sum(softmax(sympy.symbols("a b c", real=True)))),
        None,
        lambda: token_probabilities(torch.tensor([[1.0, 2.0, 4.0]], dtype=torch.float64), 1.0).sum(),
    ),
)
STACK.confirmed(
    "sampling-strategies",
    809,
    "sampling strategies (greedy, beam search, nucleus sampling)",
    "Each chooses a next token: of probabilities 1/4 and 3/4 greedy decoding one and the same, drawing either of two.",
    exactly("1 2"),
    Derived(
        lambda: [
            len([p for p in PROBABILITIES if p == max(PROBABILITIES)]),
            len([p for p in PROBABILITIES if p > 0]),
        ],
        None,
        lambda: [_number_of_choices(0.0), _number_of_choices(1.0)],
    ),
)
STACK.block(
    "stack",
    811,
    888,
    "The decoder. Alone it fails: its parts stand in earlier blocks, and so does the import of F.",
    needs=("matplotlib",),
    alone=Run(error="NameError: name 'SinusoidalPositionalEncoding' is not defined"),
    in_order=Run(
        prints=(
            "Target token IDs: torch.Size([4, 15])",
            "Output logits: torch.Size([4, 15, 30000])",
            "Next token probabilities: torch.Size([4, 30000])",
        )
    ),
)
for name, line, place, axes, derived in (
    ("targets", 850, "(batch, tgt_seq_len)", (2, 3, 7), _logits(2, 3, 4, 7)),
    ("memory", 851, "(batch, src_seq_len, d_model)", (2, 3, 4), _layer_output(SMALL, 2, 3, 5)),
    ("logits", 854, "(batch, tgt_seq_len, vocab_size)", (2, 3, 7), _logits(2, 3, 4, 7)),
    (
        "vocabulary",
        809,
        "projected through a linear layer to vocabulary size",
        (2, 3, 7),
        _logits(2, 3, 4, 7),
    ),
    ("logits-as-printed", 887, "(4, 15, 30000)", (4, 15, 30000), _logits(4, 15, 512, 30000)),
):
    what = "decoder's output before the projection" if name == "memory" else "logits"
    sizes = (
        "the printed sizes"
        if line > 880
        else "2 targets of 3 tokens and sources of 5, with 4 dims and 7 words"
    )
    STACK.confirmed(
        f"shape-{name}", line, place, f"The shape of the {what}: of {sizes}.", shape(*axes), derived
    )
DECODER = (*ATTENTION, "003/encoder-layer/layer", "003/decoder-layer/layer", "stack")
SETTING = f"{POSITIONS}import torch.nn.functional as F\n"
STACK.behaviour(
    "causal-by-itself",
    863,
    "The stack makes its own causal mask: another last token changes no earlier logits.",
    setting=SETTING,
    blocks=DECODER,
    probe="small, memory = TransformerDecoder(9, 4, 2, 8, 2, 5).eval(), torch.randn(1, 3, 4)\n"
    "a, b = (small(torch.tensor([[1, 2, last]]), memory)[0] for last in (3, 4))\n"
    "print(torch.equal(a[:2], b[:2]), torch.equal(a[2], b[2]))",
    prints="True False",
)
STACK.behaviour(
    "logits-not-probabilities",
    872,
    "What the stack returns are logits; the softmax of the text is the caller's.",
    setting=SETTING,
    blocks=DECODER,
    probe="small = TransformerDecoder(2, 4, 2, 8, 1, 5)\n"
    "print(torch.allclose(small(torch.tensor([[1]]), torch.zeros(1, 1, 4)).sum(), torch.tensor(1.0)))",
    prints="False",
)
STACK.latent_fault(
    "no-mask-for-the-target",
    847,
    "The stack takes no padding mask for its targets: those padded at the start attend to their padding.",
    setting=SETTING,
    blocks=DECODER,
    probe="small, memory = TransformerDecoder(9, 4, 2, 8, 1, 5).eval(), torch.randn(1, 1, 4)\n"
    "a, b = (small(torch.tensor([[padding, 2]]), memory)[0, 1] for padding in (0, 1))\nprint(torch.equal(a, b))",
    prints="False",
    fault="seq2seq/padding-is-read",
)
STACK.latent_fault(
    "dropout-without-use",
    837,
    "The dropout of the stack itself is never applied: positions and layers have their own.",
    setting=SETTING,
    blocks=DECODER,
    probe="small, calls = TransformerDecoder(9, 4, 2, 8, 1, 5), []\n"
    "small.dropout.register_forward_hook(lambda *given: calls.append(1))\n"
    "small(torch.tensor([[1]]), torch.zeros(1, 1, 4))\nprint(len(calls))",
    prints="0",
    why_no_fault="It changes nothing.",
)
