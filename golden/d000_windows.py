"""Document 000, lines 1171 to 1222: how attention grows, and windows."""

import sympy
import torch

from headcheck.golden.derived import Derived, counted, holds
from headcheck.golden.ledger import Run, Section
from headcheck.golden.pieces import are_near, random_tensors
from headcheck.golden.stated import HOLDS, count, exactly, rounded
from headcheck.reference import attention, masks, number_of_scores, reachable, sliding_window_attention

GROWTH = Section("000", "quadratic-growth")
WINDOW = Section("000", "sliding-window")

N, W = sympy.symbols("n w", positive=True, integer=True)
MIB, GIB = 2**20, 2**30
FLOAT16 = torch.finfo(torch.float16).bits // 8
"""Bytes."""
SLIP_8192 = "The scores are taken of 16384 tokens, not 8192: 4 times too many."


def _all_scores(tokens: int) -> Derived:
    """n^2, as the size of a matrix of scores, and by the reference."""
    return counted(
        lambda: sympy.Integer(tokens) ** 2,
        lambda: torch.empty(tokens, tokens, device="meta").numel(),
        lambda: number_of_scores(tokens, tokens),
    )


def _weights_in_bytes(heads: int) -> Derived:
    """Of 8192 tokens in float16, in so many heads."""
    return counted(
        lambda: heads * sympy.Integer(8192) ** 2 * FLOAT16,
        lambda: torch.empty(heads, 8192, 8192, dtype=torch.float16, device="meta").nbytes,
        lambda: heads * number_of_scores(8192, 8192) * FLOAT16,
    )


def _in_window(position: int, tokens: int, radius: int) -> int:
    """How many keys a token sees, counted one by one."""
    return sum(abs(position - key) <= radius for key in range(tokens))


def _window_scores() -> sympy.Expr:
    """n (2 w + 1), less the corners: 2 (1 + ... + w)."""
    k = sympy.Symbol("k")
    return N * (2 * W + 1) - 2 * sympy.summation(k, (k, 1, W))


def _ten_in_windows() -> torch.Tensor:
    return masks.sliding_window(10, 10, 2, 2)


def _far_tokens_meet(layers: int) -> bool:
    return bool(reachable(_ten_in_windows(), layers)[0, 9])


def _hops(layers: int) -> int:
    """How far a token hears through so many layers of radius 2."""
    return sum(2 for _ in range(layers))


# Lines 1173 to 1179

GROWTH.confirmed(
    "quadratic",
    1173,
    "O(n",
    "Twice the tokens have four times the scores.",
    HOLDS,
    holds(
        lambda: (2 * N) ** 2 == 4 * N**2,
        lambda: torch.empty(20, 20).numel() == 4 * torch.empty(10, 10).numel(),
        lambda: number_of_scores(20, 20) == 4 * number_of_scores(10, 10),
    ),
    formula=r"(2n)^2 = 4 n^2",
)
GROWTH.confirmed(
    "scores-512",
    1173,
    "262,144",
    "The scores of 512 tokens.",
    count(262_144),
    _all_scores(512),
    formula="512^2",
)
GROWTH.erratum(
    "scores-4096",
    1173,
    "16.7 million",
    "The scores of 4096 tokens.",
    rounded("16.7", 10**6),
    _all_scores(4096),
    slip="16,777,216 is 16.8 million to three digits: it was cut, not rounded.",
    gives=lambda: 4096**2 // 10**5 * 10**5,
    formula="4096^2",
)
GROWTH.confirmed(
    "scores-100k",
    1173,
    "10 billion",
    "The scores of 100,000 tokens.",
    rounded("10", 10**9),
    counted(lambda: sympy.Integer(100_000) ** 2, lambda: sum(100_000 for _ in range(100_000))),
    formula="(10^5)^2",
)
GROWTH.erratum(
    "beyond-any-gpu",
    1173,
    "far beyond any GPU's memory",
    "Ten billion scores, in float16, take more than the 80 GB of an A100 or H100.",
    HOLDS,
    holds(
        lambda: FLOAT16 * sympy.Integer(10) ** 10 > 80 * 10**9,
        lambda: torch.empty(10**5, 10**5, dtype=torch.float16, device="meta").nbytes > 80 * 10**9,
    ),
    slip="They take 20 GB, in float32 40 GB: one head's fit. Beyond a GPU's memory are those of all heads.",
    formula=r"2 \cdot 10^{10} < 80 \cdot 10^9",
)
GROWTH.not_checkable(
    "biggest-limitation",
    1173,
    "the single biggest limitation",
    "Nothing limits standard transformers more.",
    reason="A judgement.",
)
GROWTH.erratum(
    "scores-8192",
    1179,
    "~268M",
    "The scores of 8192 tokens in one head.",
    rounded("268", 10**6),
    _all_scores(8192),
    slip=SLIP_8192,
    gives=lambda: 16384**2,
    formula="8192^2",
)
GROWTH.erratum(
    "bytes-8192",
    1179,
    "~512MB",
    "What they take in float16, in MiB: per layer and head.",
    rounded("512", MIB),
    _weights_in_bytes(1),
    slip=SLIP_8192,
    gives=lambda: FLOAT16 * 16384**2,
    formula=r"2 \cdot 8192^2 / 2^{20}",
)
GROWTH.erratum(
    "bytes-all-heads",
    1179,
    "~384GB",
    "What they take in 32 heads and 24 layers, in GiB.",
    rounded("384", GIB),
    _weights_in_bytes(32 * 24),
    slip=SLIP_8192,
    gives=lambda: 32 * 24 * FLOAT16 * 16384**2,
    formula=r"32 \cdot 24 \cdot 2 \cdot 8192^2 / 2^{30}",
)
GROWTH.confirmed(
    "from-one-head-to-all",
    1179,
    "With 32 heads and 24 layers",
    "From the 512 MB of one head to all: taken by itself, this step is right.",
    rounded("384", GIB),
    counted(lambda: sympy.Integer(512) * MIB * 32 * 24, lambda: sum(512 * MIB for _ in range(32 * 24))),
    formula=r"512 \cdot 32 \cdot 24 / 1024 = 384",
)
GROWTH.not_checkable(
    "hard-requirement",
    1179,
    "a hard requirement",
    "Long contexts cannot do without efficient attention.",
    reason="A judgement; it hangs on the hardware.",
)

