"""Subjects on a device that is not the CPU's: nothing that laws, inputs and oracle do mixes the two.

A GPU is asked by tests/test_cuda.py, where there is one; here tensors only claim to lie elsewhere.
"""

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headcheck import calling
from headcheck.attention.strides import STRIDES
from headcheck.engine import PROFILES, Engine
from headcheck.laws import choose
from headcheck.recognising import role_name
from headcheck.roles import role
from headcheck.strides import ALIGNED, moved
from headcheck.subjects import builtins
from tests.second_device import AWAY, Elsewhere, SecondDevice

SUBJECTS = (
    "torch-sdpa-math",
    "torch-mha",
    "reference",
    "reference-packed",
    "reference-rotary",
    "reference-sinusoidal",
    "reference-softmax",
    "torch-layer-norm",
    "reference-encoder",
    "reference-decoder",
    "reference-seq2seq",
    "reference-causal-lm",
    "reference-vit",
    "reference-multi-head-attention",
)
NOT_SHOWN = "inference-mode"
"""Laws of which nothing can be said here: tensors that are made in inference mode are the CPU's own."""


@pytest.fixture
def second_device(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Its tensors pass for plain ones, and autocast, of which it has none, for a region without effect."""

    def answered(name: str, there: Any) -> None:
        usual = getattr(torch, name)
        monkeypatch.setattr(
            torch,
            name,
            lambda kind, *more, **named: there if kind == AWAY.type else usual(kind, *more, **named),
        )

    answered("autocast", nullcontext())
    answered("is_autocast_enabled", there=True)
    answered("get_autocast_dtype", torch.bfloat16)
    monkeypatch.setattr(calling, "PLAIN", (*calling.PLAIN, Elsewhere))
    with SecondDevice():
        yield


@pytest.mark.parametrize("name", SUBJECTS)
@pytest.mark.usefixtures("second_device")
def test_no_tensor_is_on_another_device(name: str) -> None:
    """Each law at a first look: a right subject breaks none, and none of our own operations mixes devices."""
    declaration = builtins()[name].declaration()
    if hasattr(declaration, "autocast"):
        declaration = declaration.but(autocast=False)
    of_role = role(role_name(declaration))
    subject, _ = of_role.prepare(declaration, dtypes=(), device=AWAY.type, seed=0)
    engine = Engine(of_role, subject, replace(PROFILES["quick"], shrinks=0), 0, lambda law, case: "")
    laws = [law for law in choose(of_role.name) if NOT_SHOWN not in law.id]
    rows = [engine.judge(law, glance=True) for law in laws]
    assert not {row.id: row.reason for row in rows if row.outcome == "breaks"}
    assert sum(row.outcome == "holds" for row in rows) > len(rows) / 2


class WithABuffer(nn.Module):
    """Attention whose causal mask is made once, where the module is made, as GPT-2's is."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.ones(1100, 1100, dtype=torch.bool).tril())

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *, is_causal: bool = False) -> Tensor:
        scores = query @ key.mT * query.shape[-1] ** -0.5
        if is_causal:
            scores = scores.masked_fill(~self.seen[: scores.shape[-2], : scores.shape[-1]], -torch.inf)
        return scores.softmax(dim=-1) @ value


class OfATable(nn.Module):
    """Rotary positions from a table, in halves."""

    cos: Tensor
    sin: Tensor

    def __init__(self) -> None:
        super().__init__()
        angles = torch.arange(4096)[:, None] / 10000.0 ** (torch.arange(0, 8, 2) / 8)
        self.register_buffer("cos", angles.cos().repeat(1, 2))
        self.register_buffer("sin", angles.sin().repeat(1, 2))

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        a, b = x.chunk(2, dim=-1)
        cos, sin = self.cos[positions], self.sin[positions]
        cos, sin = (cos[:, None], sin[:, None]) if positions.ndim == 2 else (cos, sin)
        return x * cos + torch.cat((-b, a), dim=-1) * sin


