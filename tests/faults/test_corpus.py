"""The corpus is what it says: right functions are right, and every fault shows itself somewhere."""

import collections
import functools
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import deterministic

from headcheck.laws import all_laws
from headcheck.reference import attention
from tests.faults import FAULTS, VARIANTS, Entry, Fault, Variant, _enter, blocked, clean, trials
from tests.faults.calls import Call, canonical

Function = Callable[..., Any]

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 3e-2, torch.float16: 4e-3}


# Running one call


def run(function: Function, call: Call, cotangent: Tensor | None = None) -> list[Tensor]:
    """The outputs and, where a cotangent is given, the gradients of the inputs; under one seed."""
    options = {name: getattr(call, name) for name in inspect.signature(function).parameters}
    tensors = [
        x for x in (call.query, call.key, call.value, call.bias, options.get("sinks")) if x is not None
    ]
    for x in tensors:
        x.requires_grad_(cotangent is not None)
    torch.manual_seed(0)
    try:
        given = function(**options)
        outputs = list(given) if isinstance(given, tuple) else [given]
        if cotangent is None:
            return outputs
        gradients = torch.autograd.grad(outputs[0], tensors, cotangent, allow_unused=True)
    finally:
        for x in tensors:
            x.requires_grad_(False)
    handed = [torch.zeros_like(x) if g is None else g for x, g in zip(tensors, gradients, strict=True)]
    return [x.detach() for x in outputs] + handed


def differ(got: list[Tensor], wanted: list[Tensor]) -> bool:
    """Another form, or values that rounding does not explain."""
    return any(unlike(a, b) for a, b in zip(got, wanted, strict=True))


def unlike(a: Tensor, b: Tensor) -> bool:
    if type(a) is not Tensor or a.shape != b.shape or a.dtype != b.dtype:
        return True
    tolerance = TOLERANCE[b.dtype]
    largest = b.double().nan_to_num().abs().max().item() if b.numel() else 0.0
    return not torch.allclose(
        a.double(), b.double(), tolerance, tolerance * max(largest, 1e-2), equal_nan=True
    )


def cotangent(output: Tensor) -> Tensor:
    return 3.0 * torch.randn(output.shape, generator=torch.Generator().manual_seed(1)).to(output.dtype)


def otherwise_laid_out(cotangent: Tensor) -> list[Tensor]:
    """Expanded from one element, and laid out by length."""
    return [
        cotangent.flatten()[0].expand(cotangent.shape),
        cotangent.transpose(1, 2).contiguous().transpose(1, 2),
    ]


def right(entry: Entry) -> Function:
    """The right function under the signature of the entry."""
    return canonical(clean.attention, clean.attention, entry.features)


def with_features(call: Call, features: tuple[str, ...], window: tuple[int, int] = (2, 1)) -> Call:
    values = {
        "window": window,
        "softcap": 0.7,
        "sinks": torch.linspace(-1.0, 2.0, call.heads, dtype=call.dtype),
        "alibi_slopes": torch.linspace(0.1, 0.5, call.heads, dtype=call.dtype),
        "return_lse": True,
        "training": True,
        "key_lengths": torch.arange(call.batch) % max(call.kv_len, 1) + 1,
    }
    return call.but(**{name: values[name] for name in features})


# What is right


def oracle(call: Call) -> Tensor:
    """The reference of headcheck."""
    nothing = torch.zeros(call.heads, call.q_len, call.kv_len, dtype=call.dtype)
    return attention(
        call.query,
        call.key,
        call.value,
        may_attend=clean.compose(
            call, clean.mask(call), clean.causal(call), clean.window(call), clean.lengths(call)
        ),
        bias=clean.alibi(call, clean.bias(call, nothing)),
        scale=call.scale,
        softcap=call.softcap,
        sinks=call.sinks,
    ).output


def ordinary_calls() -> Iterator[Call]:
    double = torch.float64
    for seed in range(4):
        yield trials.draw(double, seed=seed, mask="full dead", is_causal=seed % 2 > 0)
    yield from (call for call in trials.masked(double) if not call.dropout_p and call.key.abs().max() < 1e3)
    yield trials.draw(double, heads=6, kv_heads=2, q_len=9, is_causal=True)
    yield trials.draw(double, q_len=20, kv_len=33, mask="full additive dead")
    yield trials.draw(double, q_len=33, kv_len=20, is_causal=True, scale=0.3)
    yield trials.draw(double, kv_len=40, slope=30.0)
    yield trials.draw(double, kv_len=40, slope=-30.0)


