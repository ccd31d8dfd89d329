"""What a call may not touch: torch's own functions, and the settings of the process."""

import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import torch

from headcheck.comparison import LawBroken, NotApplicable

_FUNCTIONS: tuple[tuple[Any, str], ...] = (
    (torch, "matmul"), (torch, "softmax"), (torch, "allclose"), (torch, "isclose"), (torch, "where"),
    (torch, "equal"), (torch, "einsum"), (torch, "bmm"), (torch, "exp"), (torch, "no_grad"),
    (torch.nn.functional, "scaled_dot_product_attention"), (torch.nn.functional, "softmax"),
    (torch.testing, "assert_close"), (torch.autograd, "grad"), (torch.Tensor, "__sub__"),
    (torch.Tensor, "__matmul__"), (torch.Tensor, "abs"), (torch.Tensor, "max"), (torch.Tensor, "softmax"),
    (torch.Tensor, "double"), (torch.Tensor, "__eq__"), (torch.Tensor, "clone"), (torch.Tensor, "to"),
)  # fmt: skip
_ORIGINAL = {(place, name): getattr(place, name) for place, name in _FUNCTIONS}
"""The functions as they were when headcheck was imported, before any subject was called."""


_DENORMAL = torch.tensor(1e-310, dtype=torch.float64, device="cpu")


def _flushes_denormals() -> bool:
    """torch tells nobody whether it does: a product shows it."""
    return bool(_DENORMAL * 1 == 0)


_KERNELS = ("flash", "mem_efficient", "cudnn", "math")
_WHICH_KERNELS = "which kernels of attention may run"
_ALL_KERNELS = {_WHICH_KERNELS: (True,) * len(_KERNELS)}
"""Usually: but they are for the user to choose, and not put back between examples."""


def _kernels() -> tuple[bool, ...]:
    return tuple(getattr(torch.backends.cuda, f"{name}_sdp_enabled")() for name in _KERNELS)


def _set_kernels(enabled: tuple[bool, ...]) -> None:
    for name, wanted in zip(_KERNELS, enabled, strict=True):
        getattr(torch.backends.cuda, f"enable_{name}_sdp")(wanted)


SETTINGS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "the default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "the number of threads": (torch.get_num_threads, torch.set_num_threads),
    "whether gradients are on": (torch.is_grad_enabled, torch.set_grad_enabled),
    "the use of deterministic algorithms": (
        torch.get_deterministic_debug_mode,
        torch.set_deterministic_debug_mode,  # use_deterministic_algorithms imports inductor first, which takes a second.
    ),
    "the precision of float32 products": (
        torch.get_float32_matmul_precision,
        torch.set_float32_matmul_precision,
    ),
    "whether denormal numbers are flushed to zero": (_flushes_denormals, torch.set_flush_denormal),
    "whether anomalies are looked for": (torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
    _WHICH_KERNELS: (_kernels, _set_kernels),
}
"""What of torch is set for the whole process: how each is read, and how it is set."""
_USUAL = {
    "the default dtype": torch.float32,
    "the number of threads": 1,  # Tensors this small gain nothing from more, and wait for them where the machine is busy.
    "whether gradients are on": True,
    "the use of deterministic algorithms": 0,
    "the precision of float32 products": "highest",
    "whether denormal numbers are flushed to zero": False,
    "whether anomalies are looked for": False,
}
"""What laws expect, and what is set while a call is watched: a setting that an earlier call left behind shows again."""
_OTHERWISE = {
    "whether gradients are on": False,
    "the use of deterministic algorithms": 1,  # Warns.
    "the precision of float32 products": "high",
    "whether anomalies are looked for": True,
    _WHICH_KERNELS: tuple(name == "math" for name in _KERNELS),
}
"""What a caller may have set, and a call that switches it off or back to the usual changes."""


def put_back() -> None:
    """Set what a call may have left otherwise, so that it shows in its own law, and nothing else fails of it."""
    for name, usual in _USUAL.items():
        _set(name, usual)


