"""Document 003, lines 1214 to 1335: the whole model, its code and its parameters."""

from functools import cache

import torch
from torch import nn

from headcheck.golden.derived import Derived, counted, holds
from headcheck.golden.exact import contracted
from headcheck.golden.ledger import Run, Section
from headcheck.golden.pieces import parameters
from headcheck.golden.stated import HOLDS, count, rounded, shape
from headcheck.reference import Decoder, Embedding, Encoder, LayerConfig, Seq2Seq

WHOLE = Section("003", "whole")

PRINTED = LayerConfig(d_model=512, num_heads=8, d_ff=2048, norm_order="post", activation="relu")
OF_THE_BASE_MODEL = 65_000_000
"""Vaswani et al. 2017, table 3, in millions; its vocabulary of about 37,000 is shared: section 5.1."""

SETTING = """
import torch
import torch.nn as nn
import torch.nn.functional as F
class SinusoidalPositionalEncoding(nn.Identity):
    pass
"""
"""A stand-in for the class of positions, which adds nothing."""
PARTS = ("003/multi-head/module", "003/encoder-layer/layer", "003/decoder-layer/layer", "003/whole/class")
SMALL = "Transformer(9, 9, 4, 2, 8, 2, 2).eval()"


def _layers_by_formula(layers: int = 6, d: int = 512, d_ff: int = 2048) -> int:
    """So many layers of encoder and decoder: attention, feed-forward and norms, all with biases."""
    attention, norm = 4 * (d**2 + d), 2 * d
    feed_forward = 2 * d * d_ff + d_ff + d
    return layers * ((attention + feed_forward + 2 * norm) + (2 * attention + feed_forward + 3 * norm))


def _by_formula() -> int:
    """Two tables of 32,000 words, the layers, and an output layer with a bias."""
    return 2 * 32000 * 512 + _layers_by_formula() + 32000 * (512 + 1)


@cache
def _by_building() -> tuple[int, int]:
    """Torch's layers of both kinds, and tables and output layer."""
    with torch.device("meta"):
        layers = nn.ModuleList(
            [
                nn.TransformerEncoder(
                    nn.TransformerEncoderLayer(512, 8, 2048), 6, enable_nested_tensor=False
                ),
                nn.TransformerDecoder(nn.TransformerDecoderLayer(512, 8, 2048), 6),
            ]
        )
        tables = nn.ModuleList([nn.Embedding(32000, 512), nn.Embedding(32000, 512), nn.Linear(512, 32000)])
    return parameters(layers), parameters(tables)


def _reference() -> Seq2Seq:
    """The reference's model of the printed sizes, without memory for its weights."""
    with torch.device("meta"):
        source, target = (Embedding(32000, 512, scaled=True, positions="none") for _ in range(2))
        encoder, decoder = Encoder(PRINTED, 6, final_norm=False), Decoder(PRINTED, 6, final_norm=False)
        return Seq2Seq(source, target, encoder, decoder, tied=False, output_bias=True)


def _logits_of_the_reference() -> torch.Size:
    """Four sources of 30 words, four targets of 25."""
    ids = (torch.zeros(4, length, dtype=torch.long, device="meta") for length in (30, 25))
    logits: torch.Tensor = _reference()(*ids)
    return logits.shape


TOTAL = counted(_by_formula, lambda: sum(_by_building()), lambda: parameters(_reference()))
LOGITS = counted(
    lambda: contracted("bnd,dv->bnv", (4, 25, 512), (512, 32000)),
    lambda: nn.Linear(512, 32000, device="meta")(torch.empty(4, 25, 512, device="meta")).shape,
    _logits_of_the_reference,
)

# Lines 1216 to 1330

WHOLE.block(
    "model",
    1218,
    1335,
    "The model, a batch, and the number of its parameters. Alone it fails: its parts stand in earlier blocks.",
    needs=("matplotlib",),
    alone=Run(error="NameError: name 'SinusoidalPositionalEncoding' is not defined"),
    in_order=Run(
        prints=(
            "Source: torch.Size([4, 30])",
            "Target: torch.Size([4, 25])",
            "Output logits: torch.Size([4, 25, 32000])",
            "Total parameters: 93,322,496",
            "~93.3M parameters",
        )
    ),
)
WHOLE.block("class", 1218, 1310, "The class of that block, without its example: only defined.", alone=Run())
for name, line, place, axes in (
    ("source", 1291, "(batch, src_len)", (4, 30)),
    ("target", 1292, "(batch, tgt_len)", (4, 25)),
    ("printed-source", 1324, "(4, 30)", (4, 30)),
    ("printed-target", 1325, "(4, 25)", (4, 25)),
):
    WHOLE.confirmed(
        f"shape-{name}",
        line,
        place,
        "The shape of the example's tokens: 4 sentences each.",
        shape(*axes),
        counted(
            lambda axes=axes: axes,  # type: ignore[misc]
            lambda axes=axes: torch.randint(0, 32000, axes, device="meta").shape,  # type: ignore[misc]
        ),
    )
