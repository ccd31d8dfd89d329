"""Families of subjects that should compute the same. Adding a backend is adding one `Member`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Member:
    """One subject of a family."""

    subject: str
    """A SUBJECT as the command line names it."""
    devices: tuple[str, ...] = ("cpu", "cuda")
    """Where it is a member."""
    slow: bool = False
    """Whether it is left out of the profile quick, because each graph is compiled for seconds."""


TORCH = (
    Member("torch-sdpa-math"),
    Member("torch-sdpa"),
    Member("torch-sdpa-flash", devices=("cpu",)),
    Member("torch-cuda-flash", devices=("cuda",)),
    Member("torch-cuda-efficient", devices=("cuda",)),
    Member("torch-cuda-cudnn", devices=("cuda",)),
    Member("torch-cuda-tf32", devices=("cuda",)),
    Member("triton-flash", devices=("cuda",)),
    Member("torch-mha"),
    Member("torch-mha-fast"),
    Member("torch-mha-native", devices=("cpu",)),
    Member("torch-flex"),
    Member("torch-flex-block"),
    Member("torch-flex-compiled", slow=True),
    Member("torch-compiled-reference", slow=True),
    Member("torch-nested", devices=("cpu",)),
    Member("torch-varlen", devices=("cuda",)),
    Member("torch-flex-document"),
    Member("torch-flex-document-compiled", slow=True),
    Member("torch-sdpa-window"),
    Member("reference-window"),
    Member("reference-packed"),
    Member("reference"),
)

FAMILIES: Mapping[str, tuple[Member, ...]] = {"torch": TORCH}
"""Name -> its members."""


def expanded(names: Sequence[str], device: str, profile: str) -> tuple[list[str], list[str]]:
    """Each family's name replaced by its members on a device, and those that the profile leaves out."""
    kind = device.partition(":")[0]
    chosen: list[str] = []
    left_out: list[str] = []
    for name in names:
        for member in FAMILIES.get(name, (Member(name, devices=(kind,)),)):
            if kind in member.devices:
                (left_out if member.slow and profile == "quick" else chosen).append(member.subject)
    return list(dict.fromkeys(chosen)), left_out
