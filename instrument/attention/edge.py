"""The subject's edge: the canonical call on one side, the implementation's own conventions on the other.

No law knows which implementation stands behind it. Whatever the implementation throws or returns becomes a
finding here.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headcheck.attention import packs
from headcheck.attention.abilities import Abilities
from headcheck.attention.answers import Answer, Gradients, copied, each_part, told_apart
from headcheck.attention.features import FEATURES, RETURN_ARGUMENTS
from headcheck.attention.forms import (
    expanded_sizes,
    from_layout,
    from_tiled,
    gradient_of_shape,
    in_broadcast_shape,
    lacking_axes,
    of_shape,
    shape_for,
    to_layout,
    to_tiled,
)
from headcheck.attention.inputs import Inputs
from headcheck.attention.sizes import why_not
from headcheck.attention.strides import lay_out, lay_out_mask
from headcheck.attention.unsaid import as_window, unsaid
from headcheck.calling import Clock, SubjectRaised, kind_of, plain_tensor, require_willing
from headcheck.comparison import LawBroken, NotApplicable, require_a_graph, require_gradients
from headcheck.declarations import BASE_2, Attention
from headcheck.signatures import by_place, must_be_given, no_limit, placed_only, takes_a_rate, tensors_by_name
from headcheck.strides import moved

GRADIENTS = "gradients"
"""Among what is found out of a subject: the output of a plain call carries gradients."""
MEANT = "where such calls are meant to be refused, declare may_refuse=True"


@dataclass(frozen=True)
class Arguments:
    """One call's arguments by canonical name. The tensors are fresh: the subject may do what it likes to them."""

    tensors: dict[str, Tensor | None]
    plain: dict[str, Any]


