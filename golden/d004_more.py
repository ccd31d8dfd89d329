"""Document 004, lines 41 to 53: the order of the layers' parts, and what the next part is said to show."""

import torch
from torch import Tensor, nn

from headcheck.golden.derived import counted, holds
from headcheck.golden.ledger import Section
from headcheck.golden.stated import HOLDS, count
from headcheck.reference import DecoderLayer, EncoderLayer, LayerConfig, LayerNorm

LAYERS = Section("004", "layers")
MODEL = Section("004", "parameters")

CONFIG = LayerConfig(d_model=64, num_heads=4, d_ff=128, norm_order="post", activation="relu")
MEMORY = torch.zeros(1, 2, 64)


def _called(layer: nn.Module, *inputs: Tensor) -> list[str]:
    """The sub-layers and the norms that one pass of a layer of the reference calls, in order."""
    calls: list[str] = []
    parts = {"self_attention", "cross_attention", "feed_forward"}
    for name, part in layer.named_modules():
        if name in parts or isinstance(part, LayerNorm):
            word = "norm" if isinstance(part, LayerNorm) else name
            part.register_forward_hook(lambda _module, _given, _out, word=word: calls.append(word))
    layer(*inputs)
    return calls


def _of_torch() -> list[str]:
    """The sub-layers of torch's decoder layer, in the order in which they stand."""
    return [name for name, _ in nn.TransformerDecoderLayer(4, 2).named_children() if name.endswith("attn")]


for name, line, place, number in (
    ("attention-first", 42, "Multi-Head Self-Attention", 0),
    ("first-norm", 43, "Residual Connection & Layer Normalization", 1),
    ("feed-forward-third", 44, "Position-wise Feed-Forward Network", 2),
    ("second-norm", 45, "Residual Connection & Layer Normalization", 3),
):
    LAYERS.confirmed(
        name,
        line,
        place,
        f"Number {number + 1} of the steps of an encoder layer: attention, add and norm, feed-forward, add and norm.",
        HOLDS,
        holds(
            lambda number=number: (  # type: ignore[misc]
                _called(EncoderLayer(CONFIG), MEMORY)[number]
                == ("self_attention", "norm", "feed_forward", "norm")[number]
            ),
            one_way="The order of the steps is read off a call of the reference.",
        ),
    )
LAYERS.confirmed(
    "cross-attention-in-the-middle",
    47,
    "a Cross-Attention block in the middle",
    "Which of the three sub-layers of a decoder layer is cross-attention: the second.",
    count(2),
    counted(
        lambda: (
            1
            + [step for step in _called(DecoderLayer(CONFIG), MEMORY, MEMORY) if step != "norm"].index(
                "cross_attention"
            )
        ),
        lambda: 1 + _of_torch().index("multihead_attn"),
    ),
)
MODEL.not_checkable(
    "learns-to-reverse",
    53,
    "Part 3 trains it on a sequence-reversal task",
    "The model of the next part learns to reverse sequences.",
    reason="Only announced here; what it learns depends on a training that is not given.",
)
