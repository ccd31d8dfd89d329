"""Document 000, lines 799 to 906, and 1272: the whole model."""

import sympy
import torch
from torch import nn

from headcheck.golden.derived import Derived, counted, holds
from headcheck.golden.exact import contracted, softmax
from headcheck.golden.ledger import Run, Section
from headcheck.golden.pieces import parameters, stack_parameters
from headcheck.golden.stated import HOLDS, count, shape
from headcheck.reference import Decoder, Embedding, Encoder, LayerConfig, Seq2Seq, cross_entropy

MODEL = Section("000", "full-model")

SOURCE, TARGET = torch.zeros(2, 15, dtype=torch.long), torch.zeros(2, 12, dtype=torch.long)


def _config(d_model: int, d_ff: int) -> LayerConfig:
    return LayerConfig(d_model=d_model, num_heads=8, d_ff=d_ff, norm_order="pre", activation="relu")


def _reference() -> Seq2Seq:
    config = _config(128, 512)
    source, target = (Embedding(1000, 128, scaled=True, positions="sinusoidal") for _ in range(2))
    encoder, decoder = Encoder(config, 3, final_norm=False), Decoder(config, 3, final_norm=False)
    return Seq2Seq(source, target, encoder, decoder, tied=False, output_bias=True)


def _by_building() -> int:
    with torch.device("meta"):
        encoder = nn.TransformerEncoderLayer(128, 8, 512)
        decoder = nn.TransformerDecoderLayer(128, 8, 512)
        return parameters(
            nn.Embedding(1000, 128),
            nn.Embedding(1000, 128),
            nn.TransformerEncoder(encoder, 3, enable_nested_tensor=False),
            nn.TransformerDecoder(decoder, 3),
            nn.Linear(128, 1000),
        )


def _logits() -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = _reference()(SOURCE, TARGET)
    return logits


def _sums_to_one(rows: torch.Tensor) -> bool:
    return bool(((rows.sum(dim=-1) - 1).abs() < 1e-3).all())


def _tokens(batch: int, length: int) -> Derived:
    return counted(lambda: (batch, length), lambda: torch.randint(0, 1000, (batch, length)).shape)


def _loss_agrees() -> bool:
    """Cross-entropy of logits is minus the logarithm of the softmax at the target: torch's and the reference's."""
    logits = torch.randn(2, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    targets = torch.tensor([3, 1])
    own = -logits.softmax(dim=-1)[torch.arange(2), targets].log().mean()
    return bool((nn.functional.cross_entropy(logits, targets) - own).abs() < 64 * 2**-53)


# Lines 801 to 828

MODEL.not_checkable(
    "six-of-each",
    801,
    "used 6 of each",
    "The paper's model has six encoder and six decoder layers.",
    reason="A fact of the paper (Vaswani et al. 2017, section 3.1), which says so.",
)
for name, line, place in (
    ("from-our-blocks", 801, "build the full architecture from our blocks"),
    ("from-custom-blocks", 826, "From Custom Blocks"),
    ("combine-our-blocks", 828, "our encoder and decoder blocks"),
    ("built-in-brief", 1272, "then combined everything into a full encoder-decoder"),
):
    MODEL.erratum(
        name,
        line,
        place,
        "The layers of the model, nn.TransformerEncoderLayer and nn.TransformerDecoderLayer, are the document's blocks.",
        HOLDS,
        holds(
            lambda: not nn.TransformerEncoderLayer.__module__.startswith("torch"),
            one_way="Whose classes they are is read off where they are defined.",
        ),
        slip="They are torch's own, as line 859 says; the blocks of lines 645 and 723 are not used.",
    )
MODEL.confirmed(
    "every-layer-reads-the-encoder",
    819,
    "encoder output",
    "Each decoder layer has an attention to the encoder's output: three layers have six attentions.",
    count(6),
    counted(
        lambda: 3 * 2,
        lambda: sum(
            isinstance(each, nn.MultiheadAttention)
            for each in nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 1, 8), 3).modules()
        ),
        lambda: sum(
            name.endswith("w_q") for name, _ in Decoder(_config(8, 8), 3, final_norm=False).named_modules()
        ),
    ),
)
MODEL.confirmed(
    "softmax-at-the-end",
    823,
    "Softmax",
    "What the diagram's softmax makes of the last linear layer is a distribution (the code ends in the linear layer).",
    HOLDS,
    holds(
        lambda: sympy.simplify(sum(softmax([1, 2]))) == 1,
        None,
        lambda: _sums_to_one(_logits().softmax(dim=-1)),
    ),
)

# Lines 830 to 906

