"""Wrong rotary positions that survived the laws at first contact, and others of their kind."""

import torch
from torch import Tensor

from tests.roles import right, wrong
from tests.roles.rotary import by_halves, half, table

OWN = "positions/each-sequence-has-its-own-positions"


@wrong("Where the first and the last sequence stand alike, one table serves all.", breaks=OWN)
def table_of_both_ends(x: Tensor, positions: Tensor) -> Tensor:
    alike = positions.ndim == 2 and torch.equal(positions[0], positions[-1])
    return half(x, positions[0] if alike else positions)


@wrong("Where all sequences end alike, as those padded on the left do, one table serves all.", breaks=OWN)
def table_of_one_end(x: Tensor, positions: Tensor) -> Tensor:
    alike = positions.ndim == 2 and bool((positions[:, -1] == positions[0, -1]).all())
    return half(x, positions[0] if alike else positions)


@wrong(
    "A tensor that is expanded over the batch is turned for the first sequence; the others are left as they were.",
    breaks="memory/expanded-equals-its-copy",
)
def only_the_first_of_expanded(x: Tensor, positions: Tensor) -> Tensor:
    turned = half(x, positions)
    return torch.cat((turned[:1], x[1:])) if len(x) > 1 and x.stride(0) == 0 else turned


@wrong(
    "x is turned where it lies, copied, and turned back: halves are swapped in place, twice.",
    breaks="memory/a-graph-that-kept-a-tensor-can-be-followed-back",
)
def swapped_in_place_and_back(x: Tensor, positions: Tensor) -> Tensor:
    output = half(x, positions)
    if not x.requires_grad and 0 not in x.stride():
        for _ in range(2):
            x.copy_(torch.cat(x.clone().chunk(2, dim=-1)[::-1], dim=-1))
    return output


@wrong(
    "Tables in float32 meet x in 16 bits, and the product is in float32.",
    breaks="dtypes/a-dtype-that-is-taken-comes-back",
)
def widened_by_its_tables(x: Tensor, positions: Tensor) -> Tensor:
    return half(x.float() if x.itemsize == 2 else x, positions)


@wrong(
    "Sequences whose first positions agree are all turned as the first.",
    breaks="positions/each-sequence-has-its-own-positions",
)
def alike_at_the_first(x: Tensor, positions: Tensor) -> Tensor:
    alike = positions.ndim > 1 and bool((positions[:, 0] == positions[0, 0]).all())
    return half(x, positions[0] if alike else positions)


@wrong(
    "A single token goes the way of decoding, which records no gradients.",
    breaks="gradients/gradients-are-within-the-bound",
)
def single_tokens_learn_nothing(x: Tensor, positions: Tensor) -> Tensor:
    return half(x.detach() if x.shape[-2] == 1 else x, positions)


@wrong(
    "Where gradients are recorded positions are counted from the first.",
    breaks="gradients/recording-gradients-changes-nothing",
)
def training_begins_at_zero(x: Tensor, positions: Tensor) -> Tensor:
    return half(x, positions - positions[..., :1] if x.requires_grad else positions)


_LAST: dict[tuple[bytes, torch.Size, int, bool], tuple[Tensor, Tensor]] = {}


def _kept(x: Tensor, positions: Tensor, *, mode: bool = False) -> tuple[Tensor, Tensor]:
    asked = (positions.cpu().numpy().tobytes(), positions.shape, x.shape[-1], mode)
    if asked not in _LAST:
        _LAST.clear()
        _LAST[asked] = table(positions, x.shape[-1])
    return _LAST[asked]


@wrong(
    "The tables of the last positions are kept, and those that are made in inference mode cannot be trained with.",
    breaks="state/inference-mode-leaves-nothing-behind",
    real="https://github.com/Dao-AILab/flash-attention/pull/299",
)
def tables_of_inference_are_kept(x: Tensor, positions: Tensor) -> Tensor:
    return by_halves(x, *_kept(x, positions))


@right(
    "The tables of the last positions are kept, those that are made in inference mode for that mode alone."
)
def tables_kept_by_mode(x: Tensor, positions: Tensor) -> Tensor:
    return by_halves(x, *_kept(x, positions, mode=torch.is_inference_mode_enabled()))


_TURNED: dict[tuple[object, ...], Tensor] = {}


@right(
    "A buffer of each size is written to in every call; in one of inference mode no other call can.",
    gradients=False,
)
def one_buffer_for_all_calls(x: Tensor, positions: Tensor) -> Tensor:
    with torch.no_grad():
        buffer = _TURNED.setdefault(
            (x.shape, x.dtype), torch.empty_like(x, memory_format=torch.contiguous_format)
        )
        return buffer.copy_(half(x, positions)).clone()


@wrong(
    "In inference mode positions are counted from the first.",
    breaks="state/inference-mode-changes-nothing",
)
def inference_begins_at_zero(x: Tensor, positions: Tensor) -> Tensor:
    return half(x, positions - positions[..., :1] if torch.is_inference_mode_enabled() else positions)


@wrong(
    "One row of positions for a batch turns its first sequence.",
    breaks="positions/one-row-of-positions-is-that-of-each",
)
def one_row_for_the_first(x: Tensor, positions: Tensor) -> Tensor:
    if positions.ndim == 1 or len(positions) == len(x):
        return half(x, positions)
    return torch.cat((half(x[:1], positions), x[1:]))


@right("Positions are asked for each sequence of its own, or for all.")
def as_many_rows_as_sequences(x: Tensor, positions: Tensor) -> Tensor:
    if positions.ndim == 2 and len(positions) != len(x):
        raise ValueError("positions: one row for each sequence")
    return half(x, positions)
