"""Document 000, lines 1224 to 1281: linear, sparse and flash attention."""

from typing import Any

import mpmath
import sympy
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from headcheck.golden.derived import Derived, counted, holds
from headcheck.golden.exact import contracted
from headcheck.golden.ledger import Run, Section
from headcheck.golden.pieces import are_near, random_tensors
from headcheck.golden.stated import HOLDS, shape
from headcheck.reference import attention, feature_map, kernel_attention, linear_attention, masks

OTHERS = Section("000", "other-efficient")
FLASH = Section("000", "flash-attention")

N, W = sympy.symbols("n w", positive=True, integer=True)


def _by_blocks() -> tuple[sympy.Expr, sympy.Expr]:
    """Numerator and denominator of a softmax average of four keys, in two blocks, less their own reference."""
    scores, values = sympy.symbols("s:4"), sympy.symbols("v:4")
    tops = sympy.symbols("m:2")
    parts = [
        (
            sum(sympy.exp(scores[j] - tops[b]) * values[j] for j in (2 * b, 2 * b + 1)),
            sum(sympy.exp(scores[j] - tops[b]) for j in (2 * b, 2 * b + 1)),
        )
        for b in range(2)
    ]
    joined = [sum(sympy.exp(tops[b]) * parts[b][i] for b in range(2)) for i in range(2)]
    whole = (sum(sympy.exp(s) * v for s, v in zip(scores, values, strict=True)), sum(map(sympy.exp, scores)))
    return sympy.expand(joined[0] - whole[0]), sympy.expand(joined[1] - whole[1])


def _key_by_key() -> bool:
    """The softmax average of five keys, rescaled whenever a score is above all before it."""
    scores, values = [mpmath.mpf(s) for s in (1, 3, -2, 5, 4)], [mpmath.mpf(v) for v in (2, -1, 7, 3, 5)]
    top, total, sum_of_values = mpmath.mpf("-inf"), mpmath.mpf(0), mpmath.mpf(0)
    for score, value in zip(scores, values, strict=True):
        higher = max(top, score)
        total = total * mpmath.exp(top - higher) + mpmath.exp(score - higher)
        sum_of_values = sum_of_values * mpmath.exp(top - higher) + mpmath.exp(score - higher) * value
        top = higher
    weighted = mpmath.fsum(mpmath.exp(s) * v for s, v in zip(scores, values, strict=True))
    return bool(abs(sum_of_values / total - weighted / mpmath.fsum(map(mpmath.exp, scores))) < 1e-50)


def _torch_is_exact(*, is_causal: bool) -> bool:
    query, key, value = random_tensors(1, 2, 7, 4)
    kept = masks.causal(7, 7) if is_causal else None
    own = attention(query, key, value, may_attend=kept).output
    return are_near(scaled_dot_product_attention(query, key, value, is_causal=is_causal), own)


def _output_shape(*, is_causal: bool) -> Derived:
    query, key, value = random_tensors(2, 8, 64, 32)
    return counted(
        lambda: contracted("bhqd,bhkd,bhkv->bhqv", query.shape, key.shape, value.shape),
        lambda: scaled_dot_product_attention(query, key, value, is_causal=is_causal).shape,
        lambda: attention(query, key, value).output.shape,
    )


def _runs_on_cpu(backend: SDPBackend) -> bool:
    """Whether torch computes attention on a CPU with this backend alone."""
    query, key, value = random_tensors(1, 1, 2, 8)
    try:
        with sdpa_kernel(backend):
            scaled_dot_product_attention(query, key, value)
    except RuntimeError:
        return False
    return True


def _chosen_on_cpu() -> SDPBackend:
    """The backend that torch takes by itself for the block's tensors."""
    query, key, value = (each.float() for each in random_tensors(2, 8, 64, 32))
    return SDPBackend(torch._fused_sdp_choice(query, key, value))  # noqa: SLF001 - torch offers no other way to ask


def _flash_kernel_for_cpus() -> bool:
    """Torch's flash kernel for CPUs, called by its name, gives the reference's output."""
    query, key, value = random_tensors(1, 1, 2, 8)
    output = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(query, key, value)[0]  # noqa: SLF001
    return are_near(output, attention(query, key, value).output)