MODEL.block(
    "module",
    830,
    904,
    "The model, and a demonstration of 15 source and 12 target tokens. torch warns: pre-norm rules out nested tensors.",
    alone=Run(
        warnings=("UserWarning",),
        prints=(
            "Source shape: torch.Size([2, 15])",
            "Target shape: torch.Size([2, 12])",
            "Logits shape: torch.Size([2, 12, 1000])",
            "Total params: 1773544",
        ),
    ),
)
MODEL.confirmed(
    "parameters",
    904,
    "sum(p.numel()",
    "The parameters, which the block prints and the text does not.",
    count(1_773_544),
    counted(
        lambda: stack_parameters(128, 512, 3) + 2 * 1000 * 128 + 1000 * (128 + 1),
        _by_building,
        lambda: parameters(_reference()),
    ),
    formula=r"3 (198272 + 264576) + 2 \cdot 128000 + 129000",
)
for name, line, place, axes in (
    ("source", 901, "[2, 15]", (2, 15)),
    ("target", 902, "[2, 12]", (2, 12)),
    ("source-in-words", 895, "batch=2, seq_len=15", (2, 15)),
    ("target-in-words", 896, "batch=2, seq_len=12", (2, 12)),
):
    MODEL.confirmed(
        f"shape-{name}",
        line,
        place,
        f"The shape of the {name.removesuffix('-in-words')} tokens.",
        shape(*axes),
        _tokens(*axes),
    )
for name, line, place in (
    ("logits", 903, "[2, 12, 1000]"),
    ("logits-in-words", 906, "[batch, target_len, vocab_size]"),
):
    MODEL.confirmed(
        f"shape-{name}",
        line,
        place,
        "The shape of the logits.",
        shape(2, 12, 1000),
        counted(
            lambda: contracted("btd,dv->btv", (2, 12, 128), (128, 1000)),
            lambda: nn.Linear(128, 1000)(torch.zeros(2, 12, 128)).shape,
            lambda: _logits().shape,
        ),
    )
for name, line, place in (
    ("a-distribution", 903, "one vocab distribution per target position"),
    ("a-distribution-in-words", 906, "a probability distribution over the vocabulary"),
):
    MODEL.erratum(
        name,
        line,
        place,
        "The logits of a position are a probability distribution: they sum to one.",
        HOLDS,
        holds(lambda: sum((sympy.Integer(1), sympy.Integer(2))) == 1, None, lambda: _sums_to_one(_logits())),
        slip="Logits are any numbers; their softmax is the distribution.",
    )
MODEL.confirmed(
    "cross-entropy",
    906,
    "using cross-entropy loss",
    "The loss of logits is minus the logarithm of their softmax at the right token: of 0, 0, log 2.",
    HOLDS,
    holds(
        lambda: -sympy.log(softmax([sympy.Integer(0), sympy.Integer(0)])[0]) == sympy.log(2),
        _loss_agrees,
        lambda: bool(
            (
                cross_entropy(torch.zeros(1, 2).double(), torch.tensor([[0.0, 1.0]]).double()).mean().exp()
                - 2
            ).abs()
            < 1e-12
        ),
    ),
    formula=r"-\ln \text{softmax}(z)_t",
)
MODEL.behaviour(
    "none-of-the-blocks",
    859,
    "The model holds none of the document's blocks.",
    blocks=("000/encoder-block/module", "000/decoder-block/module", "module"),
    probe="print(any(isinstance(each, (TransformerEncoderBlock, TransformerDecoderBlock)) for each in model.modules()))",
    prints="False",
)
MODEL.latent_fault(
    "no-final-norm",
    864,
    "Both stacks are pre-norm and end without a norm: what the layers add up reaches the output layer unnormalised.",
    blocks=("module",),
    probe="print(model.encoder.norm, model.decoder.norm)",
    prints="None None",
    why_no_fault="A stack that ends without a norm is a choice, which no law forbids.",
)
MODEL.latent_fault(
    "embeddings-drown-positions",
    878,
    "The tables start at deviation 1, not 1 / sqrt(d_model) as the scale supposes: scaled, embeddings are of deviation "
    "11, the positions, of which no number is above 1, are lost in them.",
    blocks=("module",),
    probe="print(round((model.src_embed.weight * model.scale).std().item()), model.pos_enc.pe.abs().max().item())",
    prints="11 1.0",
    why_no_fault="The positions still count, and more than that no law asks: how large tables start is a choice.",
)
MODEL.latent_fault(
    "no-mask-by-default",
    875,
    "Without tgt_mask the decoder looks at the future, silently.",
    blocks=("module",),
    probe="""
model.eval()
changed = tgt.clone()
changed[:, -1] = (changed[:, -1] + 1) % 1000
print(torch.equal(model(src, tgt)[:, 0], model(src, changed)[:, 0]))
""",
    prints="False",
    fault="seq2seq/not-causal-by-itself",
)
MODEL.latent_fault(
    "beyond-200",
    850,
    "More than max_len tokens fail, by default more than 200.",
    blocks=("module",),
    probe="try:\n    model(torch.zeros(1, 201, dtype=torch.long), tgt[:1])\n"
    "except RuntimeError as problem:\n    print(type(problem).__name__)",
    prints="RuntimeError",
    fault="sinusoidal/table-ends",
)
