"""Rotary positions."""

from headcheck.functions.rotary_inputs import Rotary
from headcheck.subjects import builtin


@builtin("reference-rotary", "headcheck's own rotary positions, either pairing, any base.")
def reference_rotary() -> Rotary:
    """Neighbouring dims make a pair unless asked otherwise."""
    from torch import Tensor

    from headcheck.reference.positions import rotary

    def turned(x: Tensor, positions: Tensor, *, base: float = 10000.0, interleaved: bool = True) -> Tensor:
        return rotary(x, positions, base=base, pairing="interleaved" if interleaved else "half")

    return Rotary(
        turned, name="reference-rotary", pairing="interleaved", gradients=True, fractional=True, negative=True
    )


@builtin("reference-rotary-partial", "headcheck's own rotary positions, of the first half of the dims.")
def reference_rotary_partial() -> Rotary:
    """As GPT-NeoX: dims a quarter of the whole apart make a pair."""
    from torch import Tensor

    from headcheck.reference.positions import rotary

    def turned(x: Tensor, positions: Tensor) -> Tensor:
        return rotary(x, positions, pairing="half", rotary_dim=x.shape[-1] // 2)

    return Rotary(turned, name="reference-rotary-partial", pairing="half", rotary_dim=0.5, gradients=True)