@functools.cache
def answered_calls(features: tuple[str, ...]) -> list[tuple[Call, Tensor, list[Tensor]]]:
    """Each call with a cotangent, and what the oracle makes of them."""
    wanted = canonical(oracle, oracle, tuple(name for name in features if name != "return_lse"))
    calls = [with_features(call, features) for call in ordinary_calls()]
    sent = [cotangent(oracle(call)) for call in calls]
    return [(call, given, run(wanted, call, given)) for call, given in zip(calls, sent, strict=True)]


def require_agreement(function: Function, features: tuple[str, ...] = ()) -> None:
    for call, sent, want in answered_calls(features):
        output, *rest = run(function, call, sent)
        assert not differ([output, *rest["return_lse" in features :]], want)


KERNELS = {"clean": clean.attention, "blocked": blocked.attention}


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_a_kernel_agrees_with_the_oracle(kernel: Function) -> None:
    """Forward and backward, with masks, dead rows, grouped heads and lengths that differ."""
    require_agreement(canonical(kernel, kernel))


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_a_kernel_reads_every_cotangent(kernel: Function) -> None:
    """Expanded and transposed cotangents give the gradients of their contiguous copies."""
    function, call = canonical(kernel, kernel), trials.draw(mask="full dead")
    for sent in otherwise_laid_out(cotangent(kernel(call))):
        assert not differ(run(function, call, sent), run(function, call, sent.contiguous()))


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_half_types_are_rounded_once(kernel: Function) -> None:
    """Computed in float32: half a unit in the last place, whatever the number of keys."""
    for dtype in trials.HALF:
        call = trials.draw(dtype, kv_len=40, mask="full dead")
        wide = call.but(query=call.query.double(), key=call.key.double(), value=call.value.double())
        torch.testing.assert_close(
            kernel(call), oracle(wide).to(dtype), rtol=torch.finfo(dtype).eps, atol=1e-6
        )


USUAL = {
    name: entry
    for name, entry in VARIANTS.items()
    if not entry.declares and entry.family not in ("natural_right", "conventions")
}
"""Those that take what torch takes, as torch does: the laws alone judge what declares otherwise, or takes less."""


@pytest.mark.parametrize("entry", USUAL.values(), ids=USUAL)
def test_a_variant_agrees_with_the_oracle(entry: Variant) -> None:
    """A right variant differs from the oracle by rounding, with its features as without."""
    if entry.dtypes is None or "float64" in entry.dtypes:
        require_agreement(entry.call, entry.features)
        require_agreement(entry.call)
    for dtype in (torch.float32, *trials.HALF):
        call = trials.draw(dtype, kv_len=40, mask="full dead")
        assert not differ(run(entry.call, call), run(right(entry), call))


@pytest.mark.parametrize("entry", USUAL.values(), ids=USUAL)
def test_a_variant_drops_weights_one_by_one(entry: Variant) -> None:
    """With V = I the output shows the weights: each is dropped, or divided by 1 - p."""
    if "dropout_p" not in inspect.signature(entry.call).parameters:
        pytest.skip("this variant has no dropout")
    call = trials.draw(torch.float32, q_len=40, kv_len=8)
    call = call.but(value=torch.eye(8).expand(2, 4, 8, 8))
    (weights, *_), (dropped, *_) = run(entry.call, call), run(entry.call, call.but(dropout_p=0.25))
    kept = dropped != 0
    torch.testing.assert_close(dropped[kept], weights[kept] / 0.75, rtol=1e-2, atol=1e-6)
    assert 0.7 < kept.float().mean() < 0.8


# What is wrong

LIBRARY = (torch, "softmax"), (torch, "allclose"), (torch.testing, "assert_close")


@pytest.fixture(autouse=True)
def _library_put_back() -> Iterator[None]:
    functions = [(module, name, getattr(module, name)) for module, name in LIBRARY]
    yield
    for module, name, function in functions:
        setattr(module, name, function)
    torch.set_default_dtype(torch.float32)
    torch.set_grad_enabled(True)


