"""Wrong and right tables of sinusoidal positions."""

import functools
import math
from typing import Any

import torch
from torch import Tensor

from tests.roles import right, wrong

ACCURACY = "accuracy/output-is-within-the-bound"


def frequencies(d_model: int, base: float = 10000.0) -> Tensor:
    """As in the annotated transformer and the source documents."""
    return torch.exp(torch.arange(0, d_model, 2).float() * (-math.log(base) / d_model))


def filled(positions: Tensor, cosines_of: Tensor, sines_of: Tensor | None = None) -> Tensor:
    """A table with the sines in even columns and the cosines in odd ones."""
    sines_of = cosines_of if sines_of is None else sines_of
    pe = torch.zeros(len(positions), 2 * len(cosines_of))
    pe[:, 0::2] = torch.sin(positions[:, None] * sines_of)
    pe[:, 1::2] = torch.cos(positions[:, None] * cosines_of)
    return pe


def even(d_model: int) -> None:
    if d_model % 2:
        raise ValueError(f"d_model = {d_model} is odd")


def usual(length: int, d_model: int) -> Tensor:
    """What most of the wrong ones below are made of."""
    even(d_model)
    return filled(torch.arange(length).float(), frequencies(d_model))


# Right


@right("Columns filled in turn, as in the annotated transformer.")
def in_turn(length: int, d_model: int) -> Tensor:
    pe = torch.zeros(length, d_model)
    position = torch.arange(0, length).unsqueeze(1)
    div_term = torch.exp(torch.arange(0, d_model, 2) * -(math.log(10000.0) / d_model))
    pe[:, 0::2] = torch.sin(position * div_term)
    pe[:, 1::2] = torch.cos(position * div_term)[:, : d_model // 2]
    return pe


@right("With a leading axis for the batch.")
def with_batch_axis(max_len: int, d_model: int) -> Tensor:
    return usual(max_len, d_model).unsqueeze(0)


@right("With the batch in the middle, as in torch's tutorial.")
def batch_in_the_middle(max_len: int, d_model: int) -> Tensor:
    return usual(max_len, d_model)[:, None]


@right("Position over a power, in float64.")
def by_powers(length: int, dim: int) -> Tensor:
    even(dim)
    angles = torch.arange(length).double()[:, None] / 10000.0 ** (torch.arange(0, dim, 2).double() / dim)
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)


