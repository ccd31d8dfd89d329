"""Document 003, lines 1040 to 1092 and 1206 to 1212: variants of the transformer, and the encoder-only model."""

import sympy
import torch
from torch import Tensor, nn

from headcheck.golden.derived import Derived, Worked, counted
from headcheck.golden.exact import contracted
from headcheck.golden.ledger import Run, Section
from headcheck.golden.stated import count, shape
from headcheck.reference import Classifier, Embedding, Encoder, LayerConfig, number_of_scores

VARIANTS = Section("003", "variants")
BERT = Section("003", "encoder-only")
TABLE = Section("003", "comparison")

N, D, W = sympy.symbols("n d w", positive=True)
Q, K, V = "1 0; 0 2; 1 1; 2 0", "1 1; 0 3; 2 0; 1 2", "1 2; 3 4; 5 5; 0 7"
TRIANGLE = "1 0 0 0; 1 1 0 0; 1 1 1 0; 1 1 1 1"
BOTH_WAYS, LEFT_TO_RIGHT = Worked(Q, K, V), Worked(Q, K, V, may_attend=TRIANGLE)

CLASSES = """
import math
import torch
import torch.nn as nn
import torch.nn.functional as F
class SinusoidalPositionalEncoding(nn.Identity):
    pass
class TransformerEncoder(nn.Module):
    def __init__(self, vocab, d_model, *others):
        super().__init__()
        self.table = nn.Embedding(vocab, d_model)
    def forward(self, ids, mask):
        return self.table(ids), None
"""
"""Stand-ins for an encoder that gives each token its own row, and for positions that add nothing."""


def _multiplications(n: int, d: int) -> int:
    """Of phi(K)^T V, then phi(Q) with it, counted at run time; features as wide as the heads."""
    summed = (torch.ones(n, d, 1) * torch.ones(n, 1, d)).numel()
    read = (torch.ones(n, d, 1) * torch.ones(1, d, d)).numel()
    return summed + read


def _heard(example: Worked) -> Derived:
    """How many tokens each of the four attends to."""
    return example.weights.map(
        lambda rows: sum(
            int(bool(weight > 0))
            for row in (rows if isinstance(rows, list) else rows.tolist())
            for weight in row
        )
    )


def _classifier() -> Classifier:
    """Of the reference, with the printed sizes but one layer and ten words."""
    config = LayerConfig(d_model=768, num_heads=12, d_ff=3072, norm_order="post", activation="relu")
    with torch.device("meta"):
        embedding = Embedding(10, 768, scaled=True, positions="none")
        return Classifier(embedding, Encoder(config, 1, final_norm=False), 3)


def _ids(batch: int, length: int) -> Tensor:
    return torch.zeros(batch, length, dtype=torch.long, device="meta")


# Lines 1042 to 1044

VARIANTS.not_checkable(
    "who-is-what",
    1042,
    "Encoder-only models like BERT",
    "BERT is encoder-only, GPT decoder-only, T5 and BART have both; each is good at something.",
    reason="Facts about models that are not given, and a judgement.",
)
VARIANTS.confirmed(
    "quadratic",
    1044,
    "attention complexity that limits sequence length",
    "Twice the sequence has four times the scores: 64 tokens against 32.",
    count(4),
    counted(
        lambda: (2 * N) ** 2 / N**2,
        lambda: torch.zeros(64, 64).numel() // torch.zeros(32, 32).numel(),
        lambda: number_of_scores(64, 64) // number_of_scores(32, 32),
    ),
    formula=r"(2n)^2 / n^2",
)
VARIANTS.confirmed(
    "local-pattern-is-linear",
    1044,
    "uses local + global patterns",
    "With a window of two keys to each side, each token beyond the edges adds five scores: 65 tokens against 64.",
    count(5),
    counted(
        lambda: sympy.expand((2 * W + 1) * (N + 1) - (2 * W + 1) * N).subs(W, 2),
        lambda: int(
            sum(
                sign * torch.ones(n, n).tril(2).triu(-2).sum().int() for n, sign in ((65, 1), (64, -1))
            ).item()  # type: ignore[union-attr]  # two terms: a tensor
        ),
        lambda: number_of_scores(65, 65, 2, 2) - number_of_scores(64, 64, 2, 2),
    ),
    formula=r"(2w + 1) n",
)
VARIANTS.confirmed(
    "linear-attention-is-linear",
    1044,
    "approximates attention in O(n) time",
    "Keys summed first, twice the sequence has twice the multiplications: 64 tokens against 32, of 4 dims.",
    count(2),
    counted(
        lambda: (2 * (2 * N) * D**2) / (2 * N * D**2),
        lambda: _multiplications(64, 4) // _multiplications(32, 4),
    ),
    formula=r"2 n d^2",
)
VARIANTS.not_checkable(
    "approximates",
    1044,
    "Linear attention (Performer, Linear Transformer) approximates",
    "Both approximate softmax attention.",
    reason="How near is not said. Performer's features have the softmax as their mean; the Linear Transformer's kernel, "
    "elu + 1, is another one and is not meant to be near it.",
)
VARIANTS.not_checkable(
    "hierarchies-and-long-documents",
    1044,
    "Hierarchical approaches",
    "Hierarchies process documents at several scales; such models can take very long ones.",
    reason="Facts about models that are not given.",
)

# Lines 1046 to 1092

