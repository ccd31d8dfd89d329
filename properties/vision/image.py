"""Every number of an image counts, however it lies in memory."""

from functools import partial

import torch

from headcheck.calling import SubjectRaised
from headcheck.comparison import Comparison, LawBroken, NotApplicable, none
from headcheck.given import having, one_in
from headcheck.laws import law
from headcheck.modules.vision import DECLARE, ImageInputs, VisionSubject

WHOLE = "an image is all of its numbers"


@law(
    source=WHOLE,
    formula="channel c changed: f(image) changes, for each c",
    guards="A colour image read as a grey one, the first channel taken for all.",
    needs=("full_context",),
)
def every_channel_counts(module: VisionSubject, x: ImageInputs) -> Comparison:
    """Each channel, replaced by another, changes the output."""
    for channel in range(x.images.shape[1]):
        if not module.shows(partial(_channel_counts, module, x, channel), x):
            raise LawBroken(f"the output does not depend on channel {channel}")
    return none("channels that do not count")


def _channel_counts(module: VisionSubject, x: ImageInputs, channel: int) -> bool:
    images = x.images.clone()
    images[:, channel] += x.noise(images[:, channel])
    differs = module.differing(module(x.but(images=images)), module(x), x)
    return bool(differs.flatten(1).any(dim=1).all())


@law(
    source=WHOLE,
    formula="d f / d pixel is not 0, for each pixel of each channel",
    guards="Rows, columns or channels that a slice, a stride or a view leaves out; one that is detached, or clipped.",
    needs=("full_context",),
    given=(one_in(2, having(spread=10.0)),),
    share=0.5,
)
def every_pixel_has_a_gradient(module: VisionSubject, x: ImageInputs) -> Comparison:
    """The output has a gradient with respect to every pixel, in one at least of several images."""
    several = x.but(images=x.noise(x.images[:1].expand(4, -1, -1, -1), "images"))
    without = torch.ones(x.images.shape[1:], dtype=torch.bool)

    def all_have_one() -> bool:
        without.logical_and_((module.gradient(several) == 0).all(dim=0))
        return not without.any()

    if not module.shows(all_have_one):
        channel, row, column = without.nonzero()[0].tolist()
        raise LawBroken(
            f"no gradient for {int(without.sum())} of {without.numel()} pixels, "
            f"such as channel {channel}, row {row}, column {column}"
        )
    return none("pixels without a gradient")


@law(
    source="a tensor is its numbers, whatever their order in memory",
    formula="f(image in channels_last) = f(image)",
    guards="Patches cut by strides that take the image for contiguous (MEM-01).",
)
def the_layout_in_memory_does_not_matter(module: VisionSubject, x: ImageInputs) -> Comparison:
    """Images whose channels come last in memory, or that are a part of larger ones, give the same, or are refused."""
    if x.case.seed % 2:
        other = x.images.contiguous(memory_format=torch.channels_last)
    else:
        other = torch.nn.functional.pad(x.images, (1, 1, 1, 1))[:, :, 1:-1, 1:-1]
    try:
        found = module(x.but(images=other))
    except SubjectRaised as refusal:
        raise NotApplicable(f"refuses such a layout: {refusal}") from refusal
    return module.close(found, module(x), x)


@law(
    source=WHOLE,
    formula="f refuses an image with a row more, or that row counts; and so with a column more",
    guards="A remainder that does not fill a patch and is dropped without a word (TIL-01: diffusers 8837), or filled up "
    "along the other axis.",
    needs=("patches", "full_context", "other_sizes"),
    share=0.2,
)
def an_image_that_does_not_fit_is_refused_or_read_whole(module: VisionSubject, x: ImageInputs) -> Comparison:
    """An image with one row more, or one column more, raises, or what was added changes the output."""
    refusals = []
    for axis, name, beyond in ((-2, "row", (0, 0, 0, 1)), (-1, "column", (0, 1, 0, 0))):
        larger = x.but(images=torch.nn.functional.pad(x.images, beyond, value=1.0))
        try:
            module(larger)
        except SubjectRaised as refusal:
            refusals.append(refusal)
            continue
        if not module.shows(partial(_edge_counts, module, larger, axis), larger):
            raise LawBroken(
                f"an image of {tuple(larger.images.shape[-2:])} is taken, its last {name} changes nothing {DECLARE}"
            )
    if len(refusals) == 2:
        raise NotApplicable(f"refuses a larger image: {refusals[0]}")
    return none("edges that do not count")


@law(
    source="the place of a patch is a row and a column: positions are made for one grid",
    formula="f refuses the patches of an image in a single row, or f(them) != f(the image)",
    guards="An image of another size with as many patches, taken with positions that are not its own (document 000).",
    needs=("patches", "positions", "grid", "other_sizes"),
    share=0.2,
)
def patches_in_another_grid_are_refused_or_have_other_places(
    module: VisionSubject, x: ImageInputs
) -> Comparison:
    """The patches of an image laid in a single row (a single row, in a column) raise, or give another output."""
    rows, columns = module.grid(x)
    patches = [x.images[:, :, *module.at(patch, x)] for patch in range(rows * columns)]
    row = x.but(images=torch.cat(patches, dim=-1 if rows > 1 else -2))
    try:
        module(row)
    except SubjectRaised as refusal:
        raise NotApplicable(f"refuses its patches in a single row: {refusal}") from refusal
    if not module.shows(partial(_differ, module, row, x), x):
        found, usual = (tuple(each.images.shape[-2:]) for each in (row, x))
        meant = f"{DECLARE}; where places are counted through in reading order, grid=false"
        raise LawBroken(f"an image of {found} is read as if its patches stood in one of {usual} {meant}")
    return none("grids that are taken for another")


def _differ(module: VisionSubject, x: ImageInputs, other: ImageInputs) -> bool:
    first, second = module(x), module(other)
    return first.shape != second.shape or module.moves(first, second, other)


def _edge_counts(module: VisionSubject, x: ImageInputs, axis: int) -> bool:
    images = x.images.clone()
    edge = images.select(axis, -1)
    edge += x.noise(edge)
    return bool(module.differing(module(x.but(images=images)), module(x), x).any())
