"""The subjects of a role by name, wrong and right."""

from typing import Any

from benchmarks.peers.onnx_rotary import RotarySubject
from benchmarks.peers.subjects import Subject, harmless
from tests.faults import FAULTS, VARIANTS
from tests.roles import RIGHT, WRONG


def wrong(role: str) -> list[str]:
    """The wrong functions that may be called in this process."""
    if role == "attention":
        return [name for name, fault in FAULTS.items() if harmless(fault)]
    return [name for name, entry in WRONG.items() if entry.role == role]


def right(role: str) -> list[str]:
    """The right functions; of attention those that are called as torch's is and declare nothing, as the peers ask."""
    if role == "attention":
        return [
            name
            for name, entry in VARIANTS.items()
            if not (entry.declares or name.startswith("conventions/"))
        ]
    return [name for name, entry in RIGHT.items() if entry.role == role]


def subject(role: str, name: str) -> Any:
    """One of them, with a life of its own."""
    if role == "attention":
        return Subject(FAULTS.get(name) or VARIANTS[name])
    return RotarySubject(WRONG.get(name) or RIGHT[name])


def perilous() -> list[str]:
    """The faults that are left out, because they hang, exit or patch the process, or take packs."""
    return [name for name, fault in FAULTS.items() if not harmless(fault)]