def _is_flash() -> bool:
    """Whether what torch records for the backward of the block's call is its flash kernel."""
    query, key, value = (each.float().requires_grad_() for each in random_tensors(2, 8, 64, 32))
    recorded = scaled_dot_product_attention(query, key, value).grad_fn
    return recorded is not None and "Flash" in recorded.name()


def _without_normaliser() -> Any:
    """phi(Q) (phi(K)^T 1): what a value of one comes back as."""
    query, key, _ = random_tensors(1, 1, 4, 2)
    return feature_map(query) @ (feature_map(key).mT @ torch.ones(1, 1, 4, 1, dtype=torch.float64))


# Lines 1224 to 1228

OTHERS.confirmed(
    "linear-attention-order",
    1226,
    "computing K^T V first",
    "phi(Q) (phi(K)^T V) is (phi(Q) phi(K)^T) V: no n x n matrix is needed.",
    HOLDS,
    holds(
        lambda: all(
            entry == 0
            for entry in (
                (sympy.Matrix(3, 2, sympy.symbols("q:6")) * sympy.Matrix(2, 3, sympy.symbols("k:6")))
                * sympy.Matrix(3, 2, sympy.symbols("v:6"))
                - sympy.Matrix(3, 2, sympy.symbols("q:6"))
                * (sympy.Matrix(2, 3, sympy.symbols("k:6")) * sympy.Matrix(3, 2, sympy.symbols("v:6")))
            ).expand()
        ),
        None,
        lambda: are_near(
            kernel_attention(*random_tensors(1, 1, 6, 3)), linear_attention(*random_tensors(1, 1, 6, 3))
        ),
    ),
    formula=r"\phi(Q) (\phi(K)^T V) = (\phi(Q) \phi(K)^T) V",
)
OTHERS.confirmed(
    "linear-complexity",
    1226,
    "Reduces complexity to O(n)",
    "The multiplications of both products, 2 n d^2, grow by as much with each token.",
    HOLDS,
    holds(lambda: sympy.diff(2 * N * W**2, N, 2) == 0, lambda: sympy.diff(2 * N**2 * W, N, 2) != 0),
    formula=r"2 n d^2 \text{ instead of } 2 n^2 d",
)
OTHERS.erratum(
    "linear-attention-normaliser",
    1226,
    "(φ(K)^T V)",
    "The product by itself replaces softmax attention: it gives back a value that all keys share.",
    HOLDS,
    holds(
        lambda: sympy.Integer(1) * (sympy.Integer(1) * 5 + sympy.Integer(1) * 5) == 5,
        lambda: are_near(_without_normaliser(), torch.ones(1, 1, 4, 1, dtype=torch.float64)),
    ),
    slip="The division by phi(Q) (phi(K)^T 1) is left out, without which the weights do not sum to one "
    "(Katharopoulos et al. 2020, equation 5). Of two keys of feature 1 and value 5 comes 10.",
    formula=r"o_i = \frac{\phi(q_i)^T \sum_j \phi(k_j) v_j^T}{\phi(q_i)^T \sum_j \phi(k_j)}",
)
OTHERS.not_checkable(
    "bigbird-and-longformer",
    1228,
    "as in BigBird and Longformer",
    "BigBird and Longformer combine windows, global tokens and random connections.",
    reason="A fact about published models: of BigBird it is true; Longformer (section 3.1) has no random ones.",
)

# Lines 1227 to 1281

for name, line, place in (
    ("exact", 1227, "it computes exact standard attention"),
    ("exact-again", 1232, "mathematically exact attention"),
    ("identical", 1268, "mathematically identical to standard attention"),
    ("exact-in-brief", 1281, "exact attention"),
    ("incremental-softmax", 1268, "computing the softmax incrementally"),
):
    FLASH.confirmed(
        name,
        line,
        place,
        "Softmax in blocks, each with a top of its own, is the softmax of the whole; torch's function agrees.",
        HOLDS,
        holds(lambda: _by_blocks() == (0, 0), _key_by_key, lambda: _torch_is_exact(is_causal=False)),
        formula=r"\frac{\sum_b e^{m_b} \sum_{j \in b} e^{s_j - m_b} v_j}{\sum_b e^{m_b} \sum_{j \in b} e^{s_j - m_b}}",
    )
