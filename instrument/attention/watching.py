"""What a call does to its arguments and its results: read off the very tensors that the subject was given."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress

import torch
from torch import Tensor

from headcheck.attention.answers import Answer
from headcheck.attention.edge import Arguments
from headcheck.attention.inputs import Inputs
from headcheck.attention.subject import AttentionSubject
from headcheck.calling import SubjectRaised
from headcheck.checkpoints import is_checkpointed
from headcheck.comparison import Comparison, NotApplicable, compared_gradients, require_gradients
from headcheck.kept import graphs_followed_back
from headcheck.strides import memory_of, moved

INPUTS = ("query", "key", "value")
EXTRAS = {"log_sum_exp": "log-sum-exps", "weights": "weights"}
"""What a call may be asked for beside the output, and what messages call it."""
BUFFERS = 3
"""So many calls are made before a result counts as kept: a buffer may be one of two or three that take turns."""


def before_and_after(
    subject: AttentionSubject, x: Inputs, *, gradients: bool
) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Each tensor argument's memory: its name, a copy from before the call, and what it holds after.

    gradients: whether the inputs want gradients, which takes many functions another way; what they hold is then
    looked at after the backward pass.
    """
    arguments = subject.arguments_for(x)
    given = {name: tensor for name, tensor in arguments.tensors.items() if tensor is not None}
    before = {name: memory_of(tensor).clone() for name, tensor in given.items()}
    wanted = subject.want_gradients(arguments) if gradients else {}
    with torch.set_grad_enabled(gradients):
        output = subject.run(x, arguments).output
    if wanted and output.requires_grad:
        with suppress(SubjectRaised):  # Whoever asks for the gradients themselves will see it.
            subject.backward(output, wanted, x.cotangent)
    for name, tensor in given.items():
        yield name, before[name], memory_of(tensor).clone()


def kept_and_written_to(subject: AttentionSubject, x: Inputs) -> list[str]:
    """The arguments that a graph had kept for its backward before the call, and that autograd refuses after it."""
    arguments = subject.arguments_for(x)
    with graphs_followed_back(arguments.tensors) as written:
        subject.run(x, arguments)
    return written


def of_columns(subject: AttentionSubject, x: Inputs, *names: str) -> Tensor:
    """The output of a call in which these arguments, each of one axis, are a column of a table.

    NotApplicable: that is refused.
    """
    arguments = subject.arguments_for(x)
    for name in names:
        column = arguments.tensors[name]
        assert column is not None
        arguments.tensors[name] = torch.stack([column, torch.ones_like(column)], dim=1)[:, 0]
    try:
        with torch.no_grad():
            return subject.run(x, arguments).output.cpu()
    except SubjectRaised as refusal:
        raise NotApplicable(f"refuses {' and '.join(names)} whose stride is not 1: {refusal}") from refusal


def shared_memory(subject: AttentionSubject, x: Inputs) -> str:
    """The names of the arguments whose memory the output uses, or nothing."""
    arguments = subject.arguments_for(x)
    with torch.no_grad():
        output = subject.run(x, arguments).output
    places = {
        name: tensor.untyped_storage().data_ptr()
        for name, tensor in arguments.tensors.items()
        if tensor is not None and tensor.numel()
    }
    mine = output.untyped_storage().data_ptr()
    return ", ".join(name for name, place in places.items() if output.numel() and place == mine)


def kept_over_the_next_call(
    subject: AttentionSubject, x: Inputs, other: Inputs, **extras: bool
) -> list[tuple[str, Tensor, Tensor]]:
    """Of each part of the first result a copy, and the part itself after several other calls.

    extras: log_sum_exp or weights, which all calls are asked for.
    """
    with torch.no_grad():
        first = subject.run(x, subject.arguments_for(x, **extras))
        parts = {name: each for name, each in first._asdict().items() if each is not None}
        copies = {name: each.clone() for name, each in parts.items()}
        for _ in range(BUFFERS):
            subject.run(other, subject.arguments_for(other, **extras))
    return [(name, copies[name], each.clone()) for name, each in parts.items()]


