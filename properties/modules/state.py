"""Evaluation is a function of its arguments: nothing is remembered, nothing else is touched."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial

import torch

from headcheck.comparison import (
    Comparison,
    LawBroken,
    NotApplicable,
    forward_only,
    holds,
    none,
    same,
    within,
)
from headcheck.forks import require_right_in_a_copy
from headcheck.heard import tensors_given
from headcheck.laws import law
from headcheck.library import changed_by, generators_watched, region_left_by
from headcheck.modules.copying import parts_run
from headcheck.modules.noise import scaled
from headcheck.modules.subject import ModuleInputs, ModuleSubject, problem_of
from headcheck.roles import LARGER, MODULES

GROWN = 1.0625
"""So little more that rounding stays what it was, and exact in every format."""
LAST_BITS = 64
"""By so many units in the last place of the largest number an output may move where a table is made for a longer call."""
PURE = "a module in evaluation is a function of its arguments"


@law(
    source=PURE,
    formula="f(x) = f(x), bit for bit unless declared otherwise",
    guards="Dropout that is left on in evaluation, a cache that is kept from call to call.",
    roles=MODULES,
    unless=("deterministic=False",),
)
def same_call_same_answer(module: ModuleSubject[ModuleInputs], x: ModuleInputs) -> Comparison:
    """In evaluation the same call twice gives the same bits."""
    return module.unchanged(module(x), module(x), x)


@law(
    source=PURE,
    formula="f(x), f(y), f(x) again: the last is the first but for rounding, and f(y) as if it were the first",
    guards="A mask, a table of positions or a cache of one call that is used in the next.",
    roles=MODULES,
)
def another_call_between_changes_nothing(
    module: ModuleSubject[ModuleInputs], x: ModuleInputs
) -> Iterator[Comparison]:
    """A call with other inputs in between does not change the answer, nor is it changed by the call before."""
    used, other = module.unused(), module.another(x)
    alone = module.unused()(other)
    first, between = used(x), used(other)
    # The noise that `close` would measure is that of what is kept, where anything is.
    largest = float(first.where(first.isfinite(), 0.0).abs().max())
    last_bits = LAST_BITS * torch.finfo(first.dtype).eps * largest
    limit = last_bits if module.declaration.deterministic else module.bound(x)
    yield within(used(x), first, limit, "output, the second time")
    yield module.close(between, alone, other, "output of another call")


@law(
    source=PURE,
    formula="weights after the call = before",
    guards="Statistics updated in evaluation; a table that grows and shrinks the answer of the next call.",
    share=0.5,
    roles=MODULES,
)
def a_call_changes_no_weight(module: ModuleSubject[ModuleInputs], x: ModuleInputs) -> Iterator[Comparison]:
    """After a call in evaluation, the first one as well, every weight is what it was."""
    unused = module.unused()
    before = [each.detach().clone() for each in unused.weights()]
    unused(x)
    for old, new in zip(before, unused.weights(), strict=True):
        yield same(new, old, "weight")


@law(
    source="an optimiser changes weights in place, and so does loading them",
    formula="f(x; w), then w becomes w': f(x; w') as if it were the first call",
    guards="Weights that are packed, cast, merged or copied at the first call, and read from there ever after.",
    share=0.5,
    roles=LARGER,
)
def weights_changed_in_place_are_read_again(
    module: ModuleSubject[ModuleInputs], x: ModuleInputs
) -> Comparison:
    """Weights that change after a call give what they give to a module that was never called."""
    used, unused = module.unused(), module.unused()
    if used is unused:
        raise NotApplicable("it is a function, which cannot be had uncalled")
    used(x)
    if not _trained(used):
        raise NotApplicable("no weight of it wants a gradient")
    with scaled(_trained(used), GROWN), scaled(_trained(unused), GROWN):
        return module.close(used(x), unused(x), x, "output with other weights")


def _trained(module: ModuleSubject[ModuleInputs]) -> list[torch.Tensor]:
    """The weights that an optimiser would change. A frozen one may be a constant."""
    return [each for each in module.weights() if each.requires_grad]


@law(
    source="copy.deepcopy: copies of all that is inside are inserted into the new object",
    formula="c a deep copy of f: c(x; w') = f(x; w'), and f(x; w) stays while c has w'",
    guards="A function, a hook or a list of layers that holds the original: a teacher, an average of weights or a "
    "layer made by copying goes on reading another's.",
    share=0.25,
    roles=MODULES,
)
def a_copy_is_a_module_of_its_own(
    module: ModuleSubject[ModuleInputs], x: ModuleInputs
) -> Iterator[Comparison]:
    """A deep copy whose weights change computes with those, and its original goes on with its own."""
    original = module.newly_made()
    first = original(x)
    copied = original.copied()
    assert original.module is not None
    shared = parts_run(original.module, lambda: copied(x))
    if shared:
        raise LawBroken(f"the copy runs layers of the original, such as {shared[0]}")
    yield module.close(copied(x), first, x, "output of the copy")
    with scaled(_numbers(copied), GROWN):
        of_copy = copied(x)
        yield module.close(original(x), first, x, "output of the original, after the copy's weights changed")
    with scaled(_numbers(original), GROWN):
        yield module.close(of_copy, original(x), x, "output of the copy with other weights")


def _numbers(module: ModuleSubject[ModuleInputs]) -> list[torch.Tensor]:
    return [each for each in module.weights() if each.is_floating_point()]


@law(
    source="torch.nn.Module.state_dict: a dictionary of references to the whole state of the module",
    formula="g newly made, its state that of f: g(x) = f(x)",
    guards="Positions or a table that were drawn and are no parameter and no buffer: a model that was saved and "
    "loaded has others.",
    share=0.25,
    roles=LARGER,
)
def the_state_holds_all_that_was_drawn(module: ModuleSubject[ModuleInputs], x: ModuleInputs) -> Comparison:
    """A module that is made anew and given the state of another computes what that one does."""
    one, other = module.newly_made(seed=0), module.newly_made(seed=1)
    assert one.module is not None
    assert other.module is not None
    try:
        other.module.load_state_dict(one.module.state_dict())
    except Exception as problem:
        raise NotApplicable(f"the state of one is not taken by another: {problem}") from problem
    return module.close(other(x), one(x), x, "output with the state of another")


@law(
    source="torch.nn.Module.eval is train(False): it sets a mode, and setting what is set says nothing new",
    formula="f.eval().eval()(x) = f.eval()(x) = f.train().eval()(x)",
    guards="Adapters merged into the weights at each eval(), whether they are merged already or not.",
    share=0.5,
    roles=MODULES,
)
def a_mode_that_is_set_again_changes_nothing(
    module: ModuleSubject[ModuleInputs], x: ModuleInputs
) -> Iterator[Comparison]:
    """Set to evaluation twice, or to training and back, a module gives what it gave."""
    used = module.unused()
    first = used(x)
    used.set_mode(training=False)
    yield module.close(used(x), first, x, "output after eval() for the second time")
    used.set_mode(training=True)
    used.set_mode(training=False)
    yield module.close(used(x), first, x, "output after train() and eval()")


@law(
    source=PURE,
    formula="x and masks after the call = before",
    guards="An embedding, a mask or -100 at padded targets, written in place into the caller's tensor.",
    share=0.5,
    roles=MODULES,
)
def inputs_are_not_changed(module: ModuleSubject[ModuleInputs], x: ModuleInputs) -> Iterator[Comparison]:
    """What was given to a call holds afterwards what it held before."""
    grown = {module.places.get(name) for name in ("cache", "past_key_values")}  # Of the model's own answer.
    for call in (x, module.padded(x)):
        mine = [(name, each, each.clone()) for name, each in call.tensors.items()]
        with tensors_given() as given:
            module(call)
            for other in module.unused().other_calls(call):
                _whatever_comes_of(other)
        for name, after, before in (*mine, *(each for each in given if each[0] not in grown)):
            yield same(after, before, name)


@law(
    source=PURE,
    formula="x changed in place between two calls: the second answers for what it is given",
    guards="Keys and values of a memory, or a whole answer, that are kept by the address or the id of what was given.",
    share=0.5,
    roles=MODULES,
)
def inputs_changed_in_place_are_read_again(
    module: ModuleSubject[ModuleInputs], x: ModuleInputs
) -> Comparison:
    """Numbers, tokens and masks changed in place, in the same tensors, give the answer for the new ones."""
    used = module.unused()
    given = {name: each.clone() for name, each in x.tensors.items()}
    mine = x.but(**given)
    used(mine)
    for each in given.values():
        if each.dtype == torch.bool:
            each.fill_(value=True)  # No padding, which every module takes.
        else:
            each.copy_(each.flip(1) / -2 if each.is_floating_point() else each.flip(1))
    alone = module.unused()(x.but(**{name: each.clone() for name, each in given.items()}))
    return module.close(used(mine), alone, mine, "output for inputs that were changed in place")


@law(
    source="gradients are for training: whether they are wanted is no part of the function",
    formula="f(x) with gradients = f(x) without",
    guards="A path for inference that lacks a mask, a table or a layer (pytorch 190486).",
    roles=("causal_lm", "seq2seq", "vision"),
)
def gradients_wanted_or_not_the_output_is_the_same(
    module: ModuleSubject[ModuleInputs], x: ModuleInputs
) -> Comparison:
    """In evaluation the output is the same whether gradients are wanted or not."""
    with torch.enable_grad():
        wanted = module.output(x).detach().cpu()
    return module.close(module(x), wanted, x, "output without gradients")


@law(
    source="torch.inference_mode: tensors without the records of autograd; the numbers are the same",
    formula="f(x) in torch.inference_mode = f(x), and then df(x) is there",
    guards="A mask or a table of positions that is made in inference mode and kept: autograd refuses it later.",
    share=0.5,
    roles=LARGER,
)
def inference_mode_leaves_nothing_behind(
    module: ModuleSubject[ModuleInputs], x: ModuleInputs
) -> Iterator[Comparison]:
    """The first call, in inference mode, gives what it gives outside, and the same module can be trained after it."""
    used = module.unused()

    def there() -> Comparison:
        with torch.inference_mode():
            first = used.output(x).clone()
        return module.close(first.cpu(), module(x), x, "output in inference mode")

    if forward_only(declared=module.declaration.gradients, shown=module.carries_gradients):
        require_right_in_a_copy(lambda: [there()], module.device, "in torch.inference_mode")
        yield none("outputs that are other in inference mode")
        return
    yield there()  # First, for what is kept to be of this call: a function is asked as it is.
    found, meant = _whether_finite(used, x), _whether_finite(module.unused(), x)
    if len(found) != len(meant):
        raise LawBroken("after a call in inference mode the output carries no gradient")
    yield same(found, meant, "whether each gradient after it is finite")


@law(
    source="torch.autocast: formats are chosen within the region",
    formula="in float32: f(x) under autocast, then f(x) = f(x) of a module that was never called",
    guards="Rotary tables, a mask or expanded weights that are kept in the format of the first call: in 16 bits, for all "
    "calls that come after one under autocast.",
    share=0.5,
    roles=LARGER,
)
def autocast_leaves_nothing_behind(module: ModuleSubject[ModuleInputs], x: ModuleInputs) -> Comparison:
    """A call under autocast, in bfloat16, changes no answer that comes after it in float32."""
    alone, given = module.in_float32(), x.in_float32()
    used = module.under_autocast(given)
    used.autocast = False
    return alone.close(used(given), alone(given), given, "output after a call under autocast")


@law(
    source="torch.nn.Module.to: the weights and buffers of a module are in the format that it was sent to last",
    formula="f sent to float32, called, sent back with its numbers as they were: f(x) as if it had not been called",
    guards="A table of positions or a mask that is kept in the format of the call that made it: coarse in a finer one.",
    needs=("module",),
    share=0.5,
    roles=LARGER,
)
def a_coarser_format_leaves_nothing_behind(
    module: ModuleSubject[ModuleInputs], x: ModuleInputs
) -> Comparison:
    """Calls of a module in float32 change nothing that it gives in float64, with the weights that it had."""
    if module.dtypes[0] != "float64":
        raise NotApplicable("it is not judged in float64")
    alone, used = module.unused(), module.in_float32()
    for each in (module.another(x).in_float32(), x.in_float32()):
        if (problem := problem_of(used, each)) is not None:
            raise NotApplicable(f"does not compute in float32: {problem}")
    used.sent_back(alone)
    return module.close(used(x), alone(x), x, "output after calls in float32")


def _whether_finite(module: ModuleSubject[ModuleInputs], x: ModuleInputs) -> torch.Tensor:
    """Of the gradient of each weight 1 or 0; nothing where there are none."""
    with torch.enable_grad():
        output = module.output(x)
    weights = [each for each in module.weights() if each.requires_grad and each.is_floating_point()]
    if not output.requires_grad or not weights:
        return torch.zeros(0)
    found = module.clock.call(torch.autograd.grad, output.sum(), weights, materialize_grads=True)
    return torch.stack([each.to_dense().isfinite().all() for each in found]).double()


@law(
    source=PURE,
    formula="every number of f(x) is finite",
    guards="A row of a mask without a key: NaN, which spreads through the next layer (pytorch 103749).",
    roles=MODULES,
)
def output_is_finite(module: ModuleSubject[ModuleInputs], x: ModuleInputs) -> Comparison:
    """The output has neither NaN nor infinities."""
    output = module(x)
    return holds(output.isfinite(), output, "output")


@law(
    source=PURE,
    formula="the state of the generators and of torch's settings is the same before and after",
    guards="A module that seeds a global generator, draws from it in evaluation, or sets a default dtype.",
    share=0.5,
    roles=MODULES,
)
def nothing_global_is_touched(module: ModuleSubject[ModuleInputs], x: ModuleInputs) -> Comparison:
    """The call leaves the generators of torch, Python and NumPy, torch's settings and functions as they were."""
    with generators_watched() as moved:
        changed = changed_by(lambda: module.output(x))
        for call in module.unused().other_calls(x):
            changed += changed_by(partial(_whatever_comes_of, call))
        changed += region_left_by(lambda: module.unused().output(x), module.device)
    if changed or moved:
        raise LawBroken(f"the call changed {', '.join(dict.fromkeys([*changed, *moved]))}")
    return none("settings and generators that were changed")


def _whatever_comes_of(call: Callable[[], object]) -> None:
    with suppress(LawBroken, NotApplicable):
        call()