@pytest.mark.parametrize(
    ("module", "name", "law", "options"),
    [
        (WithABuffer(), "attention", "masks/the-future-does-not-matter", {"autocast": False}),
        (OfATable(), "rotary", "accuracy/output-is-within-the-bound", {"dims": (8,), "dtypes": ("float32",)}),
    ],
)
@pytest.mark.parametrize("method", [False, True])
@pytest.mark.usefixtures("second_device")
def test_what_a_module_holds_is_judged_on_the_device(
    module: nn.Module, name: str, law: str, options: dict[str, Any], *, method: bool
) -> None:
    """A function that is a module, or a method of one, meets its own tensors there; the user's stay where they are."""
    of_role: Any = role(name)
    function = module.forward if method else module
    declaration = of_role.declare(function, "").but(**options)
    subject, notes = of_role.prepare(declaration, dtypes=("float32",), device=AWAY.type, seed=0)
    assert "a copy of the module is judged, on lazy" in notes
    engine = Engine(of_role, subject, PROFILES["quick"], 0, lambda law, case: "")
    (chosen,) = (each for each in choose(name) if each.name_in_role == law)
    assert engine.judge(chosen).outcome == "holds"
    assert {each.device.type for each in module.buffers()} == {"cpu"}


class NotToBeCopied(WithABuffer):
    """It holds what no copy can be made of."""

    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError("one of a kind")


@pytest.mark.usefixtures("second_device")
def test_a_module_that_cannot_be_copied_is_judged_as_it_is() -> None:
    """What it holds stays where it is, and a note says so."""
    declaration = role("attention").declare(NotToBeCopied(), "").but(autocast=False)
    _, notes = role("attention").prepare(declaration, dtypes=("float32",), device=AWAY.type, seed=0)
    assert "what the module holds stays where it is: it cannot be copied (one of a kind)" in notes


@pytest.mark.usefixtures("second_device")
def test_two_devices_do_not_mix() -> None:
    """What torch says of a GPU is said here: else the test above could not fail."""
    there = torch.ones(2, device=AWAY)
    assert there.device.type == AWAY.type and (there * 2).tolist() == [2, 2]
    assert (there + torch.tensor(1.0)).device.type == AWAY.type
    with pytest.raises(RuntimeError, match="same device"):
        _ = there + torch.ones(2)


@pytest.mark.usefixtures("second_device")
@pytest.mark.parametrize("layout", ["expanded", "packed", "sliced", "transposed", "dim-first", "offset"])
def test_what_is_moved_lies_there_as_it_lay_here(layout: str) -> None:
    """Gaps, and strides of zero, are what laws of memory are about; it begins where a GPU may read."""
    here = STRIDES[layout](torch.ones(2, 2, 3, 4))
    there = moved(here, torch.ones(1, device=AWAY))
    assert there.device.type == AWAY.type and there.stride() == here.stride()
    assert torch.equal(there.cpu(), here)
    assert there.storage_offset() * there.element_size() % ALIGNED == 0


class Asked(OfATable):
    """It keeps which positions a device was asked for."""

    asked: list[float]

    def __init__(self) -> None:
        super().__init__()
        self.asked = []

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        if positions.device.type == AWAY.type:
            self.asked += [float(positions.min()), float(positions.max())]
        return super().forward(x, positions)


@pytest.mark.usefixtures("second_device")
def test_no_position_is_asked_of_a_device_that_is_not_in_the_table() -> None:
    """On a GPU an index out of range leaves it unusable: how far a table reaches is found out on the CPU."""
    of_role: Any = role("rotary")
    declaration = of_role.declare(Asked(), "").but(dims=(8,), autocast=False)
    subject, _ = of_role.prepare(declaration, dtypes=("float32",), device=AWAY.type, seed=0)
    asked = subject.declaration.function.asked
    assert asked and min(asked) >= -4096 and max(asked) < 4096
    assert subject.furthest == 4095 and subject.lacks("negative")


