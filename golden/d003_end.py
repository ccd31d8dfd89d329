"""Document 003, lines 1337 to 1375: sizes of large models, the conclusion and what is to be taken along."""

import sympy
import torch
from torch import Tensor, nn

from headcheck.golden.d003_whole import PARTS, SETTING
from headcheck.golden.derived import Worked, counted, holds, same
from headcheck.golden.exact import fractions, matrix, product_again, softmax_rows
from headcheck.golden.ledger import Section
from headcheck.golden.pieces import parameters
from headcheck.golden.stated import HOLDS, count, rounded
from headcheck.reference import (
    DecoderLayer,
    Embedding,
    EncoderLayer,
    LayerConfig,
    attention,
    masks,
    reachable,
    sinusoidal,
)

SCALING = Section("003", "scaling")
END = Section("003", "conclusion")

QUERY, KEY, VALUE = "1 0; 0 2; 1 1", "1 1; 0 3; 2 0", "1 2; 3 4; 5 5"
EXAMPLE = Worked(QUERY, KEY, VALUE)
"""Three tokens of our own."""
LENGTH = 9
CONFIG = LayerConfig(d_model=4, num_heads=2, d_ff=8, norm_order="post", activation="relu")


def _gpt_3() -> int:
    """Of 96 layers, 12,288 dims, 50,257 words and 2,048 positions; every map has a bias."""
    d = 12288
    return 96 * (12 * d**2 + 13 * d) + (50257 + 2048) * d + 2 * d


def _gpt_3_again() -> int:
    with torch.device("meta"):
        layer = nn.TransformerEncoderLayer(12288, 96, 4 * 12288)
        rest = nn.ModuleList([nn.Embedding(50257, 12288), nn.Embedding(2048, 12288), nn.LayerNorm(12288)])
    return 96 * parameters(layer) + parameters(rest)


def _palm() -> int:
    """Of 118 layers, 18,432 dims, 48 heads of 256 on one key and value, a gated network, 256,000 words; no biases."""
    d, heads, head_dim = 18432, 48, 256
    attention_layer = 2 * d * heads * head_dim + 2 * d * head_dim
    return 118 * (attention_layer + 3 * d * 4 * d + d) + 256000 * d + d


def _palm_again() -> int:
    with torch.device("meta"):
        maps = [nn.Linear(18432, width, bias=False) for width in (12288, 256, 256, 73728, 73728)]
        back = [nn.Linear(width, 18432, bias=False) for width in (12288, 73728)]
        layer = nn.ModuleList([*maps, *back, nn.RMSNorm(18432)])
        rest = nn.ModuleList([nn.Embedding(256000, 18432), nn.RMSNorm(18432)])
    return 118 * parameters(layer) + parameters(rest)


def _steps_until_all_hear(may_attend: Tensor) -> int:
    """How many layers or steps it takes until the last token hears the first."""
    return next(steps for steps in range(LENGTH) if reachable(may_attend, steps)[-1, 0])


def _states(embedding: Embedding, tokens: list[int]) -> Tensor:
    """What one layer of attention makes of embedded tokens."""
    x = embedding.double()(torch.tensor([tokens]))[None].detach()
    return attention(x, x, x).output[0, 0]


def _order_is_heard(positions: str) -> bool:
    """Whether the state of a token changes when two others change places."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        embedding = Embedding(5, 4, scaled=True, positions=positions, max_len=3)  # type: ignore[arg-type]
    there, swapped = (_states(embedding, tokens)[0] for tokens in ([1, 2, 3], [1, 3, 2]))
    return not torch.allclose(there, swapped, rtol=1e-12, atol=1e-12)


def _order_is_heard_by_torch(table: Tensor) -> bool:
    """The same of torch's attention, on the rows of a table of tokens with those of a table of positions added."""
    words = torch.linspace(-1, 1, 20, dtype=torch.float64).view(5, 4).cos()
    there, swapped = (words[tokens] + table for tokens in ([1, 2, 3], [1, 3, 2]))
    own, other = (
        nn.functional.scaled_dot_product_attention(x, x, x) for x in (there[None, None], swapped[None, None])
    )
    return not torch.allclose(own[0, 0, 0], other[0, 0, 0], rtol=1e-12, atol=1e-12)


TABLES = {
    "none": torch.zeros(3, 4, dtype=torch.float64),
    "sinusoidal": sinusoidal(3, 4),
    "learned": torch.tensor([[0.3, -1, 0.2, 2], [1, 1, -0.4, 0], [-0.6, 0.1, 0, 1]], dtype=torch.float64),
}


def _second_head(first: float) -> Tensor:
    """The output of the second of two heads, where all values of the first are one number."""
    x = torch.tensor([[1.0, 2.0], [0.0, 3.0]], dtype=torch.float64)
    values = torch.stack([torch.full_like(x, first), x])[None]
    return attention(torch.stack([x, x])[None], torch.stack([x, x])[None], values).output[0, 1]