def functions_replaced() -> list[str]:
    """The functions of torch that are not the ones headcheck was imported with; they are put back."""
    replaced = []
    for (place, name), original in _ORIGINAL.items():
        if getattr(place, name) is not original:
            replaced.append(f"{getattr(place, '__name__', place)}.{name}")
            setattr(place, name, original)
    return replaced


@contextmanager
def usual_settings(**others: Any) -> Iterator[dict[str, Any]]:
    """The usual settings inside, but for others that are given: what all are then; at the end all are as before."""
    before = {name: read() for name, (read, _) in SETTINGS.items()}
    wanted = _USUAL | others
    for name, usual in wanted.items():
        _set(name, usual)
    try:
        yield before | wanted
    finally:
        for name, value in before.items():
            _set(name, value)


def changed_by(call: Callable[[], object]) -> list[str]:
    """The settings and functions of torch that a call changes, be they as usual or otherwise; all are put back."""
    changed: list[str] = []
    for settings in (_ALL_KERNELS, _OTHERWISE):
        with usual_settings(**settings) as expected:
            try:
                with suppress(LawBroken, NotApplicable) if settings is _OTHERWISE else nullcontext():
                    call()
            finally:
                changed += [name for name, (read, _) in SETTINGS.items() if read() != expected[name]]
        changed += functions_replaced()
    return list(dict.fromkeys(changed))


def region_left_by(call: Callable[[], object], device: str) -> list[str]:
    """What a call changes of the region of torch.autocast in which it is made, whether it works there or not."""
    kind, inside = torch.device(device).type, torch.bfloat16
    with torch.autocast(kind, inside):
        with suppress(LawBroken, NotApplicable):
            call()
        changed = [] if torch.is_autocast_enabled(kind) else ["whether autocast is on"]
        return changed if torch.get_autocast_dtype(kind) == inside else [*changed, "the dtype of autocast"]


@contextmanager
def generators_watched() -> Iterator[list[str]]:
    """At the end the list holds those of the global generators that were moved; they are put back."""
    moved: list[str] = []
    with generators_restored():
        for _, _, draw in (states := _generators()).values():
            draw()  # Not where a generator that was just seeded stands.
        before = {name: read() for name, (read, _, _) in states.items()}
        try:
            yield moved
        finally:
            moved += [name for name, (read, _, _) in states.items() if str(read()) != str(before[name])]


@contextmanager
def generators_restored() -> Iterator[None]:
    """At the end the global generators of torch (on the CPU), Python and NumPy stand where they stood."""
    states = _generators()
    before = {name: read() for name, (read, _, _) in states.items()}
    try:
        yield
    finally:
        for name, (_, write, _) in states.items():
            write(before[name])


def devices_in_use() -> Sequence[int]:
    """The CUDA devices whose generators a call may draw from."""
    used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return range(torch.cuda.device_count()) if used else ()


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Torch's generators at a seed, and afterwards where they stood."""
    with torch.random.fork_rng(devices_in_use()):
        torch.manual_seed(seed)
        yield


def _generators() -> dict[str, tuple[Callable[[], Any], Callable[[Any], Any], Callable[[], Any]]]:
    """Name -> how its state is read, how it is written, and how it is moved; NumPy's where somebody has imported it."""
    numpy = sys.modules.get("numpy")
    found: dict[str, tuple[Callable[[], Any], Callable[[Any], Any], Callable[[], Any]]] = {
        "torch's generator": (_torch_state, _set_torch_state, lambda: torch.rand(5)),
        "Python's generator": (random.getstate, random.setstate, random.random),
    }
    if numpy is None:
        return found
    return found | {
        "NumPy's generator": (numpy.random.get_state, numpy.random.set_state, numpy.random.random)
    }


def _torch_state() -> bytes:
    return torch.get_rng_state().numpy().tobytes()


def _set_torch_state(state: bytes) -> None:
    torch.set_rng_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))


def _set(name: str, value: Any) -> None:
    read, write = SETTINGS[name]
    if read() != value:
        write(value)
