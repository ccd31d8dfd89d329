"""Each sub-layer is added to a path that skips it, and the norms stand where they are said to stand."""

from collections.abc import Iterator

import torch

from headcheck.comparison import Comparison, NotApplicable, holds, within
from headcheck.given import having
from headcheck.laws import law
from headcheck.modules.influence import require_freedom
from headcheck.modules.states import STATES, StateInputs, StatesSubject
from headcheck.modules.weights import BATCH_NORMS, norms_of, weights_changed, without_matrices

PRE = "Xiong et al. 2020, figure 1: x + f(norm(x)); document 000, line 1068"
POST = "Vaswani et al. 2017, section 5.4: norm(x + f(x))"
LARGE, LARGER = 64.0, 4096.0
"""Factors of states of size 1: beside the first, eps and what is added to a state are small already."""

Module = StatesSubject[StateInputs]


@law(
    source=PRE,
    formula="f = 0: x + f(norm(x)) = x, the positions that are added taken out",
    guards="The normed state put on the skip path: norm(x) + f(norm(x)) (Compact-Transformers 25, RiNALMo 9).",
    needs=("pre_norm", "skip_path"),
    given=(having(padding="none"),),
    share=0.5,
    roles=STATES,
    unless=("skip_path=False",),
)
def zero_sub_layers_leave_a_pre_norm_block_the_identity(module: Module, x: StateInputs) -> Comparison:
    """With every weight at zero a pre-norm block gives back its input, or gives it to a final norm.

    Where it has positions of its own, it may add them: fixed ones are no weight, and come out of states of zero too.
    """
    assert module.module is not None
    with weights_changed(module.module, torch.zeros_like):
        through = _before_a_final_norm(module, x)
        added = _before_a_final_norm(module, _of_zeros(x)) if module.has("positions") else 0.0
    return module.close(through - added, module.arranged(x.x), x, "output before a final norm")


@law(
    source=PRE,
    formula="|g(C x) - C x| = O(1) as C grows, since f(norm(C x)) = f(norm(x))",
    guards="A norm of the queries alone: keys and values are made of the states as they are (xformers 233).",
    needs=("pre_norm", "skip_path"),
    given=(having(padding="none"),),
    share=0.5,
    roles=STATES,
)
def what_a_pre_norm_block_adds_does_not_grow_with_its_states(module: Module, x: StateInputs) -> Comparison:
    """To states that are far larger a pre-norm block adds no more: all that is added is made of normed states."""
    if any(isinstance(each, BATCH_NORMS) for each in module.parts()):
        raise NotApplicable("its norms are affine in evaluation: they use the statistics of the batch")
    if module.has("positions"):
        raise NotApplicable("it has positions of its own, which may be made of the states as they are")
    states = torch.randn(x.x.shape, generator=x.generator("large states"), dtype=torch.float64).to(x.x.dtype)
    large, larger = x.but(x=LARGE * states), x.but(x=LARGER * states)
    to_large, to_larger = _added_to(module, large), _added_to(module, larger)
    rounded = module.bound(larger) * states.numel() ** 0.5
    return within(to_larger, to_large, to_large * (LARGER / LARGE) ** 0.5 + rounded, "size of what is added")


def _added_to(module: Module, x: StateInputs) -> torch.Tensor:
    added = _before_a_final_norm(module, x) - module.arranged(x.x)
    return added.double().square().sum().sqrt()


def _before_a_final_norm(module: Module, x: StateInputs) -> torch.Tensor:
    calls, output = module.norm_calls(x)
    ends = [call.given for call in calls if call.is_the_end(output)]
    return ends[-1] if ends else output


def _of_zeros(x: StateInputs) -> StateInputs:
    """The same call with states of zero, those of a memory as well: what comes out is what the module adds to them."""
    return x.but(**{n: torch.zeros_like(each) for n, each in x.tensors.items() if each.is_floating_point()})


@law(
    source=POST,
    formula="f = 0: norm_2(norm_1(x) + f(norm_1(x))) = norm_2(norm_1(x))",
    guards="A skip path that begins before the norm of the sub-layer before it (gluon-nlp 1488); a norm left out.",
    needs=("post_norm", "skip_path"),
    given=(having(padding="none"),),
    share=0.5,
    roles=STATES,
    unless=("skip_path=False",),
)
def zero_sub_layers_leave_a_post_norm_block_its_norms(module: Module, x: StateInputs) -> Iterator[Comparison]:
    """With every weight but the norms' at zero, a post-norm block is its norms one after the other.

    Up to a factor before each, which a norm takes out. A norm inside a sub-layer is given zeros here. Where the module
    has positions of its own, what the first norm is given of states of zero is taken out of what it is given.
    """
    assert module.module is not None
    with weights_changed(module.module, torch.zeros_like, but=norms_of(module.module)):
        calls, output = module.norm_calls(x)
        of_zeros = module.norm_calls(_of_zeros(x))[0] if module.has("positions") else []
    states = module.arranged(x.x)
    places = [place for place, call in enumerate(calls) if call.given.any()]
    for number, place in enumerate(places):
        given = calls[place].given
        if not number and len(of_zeros) == len(calls):
            given = given - of_zeros[place].given
        factor = (given * states).sum() / states.square().sum()
        yield module.close(given, factor * states, x, f"what norm {number + 1} is given")
        states = calls[place].returned
    yield module.close(output, states, x, "output, which should be that of the last norm")


@law(
    source="He et al. 2016, equation 5: the gradient reaches every layer along the skip paths",
    formula="f the same for every x: d block(x) / dx is not 0",
    guards="A sub-layer whose input is not added to its output; a skip path that is detached.",
    needs=("weights", "skip_path"),
    given=(having(padding="none"),),
    share=0.5,
    roles=STATES,
    unless=("skip_path=False",),
)
def the_gradient_passes_through_the_skip_path(module: Module, x: StateInputs) -> Comparison:
    """Where sub-layers give the same for every input, each state still gets a gradient."""
    require_freedom(module)
    assert module.module is not None
    with weights_changed(module.module, without_matrices):
        gradient = module.gradient(x, x.real)
    reached = gradient.abs().amax(dim=-1)
    return holds(~(reached == 0), reached, "largest gradient of a state", expected=1.0)