def _gradient_across_heads() -> Tensor:
    """Of the second of two heads of torch's attention, with respect to what the first is given."""
    x = torch.tensor([[[[1.0, 2.0], [0.0, 3.0]], [[2.0, 1.0], [1.0, 1.0]]]], requires_grad=True)
    output = nn.functional.scaled_dot_product_attention(x, x, x)[0, 1]
    return torch.autograd.grad(output.square().sum(), x)[0][0, 0]


def _torch_parts(attentions: int) -> bool:
    """Whether torch's own layer has so many attentions and one network of two linear layers."""
    layer = (nn.TransformerEncoderLayer if attentions == 1 else nn.TransformerDecoderLayer)(4, 2, 8)
    kinds = [type(each) for each in layer.children()]
    return kinds.count(nn.MultiheadAttention) == attentions and kinds.count(nn.Linear) == 2


def _kinds(layer: type[EncoderLayer] | type[DecoderLayer]) -> list[str]:
    return [name for name, _ in layer(CONFIG).named_children() if name != "residuals"]


# Lines 1337 to 1339

SCALING.not_checkable(
    "laws-of-scale",
    1339,
    "scales predictably with compute, data, and parameters",
    "Loss follows laws of scale; larger models need fewer data for the same loss (Kaplan et al. 2020).",
    reason="Findings on trained models that are not given.",
)
SCALING.confirmed(
    "gpt-3",
    1339,
    "GPT-3 (175B)",
    "Its parameters, of the sizes in Brown et al. 2020, table 2.1.",
    rounded("175", 10**9),
    counted(_gpt_3, _gpt_3_again),
    formula=r"96 (12 d^2 + 13 d) + (50257 + 2048) d + 2 d, \quad d = 12288",
)
SCALING.confirmed(
    "palm",
    1339,
    "PaLM (540B)",
    "Its parameters, of the sizes in Chowdhery et al. 2022, table 1 and section 2.",
    rounded("540", 10**9),
    counted(_palm, _palm_again),
    formula=r"118 (2 d \cdot 12288 + 2 d \cdot 256 + 12 d^2 + d) + 256000 d + d, \quad d = 18432",
)

# Lines 1341 to 1347

for name, line, place in (
    ("every-position-to-every-other", 1343, "allowing every position to attend to every other position"),
    ("self-attention", 1353, "Each position attends to all positions in the same sequence"),
):
    END.confirmed(
        name,
        line,
        place,
        "A softmax gives no key the weight zero: of three tokens all nine weights are above it.",
        count(9),
        EXAMPLE.weights.map(
            lambda rows: sum(
                int(bool(weight > 0))
                for row in (rows if isinstance(rows, list) else rows.tolist())
                for weight in row
            )
        ),
    )
END.confirmed(
    "in-parallel",
    1343,
    "sequences can be processed in parallel",
    "Each token's output needs no other token's output: token 1 alone with all keys gives its row.",
    HOLDS,
    same(
        lambda: EXAMPLE.output.exact().row(1),
        Worked("0 2", KEY, VALUE).output.exact,
        Worked("0 2", KEY, VALUE).output.reference,
    ),
)
END.not_checkable(
    "history-and-importance",
    1343,
    "fundamentally changed natural language processing",
    "What the transformer changed, and what is built on it.",
    reason="Statements about history and a field; no derivation decides them.",
)
END.confirmed(
    "compatibility-weights-values",
    1345,
    "computes compatibility between queries and keys to weight values",
    "The output is softmax(Q K^T / sqrt(d_k)) V: here of three tokens and two dims.",
    HOLDS,
    same(
        lambda: softmax_rows(matrix(QUERY) * matrix(KEY).T / sympy.sqrt(2)) * matrix(VALUE),
        lambda: product_again(EXAMPLE.weights.again(), fractions(VALUE)),  # type: ignore[misc]
        EXAMPLE.output.reference,
    ),
    formula=r"\text{softmax}(Q K^T / \sqrt{d_k}) V",
)
END.confirmed(
    "positions-inject-order",
    1345,
    "positional encoding injects sequence order information",
    "With sinusoids a token's state changes when two others change places, and without positions it does not.",
    HOLDS,
    holds(
        lambda: _order_is_heard("sinusoidal") and not _order_is_heard("none"),
        lambda: (
            _order_is_heard_by_torch(TABLES["sinusoidal"]) and not _order_is_heard_by_torch(TABLES["none"])
        ),
    ),
)
for name, line, place, may_attend, number, what in (
    (
        "encoder-is-bidirectional",
        1345,
        "encoder builds bidirectional representations",
        torch.ones(3, 3),
        9,
        "Of three tokens of the encoder each hears all three",
    ),
    (
        "decoder-is-causal",
        1345,
        "autoregressively with causal masking",
        torch.ones(3, 3).tril(),
        6,
        "Of three tokens of the decoder each hears itself and those before",
    ),
    (
        "bidirectional-encoding",
        1356,
        "for bidirectional encoding",
        torch.ones(3, 3),
        9,
        "Of three tokens of the encoder each hears all three",
    ),
):
    END.confirmed(
        name,
        line,
        place,
        f"{what}: the pairs.",
        count(number),
        counted(
            lambda number=number: sum(1 for i in range(3) for j in range(3) if j <= i or number == 9),  # type: ignore[misc]
            lambda may_attend=may_attend: int(may_attend.sum()),  # type: ignore[misc]
            lambda number=number: int(  # type: ignore[misc]
                reachable(masks.causal(3, 3) if number == 6 else torch.ones(3, 3).bool(), 1).sum()
            ),
        ),
    )