class Edge(Abilities):
    """An attention function behind its declaration: what it gives, in canonical form."""

    def __init__(
        self, declaration: Attention, *, device: str = "cpu", refused: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(declaration, refused)
        self.device = device
        self.clock = Clock(device)
        self.always_given = must_be_given(declaration.function, self.arguments)
        self.tensors = tensors_by_name(declaration.function)
        self.placed_only = placed_only(declaration.function)
        self.output_layout = declaration.output_layout or declaration.layout
        self.no_limit = no_limit(declaration.function, self.arguments.get("window", ""))
        rate = takes_a_rate(declaration.function, self.arguments.get("dropout_p", ""))
        self.no_rate = 0.0 if rate else torch.nn.Dropout(0.0)

    @property
    def seconds(self) -> float:
        """Wall time spent inside the implementation so far."""
        return self.clock.seconds

    @property
    def _differentiable(self) -> tuple[str, ...]:
        mask = ("attn_mask",) if self.declaration.mask_gradient else ()
        return ("query", "key", "value", "sinks", *mask)

    # What it gives

    def __call__(self, x: Inputs) -> Tensor:
        """The output (batch, heads, q_len, value_dim), copied, on the CPU."""
        return self.answer(x).output

    def answer(self, x: Inputs, *, log_sum_exp: bool = False, weights: bool = False) -> Answer:
        """One call without gradients."""
        arguments = self.arguments_for(x, log_sum_exp=log_sum_exp, weights=weights)
        with torch.no_grad():
            return copied(self.run(x, arguments))

    def log_sum_exp(self, x: Inputs) -> Tensor:
        """The returned log-sum-exp (batch, heads, q_len)."""
        returned = self.answer(x, log_sum_exp=True).log_sum_exp
        if returned is None:
            raise LawBroken("return_lse=True returned no log-sum-exp")
        return returned

    def weights(self, x: Inputs) -> Tensor:
        """The returned weights (batch, heads, q_len, kv_len)."""
        returned = self.answer(x, weights=True).weights
        if returned is None:
            raise LawBroken("return_weights=True returned no weights")
        return returned

    def gradients(
        self, x: Inputs, cotangent: Tensor | None = None, wanted: Collection[str] | None = None
    ) -> Gradients:
        """The gradient of sum(output x cotangent) with respect to everything that can want one.

        cotangent (batch, heads, q_len, value_dim): the one that the case draws, unless given.
        wanted: the inputs that want one, the others frozen; all that can, unless given.
        """
        return self.output_and_gradients(x, x.cotangent if cotangent is None else cotangent, wanted)[1]

    def gradients_left(self, x: Inputs) -> Gradients:
        """What backward() leaves in .grad of the inputs, which wanted gradients and had none."""
        output, wanted = self.followed(x)
        self.clock.call(output.backward, moved(self._in_its_layout(x, x.cotangent), output))
        return self._canonical_gradients(x, {name: each.grad for name, each in wanted.items()})

    def output_and_gradients(
        self, x: Inputs, cotangent: Tensor, names: Collection[str] | None = None
    ) -> tuple[Tensor, Gradients]:
        """Output and gradients of one and the same call, so that dropout is the same in both."""
        output, wanted = self.followed(x, names=names)
        found = self.backward(output, wanted, self._in_its_layout(x, cotangent))
        canonical: dict[str, Tensor | None] = dict(zip(wanted, found, strict=True))
        return output.detach().cpu().clone(), self._canonical_gradients(x, canonical)

    def _in_its_layout(self, x: Inputs, cotangent: Tensor) -> Tensor:
        """The cotangent; one that is contiguous is so in the subject's own layout."""
        if not cotangent.is_contiguous() or self.is_packed:
            return cotangent
        native = self._native(cotangent, self.output_layout).contiguous()
        return self.canonical(native, x.batch, x.heads, self.output_layout)

    def followed(
        self, x: Inputs, arguments: Arguments | None = None, names: Collection[str] | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The output of a call that autograd follows, and what wants gradients: the arguments named, or all that can.

        arguments: those of `x`, unless given, with none of them expanded: how what is asked of one place is shared out
        among those who read it, nothing says.
        """
        require_gradients(self.declaration.gradients)
        arguments = arguments or self.arguments_for(x.written_out())
        wanted = self.want_gradients(arguments, names)
        output = self.run(x, arguments).output
        self.require_a_graph(output, x, wanted)
        return output, wanted

    def backward(
        self, output: Tensor, wanted: Mapping[str, Tensor], cotangent: Tensor, *, again: bool = False
    ) -> Sequence[Tensor | None]:
        """The gradients of one backward pass. again: the graph is kept for another one."""
        asked, sent = [*wanted.values()], moved(cotangent, output)
        found: Sequence[Tensor | None] = self.clock.call(
            torch.autograd.grad, output, asked, sent, allow_unused=True, retain_graph=again
        )
        return found

    def require_a_graph(self, output: Tensor, x: Inputs, wanted: Collection[str]) -> None:
        """LawBroken, or NotApplicable where nothing says that it should: an output carries no gradient of the wanted."""
        require_a_graph(
            output,
            declared=self.declaration.gradients,
            elsewhere=GRADIENTS in self.found,
            of=wanted,
            exact=lambda: x.exact_gradients(wanted),
        )

    def want_gradients(self, arguments: Arguments, names: Collection[str] | None = None) -> dict[str, Tensor]:
        """The tensors of a call that can want a gradient, or those named; from now on they do."""
        wanted = {
            name: tensor
            for name, tensor in arguments.tensors.items()
            if tensor is not None and tensor.is_floating_point() and name in (names or self._differentiable)
        }
        for tensor in wanted.values():
            tensor.requires_grad_()
        return wanted

    # The edge itself

    def arguments_for(self, x: Inputs, *, log_sum_exp: bool = False, weights: bool = False) -> Arguments:
        """One call's arguments. NotApplicable: such a call is not asked for."""
        if why := why_not(x, self.declaration):
            raise NotApplicable(why)
        tiled = self.declaration.grouped_heads == "tiled" and x.group > 1
        query = to_tiled(x.query, x.kv_heads) if tiled else x.query
        native = [self._native(tensor).contiguous() for tensor in (query, x.key, x.value)]
        laid_out = lay_out([tensor.to(self.device) for tensor in native], x.strides)
        mask = None if x.attn_mask is None else self._mask_for(x, x.attn_mask, tiled)
        tensors: dict[str, Tensor | None] = dict(zip(("query", "key", "value"), laid_out, strict=True))
        tensors["attn_mask"] = mask
        for name, of_heads in (("sinks", x.sinks), ("alibi_slopes", x.alibi_slopes)):
            if of_heads is not None:
                ordered = to_tiled(of_heads[None], x.kv_heads)[0] if tiled else of_heads
                tensors[name] = ordered.clone().to(self.device)
        if x.key_lengths or "key_lengths" in self.always_given:
            said = packs.lengths(x.key_lengths or [x.kv_len] * x.batch, self.arguments["key_lengths"])
            tensors["key_lengths"] = said.to(self.device)
        plain: dict[str, Any] = {
            "dropout_p": x.dropout_p,
            "training": True if x.dropout_p and "training" in self.arguments else None,
            "is_causal": x.is_causal or None,
            "scale": x.scale,
            "enable_gqa": True if x.group != 1 and "enable_gqa" in self.arguments else None,
            "window": as_window(x.window, self.no_limit),
            "softcap": x.softcap,
        }
        if self.declaration.returns is None:
            plain |= {"return_lse": log_sum_exp or None, "return_weights": weights or None}
        always = self.declaration.always
        given = {name: value for name, value in plain.items() if value is not None and name not in always}
        given |= {
            name: value
            for name, value in unsaid(x, self.no_limit, self.no_rate).items()
            if name in self.always_given and given.get(name, tensors.get(name)) is None
        }
        arguments = Arguments(tensors, given)
        if self.is_packed:
            self.add_lengths(arguments, [x.q_len] * x.batch, [x.kv_len] * x.batch)
        return arguments

    def add_lengths(self, arguments: Arguments, q_lens: Sequence[int], kv_lens: Sequence[int]) -> None:
        """Where each packed sequence begins, and the longest, as far as the subject takes them."""
        for side, lengths in (("q", q_lens), ("k", kv_lens)):
            if f"cu_seqlens_{side}" in self.arguments:
                arguments.tensors[f"cu_seqlens_{side}"] = packs.starts(lengths).to(self.device)
            if f"max_seqlen_{side}" in self.arguments:
                arguments.plain[f"max_seqlen_{side}"] = max(lengths, default=0)

    def _native(self, x: Tensor, layout: str | None = None) -> Tensor:
        """(batch, heads, length, dim) in the subject's own layout."""
        if self.is_packed:
            return packs.packed(x)
        return to_layout(x, layout or self.declaration.layout)

    def canonical(self, native: Tensor, batch: int, heads: int, layout: str | None = None) -> Tensor:
        """A tensor in the subject's own layout as (batch, heads, length, dim)."""
        if self.is_packed:
            return packs.unpacked(native, batch)
        return from_layout(native, layout or self.declaration.layout, heads)

    def _mask_for(self, x: Inputs, mask: Tensor, tiled: bool) -> Tensor:
        if tiled and mask.ndim > 2 and mask.shape[-3] > 1:
            mask = to_tiled(mask.reshape(-1, *mask.shape[-3:]), x.kv_heads).reshape(mask.shape)
        if self.declaration.true_means == "block" and mask.dtype == torch.bool:
            mask = ~mask
        sizes, shapes = (x.batch, x.heads, x.q_len, x.kv_len), self.mask_shapes
        largest: tuple[int, ...] = sizes
        if shapes is not None:
            shape = shape_for(mask, shapes, sizes)
            mask, largest = of_shape(mask, shape, sizes), expanded_sizes(shape, shapes, sizes)
        return lay_out_mask(mask.to(self.device), x.mask_strides, largest)

    def run(self, x: Inputs, arguments: Arguments) -> Answer:
        """One call in canonical form."""
        extras = [name for name, argument in RETURN_ARGUMENTS.items() if arguments.plain.get(argument)]
        return self._canonical(x, self.parts(self.returned(x, arguments), extras))

    def parts(self, returned: Any, extras: Sequence[str] = ()) -> dict[str, Any]:
        """What was returned, by name: the output, with what every call returns, or with the extras asked for."""
        several = isinstance(returned, tuple | list)
        if (names := self.declaration.returns) is not None:
            if not several or len(returned) != len(names):
                found = f"{len(returned)} values" if several else kind_of(returned)
                raise LawBroken(f"returned {found}, where every call returns {', '.join(names)}")
            return dict(zip(names, returned, strict=True))
        apart = told_apart(returned) if extras or self.returns_more_if_asked else (returned,)
        beside_none = several and len(returned) > 1 and len(apart) == 1
        values = apart if extras or beside_none else (returned,)
        if self.arguments.get("return_lse") == "return_attn_probs":
            # What flash_attn_func returns behind them is a pattern of dropout, or None.
            values = values[: 1 + len(extras)]
        if len(values) != 1 + len(extras):
            raise LawBroken(f"returned {len(values)} values where {1 + len(extras)} were asked for")
        return dict(zip(("output", *extras), values, strict=True))

    def returned(self, x: Inputs, arguments: Arguments) -> Any:
        """What the implementation returns, as it is."""
        given = {name: tensor for name, tensor in arguments.tensors.items() if tensor is not None}
        tensors = [given.pop(name) for name in ("query", "key", "value")]
        named: dict[str, Any] = {**given, **arguments.plain}
        keywords = {self.arguments.get(name, name): value for name, value in named.items()}
        if self.tensors:
            keywords, tensors = dict(zip(self.tensors, tensors, strict=True)) | keywords, []
        try:
            with self._region(x):
                placed, keywords = by_place(self.placed_only, tensors, keywords)
                return self.clock.call(self.declaration.function, *placed, **keywords)
        except SubjectRaised as raised:
            require_willing(raised.problem, may_refuse=self.declaration.may_refuse)
            if not isinstance(raised.problem, NotImplementedError):
                raise
            if undeclared := self._undeclared(x, arguments):
                raise NotApplicable(f"refuses {undeclared}: {raised}") from raised.problem
            raise SubjectRaised(raised.problem, MEANT) from raised.problem

    def _region(self, x: Inputs) -> AbstractContextManager[Any]:
        """Of torch.autocast, where the call is to be made in one."""
        if x.autocast is None:
            return nullcontext()
        return torch.autocast(torch.device(self.device).type, x.autocast)

    def _undeclared(self, x: Inputs, arguments: Arguments) -> str:
        used = {name for name, tensor in arguments.tensors.items() if tensor is not None}
        # What is passed though it says nothing, as is_causal=False, is not used.
        used |= {name for name, said in arguments.plain.items() if said and said != (self.no_limit,) * 2}
        names = [f for f, row in FEATURES.items() if row.argument in used and not self.declared(f)]
        if self.declaration.gradients is None and any(
            tensor is not None and tensor.requires_grad for tensor in arguments.tensors.values()
        ):
            names.append("gradients")
        if (dtype := str(x.dtype).removeprefix("torch.")) not in (self.declaration.dtypes or ("float32",)):
            names.append(dtype)
        return ", ".join(names)

    def _canonical(self, x: Inputs, parts: dict[str, Any]) -> Answer:
        output = self.canonical(self._checked(x, parts["output"]), x.batch, x.heads, self.output_layout)
        forms, extras = self.forms(x), {name: parts[name] for name in RETURN_ARGUMENTS if name in parts}
        for name, extra in extras.items():
            said = "the call" if self.declaration.returns else f"{RETURN_ARGUMENTS[name]}=True"
            if not isinstance(extra, Tensor):
                raise LawBroken(f"{said} returned {kind_of(extra)} as {name}, expected a torch.Tensor")
            if (shape := tuple(extra.shape)) != forms[name]:
                raise LawBroken(f"{said} returned {name} of shape {shape}, expected {forms[name]}")
            if extra.device.type != output.device.type:
                raise LawBroken(f"{said} returned {name} on {extra.device}, expected {self.device}")
            extras[name] = self.rows_in_order(extra, name).reshape(_whole(x)[name])
        if "log_sum_exp" in extras and self.declaration.log_sum_exp == BASE_2:
            extras["log_sum_exp"] = extras["log_sum_exp"].double() * math.log(2)
        if "log_sum_exp" in extras and self.declaration.empty_log_sum_exp == "inf":
            found = extras["log_sum_exp"]
            extras["log_sum_exp"] = torch.where(found.isinf(), -found, found)
        answer = Answer(output, extras.get("log_sum_exp"), extras.get("weights"))
        if self.declaration.grouped_heads == "tiled" and x.group > 1:
            return each_part(answer, lambda part: from_tiled(part, x.kv_heads))
        return answer

    def _checked(self, x: Inputs, output: Any) -> Tensor:
        """The output, a plain tensor of the right shape, dtype and device in the subject's own layout."""
        found = output.dtype if isinstance(output, Tensor) else None
        shape = self.forms(x)["output"]
        return plain_tensor(output, shape, found if found in x.dtypes else x.dtype, self.device)

    def forms(self, x: Inputs) -> dict[str, tuple[int, ...]]:
        """The shape of everything that a call may return, as the subject has it."""
        lacking, whole = "" if self.is_packed else lacking_axes(self.declaration.layout), _whole(x)
        native = {
            name: tuple(size for size, axis in zip(shape, "bhqk", strict=False) if axis not in lacking)
            for name, shape in whole.items()
        }
        output = self._native(torch.empty(whole["output"], device="meta"), self.output_layout)
        if order := self.declaration.log_sum_exp_layout:
            sizes = dict(zip("bhs", whole["log_sum_exp"], strict=True))
            native["log_sum_exp"] = tuple(sizes[axis] for axis in order)
        return native | {"output": tuple(output.shape)}

    def rows_in_order(self, extra: Tensor, name: str) -> Tensor:
        """What is returned, a log-sum-exp with its heads before its rows."""
        order = self.declaration.log_sum_exp_layout if name == "log_sum_exp" else None
        return extra.permute([order.index(axis) for axis in "bhs" if axis in order]) if order else extra

    def _canonical_gradients(self, x: Inputs, found: dict[str, Tensor | None]) -> Gradients:
        names = ("query", "key", "value", "attn_mask", "sinks")
        return Gradients(*(self.canonical_gradient(x, name, found.get(name)) for name in names))

    def canonical_gradient(self, x: Inputs, name: str, gradient: Tensor | None) -> Tensor | None:
        """What autograd gave for an argument, its axes and heads as laws have them."""
        if gradient is None:
            return None
        gradient = gradient.cpu()
        if name in ("query", "key", "value"):
            gradient = self.canonical(gradient, x.batch, x.heads)
        if name == "attn_mask" and x.attn_mask is not None and self.mask_shapes is not None:
            sizes = (x.batch, x.heads, x.q_len, x.kv_len)
            gradient = in_broadcast_shape(gradient, shape_for(x.attn_mask, self.mask_shapes, sizes))
        tiled = self.declaration.grouped_heads == "tiled" and x.group > 1
        with_heads = gradient.ndim > 2 and gradient.shape[-3] == x.heads
        if tiled and with_heads and name in ("query", "attn_mask"):
            by_batch = gradient.reshape(-1, *gradient.shape[-3:])
            gradient = from_tiled(by_batch, x.kv_heads).reshape(gradient.shape)
        if tiled and name == "sinks":
            gradient = from_tiled(gradient[None], x.kv_heads)[0]
        if name == "attn_mask" and x.attn_mask is not None and gradient.shape != x.attn_mask.shape:
            gradient = gradient_of_shape(gradient, x.attn_mask.shape)
        return gradient


def _whole(x: Inputs) -> dict[str, tuple[int, ...]]:
    """The shape of everything that a call may return, with all axes."""
    rows = (x.batch, x.heads, x.q_len)
    return {"output": (*rows, x.value_dim), "log_sum_exp": rows, "weights": (*rows, x.kv_len)}