def gradients_over_the_next_backward(
    subject: AttentionSubject, x: Inputs, other: Inputs
) -> Iterator[tuple[str, Tensor, Tensor]]:
    """The gradients of one call: the name, a copy, and the gradient itself after another call and its backward."""
    (first,) = _backward(subject, x, subject.arguments_for(x), INPUTS)
    kept = [(name, each.clone(), each) for name, each in zip(INPUTS, first, strict=True) if each is not None]
    list(_backward(subject, other, subject.arguments_for(other), INPUTS))
    yield from kept


def gradients_after_the_next_call(
    subject: AttentionSubject, x: Inputs, other: Inputs
) -> dict[str, Tensor | None]:
    """The gradients of query, key and value, where another call is made between the call and its backward."""
    output, wanted = subject.followed(x, names=INPUTS)
    others = subject.arguments_for(other)
    subject.want_gradients(others, INPUTS)
    subject.run(other, others)
    return _by_name(subject, x, subject.backward(output, wanted, x.cotangent))


def recorded(subject: AttentionSubject, x: Inputs, *, log_sum_exp: bool) -> Answer:
    """What a call gives whose inputs want gradients."""
    require_gradients(subject.declaration.gradients)
    arguments = subject.arguments_for(x, log_sum_exp=log_sum_exp)
    subject.want_gradients(arguments)
    answer = subject.run(x, arguments)
    beside = None if answer.log_sum_exp is None else answer.log_sum_exp.detach().clone()
    return Answer(answer.output.detach().clone(), beside)


def after_change_in_place(subject: AttentionSubject, x: Inputs, new: Inputs) -> Tensor:
    """The second answer, where the same tensors held `x` in the first call and hold `new` in the second."""
    arguments = subject.arguments_for(x)
    with torch.no_grad():
        subject.run(x, arguments)
        for name, tensor in subject.arguments_for(new).tensors.items():
            mine = arguments.tensors[name]
            if mine is not None and tensor is not None:
                mine.copy_(tensor)
        return subject.run(x, arguments).output.clone()


def after_a_refusal(subject: AttentionSubject, x: Inputs) -> Tensor:
    """The output of a call after one that is refused."""
    if not is_refused(subject, x):
        raise NotApplicable("a query of one axis is not refused")
    return subject(x)


def is_refused(subject: AttentionSubject, x: Inputs) -> bool:
    """Whether a call whose query has a single axis is, as it should be."""
    wrong = subject.arguments_for(x)
    wrong.tensors["query"] = torch.zeros(1, dtype=x.dtype, device=subject.device)
    try:
        subject.returned(x, wrong)  # None of the tensors wants a gradient.
    except (SubjectRaised, NotApplicable):
        return True
    return False


def after_a_call_without_gradients(
    subject: AttentionSubject, x: Inputs, cotangent: Tensor
) -> dict[str, Tensor | None]:
    """The gradients of query, key and value, which the same tensors wanted already in a call under torch.no_grad."""
    require_gradients(subject.declaration.gradients)
    arguments = subject.arguments_for(x.written_out())
    subject.want_gradients(arguments, INPUTS)
    with torch.no_grad():
        subject.run(x, arguments)
    (found,) = _backward(subject, x, arguments, INPUTS, cotangent)
    return _by_name(subject, x, found)


def gradients_after_a_change(
    subject: AttentionSubject, x: Inputs, changed: str, cotangent: Tensor
) -> dict[str, Tensor | None] | None:
    """The gradients of query, key and value, where one of them or the output is changed in place before backward.

    None if that is refused.
    """
    output, wanted = subject.followed(x, names=INPUTS)
    try:
        if changed == "output":
            output.add_(1.0)
        else:
            with torch.no_grad():
                wanted[changed].mul_(-3)
    except RuntimeError:  # As of a view that autograd does not let anybody write to.
        return None
    try:
        found = subject.backward(output, wanted, cotangent)
    except SubjectRaised:  # As autograd does where a saved tensor is of another version.
        return None
    return _by_name(subject, x, found)


def checkpointed(subject: AttentionSubject, x: Inputs) -> bool:
    """Whether a call that wants gradients is computed again on the way back."""
    return is_checkpointed(lambda: subject.followed(x, names=INPUTS))