for name, line, place in (
    ("logits", 1294, "(batch, tgt_len, tgt_vocab_size)"),
    ("printed-logits", 1330, "Output logits"),
):
    WHOLE.confirmed(
        f"shape-{name}", line, place, "The shape of the example's logits.", shape(4, 25, 32000), LOGITS
    )
for name, line in (
    ("is-the-architecture", 1216),
    ("is-the-architecture-again", 1224),
):
    WHOLE.behaviour(
        name,
        line,
        f"{'With' if line == 1216 else 'Again: with'} the same weights, and positions left out of both, the code is the "
        "reference's encoder-decoder, post-norm with ReLU, without last norms.",
        setting=SETTING,
        blocks=PARTS,
        probe=f"""
from headcheck.reference import Decoder, Embedding, Encoder, LayerConfig, Seq2Seq
config = LayerConfig(d_model=4, num_heads=2, d_ff=8, norm_order="post", activation="relu")
tables = [Embedding(9, 4, scaled=True, positions="none") for _ in range(2)]
stacks = Encoder(config, 2, final_norm=False), Decoder(config, 2, final_norm=False)
same, small = Seq2Seq(*tables, *stacks, tied=False, output_bias=True).double(), {SMALL}.double()
with torch.no_grad():
    for weight, given in zip(same.parameters(), small.parameters(), strict=True):
        weight.copy_(given)
src, tgt = torch.tensor([[1, 2, 3], [4, 5, 6]]), torch.tensor([[7, 8], [1, 2]])
print(torch.allclose(small(src, tgt), same(src, tgt), rtol=1e-12))
""",
        prints="True",
    )
WHOLE.not_checkable(
    "suitable-for",
    1216,
    "suitable for machine translation",
    "It is suitable for translation and other tasks of sequences.",
    reason="It depends on trainings that are not given.",
)
WHOLE.behaviour(
    "causal-for-the-target",
    1296,
    "Without masks given, another last target token changes no earlier logits; another last source token changes all.",
    setting=SETTING,
    blocks=PARTS,
    probe=f"""
small, src, tgt = {SMALL}, torch.tensor([[1, 2]]), torch.tensor([[3, 4]])
last = torch.tensor([0, 1])
logits, later, other = (small(*given)[0] for given in ((src, tgt), (src, tgt + last), (src + last, tgt)))
print(torch.equal(logits[0], later[0]), torch.equal(logits[1], later[1]), (logits == other).all(dim=-1).tolist())
""",
    prints="True False [False, False]",
)
WHOLE.behaviour(
    "uniform-of-xavier",
    1264,
    "Every matrix, tables included, starts uniform within sqrt(6 / (rows + columns)).",
    setting=SETTING,
    blocks=PARTS,
    probe=f"""
matrices = [weight for weight in {SMALL}.parameters() if weight.dim() > 1]
print(all(weight.abs().max() <= (6 / sum(weight.shape)) ** 0.5 for weight in matrices))
""",
    prints="True",
)

# Lines 1332 to 1335

WHOLE.confirmed(
    "parameters",
    1334,
    "Total parameters",
    "What is printed: the parameters of 6 + 6 layers, two tables of 32,000 words and an output layer of its own.",
    count(93_322_496),
    TOTAL,
    formula=r"2 \cdot 32000 \cdot 512 + 6 (3152384 + 4204032) + 32000 \cdot 513 = 93322496",
)
WHOLE.confirmed(
    "parameters-in-millions",
    1335,
    "M parameters",
    "What is printed: the same in millions, to a decimal.",
    rounded("93.3", 10**6),
    TOTAL,
)
WHOLE.confirmed(
    "layers-are-those-of-the-base-model",
    1332,
    "similar to original paper's base model",
    "The twelve layers alone, of the base model's sizes, have 44,138,496 parameters.",
    count(44_138_496),
    counted(
        _layers_by_formula,
        lambda: _by_building()[0],
        lambda: sum(parameters(each) for each in (_reference().encoder, _reference().decoder)),
    ),
    formula=r"6 (3152384 + 4204032)",
)
WHOLE.erratum(
    "similar-to-the-base-model",
    1332,
    "similar to original paper's base model",
    "The total is within a tenth of the 65 million that the paper's table 3 gives for its base model.",
    HOLDS,
    holds(
        lambda: abs(_by_formula() - OF_THE_BASE_MODEL) * 10 <= OF_THE_BASE_MODEL,
        lambda: 0.9 <= sum(_by_building()) / OF_THE_BASE_MODEL <= 1.1,
        lambda: 0.9 <= parameters(_reference()) / OF_THE_BASE_MODEL <= 1.1,
    ),
    slip="It is 44 percent more: two tables and an output layer with a weight each, 49,184,000 parameters, where the "
    "paper shares one matrix among the three (its section 3.4), of about 37,000 x 512. The layers are the same.",
    formula=r"93.3 / 65 = 1.44",
)
WHOLE.confirmed(
    "with-one-matrix",
    1332,
    "original paper's base model",
    "With one shared matrix of 37,000 words and no bias it would be 63 million.",
    rounded("63", 10**6),
    Derived(
        lambda: 37000 * 512 + _layers_by_formula(),
        lambda: torch.empty(37000, 512, device="meta").numel() + _by_building()[0],
    ),
    formula=r"37000 \cdot 512 + 44138496 = 63082496",
)

