"""Document 002, lines 219 to 245: cross-attention, and the whole architecture."""

from collections.abc import Callable

import sympy
import torch
from torch import Tensor, nn

from headcheck.golden.d002_decoder import MEMORY
from headcheck.golden.d002_layers import PRE, X, seeded
from headcheck.golden.derived import Derived, holds
from headcheck.golden.exact import contracted, softmax
from headcheck.golden.ledger import Section
from headcheck.golden.stated import HOLDS, count, exactly, shape
from headcheck.reference import Decoder, Embedding, Encoder, MultiHeadAttention, Seq2Seq, attention, shift

CROSS = Section("002", "cross-attention")
WHOLE = Section("002", "architecture")

SOURCE, TARGET = torch.tensor([[1, 2, 3]]), torch.tensor([[4, 1, 2, 3, 4, 1]])


def _model() -> Seq2Seq:
    """Two and two layers, five tokens."""
    return seeded(
        lambda: Seq2Seq(
            Embedding(5, 4, scaled=True, positions="sinusoidal"),
            Embedding(5, 4, scaled=True, positions="sinusoidal"),
            Encoder(PRE, 2, final_norm=True),
            Decoder(PRE, 2, final_norm=True),
            tied=False,
            output_bias=True,
        )
    )


def _calls(where: Callable[[str], bool]) -> list[tuple[str, tuple[Tensor, ...], dict[str, Tensor]]]:
    """The modules of that name that one pass of the model calls, in order, with what they are given."""
    model, calls = _model(), []
    for name, module in model.named_modules():
        if where(name):
            module.register_forward_hook(
                lambda _module, given, named, _out, name=name: calls.append((name, given, named)),
                with_kwargs=True,
            )
    model(SOURCE, TARGET)
    return calls


def _order(prefix: str) -> list[str]:
    """The sub-layers of the first block of a stack, in the order of their calls."""
    names = {
        f"{prefix}.layers.0.{part}": part for part in ("self_attention", "cross_attention", "feed_forward")
    }
    return [names[name] for name, _, _ in _calls(lambda name: name in names)]


def _memories() -> list[Tensor]:
    """What each cross-attention of the model reads."""
    return [named["key"] for _, _, named in _calls(lambda name: name.endswith("cross_attention"))]


def _torch_calls(layer: nn.Module, *inputs: Tensor) -> list[tuple[str, tuple[Tensor, ...]]]:
    """The sub-layers of torch's own layers in the order of their calls, with what they are given."""
    names = {"self_attn": "self_attention", "multihead_attn": "cross_attention", "linear1": "feed_forward"}
    calls = []
    for path, module in layer.named_modules():
        if name := names.get(path.rpartition(".")[2]):
            module.register_forward_hook(lambda _module, given, _out, name=name: calls.append((name, given)))
    layer.double()(*inputs)
    return calls


def _torch_order(prefix: str) -> list[str]:
    """The sub-layers of torch's own layer in the order of their calls."""
    if prefix == "encoder":
        calls = _torch_calls(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), X)
    else:
        calls = _torch_calls(nn.TransformerDecoderLayer(4, 2, 8, batch_first=True), X, MEMORY)
    return [name for name, _ in calls]


def _torch_memories() -> list[Tensor]:
    """What each cross-attention of two layers of torch's own reads as keys."""
    stack = nn.TransformerDecoder(nn.TransformerDecoderLayer(4, 2, 8, batch_first=True), 2)
    return [given[1] for name, given in _torch_calls(stack, X, MEMORY) if name == "cross_attention"]


def _memories_are_one() -> bool:
    """Both cross-attentions read the same tensor, not a copy."""
    first, second = _memories()
    return first is second


def _order_is(prefix: str, parts: list[str]) -> Derived:
    return holds(lambda: _order(prefix) == parts, lambda: _torch_order(prefix) == parts)


# Lines 220 to 222