def gradients_beside(subject: AttentionSubject, x: Inputs, extra: str) -> dict[str, Tensor | None]:
    """The gradients of query, key and value of the output of a call that is asked for log_sum_exp or weights as well."""
    require_gradients(subject.declaration.gradients)
    arguments = subject.arguments_for(x.written_out(), **{extra: True})
    wanted = subject.want_gradients(arguments, INPUTS)
    output = subject.run(x, arguments).output
    if not output.requires_grad:
        return dict.fromkeys(INPUTS)
    return _by_name(subject, x, subject.backward(output, wanted, x.cotangent))


def carries_gradients(subject: AttentionSubject, x: Inputs) -> bool:
    """Whether the output of a call does whose query, key and value want gradients."""
    require_gradients(subject.declaration.gradients)
    arguments = subject.arguments_for(x)
    subject.want_gradients(arguments, INPUTS)
    return subject.run(x, arguments).output.requires_grad


def given_twice(subject: AttentionSubject, x: Inputs, shared: Mapping[str, str]) -> Tensor:
    """The output where some arguments are the very tensors that are others: {"key": "query"}."""
    arguments = subject.arguments_for(x)
    arguments.tensors.update({name: arguments.tensors[other] for name, other in shared.items()})
    with torch.no_grad():
        return subject.run(x, arguments).output.clone()


def generator_around_backward(subject: AttentionSubject, x: Inputs) -> tuple[Tensor, Tensor]:
    """The state of torch's generator after the forward pass and another draw, and after the backward pass."""
    output, wanted = subject.followed(x, subject.arguments_for(x))
    torch.rand(3)
    between = torch.get_rng_state()
    subject.backward(output, wanted, x.cotangent)
    return between, torch.get_rng_state()


def around_backward(subject: AttentionSubject, x: Inputs) -> Iterator[tuple[str, Tensor, Tensor]]:
    """The output and its gradient, which is sent back: a copy, and what each holds after the backward pass."""
    output, wanted = subject.followed(x, subject.arguments_for(x))
    sent = moved(x.cotangent.contiguous(), output)
    kept = [
        ("gradient of the output", sent.clone(), sent),
        ("output", output.detach().clone(), output.detach()),
    ]
    subject.clock.call(torch.autograd.grad, output, [*wanted.values()], sent, allow_unused=True)
    yield from kept


def out_of_training(subject: AttentionSubject, x: Inputs) -> Tensor:
    """The output of a call that gives a rate of dropout and says that training is off."""
    arguments = subject.arguments_for(x)
    if "training" not in arguments.plain:
        raise NotApplicable("takes no argument that says whether it is in training")
    arguments.plain["training"] = False
    with torch.no_grad():
        return subject.run(x, arguments).output.clone()


def in_inference_mode(subject: AttentionSubject, x: Inputs) -> Tensor:
    """The output of a call in torch.inference_mode, whose arguments were made there too."""
    with torch.inference_mode():
        output = subject.run(x, subject.arguments_for(x)).output
    return output.clone()


def wanting_gradients(subject: AttentionSubject, x: Inputs) -> list[str]:
    """The arguments that want a gradient, or have one, after a call that was given none that does."""
    arguments = subject.arguments_for(x)
    with torch.enable_grad():
        subject.run(x, arguments)
    given = {name: tensor for name, tensor in arguments.tensors.items() if tensor is not None}
    return [name for name, tensor in given.items() if tensor.requires_grad or tensor.grad is not None]


def numbers_in_one_place(subject: AttentionSubject, x: Inputs) -> bool:
    """Whether two numbers of the output lie in the same memory."""
    with torch.no_grad():
        output = subject.run(x, subject.arguments_for(x)).output
    places = zip(output.shape, output.stride(), strict=True)
    return output.numel() > 0 and any(size > 1 and step == 0 for size, step in places)


def gradient_of_one_given_twice(
    subject: AttentionSubject, x: Inputs, one: str, others: Iterable[str]
) -> Tensor | None:
    """Of the one tensor that is given as each of these arguments."""
    arguments = subject.arguments_for(x)
    arguments.tensors.update(dict.fromkeys(others, arguments.tensors[one]))
    ((gradient,),) = _backward(subject, x, arguments, [one])
    return subject.canonical_gradient(x, one, gradient)


