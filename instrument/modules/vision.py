"""The role `vision`: a module from images to logits, or to a state for each patch."""

import operator
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from headcheck.calling import DidNotReturn, SubjectRaised
from headcheck.comparison import LawBroken, NotApplicable
from headcheck.declarations import Declaration
from headcheck.errors import SubjectError
from headcheck.modules.copying import takes_hooks
from headcheck.modules.returned import tensor_in
from headcheck.modules.role import ModuleRole
from headcheck.modules.stacks import Stacked
from headcheck.modules.subject import ModuleCase, ModuleInputs, ModuleSubject, problem_of
from headcheck.recipes import option
from headcheck.signatures import parameters_of

SIZES = (8, 16, 32, 28, 64, 12, 24, 48, 96, 112, 128, 224, 256, 384, 512)
"""Sides of square images that are tried, after those that the module names itself."""
SIZE_NAMES = ("image_size", "img_size")
PATCH_NAMES = ("patch_size",)
CHANNEL_NAMES = ("channels", "in_channels", "in_chans", "num_channels")
OUTPUTS = ("logits", "last_hidden_state")
USUAL = "usual"
MANY = 33
"""Patches of a long image, at least: more than a side of the grids for which tables are usually made."""
AROUND = (
    "name a module around it that returns logits (batch, classes), or states with the batch first, "
    "such as one entry of a dict"
)
DECLARE = "(where all images are of one size, declare other_sizes=false)"
Pair = tuple[int, int]


@dataclass(frozen=True)
class Vision(Stacked):
    """A module that reads images, with its conventions.

    function: the module, a function without parameters that makes one, or f(images) itself.
    images (batch, channels, height, width) -> logits (batch, classes), or states with the batch first.
    """

    channels: int | None = None
    """How many channels an image has; None: as the module's first convolution, or its attributes, have it."""
    image_size: int | Pair | None = None
    """Height and width, of all images: where it is declared, no other size is asked for. None: as the module's
    attributes say, or found by trying."""
    other_sizes: bool | None = None
    """Whether images of other sizes are asked for: such an image is refused, or read whole and with places of its own.
    None: where the module names no size of its images itself."""
    patch_size: int | Pair | None = None
    """Height and width of a patch; None: as the module's attributes or its first convolution have it."""
    positions: bool = True
    """Whether the place of a patch counts."""
    grid: bool = True
    """Whether a patch stands in a row and a column; False: its place is its number in reading order, in any grid."""
    full_context: bool = True
    """Whether every part of the image counts."""

    role = "vision"


@dataclass(frozen=True)
class VisionCase(ModuleCase):
    """A batch of images."""

    outline: str = option(USUAL, USUAL, USUAL, "tall", "wide", "column", "row")
    """Whether images are of the size that was found, or, where the module takes such, of another one: with a row or a
    column of patches more, or a single one of either."""
    spread: float = option(1.0, 1.0, 1.0, 0.1, 10.0)
    """The standard deviation of the numbers."""


@dataclass(frozen=True, eq=False)
class ImageInputs(ModuleInputs):
    """images (batch, channels, height, width)."""

    images: Tensor

    def noise(self, like: Tensor, purpose: str = "other") -> Tensor:
        """Normal numbers of the shape and dtype of a tensor."""
        spread: float = self.case.spread
        drawn = torch.randn(like.shape, generator=self.generator(purpose), dtype=torch.float64)
        return (spread * drawn).to(like)


