"""An image is a set of patches, each at its place."""

import math
from collections.abc import Iterator, Sequence
from functools import partial
from random import Random

import torch
from torch import nn

from headcheck.comparison import Comparison, LawBroken, NotApplicable, none, within
from headcheck.laws import law
from headcheck.modules.vision import DECLARE, ImageInputs, VisionSubject
from headcheck.modules.weights import weights_changed

LEAST, MOST, NUMBERS, AT_ONCE = 4, 32, 60_000, 8
"""Pairs of patches that are exchanged in one example, fewer where their images have more numbers; images of a call."""
Layer = tuple[nn.Module, torch.Tensor]
Pair = tuple[int, int]
WIDTH_LAST = (nn.LayerNorm, nn.RMSNorm, nn.MultiheadAttention, nn.TransformerEncoderLayer)
WIDTH_SECOND = (
    nn.Conv1d,
    nn.ConvTranspose1d,
    nn.BatchNorm1d,
    nn.SyncBatchNorm,
    nn.InstanceNorm1d,
    nn.GroupNorm,
)
"""Layers that take tokens as (batch, tokens, width), and as (batch, width, tokens)."""
USUAL_WIDTH = 4
"""What usual widths are multiples of."""
PREFIX = 2
"""So many tokens may stand before those of the patches, with places of their own."""
LARGEST = 16
"""Places in a row of a table for whose other grids there is time."""
NO_TABLE = "places stand in no table with a row for each patch that layers are given"
COARSE = 1e-3
"""The share of what places differ by that rounding may leave."""
PATCHED = "Dosovitskiy et al. 2021 (ViT), section 3.1, equation (1)"


@law(
    source=PATCHED,
    formula="patch i changed: of the tokens that the first layer is given, one changes",
    guards="A view in place of a transposition behind the convolution, channels that are not moved behind the patches: "
    "a token of parts of several patches (BLK-11: pytorch-vit 7, vit-pytorch 352).",
    needs=("patches", "full_context"),
    share=0.5,
)
def a_patch_is_one_token(module: VisionSubject, x: ImageInputs) -> Comparison:
    """Two patches, changed, change two tokens, one each, where layers are first given tokens."""
    count = math.prod(module.grid(x))
    patches = torch.randperm(count, generator=x.generator("patches"))[:2].tolist()
    changed = [_changed_tokens(module, x, patch) for patch in patches]
    firsts = [layers[0][1] for layers in changed if layers]
    if len(firsts) < len(patches) or (firsts[0] & firsts[1]).any() or not all(map(torch.any, firsts)):
        raise NotApplicable("what layers are first given as tokens is not of one patch or another")
    for patch, layers in zip(patches, changed, strict=True):
        first = layers[0][1]
        if _touched(first, 1) != 1 and not (_touched(first, 2) == 1 and _width_comes_first(layers, count)):
            tokens = f"{_touched(first, 1)} tokens of {first.shape[1]}"
            raise LawBroken(f"patch {patch} of {count} is a part of {tokens}")
    return none("patches in several tokens")


def _changed_tokens(module: VisionSubject, x: ImageInputs, patch: int) -> list[Layer]:
    """Each layer that is given tokens, and which numbers of them (batch, tokens, width) another patch changes.

    As far as both images take the same way: some drop tokens, or call a part for what a token says.
    """
    found: list[Layer] = []
    for (layer, usual), (other_layer, other) in zip(
        module.given_tokens(x), module.given_tokens(_with_another(module, x, patch)), strict=False
    ):
        if layer is not other_layer or usual.shape != other.shape:
            break
        found.append((layer, usual != other))
    return found


def _touched(changed: torch.Tensor, axis: int) -> int:
    """How many entries of that axis, the second or the third, hold a change."""
    return int(changed.any(dim=0).any(dim=2 - axis).sum())