def gradient_of_a_query_used_elsewhere(subject: AttentionSubject, x: Inputs) -> Tensor | None:
    """Of the query where the loss is sum(output x cotangent), and the sum of the query's own numbers."""
    require_gradients(subject.declaration.gradients)
    arguments = subject.arguments_for(x)
    query = subject.want_gradients(arguments, ["query"])["query"]
    output = subject.run(x, arguments).output
    if not output.requires_grad:
        return None
    losses = [output, query.sum()]
    cotangents = [x.cotangent.to(output), torch.ones_like(losses[1])]
    (found,) = subject.clock.call(torch.autograd.grad, losses, [query], cotangents)
    return subject.canonical_gradient(x, "query", found.detach().cpu())


def gradients_beside_the_output(
    subject: AttentionSubject,
    x: Inputs,
    part: str,
    cotangent: Tensor,
    exact: Mapping[str, Tensor],
    bounds: Mapping[str, Tensor],
) -> Iterator[Comparison]:
    """The gradient of sum(part x cotangent) against the exact one; of every other case, that of the output as well.

    part: what is returned beside the output, log_sum_exp or weights.
    """
    of_output = x.cotangent if x.case.seed % 2 else None
    if of_output is not None:
        more, limits = x.problem.gradients(of_output.double()), subject.gradient_bounds(x, of_output)
        exact = {name: exact[name] + getattr(more, name) for name in bounds}
        bounds = {name: each + getattr(limits, name) for name, each in bounds.items()}
    found = _gradients_beside(subject, x, part, cotangent, of_output)
    yield from compared_gradients(found, exact, bounds, f", of the {EXTRAS[part]}")


def _gradients_beside(
    subject: AttentionSubject, x: Inputs, part: str, cotangent: Tensor, of_output: Tensor | None
) -> dict[str, Tensor | None]:
    """Of query, key and sinks: the loss is sum(part x cotangent), and sum(output x of_output) if it is given."""
    require_gradients(subject.declaration.gradients)
    arguments = subject.arguments_for(x, **{part: True})
    wanted = subject.want_gradients(arguments, ["query", "key", *(["sinks"] if x.sinks is not None else [])])
    answer = subject.run(x, arguments)
    found, name = getattr(answer, part), EXTRAS[part]
    if found is None or found.grad_fn is None:
        raise NotApplicable(f"the returned {name} carry no gradient")
    losses, cotangents = [found], [cotangent.to(found)]
    if of_output is not None:
        losses, cotangents = [*losses, answer.output], [*cotangents, of_output.to(answer.output)]
    try:
        gradients = subject.clock.call(
            torch.autograd.grad, losses, [*wanted.values()], cotangents, allow_unused=True
        )
    except SubjectRaised as refusal:
        raise NotApplicable(f"the gradient of the {name} is refused: {refusal}") from refusal
    return {
        name: None if each is None else subject.canonical_gradient(x, name, each.detach().cpu())
        for name, each in zip(wanted, gradients, strict=True)
    }


def backward_twice(subject: AttentionSubject, x: Inputs) -> list[dict[str, Tensor | None]]:
    """The gradients of query, key and value, and those that are asked for next in the same graph."""
    rounds = _backward(subject, x, subject.arguments_for(x), INPUTS, times=2)
    return [_by_name(subject, x, found) for found in rounds]


def _by_name(
    subject: AttentionSubject, x: Inputs, found: Iterable[Tensor | None]
) -> dict[str, Tensor | None]:
    """The gradients of query, key and value, copied, as laws have them."""
    copies = (None if each is None else each.detach().cpu().clone() for each in found)
    return {
        name: subject.canonical_gradient(x, name, each) for name, each in zip(INPUTS, copies, strict=True)
    }


def _backward(
    subject: AttentionSubject,
    x: Inputs,
    arguments: Arguments,
    names: Collection[str],
    cotangent: Tensor | None = None,
    *,
    times: int = 1,
) -> Iterator[list[Tensor | None]]:
    """The gradients of these arguments as they are handed out, asked for so many times in one graph."""
    output, wanted = subject.followed(x, arguments, names)
    given = x.cotangent if cotangent is None else cotangent
    for _ in range(times):
        gradients = subject.backward(output, wanted, given, again=times > 1)
        yield [None if each is None else each.detach() for each in gradients]
