"""Sinusoidal positions."""

from headcheck.functions.sinusoidal_inputs import Sinusoidal
from headcheck.subjects import builtin


@builtin("reference-sinusoidal", "headcheck's own sinusoidal positions, sine and cosine side by side.")
def reference_sinusoidal() -> Sinusoidal:
    """In float64."""
    from headcheck.reference.positions import sinusoidal

    return Sinusoidal(sinusoidal, name="reference-sinusoidal", layout="interleaved", odd="refused")


@builtin("reference-sinusoidal-concatenated", "headcheck's own sinusoidal positions, sines before cosines.")
def reference_sinusoidal_concatenated() -> Sinusoidal:
    """In float64."""
    from torch import Tensor

    from headcheck.reference.positions import sinusoidal

    def concatenated(length: int, d_model: int) -> Tensor:
        return sinusoidal(length, d_model, layout="concatenated")

    return Sinusoidal(
        concatenated, name="reference-sinusoidal-concatenated", layout="concatenated", odd="refused"
    )