@right("Angles in float64, stored in float32, number by number.")
def number_by_number(length: int, d_model: int) -> Tensor:
    rows = [
        [(math.cos if j % 2 else math.sin)(p / 10000.0 ** (2 * (j // 2) / d_model)) for j in range(d_model)]
        for p in range(min(length, 40))
    ]
    head = torch.tensor(rows, dtype=torch.float32)
    return torch.cat((head, _double(length, d_model)[len(head) :].float()))


def _double(length: int, d_model: int) -> Tensor:
    columns = torch.arange(d_model)
    angles = torch.arange(length).double()[:, None] / 10000.0 ** (2.0 * (columns // 2).double() / d_model)
    return torch.where(columns % 2 == 0, angles.sin(), angles.cos())


@right("All sines, then all cosines.")
def sines_first(length: int, d_model: int) -> Tensor:
    even(d_model)
    angles = torch.arange(length)[:, None] * frequencies(d_model)
    return torch.cat((angles.sin(), angles.cos()), dim=-1)


@right("As tensor2tensor and fairseq: the last wavelength is base x 2 pi.", last_wave="base")
def to_the_base(length: int, d_model: int) -> Tensor:
    even(d_model)
    step = math.log(10000.0) / max(d_model // 2 - 1, 1)
    angles = torch.arange(length).float()[:, None] * torch.exp(torch.arange(d_model // 2).float() * -step)
    return torch.cat((angles.sin(), angles.cos()), dim=1)


@right("As in diffusers: the cosines may come first, and an odd width ends in a zero.")
def cosines_first(length: int, embedding_dim: int) -> Tensor:
    half = embedding_dim // 2
    angles = torch.arange(length).float()[:, None] * torch.exp(
        torch.arange(half) * (-math.log(10000.0) / max(half, 1))
    )
    table = torch.cat((angles.cos(), angles.sin()), dim=1)
    return torch.nn.functional.pad(table, (0, embedding_dim % 2))


@right("tensor2tensor's in full: of an odd width the last column is zero.", last_wave="base")
def padded_to_the_base(length: int, d_model: int) -> Tensor:
    half = d_model // 2
    angles = torch.arange(length).float()[:, None] * torch.exp(
        torch.arange(half).float() * -(math.log(10000.0) / (half - 1))
    )
    table = torch.cat((angles.sin(), angles.cos()), dim=1)
    return torch.nn.functional.pad(table, (0, d_model % 2))


@right("fairseq's: the last wavelength is base x 2 pi, and a single wave divides by zero.", last_wave="base")
def one_wave_divides_by_zero(length: int, d_model: int) -> Tensor:
    step = math.log(10000) / (d_model // 2 - 1)
    angles = torch.arange(length).float()[:, None] * torch.exp(torch.arange(d_model // 2).float() * -step)
    table = torch.cat((angles.sin(), angles.cos()), dim=1)
    return torch.nn.functional.pad(table, (0, d_model % 2))


@right("By a step of its own for a width of 2, which is refused.")
def one_wave_is_refused(length: int, d_model: int) -> Tensor:
    even(d_model)
    if d_model == 2:
        raise ValueError("one wave has no step")
    return sines_first(length, d_model)


@right("In bfloat16, computed in float32.")
def in_sixteen_bits(length: int, d_model: int) -> Tensor:
    return usual(length, d_model).bfloat16()


@right("In float16, computed in float32.")
def in_half(length: int, d_model: int) -> Tensor:
    return usual(length, d_model).half()


@right("In float64, of angles in float32.")
def widened(length: int, d_model: int) -> Tensor:
    even(d_model)
    angles = (torch.arange(length)[:, None] * frequencies(d_model)).double()
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)


@right("A base by the signature.")
def of_another_base(length: int, d_model: int, base: float = 500.0) -> Tensor:
    even(d_model)
    return filled(torch.arange(length).float(), frequencies(d_model, base))


@right("A buffer of 2048 rows, a copy handed out.")
def from_a_buffer(length: int, d_model: int) -> Tensor:
    if length > 2048:
        raise ValueError(f"{length} positions, but the buffer has 2048")
    return _buffer(d_model)[:length].clone()


@functools.cache
def _buffer(d_model: int) -> Tensor:
    return usual(2048, d_model)


@right("Complex powers: a row is the one before, turned.", angles="float32", max_length=512)
def row_by_row(length: int, d_model: int) -> Tensor:
    even(d_model)
    turns = torch.polar(torch.ones(d_model // 2).double(), frequencies(d_model).double())
    rows = torch.cumprod(torch.cat((torch.ones_like(turns)[None], turns.expand(length - 1, -1))), dim=0)
    return torch.stack((rows.imag, rows.real), dim=-1).flatten(1).float()


# Wrong waves


@wrong(
    "The exponent without its sign.",
    breaks=("waves/each-wave-turns-by-its-frequency", "waves/wavelengths-form-a-geometric-row", ACCURACY),
    real="document 001, line 167",
)
def sign_lost(length: int, d_model: int) -> Tensor:
    even(d_model)
    return filled(torch.arange(length).float(), 1 / frequencies(d_model))


@wrong(
    "A base of 1000.",
    breaks=("waves/wavelengths-form-a-geometric-row", "waves/each-wave-turns-by-its-frequency"),
    real="maxjcohen/transformer 62",
)
def smaller_base(length: int, d_model: int) -> Tensor:
    even(d_model)
    return filled(torch.arange(length).float(), frequencies(d_model, 1000.0))


@wrong(
    "The cosine has the exponent of the next wave.",
    breaks=("waves/every-row-has-the-same-norm", "shifts/inner-products-depend-on-the-offset-only",
            "shifts/one-rotation-for-each-offset"),
    real="SamLynnEvans/Transformer 25",
)  # fmt: skip
def cosine_of_the_next(length: int, d_model: int) -> Tensor:
    even(d_model)
    columns = torch.arange(0, d_model, 2).float()
    sines, cosines = (10000.0 ** (-2 * (columns + one) / d_model) for one in (0, 1))
    return filled(torch.arange(length).float(), cosines, sines)


@wrong(
    "The exponent 2 j / d_model for every column j.",
    breaks=("waves/wavelengths-form-a-geometric-row", "waves/each-wave-turns-by-its-frequency", ACCURACY),
    real="jadore801120/attention-is-all-you-need 32",
)
def exponent_of_the_column(length: int, d_model: int) -> Tensor:
    even(d_model)
    columns = torch.arange(0, d_model, 2).float()
    return filled(torch.arange(length).float(), 10000.0 ** (-2 * columns / d_model))


@wrong(
    "-log(10000) / d_model // 2: rounded down before it is used.",
    breaks=("waves/each-wave-turns-by-its-frequency", "waves/wavelengths-form-a-geometric-row"),
    real="zju3dv/LoFTR 41",
)
def precedence(length: int, d_model: int) -> Tensor:
    even(d_model)
    columns = torch.arange(0, d_model, 2).float()
    return filled(torch.arange(length).float(), torch.exp(columns * (-math.log(10000.0) / d_model // 2)))


@wrong("Frequencies rounded to float16.", breaks=("waves/far-rows-are-as-exact-as-their-format", ACCURACY))
def rounded_frequencies(length: int, d_model: int) -> Tensor:
    even(d_model)
    return filled(torch.arange(length).float(), frequencies(d_model).half().float())


@wrong(
    "Positions in bfloat16: from 257 on neighbours share a row.",
    breaks=("shifts/distinct-positions-have-distinct-codes", "waves/far-rows-are-as-exact-as-their-format"),
)
def rounded_positions(length: int, d_model: int) -> Tensor:
    even(d_model)
    return filled(torch.arange(length).bfloat16().float(), frequencies(d_model))


@wrong(
    "The rows stand still from 5000 on.",
    breaks="waves/far-rows-are-as-exact-as-their-format",
)
def end_of_the_buffer(length: int, d_model: int) -> Tensor:
    even(d_model)
    return filled(torch.arange(length).clamp(max=4999).float(), frequencies(d_model))


@wrong(
    "The table ends before the length that it is declared for: 512 rows.",
    breaks="waves/far-rows-are-as-exact-as-their-format",
    real="documents 000, 002 and 003",
    max_length=8192,
)
def table_ends(length: int, d_model: int) -> Tensor:
    if length > 512:
        raise IndexError(f"position {length - 1} is out of the table")
    return usual(length, d_model)


@wrong("Scaled to the length of 1.", breaks=("waves/every-row-has-the-same-norm", ACCURACY))
def scaled(length: int, d_model: int) -> Tensor:
    return usual(length, d_model) / math.sqrt(d_model / 2)


@wrong("Frequencies from 1 to 1 / base in even steps.", breaks="waves/wavelengths-form-a-geometric-row")
def even_steps(length: int, d_model: int) -> Tensor:
    even(d_model)
    return filled(torch.arange(length).float(), torch.linspace(1, 1e-4, d_model // 2))


@wrong(
    "The last wavelength is base x 2 pi, undeclared.",
    breaks=("waves/wavelengths-form-a-geometric-row", "conventions/columns-stand-in-the-declared-layout"),
)
def to_the_base_undeclared(length: int, d_model: int) -> Tensor:
    return to_the_base(length, d_model)


# Wrong conventions


@wrong(
    "Halves where neighbours are declared.",
    breaks=("conventions/columns-stand-in-the-declared-layout", ACCURACY),
    layout="interleaved",
)
def other_layout(length: int, d_model: int) -> Tensor:
    return sines_first(length, d_model)


@wrong("Cosines where sines should stand.", breaks="conventions/position-zero-is-zeros-and-ones")
def exchanged(length: int, d_model: int) -> Tensor:
    return usual(length, d_model).unflatten(1, (-1, 2)).flip(-1).flatten(1)


@wrong(
    "Positions are counted from one.",
    breaks=("conventions/position-zero-is-zeros-and-ones", "shifts/one-rotation-for-each-offset"),
)
def from_one(length: int, d_model: int) -> Tensor:
    even(d_model)
    return filled(torch.arange(1, length + 1).float(), frequencies(d_model))


@wrong(
    "The last column of an odd width is left at zero.", breaks="conventions/odd-widths-are-refused-or-right"
)
def odd_left_at_zero(length: int, d_model: int) -> Tensor:
    pe = torch.zeros(length, d_model)
    pe[:, : d_model - d_model % 2] = usual(length, d_model - d_model % 2)
    return pe


@wrong(
    "An odd width is handled, though declared to be refused.",
    breaks="conventions/odd-widths-are-refused-or-right",
    odd="refused",
)
def odd_taken(length: int, d_model: int) -> Tensor:
    return in_turn(length, d_model)


@wrong(
    "An odd width is refused, though declared to be handled.",
    breaks="conventions/odd-widths-are-refused-or-right",
    real="documents 000 to 003",
    odd="handled",
)
def odd_refused(length: int, d_model: int) -> Tensor:
    return usual(length, d_model)


@wrong(
    "NaN in the row of a position that is a multiple of 64.",
    breaks="conventions/entries-are-finite-and-at-most-one",
)
def not_a_number(length: int, d_model: int) -> Tensor:
    pe = usual(length, d_model)
    pe[64::64, -1] = torch.nan
    return pe


# Tables that depend on other tables


@wrong(
    "Positions are shares of the length.",
    breaks=("tables/longer-tables-extend-shorter-ones", ACCURACY),
)
def shares_of_the_length(length: int, d_model: int) -> Tensor:
    even(d_model)
    return filled(torch.arange(length).float() * 512 / max(length, 512), frequencies(d_model))


@wrong("Kept by the length alone.", breaks="tables/each-size-has-its-own-table")
def kept_by_length(length: int, d_model: int, memory: dict[int, Tensor] | None = None) -> Tensor:
    memory = {} if memory is None else memory
    even(d_model)
    chosen = memory.setdefault(length, frequencies(d_model))
    padded = torch.nn.functional.pad(chosen, (0, d_model), value=1.0)[: d_model // 2]
    return filled(torch.arange(length).float(), padded)


@wrong(
    "The kept table itself is handed out.",
    breaks="tables/a-table-may-be-changed-by-its-owner",
)
def handed_out(length: int, d_model: int, memory: dict[Any, Tensor] | None = None) -> Tensor:
    memory = {} if memory is None else memory
    if (length, d_model) not in memory:
        memory[length, d_model] = usual(length, d_model)
    return memory[length, d_model]


@wrong("One buffer for all tables.", breaks="memory/results-outlive-the-next-call")
def kept_buffer(length: int, d_model: int, memory: dict[str, Tensor] | None = None) -> Tensor:
    memory = {} if memory is None else memory
    buffer = memory.setdefault("buffer", torch.empty(4_000_000))
    return buffer[: length * d_model].view(length, d_model).copy_(usual(length, d_model))


@wrong("Noise that no seed explains.", breaks="state/same-call-same-answer")
def noisy(length: int, d_model: int, memory: dict[str, int] | None = None) -> Tensor:
    memory = {} if memory is None else memory
    memory["calls"] = memory.get("calls", 0) + 1
    return usual(length, d_model) * (1 - 1.2e-7 * (memory["calls"] % 2))


@wrong("It seeds the global generator.", breaks="state/nothing-global-is-touched")
def reseeding(length: int, d_model: int) -> Tensor:
    torch.manual_seed(0)
    return usual(length, d_model)