# Lines 1181 to 1222

WINDOW.confirmed(
    "linear-in-length",
    1181,
    "n × w",
    "A window of w tokens on each side has n (2w + 1) - w (w + 1) scores: O(n w).",
    HOLDS,
    holds(
        lambda: sympy.expand(_window_scores() - (N * (2 * W + 1) - W * (W + 1))) == 0,
        lambda: all(
            sum(_in_window(i, n, w) for i in range(n)) == n * (2 * w + 1) - w * (w + 1)
            for n in (5, 10)
            for w in (0, 2, 4)
        ),
        lambda: number_of_scores(1000, 1000, 256, 256) == 1000 * 513 - 256 * 257,
    ),
    formula=r"n (2w + 1) - w (w + 1) \le n (2w + 1)",
)
WINDOW.confirmed(
    "only-neighbours",
    1181,
    "restricts each token to attend only to a fixed window",
    "What lies outside the window of a token does not reach it: the window is a mask.",
    HOLDS,
    holds(
        lambda: all(_in_window(i, 10, 2) <= 5 for i in range(10)),
        None,
        lambda: are_near(
            sliding_window_attention(*random_tensors(1, 1, 10, 4), left=2, right=2),
            attention(*random_tensors(1, 1, 10, 4), may_attend=_ten_in_windows()).output,
        ),
    ),
)
WINDOW.not_checkable(
    "longformer-and-mistral",
    1181,
    "Models like Longformer and Mistral",
    "Longformer and Mistral use windows, often with global tokens.",
    reason="A fact about published models; global tokens are Longformer's (section 3.1), Mistral 7B has none.",
)
WINDOW.block(
    "function",
    1183,
    1220,
    "A function that masks all scores outside a window, and a demonstration of 10 tokens.",
    alone=Run(
        prints=(
            "tensor([[1, 1, 1, 0, 0, 0, 0, 0, 0, 0],",
            "        [1, 1, 1, 1, 0, 0, 0, 0, 0, 0],",
            "        [1, 1, 1, 1, 1, 0, 0, 0, 0, 0],",
            "        [0, 1, 1, 1, 1, 1, 0, 0, 0, 0],",
            "        [0, 0, 1, 1, 1, 1, 1, 0, 0, 0],",
            "        [0, 0, 0, 1, 1, 1, 1, 1, 0, 0],",
            "        [0, 0, 0, 0, 1, 1, 1, 1, 1, 0],",
            "        [0, 0, 0, 0, 0, 1, 1, 1, 1, 1],",
            "        [0, 0, 0, 0, 0, 0, 1, 1, 1, 1],",
            "        [0, 0, 0, 0, 0, 0, 0, 1, 1, 1]], dtype=torch.int32)",
        )
    ),
)
WINDOW.confirmed(
    "size-of-the-window",
    1189,
    "2*window_size+1",
    "Away from the ends, a window size of 2 shows 2 * 2 + 1 keys.",
    count(5),
    counted(lambda: 2 * 2 + 1, lambda: _in_window(4, 10, 2), lambda: int(_ten_in_windows()[4].sum())),
)
WINDOW.erratum(
    "five-neighbours",
    1209,
    "each token sees 5 neighbors",
    "How many keys each of the 10 tokens sees.",
    exactly(" ".join("5" * 10)),
    Derived(
        lambda: [min(9, i + 2) - max(0, i - 2) + 1 for i in range(10)],
        lambda: [_in_window(i, 10, 2) for i in range(10)],
        lambda: _ten_in_windows().sum(dim=-1),
    ),
    slip="Itself and 4 neighbours; the two tokens at each end see 3 and 4 keys.",
    gives=lambda: [2 * 2 + 1] * 10,
)
WINDOW.confirmed(
    "a-band",
    1222,
    "a diagonal band pattern",
    "The mask is the band |i - j| <= 2.",
    HOLDS,
    holds(
        lambda: all(_in_window(i, 10, 2) == min(9, i + 2) - max(0, i - 2) + 1 for i in range(10)),
        lambda: torch.equal(
            torch.ones(10, 10).tril(2).triu(-2).bool(),
            (torch.arange(10) - torch.arange(10)[:, None]).abs() <= 2,
        ),
        lambda: torch.equal(_ten_in_windows(), torch.ones(10, 10).tril(2).triu(-2).bool()),
    ),
    formula=r"M_{ij} = [|i - j| \le w]",
)
WINDOW.confirmed(
    "scales-linearly",
    1222,
    "scales linearly with sequence length",
    "Each token more has 2 w + 1 scores more, where a window computes only its own.",
    HOLDS,
    holds(
        lambda: sympy.expand(_window_scores().subs(N, N + 1) - _window_scores()) == 2 * W + 1,
        None,
        lambda: number_of_scores(11, 11, 2, 2) - number_of_scores(10, 10, 2, 2) == 5,
    ),
)
WINDOW.confirmed(
    "this-is-efficient",
    1222,
    "This is extremely efficient",
    "In the band pattern of ten tokens are fewer scores than in full attention, 44 of 100; the printed function "
    "computes all of them, see computes-every-score.",
    HOLDS,
    holds(
        lambda: _window_scores().subs({N: 10, W: 2}) == 44,
        lambda: sum(abs(i - j) <= 2 for i in range(10) for j in range(10)) == 44,
        lambda: number_of_scores(10, 10, 2, 2) == 44,
    ),
)
WINDOW.confirmed(
    "distant-tokens",
    1222,
    "cannot directly communicate in a single layer",
    "Of ten tokens in windows of two, the first does not hear the last in one layer.",
    HOLDS,
    holds(lambda: _hops(1) < 9, None, lambda: not _far_tokens_meet(1)),
)
WINDOW.confirmed(
    "stacked-windows",
    1222,
    "to propagate across the full sequence",
    "Five layers are enough, four are not.",
    HOLDS,
    holds(lambda: _hops(4) < 9 <= _hops(5), None, lambda: not _far_tokens_meet(4) and _far_tokens_meet(5)),
    formula=r"L \cdot w \ge n - 1",
)
WINDOW.latent_fault(
    "computes-every-score",
    1202,
    "The window saves nothing: the product has n^2 scores, here of 9 tokens that see only themselves.",
    blocks=("function",),
    probe="""
sizes, product = [], torch.matmul
torch.matmul = lambda a, b: (sizes.append(product(a, b).numel()), product(a, b))[1]
sliding_window_attention(*[torch.ones(9, 1)] * 3, window_size=0)
torch.matmul = product
print(sizes[0])
""",
    prints="81",
    why_no_fault="The output is right; no law counts scores.",
)
WINDOW.latent_fault(
    "window-of-the-batch",
    1191,
    "The length is read from axis 0: with a batch of one, the mask is 1 x 1 and there is no window at all.",
    blocks=("function",),
    probe="x = torch.zeros(1, 2, 1)\nprint(sliding_window_attention(x, x, x, window_size=0)[1].tolist())",
    prints="[[[0.5, 0.5], [0.5, 0.5]]]",
    fault="documents/window-of-the-batch",
)
WINDOW.latent_fault(
    "batches-are-refused",
    1191,
    "Two sequences of three tokens fail: the mask is 2 x 2.",
    blocks=("function",),
    probe="x = torch.zeros(2, 3, 1)\ntry:\n    sliding_window_attention(x, x, x)\n"
    "except RuntimeError as problem:\n    print(type(problem).__name__)",
    prints="RuntimeError",
    fault="documents/window-refuses-batches",
)
WINDOW.latent_fault(
    "small-is-not-zero",
    1220,
    "Weights of at most 0.001 count as zero: of two keys that are both in the window one is counted.",
    blocks=("function",),
    probe="x = torch.tensor([[8.0], [0.0]])\nweights = sliding_window_attention(x, x, x, window_size=1)[1]\n"
    "print((weights > 0.001).sum(dim=-1).tolist(), (weights > 0).sum(dim=-1).tolist())",
    prints="[1, 2] [2, 2]",
    why_no_fault="It is in the printing, not in the attention.",
)
