"""Padding is no part of a sequence, on whichever side it stands, of the source and of the target."""

from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor

from headcheck.comparison import Comparison, NotApplicable
from headcheck.given import at_least, one_in
from headcheck.laws import law
from headcheck.modules.seq2seq import PairInputs, Seq2SeqCase, Seq2SeqSubject
from headcheck.modules.tokens import beside, missing_tokens

PADDED = "a mask says which tokens there are; the others are a way of making a batch rectangular"
Which = Literal["source", "target"]


def _side(model: Seq2SeqSubject, x: PairInputs) -> str:
    side: str = model.sides[x.case.seed % len(model.sides)]
    return side


def _filling(model: Seq2SeqSubject, x: PairInputs, which: Which) -> Tensor:
    tokens = getattr(x, which)
    count = min(1 + x.case.seed // 2 % 4, model.room(tokens.shape[1]))
    if not count:
        raise NotApplicable("there is no room for padding")
    vocab = model.source_vocab if which == "source" else model.vocab
    return torch.randint(vocab, (len(tokens), count), generator=x.generator("padding"))


def _padded(x: PairInputs, which: Which, filling: Tensor, side: str) -> PairInputs:
    parts = [(getattr(x, which), True), (filling, False)]
    parts = parts if side == "right" else parts[::-1]
    tokens = torch.cat([part for part, _ in parts], dim=1)
    real = torch.cat([torch.full_like(part, real, dtype=torch.bool) for part, real in parts], dim=1)
    return x.but(**{which: tokens, f"{which}_is_real": real})


@law(
    source=PADDED,
    formula="f([source, pad], target) = f(source, target) = f([pad, source], target)",
    guards="A mask of the source that the encoder gets and the attention to the memory does not.",
    needs=("source_is_real",),
    share=1.5,
)
def padding_the_source_changes_nothing(model: Seq2SeqSubject, x: PairInputs) -> Comparison:
    """With padding beside the source, on either side, the logits are those without."""
    side = _side(model, x)
    padded = _padded(x, "source", _filling(model, x, "source"), side)
    return model.close(model(padded), model(x), x, f"logits, the source padded {beside(side)}")


@law(
    source=PADDED,
    formula="f(source, [target, pad])[real] = f(source, target) = f(source, [pad, target])[real]",
    guards="A mask of padding that takes the place of the causal one (MSK-07: keras 23040), positions that count it.",
    needs=("target_is_real",),
    share=1.5,
)
def padding_the_target_changes_nothing(model: Seq2SeqSubject, x: PairInputs) -> Comparison:
    """With padding beside the target, on either side, the logits of its tokens are those without."""
    side, length = _side(model, x), x.target.shape[1]
    padded = model(_padded(x, "target", _filling(model, x, "target"), side))
    real = padded[:, :length] if side == "right" else padded[:, -length:]
    return model.close(real, model(x), x, f"logits, the target padded {beside(side)}")


@law(
    source=PADDED,
    formula="f([source, pad], target) does not depend on pad",
    guards="A mask of the source that is dropped on one of its two ways.",
    needs=("source_is_real",),
)
def what_stands_in_padding_does_not_matter(model: Seq2SeqSubject, x: PairInputs) -> Comparison:
    """Whatever tokens stand in the padding of the source, the logits stay."""
    filling, side = _filling(model, x, "source"), _side(model, x)
    one, other = (
        _padded(x, "source", tokens, side) for tokens in (filling, (filling + 1) % model.source_vocab)
    )
    return model.close(model(one), model(other), x)


@law(
    source=PADDED,
    formula="f(pairs of different lengths)_b = f(pair b alone)",
    guards="The mask of the first row for all rows (SHP-01), positions of the first row for all (ROP-20); pairs that "
    "were sorted by length and put back in the wrong order.",
    needs=("source_is_real",),
    given=(
        at_least(batch=2, source_len=3, target_len=3),
        one_in(2, at_least(batch=4, source_len=4, target_len=4)),
    ),
    share=1.5,
)
def pairs_of_different_lengths_are_each_itself_alone(
    model: Seq2SeqSubject, x: PairInputs
) -> Iterator[Comparison]:
    """In a batch of pairs of different lengths each pair is what it is alone."""
    real: dict[str, Tensor] = {}
    side = _side(model, x)
    for which in ("source", "target"):
        if model.has(f"{which}_is_real"):
            tokens = getattr(x, which)
            rows, length = tokens.shape
            missing = missing_tokens(rows, length, x.generator(f"missing of the {which}"))
            there = torch.arange(length) >= missing[:, None]
            real[which] = there if side == "left" else there.flip(1)
    together = model(x.but(**{f"{which}_is_real": there for which, there in real.items()}))
    for row in range(len(together)):
        kept = {which: there[row] for which, there in real.items()}
        alone = x.picked(torch.tensor([row]))
        alone = alone.but(**{which: getattr(alone, which)[:, there] for which, there in kept.items()})
        found = together[row : row + 1, kept.get("target", slice(None))]
        yield model.close(found, model(alone), alone, f"logits of pair {row}, padded {beside(side)}")


@law(
    source=PADDED,
    formula="f(source, target, all real) = f(source, target)",
    guards="A path with masks and a path without that differ.",
    needs=("source_is_real",),
)
def masks_of_nothing_change_nothing(model: Seq2SeqSubject, x: PairInputs) -> Comparison:
    """Saying that all tokens are real is saying nothing."""
    real = {
        f"{which}_is_real": torch.ones_like(getattr(x, which), dtype=torch.bool)
        for which in ("source", "target")
        if model.has(f"{which}_is_real")
    }
    return model.close(model(x.but(**real)), model(x), x)


def _as_long(case: Seq2SeqCase, /) -> Seq2SeqCase:
    """With a target as long as the source: a mask of the one then fits the other."""
    return case.but(target_len=case.source_len)


@law(
    source=PADDED,
    formula="f(source, target, source_is_real) = f(source, target, source_is_real, all real), and the other way",
    guards="A target without a mask that is given the source's, or a source that is given the target's.",
    needs=("source_is_real", "target_is_real"),
    given=(at_least(source_len=2, target_len=2), one_in(2, _as_long)),
)
def a_mask_of_one_says_nothing_of_the_other(model: Seq2SeqSubject, x: PairInputs) -> Iterator[Comparison]:
    """Where one of source and target has a mask, the other is as if all of it were said to be real."""
    side = _side(model, x)
    both = {which: torch.ones_like(getattr(x, which), dtype=torch.bool) for which in ("source", "target")}
    for which, everything in both.items():
        real = everything.clone()
        real[:, -1 if side == "right" else 0] = False
        masks = {f"{name}_is_real": each for name, each in both.items()} | {f"{which}_is_real": real}
        kept = real if which == "target" else both["target"]
        found, expected = model(x.but(**{f"{which}_is_real": real})), model(x.but(**masks))
        yield model.close(found[kept], expected[kept], x, f"logits where the {which} alone has a mask")


@law(
    source="torch.autocast: matrix products are made in bfloat16, and no argument of the module changes",
    formula="under autocast: f([source, pad], target) = f(source, target)",
    guards="A mask that is the least number of float32, which scores in 16 bits cannot hold (torch: value cannot be "
    "converted without overflow).",
    needs=("source_is_real",),
    share=0.25,
)
def padding_is_nothing_under_autocast_too(model: Seq2SeqSubject, x: PairInputs) -> Comparison:
    """A model that computes under autocast takes its masks there, and padding is as little as elsewhere."""
    narrow = model.under_autocast(x)
    side = _side(model, x)
    padded = _padded(x, "source", _filling(model, x, "source"), side)
    what = f"logits under autocast, the source padded {beside(side)}"
    return narrow.close(narrow(padded), narrow(x), x, what)