END.not_checkable(
    "relationship-types",
    1345,
    "learning multiple relationship types simultaneously",
    "Heads learn several relationships; the whole scales well.",
    reason="It depends on trainings that are not given.",
)
END.not_checkable(
    "state-of-the-art",
    1347,
    "virtually every state-of-the-art model",
    "The architecture is in nearly every model; choices cascade.",
    reason="A statement about a field.",
)

# Lines 1349 to 1359

END.confirmed(
    "path-length",
    1352,
    "O(1) path length between any positions",
    "Layers of self-attention until the last of nine tokens hears the first.",
    count(1),
    counted(lambda: 1, None, lambda: _steps_until_all_hear(torch.ones(LENGTH, LENGTH).bool())),
)
END.confirmed(
    "path-length-of-an-rnn",
    1352,
    "O(n) for RNNs",
    "Steps until the last of nine hears the first, where each hears its predecessor: n - 1.",
    count(LENGTH - 1),
    counted(
        lambda: LENGTH - 1,
        lambda: next(
            steps
            for steps in range(LENGTH)
            if torch.linalg.matrix_power(torch.ones(LENGTH, LENGTH).tril().triu(-1), steps)[-1, 0] > 0
        ),
        lambda: _steps_until_all_hear(torch.ones(LENGTH, LENGTH).tril().triu(-1).bool()),
    ),
)
END.confirmed(
    "parallel-heads",
    1354,
    "Multiple parallel attention heads",
    "Heads do not hear each other: of two, the second's output stays when the first's values change.",
    HOLDS,
    holds(
        lambda: torch.equal(*(_second_head(first) for first in (1.0, 9.0))),
        lambda: not _gradient_across_heads().any(),
    ),
)
END.not_checkable(
    "different-relationships",
    1354,
    "capture different relationships",
    "The heads capture different relationships.",
    reason="It depends on trained models that are not given.",
)
END.confirmed(
    "sinusoidal-or-learned",
    1355,
    "Sinusoidal or learned embeddings inject position information",
    "Either of them makes order heard.",
    HOLDS,
    holds(
        lambda: _order_is_heard("sinusoidal") and _order_is_heard("learned"),
        lambda: all(_order_is_heard_by_torch(TABLES[name]) for name in ("sinusoidal", "learned")),
    ),
)
for name, line, place, layer, parts in (
    (
        "encoder-layers",
        1356,
        "Stack of self-attention + FFN layers",
        EncoderLayer,
        ["self_attention", "feed_forward"],
    ),
    (
        "decoder-layers",
        1357,
        "Masked self-attention + cross-attention + FFN",
        DecoderLayer,
        ["self_attention", "cross_attention", "feed_forward"],
    ),
):
    END.confirmed(
        name,
        line,
        place,
        f"The parts of a layer of the reference: {', '.join(parts).replace('_', ' ')}.",
        HOLDS,
        holds(
            lambda layer=layer, parts=parts: _kinds(layer) == parts,  # type: ignore[misc]
            lambda parts=parts: _torch_parts(len(parts) - 1),  # type: ignore[misc]
        ),
    )
END.behaviour(
    "dropout-throughout",
    1358,
    "Dropout is applied in every attention, in every network and after every sub-layer: 10 times in a model of "
    "1 + 1 layers, positions aside.",
    setting=SETTING,
    blocks=PARTS,
    probe="""
model, calls = Transformer(9, 9, 4, 2, 8, 1, 1), []
for part in model.modules():
    if isinstance(part, nn.Dropout):
        part.register_forward_hook(lambda module, given, out: calls.append(module.p))
model(torch.tensor([[1]]), torch.tensor([[2]]))
print(len(calls), set(calls))
""",
    prints="10 {0.1}",
)
END.not_checkable(
    "tricks-and-variants",
    1358,
    "Training tricks",
    "Warmup, smoothing and dropout are the tricks; BERT, GPT and T5 the variants.",
    reason="A summary of what stands above, and facts about models that are not given.",
)
END.not_checkable(
    "next-part-and-exercises",
    1371,
    "Try learned vs. sinusoidal encodings",
    "What the next part treats, and five exercises.",
    reason="An announcement and tasks; nothing is stated.",
)