BERT.block(
    "model",
    1046,
    1092,
    "The classifier. Alone it fails: the encoder stands in an earlier block.",
    needs=("matplotlib",),
    alone=Run(error="NameError: name 'TransformerEncoder' is not defined"),
    in_order=Run(prints=("Classification logits: torch.Size([4, 3])",)),
)
BERT.block("class", 1046, 1082, "The class of that block, without its example: only defined.", alone=Run())
for name, line, place, axes, derived in (
    (
        "cls",
        1078,
        "(batch, d_model)",
        (4, 768),
        counted(
            lambda: contracted("bnd,n->bd", (4, 128, 768), (128,)),
            lambda: torch.empty(4, 128, 768, device="meta")[:, 0, :].shape,
        ),
    ),
    (
        "classes",
        1081,
        "(batch, num_classes)",
        (4, 3),
        counted(
            lambda: contracted("bd,dc->bc", (4, 768), (768, 3)),
            lambda: nn.Linear(768, 3, device="meta")(torch.empty(4, 768, device="meta")).shape,
        ),
    ),
    ("input", 1090, "batch=4, seq_len=128", (4, 128), counted(lambda: (4, 128), lambda: _ids(4, 128).shape)),
    (
        "logits",
        1092,
        "(4, 3)",
        (4, 3),
        counted(
            lambda: contracted("bd,de,ec->bc", (4, 768), (768, 768), (768, 3)),
            lambda: nn.Sequential(nn.Linear(768, 768), nn.Linear(768, 3))(torch.zeros(4, 768)).shape,
            lambda: _classifier()(_ids(4, 128)).shape,
        ),
    ),
):
    BERT.confirmed(
        f"shape-{name}", line, place, "The shape, of the sizes of the example.", shape(*axes), derived
    )
BERT.confirmed(
    "three-classes",
    1087,
    "negative, neutral, positive",
    "The classes that are named are as many as num_classes.",
    count(3),
    counted(
        lambda: len(("negative", "neutral", "positive")), None, lambda: _classifier().head[-1].out_features
    ),
)
BERT.behaviour(
    "reads-position-0",
    1066,
    "The decision is the head's at position 0, and no other row of the encoder's output has a part in it.",
    setting=CLASSES,
    blocks=("class",),
    probe="""
model = EncoderOnlyTransformer(9, 4, 2, 8, 1, 3).eval()
a, b = model(torch.tensor([[1, 2], [1, 3]]))
print(torch.equal(a, b), torch.equal(a, model.classifier(model.encoder.table.weight[1])))
""",
    prints="True True",
)
BERT.latent_fault(
    "padding-on-the-left",
    1078,
    "Position 0 is taken for [CLS] whatever stands there: padded on the left, the decision is read at padding.",
    setting=CLASSES,
    blocks=("class",),
    probe="""
model = EncoderOnlyTransformer(9, 4, 2, 8, 1, 3).eval()
cls, word, padding = 1, 2, 0
print(torch.equal(model(torch.tensor([[padding, cls, word]])), model(torch.tensor([[padding, padding, padding]]))))
""",
    prints="True",
    why_no_fault="No role reads one state for a whole sequence.",
)
BERT.latent_fault(
    "mask-by-name-only",
    1073,
    "The mask is handed on to the encoder as it is: with two axes, (batch, seq_len), it is refused there, or laid along "
    "the queries where batch = seq_len.",
    setting=CLASSES,
    blocks=("class", "003/multi-head/module"),
    probe="""
class TransformerEncoder(nn.Module):
    def __init__(self, *sizes):
        super().__init__()
        self.attention = MultiHeadAttention(4, 1).eval()
    def forward(self, ids, mask):
        x = torch.ones(*ids.shape, 4)
        return self.attention(x, x, x, mask)[1][:, 0], None
model = EncoderOnlyTransformer(9, 2, 1, 8, 1, 3).eval()
model.classifier = nn.Identity()
print(model(torch.zeros(2, 2), torch.tensor([[1, 1], [1, 0]]))[1].tolist())
try:
    model(torch.zeros(2, 3), torch.ones(2, 3))
except RuntimeError:
    print("RuntimeError")
""",
    prints="[0.5, 0.5]\nRuntimeError",
    fault="documents/padding-meets-queries",
)

# Lines 1206 to 1212

for name, line, place, example, number, what in (
    (
        "bidirectional",
        1210,
        "Bidirectional",
        BOTH_WAYS,
        16,
        "Encoder-only: each of four tokens attends to all four.",
    ),
    (
        "causal",
        1211,
        "Causal (left-to-right)",
        LEFT_TO_RIGHT,
        10,
        "Decoder-only: of four tokens the first attends to one, the last to four.",
    ),
):
    TABLE.confirmed(
        name,
        line,
        place,
        f"{what} How many weights are above zero.",
        count(number),
        _heard(example),
        formula={"causal": r"n (n + 1) / 2", "bidirectional": r"n^2"}[name],
    )
TABLE.confirmed(
    "both",
    1212,
    "Bidirectional + Causal",
    "Encoder-decoder: the weights above zero of four tokens in the encoder, and of four in the decoder.",
    count(26),
    counted(
        lambda: 4 * 4 + sympy.Rational(4 * 5, 2),
        lambda: int(torch.ones(4, 4).sum() + torch.ones(4, 4).tril().sum()),
    ),
    formula=r"n^2 + n (n + 1) / 2",
)
TABLE.not_checkable(
    "examples-and-uses",
    1210,
    "BERT, RoBERTa, ALBERT",
    "Nine models by type, and what each type is best for.",
    reason="Facts about models that are not given, and a judgement.",
)
