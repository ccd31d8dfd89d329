"""onnx's published node tests of RotaryEmbedding, for functions of (x, positions).

onnx.backend.test.case.node (https://github.com/onnx/onnx/blob/main/onnx/backend/test/case/node/rotaryembedding.py):
each vector has a table of cosines and one of sines as inputs, filled with random numbers, and indices into them. No
angle has such a cosine and sine, so that a function which is given positions cannot be asked for any of them as it
stands. What is replayed is the nearest thing: the published x, positions, pairing and number of dims, with the tables
that the subject's own frequencies give, and onnx's reference as the result. The vectors without positions are left
out. Pairing, turned dims and base are those that headcheck reads off the subject, as its author would know them.
"""

from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import Any

import numpy as np
import torch

from benchmarks.peers.onnx_vectors import attributes_of, published, tensor
from benchmarks.peers.rules import Peer, Trial
from benchmarks.peers.subjects import NotTaken
from headcheck.roles import role
from tests.roles import Entry


@dataclass(frozen=True)
class RotarySubject:
    """A right or wrong rotary function."""

    entry: Entry

    @cached_property
    def declaration(self) -> Any:
        return self.entry.declaration()

    @cached_property
    def known(self) -> Any:
        """Its conventions."""
        return role("rotary").prepare(self.declaration, dtypes=(), device="cpu", seed=0)[0]

    def frequencies(self, dim: int) -> torch.Tensor:
        """The angle of each of its pairs at position 1."""
        width = self.known.rotary_dim(dim)
        base = torch.tensor(self.known.base, dtype=torch.float64)
        exponents = -torch.arange(0, width, 2, dtype=torch.float64) / width
        return base.pow(exponents)


@cache
def vectors() -> tuple[tuple[str, Any, Any, bool, int], ...]:
    """Name, x, positions, whether neighbours turn together, and how many dims are turned."""
    found = []
    for case in published("RotaryEmbedding"):
        given, attributes = case.data_sets[0][0], attributes_of(case)
        if given[0].ndim == 4 and len(given) == 4:
            turned = attributes.get("rotary_embedding_dim") or given[0].shape[-1]
            found.append((case.name, given[0], given[3], bool(attributes.get("interleaved")), turned))
    return tuple(found)


def replays(subject: RotarySubject, number: int) -> None:
    """The subject turns the published x as onnx's reference does."""
    from onnx.reference.ops.op_rotary_embedding import rotary_embedding

    name, x, positions, interleaved, turned = vectors()[number]
    options = asked(subject, x.shape[-1], interleaved=interleaved, turned=turned)
    angles = np.arange(positions.max() + 1)[:, None] * subject.frequencies(x.shape[-1]).numpy()
    tables = (np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32))
    expected = rotary_embedding(
        x, *tables, position_ids=positions, interleaved=interleaved, rotary_embedding_dim=turned
    )
    given, back = tensor(x), subject.declaration.layout == "bshd"
    given = given.transpose(1, 2) if back else given
    try:
        output = subject.declaration.function(given, tensor(positions), **options)
    except (TypeError, ValueError, NotImplementedError) as refusal:
        raise NotTaken(str(refusal)) from refusal
    actual = (output.transpose(1, 2) if back else output).detach().numpy()
    np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=1e-7, err_msg=name)


def asked(subject: RotarySubject, dim: int, *, interleaved: bool, turned: int) -> dict[str, bool]:
    """The arguments beside x and positions; what the subject does not claim to do is left out."""
    declared, flag = subject.declaration, subject.known.places["interleaved"]
    if (declared.dims is not None and dim not in declared.dims) or subject.known.rotary_dim(dim) != turned:
        raise NotTaken(f"made for other dims than {dim}, {turned} of them turned")
    if flag is not None:
        return {flag: interleaved}
    if (subject.known.pairing == "interleaved") != interleaved:
        raise NotTaken("of the other pairing")
    return {}


def trials() -> list[Trial]:
    return [partial(replays, number=number) for number in range(len(vectors()))]


PEER = Peer(
    name="onnx-rotary",
    title="onnx's node vectors of RotaryEmbedding",
    rule=(
        "Their tables of cosines and sines are random numbers, which no position gives: as they stand, none can be "
        "asked of f(x, positions). Replayed: their x, positions and conventions, with true tables and onnx's reference."
    ),
    source="https://github.com/onnx/onnx/blob/main/onnx/backend/test/case/node/rotaryembedding.py",
    trials=trials,
    role="rotary",
    needs="onnx",
)