CROSS.confirmed(
    "identical-mechanism",
    220,
    "identical to self-attention, with one difference",
    "Cross-attention with the queries' own sequence for its keys and values is self-attention.",
    HOLDS,
    holds(
        lambda: torch.equal(
            seeded(lambda: MultiHeadAttention(4, 2))(X, X, X), seeded(lambda: MultiHeadAttention(4, 2))(X)
        ),
        lambda: (
            {
                type(getattr(nn.TransformerDecoderLayer(4, 2, 8), name))
                for name in ("self_attn", "multihead_attn")
            }
            == {nn.MultiheadAttention}
        ),
    ),
)
for name, place, axes, labels in (
    ("queries-from-the-decoder", "the queries come from the decoder", (1, 2, 4), "bqd"),
    ("keys-from-the-encoder", "keys and values come from the encoder's output", (1, 2, 3), "bqk"),
):
    CROSS.confirmed(
        name,
        221,
        place,
        "Two queries and three keys and values of 4 dims: the shape of the "
        f"{'output: one for each query' if labels == 'bqd' else 'weights: queries by keys'}.",
        shape(*axes),
        Derived(
            (lambda: contracted("bqd,bkd->bqd", (1, 2, 4), (1, 3, 4)))
            if labels == "bqd"
            else (lambda: contracted("bqd,bkd->bqk", (1, 2, 4), (1, 3, 4))),
            None,
            (lambda: attention(X[None], MEMORY[None], MEMORY[None]).output[0].shape)
            if labels == "bqd"
            else (lambda: attention(X[None], MEMORY[None], MEMORY[None]).weights[0].shape),
        ),
    )
CROSS.not_checkable(
    "what-the-translation-retrieves",
    222,
    "routes to the encoder representation",
    "Generating Spanish, the query retrieves it and tired.",
    reason="It depends on a trained model that is not given.",
)

# Lines 225 to 245

WHOLE.not_checkable(
    "six-blocks",
    225,
    "N = 6 for each",
    "The paper has six encoder and six decoder blocks.",
    reason="A fact about a paper that is not given.",
)
for name, line, place, prefix, parts in (
    ("order-of-an-encoder-block", 228, "Encoder Block 1", "encoder", ["self_attention", "feed_forward"]),
    (
        "order-of-a-decoder-block",
        236,
        "Decoder Block 1",
        "decoder",
        ["self_attention", "cross_attention", "feed_forward"],
    ),
):
    WHOLE.confirmed(
        name,
        line,
        place,
        "The order of the sub-layers of the reference's block.",
        HOLDS,
        _order_is(prefix, parts),
    )
for name, line, place in (
    ("keys-and-values-flow", 233, "flow to every decoder cross-attention layer"),
    ("same-memory-for-every-block", 244, "to every decoder block's cross-attention layer"),
):
    WHOLE.confirmed(
        name,
        line,
        place,
        "Both cross-attentions of two decoder blocks read the very same encoder output.",
        HOLDS,
        holds(_memories_are_one, lambda: [each is MEMORY for each in _torch_memories()] == [True, True]),
    )
WHOLE.confirmed(
    "encoder-runs-once",
    244,
    "The encoder runs once",
    "How often one pass calls the encoder.",
    count(1),
    Derived(lambda: 1, None, lambda: len(_calls(lambda name: name == "encoder"))),
)
WHOLE.confirmed(
    "projection-to-the-vocabulary",
    240,
    "Linear projection to vocabulary size",
    "Six target tokens and a vocabulary of five: the shape of the logits.",
    shape(1, 6, 5),
    Derived(
        lambda: contracted("bqd,dv->bqv", (1, 6, 4), (4, 5)), None, lambda: _model()(SOURCE, TARGET).shape
    ),
)
WHOLE.confirmed(
    "next-token-probabilities",
    242,
    "Next-token probabilities",
    "After the softmax the five numbers of each position sum to one.",
    exactly("1 1 1 1 1 1"),
    Derived(
        lambda: [sympy.simplify(sum(softmax(sympy.symbols("l:5", real=True))))] * 6,
        None,
        lambda: _model()(SOURCE, TARGET).softmax(dim=-1).sum(dim=-1)[0],
    ),
)
WHOLE.confirmed(
    "shifted-right",
    243,
    "shifted by one position",
    "The input of the words 0 to 5 is 0 to 4, and the targets are 1 to 5: each position predicts the next.",
    exactly("0 1 2 3 4; 1 2 3 4 5"),
    Derived(
        lambda: [list(range(5)), [each + 1 for each in range(5)]],
        lambda: [torch.arange(6)[:-1], torch.arange(6).roll(-1)[:-1]],
        lambda: [each[0] for each in shift(torch.arange(6)[None])],
    ),
)
WHOLE.not_checkable(
    "who-uses-which-half",
    245,
    "BERT is encoder-only",
    "BERT is encoder-only, GPT decoder-only, T5 and BART have both.",
    reason="Facts about models that are not given.",
)
WHOLE.not_checkable(
    "what-is-meant-in-2024",
    245,
    "they almost always mean decoder-only",
    "Decoder-only models dominate; transformer means one of them.",
    reason="A usage; no derivation decides it.",
)
