"""The encoder-decoder of document 004 learns to reverse strings, and its cross-attention shows how it does so.

python examples/reversal.py --picture reversal.svg
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headcheck import reference as ref

SYMBOLS, LENGTH = 10, 10
PAD, SOS, EOS = range(3)  # the symbols follow; strings of one length need no padding
VOCABULARY = 3 + SYMBOLS
D_MODEL, BATCH, STEPS, WARMUP, SMOOTHING = 64, 64, 400, 200, 0.1

Source = Int[Tensor, "batch LENGTH"]
Target = Int[Tensor, "batch LENGTH+2"]


def new_model(seed: int) -> ref.Seq2Seq:
    """Document 004, line 53: 169 933 parameters; norms and positions as in the paper."""
    shape = ref.LayerConfig(d_model=D_MODEL, num_heads=4, d_ff=128, norm_order="post", activation="relu")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return ref.Seq2Seq(
            *(ref.Embedding(VOCABULARY, D_MODEL, scaled=True, positions="sinusoidal") for _ in range(2)),
            ref.Encoder(shape, 2, final_norm=False),
            ref.Decoder(shape, 2, final_norm=False),
            tied=False,
            output_bias=True,
        )


def pairs(count: int, generator: torch.Generator) -> tuple[Source, Target]:
    """Random strings, and each of them reversed between SOS and EOS."""
    source = torch.randint(3, VOCABULARY, (count, LENGTH), generator=generator)
    edges = torch.tensor([SOS, EOS]).expand(count, 2)
    return source, torch.cat((edges[:, :1], source.flip(1), edges[:, 1:]), dim=1)


def batches(seed: int, steps: int) -> Iterator[ref.Batch]:
    """Fresh strings for each step."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        source, target = pairs(BATCH, generator)
        yield ref.teacher_forced(target, source)


def learn(seed: int, steps: int = STEPS) -> tuple[ref.Seq2Seq, list[float]]:
    """A trained model and its losses; the paper's schedule, brought down to 0 so that the run ends at rest."""
    model = new_model(seed)
    losses = ref.train(
        model,
        ref.adam(model.parameters()),
        batches(seed, steps),
        lambda step: ref.warmup_schedule(step, D_MODEL, WARMUP) * (1 - (step - 1) / steps),
        smoothing=SMOOTHING,
    )
    return model, losses


def exact_share(model: ref.Seq2Seq, source: Source, target: Target) -> float:
    """The share of strings that greedy generation reverses without a mistake, EOS included."""
    written = ref.generate_target(model, source, SOS, LENGTH + 1)
    return (written == target).all(dim=1).double().mean().item()


@torch.no_grad()
def cross_attention(
    model: ref.Seq2Seq, source: Source, target: Target
) -> Float[Tensor, "layers batch LENGTH LENGTH"]:
    """The mean over heads, for the positions that answer with a symbol."""
    with ref.attention_weights(model) as weights:
        model(source, ref.shift(target)[0])
    layers = [found for name, found in weights.items() if name.endswith("cross_attention")]
    return torch.stack(layers).mean(dim=2)[:, :, :LENGTH]


def mirrored_shares(weights: Float[Tensor, "layers batch LENGTH LENGTH"]) -> list[float]:
    """For each layer, the share of target positions t whose largest weight is at LENGTH - 1 - t in the source."""
    mirrored = torch.arange(LENGTH).flip(0)
    return (weights.argmax(dim=-1) == mirrored).double().mean(dim=(1, 2)).tolist()


def picture(weights: Float[Tensor, "rows columns"], rows: Sequence[str], columns: Sequence[str]) -> str:
    """The weights as an SVG: the darker a cell, the more the token of its row reads the token of its column."""
    cell, edge = 24, 30
    width, height = edge + cell * len(columns), edge + cell * len(rows)
    style = 'font-family="monospace" font-size="14" text-anchor="middle"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" {style}>',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    parts += [
        f'<text x="{edge + cell * (j + 0.5):.1f}" y="20">{name}</text>' for j, name in enumerate(columns)
    ]
    parts += [f'<text x="15" y="{edge + cell * (i + 0.7):.1f}">{name}</text>' for i, name in enumerate(rows)]
    parts += [
        f'<rect x="{edge + cell * j}" y="{edge + cell * i}" width="{cell}" height="{cell}" '
        f'fill-opacity="{weight:.3f}"/>'
        for i, row in enumerate(weights.tolist())
        for j, weight in enumerate(row)
    ]
    return "\n".join([*parts, "</svg>\n"])


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, say what was learned, and draw how one string is read."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=STEPS, help=f"of training; {STEPS} learn the task")
    parser.add_argument(
        "--picture", type=Path, help="where to save the cross-attention of one string, as SVG"
    )
    given = parser.parse_args(arguments)
    model, losses = learn(given.seed, given.steps)
    source, target = pairs(1000, torch.Generator().manual_seed(given.seed + 1))
    weights = cross_attention(model, source, target)
    shares = mirrored_shares(weights)
    print(f"loss {losses[-1]:.3f}, at best {ref.smallest_loss(VOCABULARY, SMOOTHING):.3f}")
    print(f"reversed exactly: {exact_share(model, source, target):.1%} of {len(source)} other strings")
    print("largest weight at the mirrored position:", ", ".join(f"{share:.1%}" for share in shares))
    if given.picture:
        best = weights[shares.index(max(shares)), 0]
        names = [str(token - 3) for token in source[0].tolist()]
        given.picture.write_text(picture(best, names[::-1], names), encoding="utf-8")


if __name__ == "__main__":
    main()
