"""Calls of several sequences at once, each of its own length: what a subject with packed sequences is for.

A pack is given as a list of inputs, one for each sequence, that differ in their tensors and lengths alone.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from headcheck.attention.edge import Arguments
from headcheck.attention.forms import from_tiled
from headcheck.attention.inputs import Inputs
from headcheck.attention.subject import AttentionSubject
from headcheck.calling import plain_tensor
from headcheck.comparison import require_a_graph, require_gradients

NAMES = ("query", "key", "value")
LONGEST = ("max_seqlen_q", "max_seqlen_k")


def outputs(
    subject: AttentionSubject, parts: Sequence[Inputs], *, spare: int = 0, loose: int = 0
) -> list[Tensor]:
    """The output of each sequence (1, heads, q_len, value_dim), from one call.

    spare: so many tokens of other numbers stand behind the last sequence. loose: so far above the longest sequence is
    what the subject is told of it.
    """
    arguments = _arguments(subject, parts, spare)
    arguments.plain.update(
        {name: arguments.plain[name] + loose for name in LONGEST if name in arguments.plain}
    )
    with torch.no_grad():
        output = _run(subject, parts, arguments, spare)
    apart = _apart(subject, output, [x.q_len for x in parts], _tiled_on(subject, parts))
    return [each.detach().clone() for each in apart]


def gradients(
    subject: AttentionSubject, parts: Sequence[Inputs], cotangents: Sequence[Tensor]
) -> list[dict[str, Tensor | None]]:
    """The gradients of query, key and value of each sequence: of the sum of output x cotangent, over all of them."""
    require_gradients(subject.declaration.gradients)
    arguments = _arguments(subject, parts, 0)
    wanted = subject.want_gradients(arguments, NAMES)
    output = _run(subject, parts, arguments, 0)
    require_a_graph(output, declared=subject.declaration.gradients, elsewhere=False)
    tiled_on = _tiled_on(subject, parts)
    apart = _apart(subject, output, [x.q_len for x in parts], tiled_on)
    pieces = [(each * sent.to(each)).sum() for each, sent in zip(apart, cotangents, strict=True)]
    total = torch.stack(pieces).sum()
    found = subject.clock.call(torch.autograd.grad, total, [*wanted.values()], allow_unused=True)
    by_sequence: list[dict[str, Tensor | None]] = [dict.fromkeys(wanted) for _ in parts]
    for name, each in zip(wanted, found, strict=True):
        if each is not None:
            lengths = [x.q_len if name == "query" else x.kv_len for x in parts]
            of_queries = tiled_on if name == "query" else None
            for of_one, gradient in zip(by_sequence, _apart(subject, each, lengths, of_queries), strict=True):
                of_one[name] = gradient
    return by_sequence


def _arguments(subject: AttentionSubject, parts: Sequence[Inputs], spare: int) -> Arguments:
    """The arguments of the first sequence, with the tokens of all of them and where each begins."""
    each = [subject.arguments_for(x.but(strides="contiguous")) for x in parts]
    arguments = Arguments(dict(each[0].tensors), dict(each[0].plain))
    for name in NAMES:
        tokens = [tensor for one in each if (tensor := one.tensors[name]) is not None]
        behind = tokens[0].new_full((spare, *tokens[0].shape[1:]), 50.0)
        arguments.tensors[name] = torch.cat([*tokens, behind])
    subject.add_lengths(arguments, [x.q_len for x in parts], [x.kv_len for x in parts])
    return arguments


def _run(subject: AttentionSubject, parts: Sequence[Inputs], arguments: Arguments, spare: int) -> Tensor:
    """The output (tokens, heads, value_dim), with the spare ones or without. LawBroken: it has another form."""
    x, tokens = parts[0], sum(part.q_len for part in parts)
    output = subject.parts(subject.returned(x, arguments))["output"]
    if tuple(getattr(output, "shape", ()))[:1] != (tokens,):
        tokens += spare
    return plain_tensor(output, (tokens, x.heads, x.value_dim), x.dtype, subject.device)


def _tiled_on(subject: AttentionSubject, parts: Sequence[Inputs]) -> int | None:
    """The number of key heads on which query heads are tiled, or None where they are not."""
    tiled = subject.declaration.grouped_heads == "tiled" and parts[0].group > 1
    return parts[0].kv_heads if tiled else None


def _apart(
    subject: AttentionSubject, tokens: Tensor, lengths: Sequence[int], tiled_on: int | None
) -> list[Tensor]:
    """Each sequence of a pack as (1, heads, length, dim); what stands behind the last one is left out."""
    real = torch.split(tokens[: sum(lengths)], list(lengths))
    each = [subject.canonical(one, 1, one.shape[1]) for one in real]
    return each if tiled_on is None else [from_tiled(one, tiled_on) for one in each]