class VisionSubject(ModuleSubject[ImageInputs]):
    """Laws see images, and one tensor for each."""

    FEATURES: ClassVar = {
        "patches": "has no patches that are known: headcheck.Vision(..., patch_size=N)",
        "other_sizes": "is for images of one size, as declared",
        "positions": "does not see where a patch stands",
        "grid": "counts places through in reading order, as declared",
        "no_positions": "sees where a patch stands",
        "full_context": "does not see the whole image",
    }

    def __init__(self, declaration: Declaration, *, dtypes: tuple[str, ...], device: str = "cpu") -> None:
        super().__init__(declaration, dtypes=dtypes, device=device)
        self.channels, self.image_size = self._found()
        self.patch_size = self._patch()
        self.sizes = self._sizes()
        """Height and width of the images of each outline that the module takes."""

    def grid(self, x: ImageInputs) -> Pair:
        """How many patches of an image stand below and beside each other."""
        return self._grid_of((x.images.shape[-2], x.images.shape[-1]))

    def _grid_of(self, size: Pair) -> Pair:
        assert self.patch_size is not None
        return size[0] // self.patch_size[0], size[1] // self.patch_size[1]

    def lacks(self, feature: str) -> str | None:
        if feature == "patches":
            return None if self.patch_size is not None else self.FEATURES[feature]
        if feature == "other_sizes":
            return self._of_one_size()
        if feature == "no_positions":
            return self.FEATURES[feature] if self.declaration.positions else None
        return super().lacks(feature)

    def _of_one_size(self) -> str | None:
        """Why no image of another size is asked for; None where one is."""
        said, own = self.declaration, next(iter(self._named(SIZE_NAMES)), None)
        if said.image_size is not None or said.other_sizes is False:
            return self.FEATURES["other_sizes"]
        if said.other_sizes is None and own is not None:
            return f"names the size of its images, {own}: declare other_sizes=true to be asked about others"
        return None

    def output(self, x: ImageInputs) -> Tensor:
        output = tensor_in(self.call(x.images.to(self.device)), OUTPUTS)
        if output.ndim < 2 or len(output) != len(x.images):
            raise LawBroken(f"output has shape {tuple(output.shape)}, expected ({len(x.images)}, ...)")
        return output

    def another(self, x: ImageInputs) -> ImageInputs:
        """A call with other images, and one more of them."""
        return x.but(images=torch.cat([x.images.flip(-1), x.images[:1]]) + 1)

    def plain(self, channels: int, size: Pair, batch: int = 1) -> ImageInputs:
        """Images of that size."""
        generator, dtype = torch.Generator().manual_seed(0), getattr(torch, self.dtypes[0])
        images = torch.randn(batch, channels, *size, generator=generator, dtype=torch.float64)
        return ImageInputs(VisionCase(), images.to(dtype))

    def at(self, patch: int, x: ImageInputs) -> tuple[slice, slice]:
        """The rows and columns of a patch, counted row by row."""
        assert self.patch_size is not None
        (height, width), (row, column) = self.patch_size, divmod(patch, self.grid(x)[1])
        return slice(row * height, (row + 1) * height), slice(column * width, (column + 1) * width)

    def exchanged(self, x: ImageInputs, order: Tensor) -> ImageInputs:
        """The patches of each image in another order."""
        images = x.images.clone()
        for place, patch in enumerate(order.tolist()):
            images[:, :, *self.at(place, x)] = x.images[:, :, *self.at(patch, x)]
        return x.but(images=images)

    def given_tokens(self, x: ImageInputs) -> list[tuple[nn.Module, Tensor]]:
        """Each layer that is given tokens, numbers of three axes, the batch first; and these, in the order of the calls.

        NotApplicable: none is given any.
        """
        seen: list[tuple[nn.Module, Tensor]] = []

        def look(part: nn.Module, given: tuple[Any, ...]) -> None:
            if given and isinstance(given[0], Tensor) and given[0].ndim == 3:
                seen.append((part, given[0].detach().clone().cpu()))

        parts = self.module.modules() if self.module is not None else ()
        hooks = [part.register_forward_pre_hook(look) for part in parts if takes_hooks(part)]
        try:
            self(x)
        finally:
            for hook in hooks:
                hook.remove()
        if not seen or len(seen[0][1]) != len(x.images):
            raise NotApplicable("no layer is seen that is given tokens")
        return seen

    def gradient(self, x: ImageInputs) -> Tensor:
        """Of a random combination of the output, with respect to each number of each image."""
        images = x.images.clone().to(self.device).requires_grad_()
        output = self.output(x.but(images=images))
        self.require_a_graph(output)
        cotangent = x.noise(output, "cotangent")
        gradient: Tensor
        (gradient,) = self.clock.call(
            torch.autograd.grad, output, [images], cotangent, materialize_grads=True
        )
        return gradient.cpu()

    def _found(self) -> tuple[int, Pair]:
        """Channels and size of the first images that the module takes."""
        said, first = self.declaration, self._first_convolution()
        channels = (
            (said.channels,)
            if said.channels
            else (*self._named(CHANNEL_NAMES), 3, 1, *self._usual(CHANNEL_NAMES))
        )
        if said.channels is None and first is not None:
            channels = (first.in_channels,)
        patches = self._patches()
        usual = sorted(SIZES, key=lambda side: not any(_cuts(patch, (side, side)) for patch in patches))
        sizes = (
            (said.image_size,)
            if said.image_size
            else (*self._named(SIZE_NAMES), *usual, *self._usual(SIZE_NAMES))
        )
        problem = ""
        for size in dict.fromkeys(map(_pair, sizes)):
            for count in dict.fromkeys(channels):
                try:
                    self(self.plain(count, size, batch=2))
                except SubjectRaised as raised:
                    problem = problem or str(raised)  # Of the size that it names, if it names one.
                except DidNotReturn:
                    return count, size  # A law will say that it hangs.
                except LawBroken as wrong:
                    raise SubjectError(f"{wrong}, for images of {size[0]} x {size[1]}; {AROUND}") from wrong
                else:
                    return count, size
        raise SubjectError(
            f"it takes no images of the sizes that were tried ({problem}); "
            "--declare image_size=N --declare channels=N"
        )

    def _patch(self) -> Pair | None:
        """Height and width of a patch, where they are known and fit into the image."""
        return next((patch for patch in self._patches() if _cuts(patch, self.image_size)), None)

    def _patches(self) -> list[Pair]:
        """What may be height and width of a patch: as declared, or as attributes and the first convolution have it."""
        said, first = self.declaration.patch_size, self._first_convolution()
        if said:
            return [_pair(said)]
        if first is not None and any(map(operator.gt, first.kernel_size, _pair(first.stride))):
            return []  # Patches that overlap: none is one token alone.
        cut = first is not None and first.kernel_size == first.stride and first.kernel_size != (1, 1)
        return [*map(_pair, self._named(PATCH_NAMES)), *([_pair(first.kernel_size)] if first and cut else [])]

    def _sizes(self) -> dict[str, Pair]:
        """Of each outline the first that a plain call takes: some take whole windows alone."""
        said = self.declaration
        if self.patch_size is None or said.image_size is not None or said.other_sizes is False:
            return {USUAL: self.image_size}
        rows, columns = self._grid_of(self.image_size)
        grids = {
            "tall": [(rows + more, columns) for more in (1, 2, rows)],
            "wide": [(rows, columns + more) for more in (1, 2, columns)],
            "column": [(max(2, rows), 1)],
            "row": [(1, max(2, columns))],
        }
        height, width = self.patch_size
        taken = {USUAL: self.image_size}
        for outline, each in grids.items():
            sizes = ((height * below, width * beside) for below, beside in each)
            size = next((one for one in sizes if not problem_of(self, self.plain(self.channels, one))), None)
            taken |= {outline: size} if size else {}
        return taken

    @cached_property
    def long_sizes(self) -> list[Pair]:
        """Of images of two rows, and of two columns, of many patches the height and width of those that it takes."""
        rows, columns = self._grid_of(self.image_size)
        grids = ((2, max(MANY, columns + 1)), (max(MANY, rows + 1), 2))
        return self.taken(grids)

    def taken(self, grids: Iterable[Pair]) -> list[Pair]:
        """Of grids of so many rows and columns the height and width of the images that it takes."""
        assert self.patch_size is not None
        height, width = self.patch_size
        sizes = ((height * below, width * beside) for below, beside in grids)
        return [size for size in sizes if not problem_of(self, self.plain(self.channels, size))]

    def _first_convolution(self) -> nn.Conv2d | None:
        parts = self.module.modules() if self.module is not None else ()
        return next((each for each in parts if isinstance(each, nn.Conv2d)), None)

    def _named(self, names: tuple[str, ...]) -> Iterator[Any]:
        """What the module, its parts or its configuration hold under one of these names."""
        parts = list(self.module.modules()) if self.module is not None else []
        for part in [*parts, *(getattr(each, "config", None) for each in parts[:1])]:
            for name in names:
                found = getattr(part, name, None)
                if isinstance(found, int) or (isinstance(found, tuple | list) and len(found) == 2):
                    yield found

    def _usual(self, names: tuple[str, ...]) -> list[int]:
        """What its class takes by default under one of these names."""
        taken = parameters_of(type(self.module)) or {} if self.module is not None else {}
        defaults = (taken[name].default for name in names if name in taken)
        return [each for each in defaults if isinstance(each, int)]


