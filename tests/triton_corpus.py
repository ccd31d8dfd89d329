"""Flash kernels in Triton, right and with one fault each: a corpus for `headcheck teeth --device cuda`.

One kernel; a fault is one line of it (`FAULT`), or one of how it is launched. Forward only, causal top-left. Where there
is no CUDA device, TRITON_INTERPRET=1 and --device cpu run it in Triton's interpreter.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headcheck.declarations import Attention

try:
    import triton
    import triton.language as tl
except ImportError:  # The entries can be listed without it.
    triton = None

DIMS = (16, 32, 64, 128)


@dataclass(frozen=True)
class Launch:
    """How the kernel is built and started."""

    fault: str = ""
    block: int = 32
    warps: int = 4
    blocks_of: Callable[[int, int], int] = lambda length, block: math.ceil(length / block)
    output_like: Callable[[Tensor], Tensor] = torch.empty_like
    packed: bool = True
    """Whether inputs are made contiguous: the kernel knows no strides."""

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False, scale: float | None = None
    ) -> Tensor:
        batch, heads, q_len, head_dim = query.shape
        kv_len = key.shape[2]
        if head_dim not in DIMS or value.shape != key.shape or not q_len * kv_len:
            raise NotImplementedError(f"head_dim is one of {DIMS}, also of value, and no axis is empty")
        if self.packed:
            query, key, value = (each.contiguous() for each in (query, key, value))
        output = self.output_like(query)
        factor = head_dim**-0.5 if scale is None else scale
        grid = (self.blocks_of(q_len, self.block), batch * heads)
        if not grid[0]:
            return output
        kernel()[grid](
            *(query, key, value, output, factor, q_len, kv_len),
            FAULT=self.fault,
            CAUSAL=is_causal,
            DIM=head_dim,
            BLOCK=self.block,
            num_warps=self.warps,
        )
        return output


@functools.cache
def kernel() -> Any:  # noqa: C901, PLR0915 - each fault is a branch of one kernel, as its compiler reads it whole
    """The kernel, built when it is first started."""

    @triton.jit
    def flash(  # noqa: C901, PLR0912, PLR0915
        query,
        key,
        value,
        output,
        factor,
        q_len,
        kv_len,
        FAULT: tl.constexpr,  # noqa: N803 - constants of the compiler, as Triton's own kernels write them
        CAUSAL: tl.constexpr,  # noqa: N803
        DIM: tl.constexpr,  # noqa: N803
        BLOCK: tl.constexpr,  # noqa: N803
    ):
        head = tl.program_id(1).to(tl.int64)
        rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        dims = tl.arange(0, DIM)
        place = head * q_len * DIM + rows[:, None] * DIM + dims[None, :]
        q = tl.load(query + place, mask=rows[:, None] < q_len, other=0.0)
        top = tl.full((BLOCK,), 0.0 if FAULT == "maximum-from-zero" else -float("inf"), tl.float32)
        total = tl.zeros((BLOCK,), tl.float32)
        acc = tl.zeros((BLOCK, DIM), tl.float32)
        end = kv_len
        if FAULT == "diagonal-block-skipped" and CAUSAL:
            end = tl.minimum(kv_len, tl.maximum(tl.program_id(0) * BLOCK, 1))
        elif FAULT == "tail-block-skipped":
            end = tl.maximum(kv_len // BLOCK * BLOCK, 1)
        elif FAULT == "stops-at-the-diagonal" and CAUSAL:  # right
            end = tl.minimum(kv_len, (tl.program_id(0) + 1) * BLOCK)
        for start in range(0, end, BLOCK):
            columns = start + tl.arange(0, BLOCK)
            there = head * kv_len * DIM + columns[:, None] * DIM + dims[None, :]
            if FAULT == "heads-share-keys":
                there = columns[:, None] * DIM + dims[None, :]
            k = tl.load(key + there, mask=columns[:, None] < kv_len, other=0.0)
            v = tl.load(value + there, mask=columns[:, None] < kv_len, other=0.0)
            if FAULT == "products-in-tf32":
                scores = tl.dot(q, tl.trans(k), input_precision="tf32") * factor
            elif FAULT == "scores-in-half":
                scores = (
                    (tl.dot(q, tl.trans(k), input_precision="ieee") * factor).to(tl.float16).to(tl.float32)
                )
            else:
                scores = tl.dot(q, tl.trans(k), input_precision="ieee") * factor
            keep = (columns < kv_len)[None, :]
            if FAULT == "tail-keys-count":
                keep = (columns < start + BLOCK)[None, :]
            if CAUSAL:
                if FAULT == "itself-excluded":
                    keep = keep & ((columns[None, :] < rows[:, None]) | (rows[:, None] == 0))
                elif FAULT == "causal-within-the-block":
                    keep = keep & (columns[None, :] - start <= rows[:, None])
                elif FAULT == "one-key-ahead":
                    keep = keep & (columns[None, :] <= rows[:, None] + 1)
                else:
                    keep = keep & (columns[None, :] <= rows[:, None])
            scores = tl.where(keep, scores, -1e4 if FAULT == "finite-mask" else -float("inf"))
            new_top = tl.maximum(top, tl.max(scores, 1))
            if FAULT == "maximum-of-the-block":
                new_top = tl.max(scores, 1)
            shift = tl.where(new_top == -float("inf"), 0.0, new_top)
            if FAULT == "base-2":  # right
                weights = tl.exp2((scores - shift[:, None]) * 1.4426950408889634)
            elif FAULT == "base-2-without-its-factor":
                weights = tl.exp2(scores - shift[:, None])
            else:
                weights = tl.exp(scores - shift[:, None])
            rescale = tl.exp(top - shift)
            if FAULT == "sum-not-rescaled":
                total = total + tl.sum(weights, 1)
            elif FAULT == "sum-of-rounded-weights-in-half":
                total = (total * rescale + tl.sum(weights.to(tl.float16), 1)).to(tl.float16).to(tl.float32)
            else:
                total = total * rescale + tl.sum(weights, 1)
            product = tl.dot(weights.to(v.dtype), v, input_precision="ieee")
            if FAULT == "products-in-tf32":
                product = tl.dot(weights.to(v.dtype), v, input_precision="tf32")
            if FAULT == "output-not-rescaled":
                acc = acc + product
            elif FAULT == "output-accumulated-in-half":
                acc = (acc * rescale[:, None] + product).to(tl.float16).to(tl.float32)
            else:
                acc = acc * rescale[:, None] + product
            top = new_top
        acc = acc / total[:, None]
        if FAULT == "rows-stored-beyond-the-end":
            head_rows = tl.num_programs(0) * BLOCK
            tl.store(output + place, acc.to(output.dtype.element_ty), mask=rows[:, None] < head_rows)
        else:
            tl.store(output + place, acc.to(output.dtype.element_ty), mask=rows[:, None] < q_len)

    return flash


def on_a_stream_of_its_own(launch: Launch) -> Callable[..., Tensor]:
    """Nobody waits: neither the stream for its inputs, nor the caller for the output."""

    def attention(
        query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False, scale: float | None = None
    ) -> Tensor:
        query, key, value = (each.contiguous() for each in (query, key, value))
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.cuda._sleep(2_000_000)  # as behind other work of that stream
            return launch(query, key, value, is_causal, scale)

    return attention


def into_one_buffer() -> Callable[[Tensor], Tensor]:
    """The output of calls of one shape is one tensor."""
    kept: dict[Any, Tensor] = {}

    def output_like(query: Tensor) -> Tensor:
        return kept.setdefault((query.shape, query.dtype), torch.empty_like(query))

    return output_like


@dataclass(frozen=True)
class Entry:
    """One kernel."""

    id: str
    sentence: str
    make: Callable[[], Callable[..., Tensor]]
    breaks: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ("float16", "float32")
    role: str = "attention"

    def declaration(self) -> Attention:
        """Nothing is declared but its dtypes: a user would say no more."""
        return Attention(self.make(), name=self.id, dtypes=self.dtypes, gradients=False)


WRONG: dict[str, Entry] = {}
RIGHT: dict[str, Entry] = {}


def wrong(name: str, sentence: str, breaks: str, **more: Any) -> None:
    """Register a fault that is one line of the kernel, or of its launch."""
    dtypes = more.pop("dtypes", ("float16", "float32"))
    make = more.pop("make", None) or functools.partial(Launch, more.pop("fault", name), **more)
    WRONG[f"triton/{name}"] = Entry(f"triton/{name}", sentence, make, (breaks,), dtypes)


def right(name: str, sentence: str, **more: Any) -> None:
    """Register a right kernel."""
    RIGHT[f"triton/{name}"] = Entry(f"triton/{name}", sentence, functools.partial(Launch, **more))


right("blocks-of-16", "Tiles of 16.", block=16, warps=1)
right("blocks-of-32", "Tiles of 32.")
right("blocks-of-64", "Tiles of 64.", block=64)
right("base-2", "Powers of two, and their factor.", fault="base-2")
right(
    "stops-at-the-diagonal", "Causal: tiles beyond the diagonal are not read.", fault="stops-at-the-diagonal"
)
right("into-zeros", "The output is made of zeros first.", output_like=torch.zeros_like)

EXACT, CAUSAL = "accuracy/output-is-within-the-bound", "masks/the-future-does-not-matter"
wrong("tail-keys-count", "The keys beyond the end count with score 0.", EXACT)
wrong("tail-block-skipped", "The keys of the last, partial tile are not read.", EXACT)
wrong("maximum-from-zero", "The running maximum begins at 0.", EXACT)
wrong(
    "maximum-of-the-block", "The running maximum may fall from tile to tile: the scores of one alone.", EXACT
)
wrong("sum-not-rescaled", "The sum is not rescaled when the maximum moves.", EXACT)
wrong("output-not-rescaled", "The output is not rescaled when the maximum moves.", EXACT)
wrong("base-2-without-its-factor", "exp2 of scores that were not multiplied by log2 e.", EXACT)
wrong(
    "products-in-tf32",
    "float32 products on tensor cores, as tl.dot's default is.",
    EXACT,
    dtypes=("float32",),
)
wrong("scores-in-half", "float32 scores pass through float16.", EXACT, dtypes=("float32",))
wrong("output-accumulated-in-half", "The output is accumulated in float16.", EXACT)
wrong("sum-of-rounded-weights-in-half", "The sum is accumulated in float16.", EXACT)
wrong("heads-share-keys", "Every head reads the keys of the first.", EXACT)
wrong("finite-mask", "What is masked gets the score -10000.", EXACT)
wrong("itself-excluded", "Causal: a query does not see its own key.", EXACT)
wrong("one-key-ahead", "Causal: a query sees the next key.", CAUSAL)
wrong("causal-within-the-block", "Causal: the column is counted from its tile.", CAUSAL)
wrong("diagonal-block-skipped", "Causal: the loop ends before the tile of the diagonal.", EXACT)
wrong(
    "rows-stored-beyond-the-end", "The store has no mask: rows beyond the end go into the next head.", EXACT
)
wrong(
    "last-rows-not-computed",
    "The grid is a quotient rounded down: the rows of the last tile keep what the memory held.",
    EXACT,
    fault="",
    blocks_of=lambda length, block: length // block,
)
wrong("strides-not-read", "A view is read as if it were contiguous.", EXACT, fault="", packed=False)
wrong(
    "one-buffer",
    "Calls of one shape give one tensor: the next call overwrites it.",
    "state/same-call-same-answer",
    make=lambda: Launch(output_like=into_one_buffer()),
)
wrong(
    "nobody-waits-for-its-stream",
    "Computed on a stream of its own that nobody waits for.",
    EXACT,
    make=lambda: on_a_stream_of_its_own(Launch()),
)