def by_another_kernel(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False
) -> Tensor:
    """In 16 bits on a device a row without keys gives the mean; with heads of one dim it takes no mask with is_causal;
    and a mask with a last axis of one is refused, as by torch's kernels.
    """
    there = query.device.type == AWAY.type
    if there and attn_mask is not None and attn_mask.shape[-1] == 1 < key.shape[-2]:
        raise RuntimeError("(*bias): last dimension must be contiguous")
    if is_causal and attn_mask is not None and query.shape[-1] == 1:
        raise RuntimeError("Explicit attn_mask should not be set when is_causal=True")
    scores = (query @ key.mT * query.shape[-1] ** -0.5).float()
    seen = torch.ones(scores.shape, dtype=torch.bool, device=query.device)
    seen = seen.tril() if is_causal else seen
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        seen = seen & attn_mask
    elif attn_mask is not None:
        scores = scores + attn_mask
        seen = seen & (attn_mask > -torch.inf)
    dead = ~seen.any(dim=-1, keepdim=True)
    scores = scores.masked_fill(~seen, -torch.inf).masked_fill(dead, 0.0)
    weights = scores.softmax(dim=-1)
    if not (there and query.dtype.itemsize == 2):
        weights = weights.masked_fill(dead, 0.0)
    return weights.to(value.dtype) @ value


@pytest.mark.usefixtures("second_device")
def test_what_one_kernel_of_several_does_is_asked_of_all() -> None:
    """Functions go to a kernel by dtype and head dim: what one of them does otherwise is for the laws about it."""
    of_role: Any = role("attention")
    declaration = of_role.declare(by_another_kernel, "").but(autocast=False, arithmetic="wide")
    dtypes = ("float32", "float16")
    subject, notes = of_role.prepare(declaration, dtypes=dtypes, device=AWAY.type, seed=0)
    assert subject.avoids >= {"dead rows", "attn_mask with is_causal"}
    assert "bhq1" not in subject.mask_forms and "b11k" in subject.mask_forms
    assert any("takes no attn_mask in the shape bhq1" in note for note in notes)
    here, _ = of_role.prepare(declaration, dtypes=dtypes, device="cpu", seed=0)
    assert not here.avoids and "bhq1" in here.mask_forms


def of_dense_positions(x: Tensor, positions: Tensor) -> Tensor:
    """It reads the positions of any view with a stride of one."""
    if not positions.is_contiguous():
        positions = torch.as_strided(positions, positions.shape, (1,), positions.storage_offset())
    return OfATable().to(x.device)(x, positions)


class OfDenseInputs(nn.Module):
    """Of a query that is expanded over the batch it reads the first sequence alone."""

    def __init__(self, embed_dim: int = 8, num_heads: int = 2) -> None:
        super().__init__()
        self.heads = num_heads
        self.query, self.key, self.value, self.out = (nn.Linear(embed_dim, embed_dim) for _ in range(4))

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if not query.stride(0):
            query = torch.cat((query[:1], torch.zeros_like(query[1:])))
        projected = (self.query(query), self.key(key), self.value(value))
        q, k, v = (each.unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in projected)
        scores = q @ k.mT * q.shape[-1] ** -0.5
        return self.out((scores.softmax(dim=-1) @ v).transpose(1, 2).flatten(2))


@pytest.mark.parametrize(
    ("subject", "name", "law", "options"),
    [
        (
            of_dense_positions,
            "rotary",
            "positions/strided-positions-are-read-right",
            {
                "dims": (8,),
                "dtypes": ("float32",),
                "autocast": False,
                "max_position": 4000,
                "negative": False,
                "shared_positions": True,
            },
        ),
        (OfDenseInputs, "multi_head_attention", "memory/strided-inputs-change-nothing", {}),
    ],
)
@pytest.mark.usefixtures("second_device")
def test_what_is_strided_is_so_on_the_device(
    subject: Any, name: str, law: str, options: dict[str, Any]
) -> None:
    """A move to another device closes the gaps between numbers: then a law about strides would show nothing."""
    of_role: Any = role(name)
    declaration = of_role.declare(subject, "").but(**options)
    prepared, _ = of_role.prepare(declaration, dtypes=(), device=AWAY.type, seed=0)
    engine = Engine(of_role, prepared, replace(PROFILES["quick"], shrinks=0), 0, lambda law, case: "")
    (chosen,) = (each for each in choose(name) if each.name_in_role == law)
    assert engine.judge(chosen).outcome == "breaks"
