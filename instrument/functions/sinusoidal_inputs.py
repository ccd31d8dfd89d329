"""What a table of sinusoidal positions is made from: its declaration, its case, two sizes."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from headcheck.declarations import Declaration
from headcheck.functions.inputs import FunctionCase, Inputs
from headcheck.recipes import option

Layout = Literal["interleaved", "concatenated", "cosines-first"]
LAYOUTS: tuple[Layout, ...] = ("interleaved", "concatenated", "cosines-first")


@dataclass(frozen=True, kw_only=True)
class Sinusoidal(Declaration):
    """A table of sinusoidal positions with its conventions. What is None is found out, and reported as a note.

    function: f(length, d_model) -> (length, d_model); axes of size 1 beside these two are taken away. Row p
    has, for each wave i, sin(p base^(-2i / d_model)) and the cosine of the same.
    """

    role = "sinusoidal"
    ARGUMENTS: ClassVar = {
        "length": (
            "length",
            "seq_len",
            "max_len",
            "seq_length",
            "max_length",
            "num_positions",
            "n_positions",
        ),
        "d_model": ("d_model", "dim", "embed_dim", "embedding_dim", "hidden_size", "d_embed", "d_hid"),
    }

    base: float | None = None
    """None: as the signature says, or 10000."""
    layout: Layout | None = None
    """sin, cos, sin, cos, ..., or all sines and then all cosines, or the cosines first (flip_sin_to_cos)."""
    last_wave: Literal["before-base", "base"] | None = None
    """The longest wavelength: one step before base x 2 pi, as in the paper, or that itself, as in tensor2tensor; None:
    before-base."""
    odd: Literal["refused", "handled", "zero-column"] | None = None
    """An odd d_model raises, or has one wave's first half more ("handled"), or is the table of one column less
    and a column of zeros (tensor2tensor, fairseq, diffusers); None: either of the first two, or found out where
    sines and cosines stand apart."""
    angles: Literal["float32", "float64"] | None = None
    """The format of the angles; None: the narrowest that fits, for 16 bits float32."""
    max_length: int | None = None
    """The longest table that it makes."""


@dataclass(frozen=True)
class SinusoidalCase(FunctionCase):
    """The size of a table."""

    SIZES: ClassVar = ("length", "d_model")

    length: int = option(1, 2, 3, 4, 5, 8, 16, 33, 64, 100, 257, 600, 1500, rarely=(2049, 5001))
    d_model: int = option(2, 4, 4, 6, 8, 10, 16, 32, 64, 128, 3, 5, 7, 1, 33, rarely=(256, 512, 768, 1024))


@dataclass(frozen=True, eq=False)
class SinusoidalInputs(Inputs):
    """No tensor is given; x, which is empty, says the dtype of the table."""

    TENSORS: ClassVar = ()

    length: int
    d_model: int
    base: float | None = None
    """None: the subject's own."""

    @property
    def output_shape(self) -> tuple[int, ...]:
        return self.length, self.d_model

    def other(self) -> "SinusoidalInputs":
        return self.but(d_model=self.d_model + 2)
