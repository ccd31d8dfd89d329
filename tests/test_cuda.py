"""The CUDA lane: `pytest -m cuda`. Where there is no device each test is skipped and says so.

The same code runs on CPU tensors in the rehearsal, so that what a device will be asked is known to run.
"""

import pytest
import torch

from benchmarks.device import batch_invariance, calibration, determinism, flash_against_math, large_shapes
from headcheck.agreement.families import expanded
from headcheck.agreement.judging import PROFILES, judge_family
from headcheck.attention.case import Case
from headcheck.attention.inputs import build
from headcheck.attention.role import role
from headcheck.comparison import within
from headcheck.judging import make_plan
from headcheck.subjects import builtins

NO_DEVICE = "no CUDA device"
KNOWN = "agreement/pairs/scales-of-zero-and-below-agree"
"""What torch's own kernels differ in: for a scale of zero flash and cuDNN give NaN (docs/cuda.md)."""
ON_CUDA = ("torch-sdpa-math", "torch-sdpa", "torch-cuda-flash", "torch-cuda-efficient", "torch-cuda-cudnn")
cuda = [
    pytest.mark.cuda,
    pytest.mark.skipif(
        not torch.cuda.is_available(), reason=f"{NO_DEVICE}: not applicable, which is no pass"
    ),
]


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=cuda)])
def device(request: pytest.FixtureRequest) -> str:
    """The rehearsal on CPU tensors, and the device where there is one."""
    return str(request.param)


def lane(device: str, *of_cpu: str) -> tuple[str, ...]:
    """The subjects of a device."""
    return ON_CUDA if device == "cuda" else of_cpu


def test_the_family_agrees(device: str) -> None:
    """Flash, memory-efficient, cuDNN and math on one device: each pair within the sum of its bounds.

    torch-sdpa is left out: what it takes, and what a masked row gives, depends on the kernel that it goes to.
    """
    names = tuple(
        name for name in lane(device, "torch-sdpa-math", "torch-sdpa-flash") if name != "torch-sdpa"
    )
    plan = make_plan(
        names[0], profile=PROFILES["quick"], device=device, dtype=None if device == "cuda" else "float32"
    )
    laws = ("accuracy/output-is", "backends/", "pairs/")
    verdict = judge_family(names, plan, laws=laws)
    broken = [row for row in verdict.rows if row.outcome == "breaks" and row.id != KNOWN]
    assert not [row.reason for row in broken]


def test_sliding_windows_agree(device: str) -> None:
    """A window as a BlockMask, as a band of booleans, and as the few keys that each query sees.

    The band is left out on a device: a query that sees no key gets the mean of the values there (docs/cuda.md).
    """
    names = (
        "reference-window",
        "torch-flex-block",
        "torch-flex" if device == "cuda" else "torch-sdpa-window",
    )
    plan = make_plan(names[0], profile=PROFILES["quick"], device=device, dtype="float32")
    verdict = judge_family(names, plan, laws=("accuracy/output-is", "windows/", "pairs/"))
    assert not [row.reason for row in verdict.rows if row.outcome == "breaks"]
    windows = [row for row in verdict.rows if "window" in row.id and row.outcome == "holds"]
    assert windows, "no law about windows was asked"


def test_large_shapes_stay_within_the_bound(device: str) -> None:
    """Lengths off every block boundary and head dims of 64 to 256: the largest error over its bound."""
    name = lane(device, "torch-sdpa-flash")[0]
    dtype = "bfloat16" if device == "cuda" else "float32"
    sizes = ((4097, 64), (4096, 96), (5000, 128), (4099, 256)) if device == "cuda" else ((65, 16), (130, 8))
    for row in large_shapes(name, device, dtype, sizes):
        assert row.refused or row.ratio <= 1, row


def test_a_call_does_not_depend_on_its_batch(device: str) -> None:
    """One sequence alone, and among others: told apart from rounding by the bound."""
    for name in lane(device, "torch-sdpa-math", "torch-sdpa-flash"):
        found = batch_invariance(name, device, length=64)
        assert found.refused or found.ratio <= 1, found


def test_the_same_call_gives_the_same_bits(device: str) -> None:
    """Forward, many times over."""
    for name in lane(device, "torch-sdpa-math", "torch-sdpa-flash"):
        found = determinism(name, device, length=64, times=3)
        assert found.refused or found.same_bits, found


def test_the_bounds_are_calibrated(device: str) -> None:
    """The largest error over bound of each dtype is no number above 1."""
    for name in lane(device, "torch-sdpa-math"):
        for row in calibration(name, device, examples=3):
            assert row.refused or row.ratio <= 1, row


def test_flash_is_exact_and_its_memory_is_measured(device: str) -> None:
    """The two are within the sum of their bounds on a long sequence; on a device, memory is counted."""
    pair = ("torch-sdpa-math", "torch-cuda-flash" if device == "cuda" else "torch-sdpa-flash")
    rows = flash_against_math(pair, device, lengths=(4096,) if device == "cuda" else (64,))
    assert all(row.ratio <= 1 for row in rows)
    if device == "cuda":
        math_bytes, flash_bytes = (row.peak_bytes for row in rows)
        assert flash_bytes < math_bytes / 4


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason=f"{NO_DEVICE}: not applicable, which is no pass")
def test_another_stream_gives_the_same_answer() -> None:
    """A call on a stream of its own, with the inputs made on the default one."""
    subject, _ = role.prepare(
        builtins()["torch-sdpa"].declaration(), dtypes=("float16",), device="cuda", seed=0
    )
    x = build(Case(dtype="float16", heads=4, kv_heads=4, q_len=65, kv_len=65, head_dim=64, value_dim=64))
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        output = subject(x)
    stream.synchronize()
    assert not within(output, subject.expected(x), subject.bound(x)).broken


def test_the_lane_names_what_runs_there() -> None:
    """Every subject of the lane is a member of the family on CUDA."""
    members, _ = expanded(["torch"], "cuda", "gate")
    assert set(ON_CUDA) <= set(members)