FLASH.confirmed(
    "linear-memory",
    1268,
    "it uses O(n) memory",
    "Outputs, tops and sums of n queries and one tile of w x w scores: it grows by d + 2 numbers with each token.",
    HOLDS,
    holds(lambda: sympy.diff(N * (64 + 2) + W**2, N) == 64 + 2, lambda: sympy.diff(N**2, N) == 2 * N),
)
FLASH.confirmed(
    "in-torch",
    1227,
    "torch.nn.functional.scaled_dot_product_attention",
    "torch has a function of this name, with a flash backend.",
    HOLDS,
    holds(
        lambda: _torch_is_exact(is_causal=False),
        lambda: SDPBackend.FLASH_ATTENTION in SDPBackend.__members__.values(),
    ),
)
FLASH.not_checkable(
    "in-fast-memory",
    1268,
    "fast SRAM cache",
    "The tiles stay in the fast memory of the GPU.",
    reason="A fact about kernels of a GPU.",
)
for name, line, place in (
    ("speed", 1232, "is 2-4× faster"),
    ("speed-again", 1268, "runs 2-4× faster"),
    ("speed-in-brief", 1281, "with 2-4× speedup"),
):
    FLASH.not_checkable(
        name,
        line,
        place,
        "Flash attention is 2 to 4 times as fast.",
        reason="A time on hardware and at sizes that are not named.",
    )
FLASH.not_checkable(
    "chosen-on-cuda",
    1243,
    "automatically uses Flash Attention when available on CUDA",
    "On a GPU this call would take the flash kernel.",
    reason="It hangs on the GPU. The tensors of the block are float32 on the CPU; CUDA's flash kernel takes float16 "
    "and bfloat16.",
)
FLASH.block(
    "calls",
    1234,
    1266,
    "Two calls of torch's function, and the choice of a backend on a GPU. Where there is one, sdp_kernel warns.",
    alone=Run(
        prints=(
            "Output shape: torch.Size([2, 8, 64, 32])",
            "Causal output shape: torch.Size([2, 8, 64, 32])",
        )
    ),
)
for name, line, is_causal in (("output", 1245, False), ("causal-output", 1249, True)):
    FLASH.confirmed(
        f"shape-{name}",
        line,
        "[2, 8, 64, 32]",
        "The shape of the output.",
        shape(2, 8, 64, 32),
        _output_shape(is_causal=is_causal),
    )
FLASH.confirmed(
    "causal",
    1247,
    "With causal mask",
    "is_causal=True is attention under the causal mask.",
    HOLDS,
    holds(lambda: sympy.exp(-sympy.oo) == 0, None, lambda: _torch_is_exact(is_causal=True)),
)
FLASH.erratum(
    "flash-needs-cuda",
    1265,
    "Flash Attention requires CUDA",
    "Without CUDA there is no flash backend.",
    HOLDS,
    holds(lambda: not _runs_on_cpu(SDPBackend.FLASH_ATTENTION), lambda: not _flash_kernel_for_cpus()),
    slip="torch has had a flash kernel for CPUs since 2.2; it computes these calls there.",
)
FLASH.erratum(
    "math-on-cpu",
    1266,
    "On CPU, scaled_dot_product_attention uses the math backend",
    "For the tensors of the block torch takes the math backend on a CPU.",
    HOLDS,
    holds(lambda: _chosen_on_cpu() == SDPBackend.MATH, lambda: not _is_flash()),
    slip="It takes its flash kernel for CPUs.",
)
FLASH.latent_fault(
    "deprecated-context",
    1256,
    "The context manager is deprecated: torch.nn.attention.sdpa_kernel takes its place.",
    blocks=("calls",),
    probe="""
import warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    with torch.backends.cuda.sdp_kernel(enable_flash=True, enable_math=False, enable_mem_efficient=False):
        pass
print(caught[0].category.__name__)
""",
    prints="FutureWarning",
    why_no_fault="It is a warning of the library; nothing is computed otherwise.",
)