def _width_comes_first(layers: list[Layer], count: int) -> bool:
    """Whether tokens of which a patch is a column are (batch, width, tokens).

    As the first layer that knows has it, or one to which they come as rows; where none does, by their sizes: as many
    columns as patches beside more rows, in a number that is no usual width, are patches with a few tokens before them.
    """
    for layer, changed in layers:
        if _touched(changed, 1) == 1:
            return True
        if _touched(changed, 2) != 1:
            break  # Tokens have been mixed.
        if isinstance(layer, (*WIDTH_LAST, *WIDTH_SECOND)):
            return isinstance(layer, WIDTH_SECOND)
    _, rows, columns = layers[0][1].shape
    if rows == columns == count:
        raise NotApplicable("which axis of the tokens is their width no layer tells, and both are as long")
    return columns != count or rows < columns or rows % USUAL_WIDTH == 0


@law(
    source=PATCHED,
    formula="patch i changed: f(image) changes, for each i",
    guards="A last row or column of patches that is cut off, a count of patches that is one short.",
    needs=("patches", "full_context"),
)
def every_patch_counts(module: VisionSubject, x: ImageInputs) -> Comparison:
    """Each patch, replaced by another, changes the output."""
    last = math.prod(module.grid(x)) - 1
    for patch in sorted({0, last, x.case.seed % (last + 1)}):
        if not module.shows(partial(_patch_counts, module, x, patch), x):
            raise LawBroken(f"the output does not depend on patch {patch} of {last + 1}")
    return none("patches that do not count")


def _patch_counts(module: VisionSubject, x: ImageInputs, patch: int) -> bool:
    differs = module.differing(module(_with_another(module, x, patch)), module(x), x)
    return bool(differs.flatten(1).any(dim=1).all())


def _with_another(module: VisionSubject, x: ImageInputs, patch: int) -> ImageInputs:
    images = x.images.clone()
    at = module.at(patch, x)
    images[:, :, *at] += x.noise(images[:, :, *at])
    return x.but(images=images)


@law(
    source="Dosovitskiy et al. 2021, section 3.1: position embeddings are added to retain positional information",
    formula="two patches exchanged: f(image) changes",
    guards="Positions that are made and never added, or the same for all patches; a column counted as if there were as "
    "many as rows, or as many as in another grid (keras-hub 2758).",
    needs=("patches", "positions"),
)
def the_place_of_a_patch_counts(module: VisionSubject, x: ImageInputs) -> Comparison:
    """Two patches exchanged give another output: neighbours, two of a row, two of a column, and many others."""
    for one, other in dict.fromkeys((*_pairs(module, x), *_unmoved(module, x))):
        if not module.shows(partial(_moves, module, x, _with_two_exchanged(module, x, one, other)), x):
            raise LawBroken(
                f"the output does not depend on the order of the patches {one} and {other} "
                "(where that is meant, declare positions=False)"
            )
    return none("places that do not count")


@law(
    source="Dosovitskiy et al. 2021, section 3.2: position embeddings by the location in the image, at any resolution",
    formula="patches (0, g + j) and (1, j) exchanged: f(image) changes, for each g below the length of a row",
    guards="A place that is counted as if each row had as many patches as in training: in a wider image the end of a row "
    "and the beginning of the next share places.",
    needs=("patches", "positions", "other_sizes", "full_context"),
    share=0.1,
)
def no_two_rows_of_a_larger_image_share_places(module: VisionSubject, x: ImageInputs) -> Comparison:
    """In an image of two long rows (or columns) no patch of one stands where one of the other does: row x g + column."""
    if not module.long_sizes:
        raise NotApplicable("takes no image of many more patches")
    for size in module.long_sizes:
        image = module.plain(module.channels, size)
        image = image.but(images=x.noise(image.images, "larger"))
        for pair in _not_moved(module, image, _as_if_shorter(module, image, Random(x.case.seed))):
            if module.shows(partial(_moves, module, image, _with_two_exchanged(module, image, *pair)), image):
                continue
            if not all(module.shows(partial(_patch_counts, module, image, each), image) for each in pair):
                raise NotApplicable("does not read every patch of a larger image")
            there = f"the patches {pair[0]} and {pair[1]} of an image of {size[0]} x {size[1]} share a place"
            raise LawBroken(f"{there} {DECLARE}, or positions=False where patches are a set")
    return none("places that are shared")


