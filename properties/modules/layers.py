"""A stack is as deep as it says, and each part of a layer counts."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor, nn

from headcheck.comparison import Comparison, LawBroken, NotApplicable, none, require_gradients
from headcheck.laws import law
from headcheck.modules.blocks import Block, require_by_itself
from headcheck.modules.noise import scaled
from headcheck.modules.stacks import calls_of_parts, parts_alike, stacks_in
from headcheck.modules.subject import ModuleInputs, ModuleSubject, long
from headcheck.modules.unread import unread_rows
from headcheck.modules.weights import weights_changed, without_zero_rows
from headcheck.roles import LARGER

SEQUENCES = ("x", "memory", "tokens", "source", "target")
"""Inputs of modules that have a token for each place along their second axis."""


@law(
    source="Vaswani et al. 2017, section 3.1: a stack of N identical layers",
    formula="w of one layer becomes w' : f(x; w') != f(x; w)",
    guards="A loop that ends one layer early; states that are collected before the last layer; an answer that is lost; "
    "each layer given the input of the stack.",
    needs=("module",),
    share=0.25,
    roles=LARGER,
    unless=("all_layers=False",),
)
def each_layer_of_a_stack_counts(
    module: ModuleSubject[ModuleInputs], x: ModuleInputs
) -> Iterator[Comparison]:
    """Of layers that are given each what the one before gave, or that attend, each has an influence on the output."""
    if not module.declaration.all_layers:
        raise NotApplicable("not every layer counts, as declared")
    assert module.module is not None
    if not module.declaration.deterministic:
        raise NotApplicable("the same call does not give the same bits: what a layer does is not seen")
    stacks = stacks_in(module.module, lambda: module(x))
    if not stacks:
        raise NotApplicable(
            "it has no list of layers that attend, or of which two are called one after the other"
        )
    for stack in stacks:
        counts = [module.shows(partial(_counts, module, x, layer)) for layer in stack.layers]
        idle = [f"{stack.name}.{number}" for number, each in enumerate(counts) if not each]
        if idle and any(counts):
            if not _sees_two(x):
                raise NotApplicable("one key has all the weight, whatever the weights of the query are")
            raise LawBroken(
                f"other weights in {', '.join(idle)} change no number of the output, those of the other layers do"
            )
        if not idle:  # A stack of which no layer counts is no part of the way to this output, as further heads are none.
            yield none(f"layers of {stack.name} without influence")


@law(
    source="Xiong et al. 2020, figure 1: x + f(norm(x)), and what comes out + g(norm(what comes out))",
    formula="g = 0: x + f(norm(x)); f = 0: x + g(norm(x))",
    guards="A residual that is not updated between the sub-layers: x + g(norm(x + f(norm(x)))).",
    needs=("module",),
    share=0.2,
    roles=LARGER,
)
def each_sub_layer_adds_by_itself(
    module: ModuleSubject[ModuleInputs], x: ModuleInputs
) -> Iterator[Comparison]:
    """Of a pre-norm layer with two sub-layers, each adds to the states where the other gives nothing."""
    _require_watchable(module)

    def drawn(purpose: str, like: Tensor) -> Tensor:
        return torch.randn(like.shape, generator=x.generator(purpose), dtype=torch.float64).to(like)

    reasons: list[NotApplicable] = []
    for layer in _layers(module, x):
        try:
            require_by_itself(Block(layer, partial(module, x), drawn))
            yield none("sub-layers that do not add by themselves")
        except NotApplicable as why:
            reasons.append(why)
        except LawBroken:
            module.require_fine(x)
            raise
    if reasons:
        raise reasons[0]


@law(
    source="a slip of the hand: self.norm1 where self.norm2 was meant",
    formula="calls of a part = 0: its weights count, or no part like it is called twice",
    guards="A second norm that is never used, the first one taken for it.",
    needs=("module",),
    share=0.1,
    roles=LARGER,
)
def no_part_stands_in_for_another(module: ModuleSubject[ModuleInputs], x: ModuleInputs) -> Comparison:
    """Where a module calls one of its numbered parts twice, none of the others of that name and size is left out."""
    _require_watchable(module)
    assert module.module is not None
    alike = [*parts_alike(module.module)]
    if not alike:
        raise NotApplicable(
            "it has no parts of one name, class and size that are numbered, as norm1 and norm2"
        )
    calls = calls_of_parts(module.module, partial(module, x))
    for name, whole, parts in alike:
        twice = [each for each, part in parts if calls[id(part)] > calls[id(whole)] > 0]
        left_out = [(each, part) for each, part in parts if not calls[id(part)]]
        for each, part in left_out if twice else ():
            if not module.shows(partial(_counts, module, x, part)):
                where = f" of {name}" if name else ""
                raise LawBroken(
                    f"{twice[0]}{where} is called twice, and {each}, which is like it, not at all"
                )
    return none("parts that are left out")


@law(
    source="a slip of the hand: the third of a projection where the second was meant, of query, key and value in one",
    formula="rows of one part of W become others: f(x; W) changes",
    guards="A fused projection that is cut at the wrong places: one part is read twice, and another by nobody.",
    needs=("module",),
    given=(long,),
    share=0.2,
    roles=LARGER,
    unless=("all_layers=False",),
)
def each_part_of_a_projection_counts(
    module: ModuleSubject[ModuleInputs], x: ModuleInputs
) -> Iterator[Comparison]:
    """Of a linear layer that gives query, key and value, or two of them, each part has an influence, if any has."""
    if not module.declaration.all_layers:
        raise NotApplicable("not every part counts, as declared")
    _require_watchable(module)
    require_gradients(module.declaration.gradients)
    x = x.but(**{name: None for name in x.tensors if name.endswith("is_real")})
    sequences = [x.tensors[name] for name in SEQUENCES if name in x.tensors]
    if not all(bool((each != each[:, :1]).any()) for each in sequences):
        raise NotApplicable("all tokens are alike: which of them counts makes no difference")
    assert module.module is not None
    with weights_changed(module.module, partial(without_zero_rows, generator=x.generator("weights"))):
        for name, weight, rows in unread_rows(module, partial(module.output, x)):
            calls = (x, module.another(x))
            if not any(
                module.shows(partial(_changes_the_output, module, each, [weight], rows)) for each in calls
            ):
                raise LawBroken(
                    f"other weights in {int(rows.sum())} of {len(rows)} rows of {name}, from row "
                    f"{int(rows.nonzero()[0])}, change no number of the output, those of the other rows do"
                )
    yield none("parts of projections without influence")


def _require_watchable(module: ModuleSubject[ModuleInputs]) -> None:
    """NotApplicable: torch calls no hooks of its parts."""
    assert module.module is not None
    if any(isinstance(part, torch.jit.ScriptModule) for part in module.module.modules()):
        raise NotApplicable("it is scripted: its parts cannot be watched")


def _layers(module: ModuleSubject[ModuleInputs], x: ModuleInputs) -> list[nn.Module]:
    """One of each of its stacks, or the module itself."""
    assert module.module is not None
    stacks = stacks_in(module.module, partial(module, x))
    return [stack.layers[x.case.seed % len(stack.layers)] for stack in stacks] or [module.module]


def _sees_two(x: ModuleInputs) -> bool:
    """Whether each kind of sequence has two tokens at least that are no padding."""
    lengths = [getattr(x.case, size) for size in x.case.SIZES if size.endswith("len") or size == "length"]
    real = [each for name, each in x.tensors.items() if name.endswith("is_real")]
    return min(lengths, default=2) > 1 and all(bool((each.sum(-1) > 1).any()) for each in real)


def _counts(module: ModuleSubject[ModuleInputs], x: ModuleInputs, layer: nn.Module) -> bool:
    """Whether the output has other bits where each weight of the layer is another."""
    return _changes_the_output(module, x, [each for each in layer.parameters() if each.is_floating_point()])


def _changes_the_output(
    module: ModuleSubject[ModuleInputs], x: ModuleInputs, weights: list[Tensor], rows: Tensor | None = None
) -> bool:
    """Whether other weights, or these rows of them, change a bit of the output; they have the other sign in the end."""
    drawn = [torch.rand(each.shape, generator=x.generator("factors")).to(each) for each in weights]
    before = module(x)
    for less in (-0.5, 1.5):
        factors = [each - less for each in drawn]
        if rows is not None:
            factors = [torch.where(rows[:, None], each, 1.0) for each in factors]
        with scaled(weights, factors):
            if not torch.equal(module(x), before):
                return True
    return False