# Latent faults

WHOLE.latent_fault(
    "target-mask-replaces-the-causal-one",
    1298,
    "A mask given for the target, of its padding say, replaces the causal one: the first token sees the second.",
    setting=SETTING,
    blocks=PARTS,
    probe=f"""
small, src, padding = {SMALL}, torch.tensor([[1]]), torch.ones(1, 1, 1, 2)
a, b = (small(src, torch.tensor([[2, last]]), tgt_mask=padding)[0, 0] for last in (3, 4))
print(torch.equal(a, b))
""",
    prints="False",
    fault="seq2seq/padding-instead-of-causal",
)
WHOLE.latent_fault(
    "decode-is-not-causal",
    1276,
    "`decode`, called by itself as in generation, makes no causal mask: the first token's state depends on the second, "
    "and with two layers the last token's on what the first saw.",
    setting=SETTING,
    blocks=PARTS,
    probe=f"""
small, memory, tgt = {SMALL}, torch.randn(1, 2, 4), torch.tensor([[3, 4]])
causal = torch.tril(torch.ones(2, 2))
a, b = small.decode(tgt, memory), small.decode(tgt, memory, tgt_mask=causal)
print(torch.equal(a[:, 0], b[:, 0]), torch.equal(a[:, 1], b[:, 1]))
""",
    prints="False False",
    fault="seq2seq/decode-is-not-causal",
)
WHOLE.latent_fault(
    "source-padding-along-the-queries",
    1266,
    "A source mask (batch, src_len) is laid along the queries when batch = src_len: in sequence 0, whose first token is "
    "padding, the second hears it; with axes for heads and queries it does not.",
    setting=SETTING,
    blocks=PARTS,
    probe=f"""
small, padding = {SMALL}, torch.tensor([[0, 1], [1, 1]])
src, other = torch.tensor([[1, 2], [3, 4]]), torch.tensor([[5, 2], [3, 4]])
for mask in (padding, padding[:, None, None]):
    print(torch.equal(small.encode(src, mask)[0, 1], small.encode(other, mask)[0, 1]))
""",
    prints="False\nTrue",
    fault="documents/padding-meets-queries",
)
WHOLE.latent_fault(
    "source-padding-is-refused",
    1302,
    "For the sizes of the example a source mask (4, 30) is refused in the encoder by an error about sizes.",
    setting=SETTING,
    blocks=PARTS,
    probe=f"""
try:
    {SMALL}(torch.zeros(4, 30).long(), torch.zeros(4, 25).long(), src_mask=torch.ones(4, 30))
except RuntimeError:
    print("RuntimeError")
""",
    prints="RuntimeError",
    why_no_fault="A mask that does not work is no matter of laws: another form is looked for, a declared one refused.",
)
WHOLE.latent_fault(
    "tokens-drown",
    1264,
    "Xavier's start reaches the tables too: with 32,000 words and 512 dims the scaled tokens have deviation 0.18, a "
    "quarter of the positions' 0.71, where the scale presupposes 1.",
    setting=SETTING,
    blocks=PARTS,
    probe="""
model = Transformer(32000, 2, num_encoder_layers=0, num_decoder_layers=0)
print(f"{(model.src_embedding.weight * 512**0.5).std().item():.2f}")
""",
    prints="0.18",
    why_no_fault="The positions still count, and more than that no law asks: how large tables start is a choice.",
)
WHOLE.latent_fault(
    "dead-source",
    1286,
    "A source that is all padding, masked with the axes that work, makes every logit of its target NaN.",
    setting=SETTING,
    blocks=PARTS,
    probe=f"""
logits = {SMALL}(torch.zeros(2, 2).long(), torch.ones(2, 2).long(), src_mask=torch.tensor([0, 1])[:, None, None, None])
print(logits.isnan().flatten(1).all(dim=1).tolist(), logits.isnan().flatten(1).any(dim=1).tolist())
""",
    prints="[True, False] [True, False]",
    fault="dead_rows/plain",
)
WHOLE.latent_fault(
    "target-is-not-shifted",
    1327,
    "The target is called shifted, but the model is given it whole and shifts nothing: at t the input is token t, "
    "it is the caller who must compare with token t + 1.",
    setting=SETTING,
    blocks=PARTS,
    probe=f"""
small, seen = {SMALL}, []
small.tgt_embedding.register_forward_hook(lambda module, given, out: seen.append(given[0].tolist()))
small(torch.tensor([[1]]), torch.tensor([[2, 3]]))
print(seen)
""",
    prints="[[[2, 3]]]",
    why_no_fault="The laws ask just that: it is the caller who shifts.",
)