def _pair(size: Any) -> Pair:
    return (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))


def _cuts(patch: Pair, image: Pair) -> bool:
    """Whether patches of this size cut images of that size into several, and nothing is left."""
    return all(size % side == 0 for size, side in zip(image, patch, strict=True)) and patch != image


class VisionRole(ModuleRole[VisionCase, ImageInputs]):
    """Case, declaration and subject of a module that reads images."""

    name = "vision"
    case = VisionCase
    declaration = Vision
    subject = VisionSubject
    plain_call = "f(images)"
    aliases = ("visiontransformer",)

    def notes(self, subject: VisionSubject) -> list[str]:
        height, width = subject.image_size
        patch = "x".join(map(str, subject.patch_size)) if subject.patch_size else "unknown"
        others = [f"{below} x {beside}" for below, beside in list(subject.sizes.values())[1:]]
        more = f"; also taken: {', '.join(others)}" if others else ""
        return [f"images of {subject.channels} x {height} x {width}, patches of {patch}{more}"]

    def build(self, case: VisionCase, subject: VisionSubject) -> ImageInputs:
        generator = torch.Generator().manual_seed(case.seed)
        size = subject.sizes.get(case.outline, subject.image_size)
        shape = (case.batch, subject.channels, *size)
        images = torch.randn(shape, generator=generator, dtype=torch.float64) * case.spread
        return ImageInputs(case, images.to(getattr(torch, subject.dtypes[0])))


role = VisionRole()