def _as_if_shorter(module: VisionSubject, x: ImageInputs, random: Random) -> list[Pair]:
    """For each length g below that of a row patches (0, g + j) and (1, j), with some j; of two columns likewise."""
    rows, columns = module.grid(x)
    pairs = []
    for shorter in range(1, max(rows, columns)):
        j = random.randrange(max(rows, columns) - shorter)
        pairs += [
            (shorter + j, columns + j) if rows < columns else ((shorter + j) * columns, j * columns + 1)
        ]
    return pairs


def _pairs(module: VisionSubject, x: ImageInputs) -> Iterator[Pair]:
    """Two patches that follow each other, two of a row, two of a column, and any two."""
    rows, columns = module.grid(x)
    random = Random(x.case.seed)
    row, column = random.randrange(rows), random.randrange(columns)
    first = x.case.seed % (rows * columns - 1)
    yield first, first + 1
    for patches in (
        range(row * columns, (row + 1) * columns),
        range(column, rows * columns, columns),
        range(rows * columns),
    ):
        if len(patches) > 1:
            one, other = sorted(random.sample(patches, 2))
            yield one, other


def _unmoved(module: VisionSubject, x: ImageInputs) -> list[Pair]:
    """Of many pairs of patches of the first image those whose exchange does not show at once."""
    places = range(math.prod(module.grid(x)))
    random = Random(f"{x.case.seed}/many")
    many = max(LEAST, min(MOST, NUMBERS // x.images[0].numel()))
    drawn = (random.sample(places, 2) for _ in range(many))
    return _not_moved(module, x.but(images=x.images[:1]), sorted({(min(pair), max(pair)) for pair in drawn}))


def _not_moved(module: VisionSubject, image: ImageInputs, pairs: Sequence[Pair]) -> list[Pair]:
    """Those of these pairs whose exchange does not show at once."""
    images = torch.cat([_with_two_exchanged(module, image, *pair).images for pair in pairs])
    calls = images.chunk(-(-len(pairs) // AT_ONCE))
    usual, found = module(image), torch.cat([module(image.but(images=some)) for some in calls])
    return [
        pair for pair, each in zip(pairs, found, strict=True) if not module.moves(each[None], usual, image)
    ]


def _with_two_exchanged(module: VisionSubject, x: ImageInputs, one: int, other: int) -> ImageInputs:
    images = x.images.clone()
    images[:, :, *module.at(one, x)] = x.images[:, :, *module.at(other, x)]
    images[:, :, *module.at(other, x)] = x.images[:, :, *module.at(one, x)]
    return x.but(images=images)


def _moves(module: VisionSubject, x: ImageInputs, other: ImageInputs) -> bool:
    return module.moves(module(other), module(x), x)


@law(
    source="attention is equivariant under permutations: without positions patches are a set",
    formula="f(P image) = f(image), or P f(image) where there is a state for each patch",
    guards="Patches cut with a view in place of a permutation, which mixes them with each other and with the channels "
    "(BLK-11: pytorch-vit 7, vit-pytorch 352).",
    needs=("patches", "no_positions"),
)
def without_positions_patches_are_a_set(module: VisionSubject, x: ImageInputs) -> Comparison:
    """A module without positions gives the same for patches in another order, or their states in that order."""
    count = math.prod(module.grid(x))
    order = torch.randperm(count, generator=x.generator("order"))
    found, expected = module(module.exchanged(x, order)), module(x)
    if expected.ndim == 2:
        return module.close(found, expected, x)
    more = expected.shape[1] - count
    if expected.ndim != 3 or more < 0:
        raise NotApplicable("the output is neither one vector nor a state for each patch")
    first = torch.arange(more)
    return module.close(found, expected[:, torch.cat([first, more + order])], x)


@law(
    source="Dosovitskiy et al. 2021, section 3.2: 2D interpolation of position embeddings, by their location",
    formula="p(i, j) = r(i) in the usual grid: so it is in a grid of more rows, or of more columns",
    guards="A table that is resized to (width, height), or read column by column, where an image is no square.",
    needs=("patches", "positions", "other_sizes"),
    share=0.2,
)
def places_alike_in_a_row_are_alike_in_a_stretched_one(
    module: VisionSubject, x: ImageInputs
) -> Iterator[Comparison]:
    """A table of places that is the same within each row is so in an image of another grid, where such are taken."""
    others = [size for outline, size in module.sizes.items() if outline in ("tall", "wide")]
    if module.module is None or not others:
        raise NotApplicable("takes images of one grid alone, as far as is seen")
    usual = module.plain(module.channels, module.image_size)
    with weights_changed(module.module, _alike_in_rows):
        places = _places(module, usual)
        spread = float((places - places.mean(dim=0)).abs().max())
        steps = (places[1:] - places[:-1]).abs().amax(dim=(1, 2))
        if (steps <= COARSE * spread).any() or _uneven(places).abs().max() > COARSE * spread:
            raise NotApplicable(NO_TABLE)
        for size in (*others, *module.taken(_grids_of_as_many(module.module))):
            found = _uneven(_places(module, module.plain(module.channels, size)))
            what = f"in an image of {size[0]} x {size[1]} {DECLARE} the difference of places of one row"
            yield within(found, torch.zeros_like(found), COARSE * spread, what)


def _alike_in_rows(weight: torch.Tensor) -> torch.Tensor:
    """A table of the places of a square, with some more before them or none: those of a row are that of its first."""
    square = _square(weight)
    if square is None:
        return weight
    side, more = square
    first = torch.arange(side * side) // side * side
    return weight[..., [*range(more), *(first + more).tolist()], :]


def _square(weight: torch.Tensor) -> tuple[int, int] | None:
    """Of a table of the places of a square how many there are in a row, and how many stand before them; or None."""
    for more in range(PREFIX + 1) if weight.ndim > 1 else ():
        side = math.isqrt(max(0, weight.shape[-2] - more))
        if side > 1 and side * side + more == weight.shape[-2]:
            return side, more
    return None


def _grids_of_as_many(module: nn.Module) -> list[tuple[int, int]]:
    """Grids that are no square, and have as many places as a table of those of a square."""
    squares = [found for weight in module.parameters() if (found := _square(weight)) is not None]
    # Of a single row all are alike.
    sides = {side for side, _ in squares if side % 2 == 0 and 2 < side <= LARGEST}
    return [grid for side in sorted(sides) for grid in ((side // 2, 2 * side), (2 * side, side // 2))]


def _places(module: VisionSubject, plain: ImageInputs) -> torch.Tensor:
    """The first tokens of an image of zeros that differ by more than rounding: (rows, columns, width)."""
    rows, columns = module.grid(plain)
    zeros = torch.zeros_like(plain.images)
    second = zeros.clone()
    second[:, :, *module.at(1, plain)] = 1.0
    others = module.given_tokens(plain.but(images=second))
    for (_, tokens), (_, other) in zip(module.given_tokens(plain.but(images=zeros)), others, strict=False):
        if tokens.shape != other.shape:
            break  # Tokens are dropped for what they say.
        count, width = tokens.shape[1:]
        places = tokens[0, max(0, count - rows * columns) :].double()
        apart = float((places - places[:1]).abs().max()) if len(places) else 0.0
        if len(places) == rows * columns and apart > COARSE * float(places.abs().max()):
            changed = (other[0] != tokens[0]).any(dim=-1).nonzero().flatten()
            if changed.tolist() != [count - rows * columns + 1]:
                raise NotApplicable("tokens are not given row by row, each of one patch")
            return places.view(rows, columns, width)
    raise NotApplicable(NO_TABLE)


def _uneven(places: torch.Tensor) -> torch.Tensor:
    """By how much places differ from the mean of their row."""
    return places - places.mean(dim=1, keepdim=True)