def dtype_of(entry: Entry) -> torch.dtype:
    return getattr(torch, (entry.dtypes or ("float64",))[0])


def is_wrong(entry: Fault, call: Call) -> bool:
    """The output differs from that of the right function, or a gradient does."""
    wanted = right(entry)
    want = run(wanted, call)
    if differ(run(entry.call, call), want):
        return True
    if not want[0].numel() or want[0].isnan().any():
        return False
    sent = cotangent(want[0])
    return differ(run(entry.call, call, sent), run(wanted, call, sent))


def raises(probe: Callable[[], bool]) -> bool:
    """An error is as good a symptom as a wrong answer."""
    try:
        return probe()
    except (Exception, KeyboardInterrupt, SystemExit):  # noqa: BLE001 - whatever it raises
        return True


def in_one_call(entry: Fault) -> bool:
    return any(
        raises(lambda call=call, window=window: is_wrong(entry, with_features(call, entry.features, window)))
        for call in trials.calls(dtype_of(entry))
        for window in ([(2, 1), (2, 0), (0, 2)] if "window" in entry.features else [(2, 1)])
    )


def in_the_layout_of_the_cotangent(entry: Fault) -> bool:
    call = with_features(trials.draw(dtype_of(entry)), entry.features)
    wanted = right(entry)
    return any(
        differ(run(entry.call, call, sent), run(wanted, call, sent))
        for sent in otherwise_laid_out(cotangent(run(wanted, call)[0]))
    )


def in_a_frozen_query(entry: Fault) -> bool:
    call = trials.draw(dtype_of(entry))
    call.key.requires_grad_()
    got, want = (function(call.query, call.key, call.value).sum() for function in (entry.call, right(entry)))
    return differ([torch.autograd.grad(got, call.key)[0]], [torch.autograd.grad(want, call.key)[0]])


def in_a_second_call(entry: Fault) -> bool:
    for first, second in trials.pairs(dtype_of(entry)):
        function, wanted = entry.call, right(entry)
        sent = cotangent(run(wanted, second)[0])
        calls = [first, second, second, second]
        if any(differ(run(function, call), run(wanted, call)) for call in calls):
            return True
        earlier = run(function, first)[0]
        kept = earlier.clone()
        run(function, second)
        if differ([earlier], [kept]):
            return True
        if any(differ(run(function, second, sent), run(wanted, second, sent)) for _ in range(10)):
            return True
    return False


def in_the_inputs(entry: Fault) -> bool:
    masked = trials.draw(dtype_of(entry), mask="full", head_dim=2, is_causal=True)
    single = masked.but(attn_mask=None, key=masked.key[:, :, :1], value=masked.value[:, :, :1])
    for call in (masked, single):
        for sent in (None, torch.ones(2, 4, 5, 2, dtype=call.dtype)):
            tensors = [x for x in (call.query, call.key, call.value, call.attn_mask, sent) if x is not None]
            before = [x.clone() for x in tensors]
            output = run(entry.call, call, sent)[0]
            if not all(torch.equal(x, y) for x, y in zip(tensors, before, strict=True)):
                return True
            if output.untyped_storage().data_ptr() in [x.untyped_storage().data_ptr() for x in tensors]:
                return True
    return False


def in_another_dtype(entry: Fault) -> bool:
    """What it is made for, in that order, with one function."""
    function = entry.call
    calls = [trials.draw(getattr(torch, dtype)) for dtype in entry.dtypes or ()]
    return any(differ(run(function, call), run(right(entry), call)) for call in calls)


def in_a_changed_input(entry: Fault) -> bool:
    function, call = entry.call, trials.draw(dtype_of(entry))
    run(function, call)
    call.key.mul_(2.0)
    return differ(run(function, call), run(right(entry), call))


def in_stale_memory(entry: Fault) -> bool:
    """Memory that was not written is filled with NaN."""
    torch.use_deterministic_algorithms(True)
    filled, deterministic.fill_uninitialized_memory = deterministic.fill_uninitialized_memory, True
    try:
        return is_wrong(entry, trials.draw(dtype_of(entry), mask="two dead")) or is_wrong(
            entry, trials.draw(dtype_of(entry), q_len=3, is_causal=True)
        )
    finally:
        torch.use_deterministic_algorithms(False)
        deterministic.fill_uninitialized_memory = filled


def in_the_generator(entry: Fault) -> bool:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    call = trials.draw(torch.float32)
    torch.set_rng_state(before)
    entry.call(call.query, call.key, call.value)
    return not torch.equal(before, torch.get_rng_state())


def in_the_library(entry: Fault) -> bool:
    before = [getattr(module, name) for module, name in LIBRARY]
    run(entry.call, trials.draw(torch.float32))
    after = [getattr(module, name) for module, name in LIBRARY]
    return before != after or torch.get_default_dtype() != torch.float32 or not torch.is_grad_enabled()


SYMPTOMS = (
    in_the_library,
    in_the_generator,
    in_the_inputs,
    in_stale_memory,
    in_the_layout_of_the_cotangent,
    in_one_call,
    in_a_changed_input,
    in_another_dtype,
    in_a_second_call,
    in_a_frozen_query,
)


SHOWN_BY_CALLS = {
    name: entry
    for name, entry in FAULTS.items()
    if not name.startswith(
        ("seen_elsewhere", "seen_later", "seen_third", "natural", "survivors/")
        + ("declared/", "autocast/", "packs/", "together/", "hunted/", "sent_back/", "second_path/")
    )
}
"""The others need conditions that stand in no list of calls, are called otherwise, or are no fault but for what they
declare: the laws that they break show them."""


@pytest.mark.parametrize("entry", SHOWN_BY_CALLS.values(), ids=SHOWN_BY_CALLS)
def test_a_fault_shows_itself(entry: Fault) -> None:
    """Somewhere it differs from the right function."""
    if entry.peril == "hangs":
        pytest.skip("it would hang this process")
    assert any(raises(lambda symptom=symptom: symptom(entry)) for symptom in SYMPTOMS)


# The registry


@pytest.mark.parametrize("entry", [*FAULTS.values(), *VARIANTS.values()], ids=[*FAULTS, *VARIANTS])
def test_an_entry_reads_well(entry: Entry) -> None:
    """A sentence that ends, an id in small letters, the canonical signature."""
    assert re.fullmatch(r"[A-Z0-9a-z].*[^.]\.", entry.sentence), entry.sentence
    assert re.fullmatch(r"[a-z_]+/[a-z0-9-]+", entry.id), entry.id
    assert list(inspect.signature(entry.call).parameters)[:3] == ["query", "key", "value"]
    assert set(entry.features) <= set(inspect.signature(entry.call).parameters)


@pytest.mark.parametrize("entry", FAULTS.values(), ids=FAULTS)
def test_a_fault_names_its_laws(entry: Fault) -> None:
    """The laws that it should break exist."""
    assert set(entry.breaks) <= {law.removeprefix("attention/") for law in all_laws()}


def test_a_name_clash_is_refused() -> None:
    """Two functions of one name in one module."""
    known = next(iter(FAULTS.values()))
    with pytest.raises(ValueError, match="two functions are called"):
        _enter(FAULTS, Fault(**{**vars(known), "defined_at": ("elsewhere.py", 1)}))


def test_a_callable_remembers_nothing_of_the_one_before() -> None:
    """What a fault keeps between calls is kept by the callable that was handed out."""
    entry = FAULTS["cheats/right-in-its-first-call-only"]
    call = trials.draw()
    assert all(run(entry.call, call)[0].any() for _ in range(2))


def test_the_corpus_is_large(capsys: pytest.CaptureFixture[str]) -> None:
    """A hundred faults, twenty of them conjunctions, and twenty-five right variants."""
    families = collections.Counter(entry.family for entry in FAULTS.values())
    conjunctions = [entry for entry in FAULTS.values() if len(entry.when) > 1]
    with capsys.disabled():
        print(f"\n{len(FAULTS)} faults ({len(conjunctions)} conjunctions), {len(VARIANTS)} right variants")
        print(", ".join(f"{family} {count}" for family, count in sorted(families.items())))
    assert len(FAULTS) >= 100
    assert len(conjunctions) >= 20
    assert len(VARIANTS) >= 25
