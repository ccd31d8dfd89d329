"""A module of multi-head attention as laws see it: made for a case, given its weights, called with its masks."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from headcheck.calling import kind_of
from headcheck.comparison import Comparison, LawBroken, NotApplicable, within
from headcheck.modules.lengths import OfSomeLength
from headcheck.modules.masks import MaskForm
from headcheck.modules.multi_head.bounds import FLIPS, output_bound, score_error
from headcheck.modules.multi_head.cases import MultiHeadCase, MultiHeadInputs
from headcheck.modules.multi_head.conventions import MultiHeadAttention
from headcheck.modules.multi_head.dropping import DroppingModule
from headcheck.modules.multi_head.masks import as_kind, in_shape, shape_for, sliced
from headcheck.modules.multi_head.oracle import GIVEN, expected
from headcheck.modules.returned import tensor_in
from headcheck.signatures import needed_by, parameters_of
from headcheck.strides import placed

COUNTED = MaskForm(1, "lengths", real_is_true=True)
"""A mask of the keys that says how many of each sequence are real (d2l)."""
LENGTHS_OF_KEYS = COUNTED.kind


@dataclass
class Found:
    """The conventions of a module, as declared or as found out on plain calls."""

    mask_forms: tuple[tuple[str, str], ...] = ()
    """Kind and shape of each mask that is taken."""
    read_otherwise: tuple[str, ...] = ()
    """Shapes in which a mask is taken and does not say what it says in torch."""
    of_self: bool = False
    """Whether attn_mask acts in self-attention alone: with keys of another sequence, a mask of another name does."""
    needs_mask: bool = False
    """Whether a mask that hides nothing is given where there is no other."""
    key_masks: tuple[str, ...] = ("boolean",)
    true_means: str = "keep"
    key_true_means: str = "keep"
    empty_rows: str = "undefined"
    weights: str = ""
    unit: float = 2.0**-53

    @property
    def mask_shapes(self) -> tuple[str, ...]:
        """The shapes in which masks are taken, of any kind."""
        return tuple(dict.fromkeys(shape for _, shape in self.mask_forms))

    @property
    def masks(self) -> tuple[str, ...]:
        """The kinds of mask that are taken, in any shape."""
        return tuple(dict.fromkeys(kind for kind, _ in self.mask_forms))

    def kind_for(self, shape: str, wanted: str) -> str:
        """The wanted kind of mask where it is taken in this shape, or one that is."""
        kinds = [kind for kind, each in self.mask_forms if each == shape]
        return wanted if wanted in kinds else kinds[0]


class MultiHeadSubject(OfSomeLength, DroppingModule):
    """Laws see inputs of `MultiHeadInputs` and the output (batch, q_len, d_model)."""

    FEATURES: ClassVar = {
        "cross": "takes no keys of another sequence",
        "separate": "takes no values apart from the keys",
        "attn_mask": "takes no mask in a shape that is known",
        "no_mask": "is given a mask in every call",
        "additive": "takes no additive attn_mask",
        "head_masks": "takes no mask for each head",
        "key_mask": "takes no mask of the keys",
        "additive_key_mask": "takes no additive mask of the keys",
        "is_causal": "takes no is_causal",
        "need_weights": "cannot be asked for weights",
        "average": "cannot be asked whether to average weights",
        "returned_weights": "returns no weights",
        "whole_weights": "is not declared to return its weights as they were before dropout",
        "bias": "has no biases",
        "dropout": "has no dropout that is known",
        "free": "is always causal",
        "places": "is given its weights by a function of its own",
        "sizes": "is of one size",
        "many_heads": "has one head",
    }

    def __init__(
        self, declaration: MultiHeadAttention, *, dtypes: tuple[str, ...], device: str = "cpu"
    ) -> None:
        super().__init__(declaration, dtypes=dtypes, device=device)
        self.found = Found()
        self.max_length = self.declaration.max_length
        self._masks: dict[str, Any] | None = None

    # What it can do

    def lacks(self, feature: str) -> str | None:
        found, place = self.found, self.places
        there = {
            "cross": bool(place["key"]) and not self.declaration.causal,
            "separate": bool(place["value"]) and not self.declaration.causal,
            "attn_mask": bool(found.mask_forms),
            "no_mask": not found.needs_mask,
            "additive": bool(found.mask_forms) and "additive" in found.masks,
            "head_masks": any("h" in shape for shape in found.mask_shapes),
            "key_mask": bool(place["key_mask"]),
            "additive_key_mask": bool(place["key_mask"]) and "additive" in found.key_masks,
            "is_causal": bool(place["is_causal"]) and (bool(found.mask_forms) or not self._hint),
            "need_weights": bool(place["need_weights"]),
            "average": bool(place["average"]),
            "returned_weights": bool(found.weights),
            "whole_weights": self.declaration.dropped_weights is False,
            "bias": len(self.biases) == 4,
            "dropout": bool(self._dropouts()),
            "free": not self.declaration.causal,
            "places": self.declaration.load is None,
            "sizes": self.maker is not None and self.declaration.d_model is None and self.heads is None,
            "many_heads": self.heads != 1,
        }[feature]
        return None if there else self.FEATURES[feature]

    @property
    def _hint(self) -> bool:
        """Whether is_causal is said beside a mask."""
        declared: bool | None = self.declaration.causal_hint
        return self.places["key_mask"] == "key_padding_mask" if declared is None else declared

    def beside_causal(self, x: MultiHeadInputs) -> MultiHeadInputs | None:
        """The same call with is_causal beside its mask; None where there is none, or is_causal only repeats it."""
        if self._hint or not self.has("is_causal") or not self.has("attn_mask") or x.may_attend is None:
            return None
        return x.but(beside_causal=True) if x.query.shape[1] == x.keys.shape[1] and not x.is_causal else None

    # Calls

    def weights(self) -> list[Tensor]:
        """The parameters and buffers of the module that the case is given to."""
        if self._loaded is None and self._begun is not None:
            self._ready(self._begun)
        assert self.module is not None
        return [*self.module.parameters(), *self.module.buffers()]

    def output(self, x: MultiHeadInputs) -> Tensor:
        return self._output_in(self.returned(x), x)

    def _output_in(self, returned: Any, x: MultiHeadInputs) -> Tensor:
        output = self._batch_first(tensor_in(returned, ("last_hidden_state", "output")))
        if tuple(output.shape) != tuple(x.query.shape):
            raise LawBroken(f"output has shape {tuple(output.shape)}, expected {tuple(x.query.shape)}")
        return output

    def returned_weights(self, x: MultiHeadInputs, *, averaged: bool | None = None) -> Tensor:
        """The weights: (batch, q_len, kv_len) averaged, (batch, heads, q_len, kv_len) for each head.

        averaged: said to the module where it can be asked; None: as it does by itself.
        """
        with torch.no_grad():
            return self.output_and_weights(x, averaged=averaged)[1].detach().cpu().clone()

    def output_and_weights(
        self, x: MultiHeadInputs, *, averaged: bool | None = None
    ) -> tuple[Tensor, Tensor]:
        """Both of one call, the weights as above, with the graph that they carry."""
        returned = self.returned(x, average=averaged, need_weights=self.has("need_weights") or None)
        second = returned[1] if isinstance(returned, tuple | list) and len(returned) > 1 else returned
        if not isinstance(second, Tensor):
            raise LawBroken(f"returned {kind_of(second)} where the weights come, expected a torch.Tensor")
        per_head = self.found.weights == "per-head" if averaged is None else not averaged
        axes = (len(x.query), x.heads, x.query.shape[1], x.keys.shape[1])
        expected = axes if per_head else axes[:1] + axes[2:]
        if tuple(second.shape) != expected:
            raise LawBroken(f"weights have shape {tuple(second.shape)}, expected {expected}")
        return self._output_in(returned, x), second

    def returned(self, x: MultiHeadInputs, **more: Any) -> Any:
        """What a call returns; more: what it is asked for, by canonical names."""
        self.require_room(max(x.query.shape[1], x.keys.shape[1]))
        self._ready(x)
        asked = more.pop("need_weights", None)
        if asked is None and self.places["need_weights"]:
            asked = x.case.need_weights
        tensors = {"key": x.key, "value": x.value}
        needed = self.required("key", "value", "attn_mask", "key_mask", "lengths")
        for name, tensor in (("key", x.keys), ("value", x.values)):
            if tensors[name] is None and (name in needed or (name == "value" and tensors["key"] is not None)):
                tensors[name] = tensor if self.places[name] else None
        told = {id(each): self._given(each) for each in (x.query, *tensors.values()) if each is not None}
        given = {name: None if each is None else told[id(each)] for name, each in tensors.items()}
        query = told[id(x.query)]  # One tensor that is given twice is one tensor for the module too.
        masks = self.masks_given = self.masks_for(x)
        keywords = {**given, **masks, "need_weights": asked, **more}
        if self.found.of_self and x.key is not None and self.places["cross_mask"]:
            keywords["cross_mask"] = keywords.pop("attn_mask", None)
        if self.places["query"]:
            keywords["query"] = query
        by_name = {
            str(self.places[name] or name): keywords.get(name)
            for name in {**keywords, **dict.fromkeys(sorted(needed))}
            if keywords.get(name) is not None or name in needed
        }
        return self.called(*([] if self.places["query"] else [query]), **by_name)

    def required(self, *names: str) -> set[str]:
        """Which of these arguments a call cannot do without; a mask may then be None."""
        assert self.module is not None
        needed = needed_by(self.module.forward) or ()
        return {name for name in names if str(self.places[name]) in needed}

    def _given(self, x: Tensor) -> Tensor:
        return self._batch_first(placed(x, self.device))

    def _batch_first(self, x: Tensor) -> Tensor:
        declared = self.declaration.batch_first
        first = getattr(self.module, "batch_first", True) if declared is None else declared
        return x if first else x.transpose(0, 1)

    def masks_for(self, x: MultiHeadInputs) -> dict[str, Any]:
        """What is given of masks, by canonical names: tensors, and is_causal."""
        if self._masks is not None:
            return self._masks
        masks = {**self._not_causal(), **self._attn_mask(x), **self._key_mask(x)}
        if not x.sliced_masks:
            return masks
        return {
            name: sliced(each) if isinstance(each, Tensor) and each.ndim > 1 else each
            for name, each in masks.items()
        }

    @contextmanager
    def giving(self, masks: dict[str, Any]) -> Iterator[None]:
        """With these masks in every call, the same tensors."""
        self._masks = masks
        try:
            yield
        finally:
            self._masks = None

    def _not_causal(self) -> dict[str, Any]:
        """is_causal=False for a module that is causal where nothing is said, and is not declared to be so always."""
        takes = parameters_of(self.module.forward) or {} if self.module is not None else {}
        flag = takes.get(str(self.places["is_causal"]))
        said = flag is None or flag.default not in (None, True) or self.declaration.causal
        return {} if said else {"is_causal": False}

    def _attn_mask(self, x: MultiHeadInputs) -> dict[str, Any]:
        if x.may_attend is None and self.found.needs_mask:
            x = x.nothing_hidden()
        if x.may_attend is None:
            return {}
        flag = {"is_causal": True} if x.is_causal or x.beside_causal else {}
        if flag and not self._hint and not x.beside_causal:
            return flag
        kind, shape = self._form_for(x.may_attend, x.case)
        mask = as_kind(in_shape(x.may_attend, shape, x.heads), kind, self.found.true_means, x.query.dtype)
        if x.score_bias is not None:
            mask = mask + in_shape(x.score_bias, shape, x.heads)
        return {"attn_mask": mask.to(self.device), **flag}

    def _form_for(self, may_attend: Tensor, case: MultiHeadCase) -> tuple[str, str]:
        """Kind and shape of the mask that says it: those of the case where they are taken together.

        NotApplicable: none is taken that could.
        """
        found = self.found
        if not found.mask_forms:
            raise NotApplicable("takes no mask of a shape that could say it")
        kind = case.mask_kind if case.mask_kind in found.masks else found.masks[0]
        of_kind = [shape for each, shape in found.mask_forms if each == kind]
        wanted = case.mask_shape if case.mask_shape in of_kind else of_kind[0]
        shape = shape_for(may_attend, wanted, [*of_kind, *found.mask_shapes])
        return found.kind_for(shape, kind), shape

    def _key_mask(self, x: MultiHeadInputs) -> dict[str, Any]:
        if x.is_real is None:
            return {}
        # Torch wants both masks of one kind.
        asked = "boolean" if x.of_two_kinds else x.case.mask_kind
        kind = asked if asked in self.found.key_masks else self.found.key_masks[0]
        if kind == LENGTHS_OF_KEYS:
            return {"key_mask": COUNTED.of(x.is_real, x.query.dtype).to(self.device)}
        mask = as_kind(x.is_real.clone(), kind, self.found.key_true_means, x.query.dtype)
        if x.key_bias is not None:
            mask = mask + x.key_bias.to(mask.dtype)
        return {"key_mask": mask.to(self.device)}

    def bound(self, x: MultiHeadInputs) -> float:
        """As of any module, by the noise that was measured; where scores are off by so much that a weight may go from
        one key to another, which a few measurements may not show, by the worst case as well.
        """
        measured = super().bound(x)
        if score_error(x, self.found.unit) < FLIPS:
            return measured
        return max(measured, output_bound(x, self.found.unit))

    def close_between(
        self, observed: Tensor, expected: Tensor, x: MultiHeadInputs, other: MultiHeadInputs
    ) -> Comparison:
        """Two answers that are the same but for the rounding at `x` and at `other` together."""
        return within(observed, expected, self.bound(x) + self.bound(other))

    def another(self, x: MultiHeadInputs) -> MultiHeadInputs:
        """A call with one query more, other numbers, and no masks; or the same call with padding, or with other."""
        batch, q_len, d_model = x.query.shape
        if x.case.seed % 2 and self.has("key_mask"):
            if x.is_real is None:
                return x.but(is_real=self.some_keys(x).expand(batch, -1))
            turned = self.turned(x.is_real)
            return x.but(is_real=turned | (torch.arange(turned.shape[1]) == self.anchor(x.case)))
        longer = x.random("another", batch, q_len + 1, d_model)
        return x.masked(None).but(query=longer, is_real=None)

    def turned(self, is_real: Tensor) -> Tensor:
        """Other padding: from the last key to the first, or as much of it as there were real ones where it is counted."""
        if self.counts_keys:
            return ~is_real.flip(1) | (torch.arange(is_real.shape[1]) == 0)
        return is_real.flip(1)

    def visible(self, x: MultiHeadInputs) -> Tensor:
        """What each query may attend to, all told."""
        causal = self.declaration.causal
        return x.visible(always_causal=x.may_attend is None if causal == "unless-masked" else causal)

    def bare(self, x: MultiHeadInputs) -> MultiHeadInputs:
        """The same call with nothing hidden by attn_mask, which is said by a mask where none would mean causal."""
        return x.nothing_hidden() if self.declaration.causal == "unless-masked" else x.masked(None)

    def exact(self, x: MultiHeadInputs) -> Tensor:
        """The output of the reference."""
        return expected(x, self.visible(x))

    def some_keys(self, x: MultiHeadInputs) -> Tensor:
        """Some keys (kv_len,), the same for all sequences: at least one of them, and not all where there are two."""
        kv_len, first = x.keys.shape[1], self.anchor(x.case)
        drawn = torch.rand(kv_len, generator=x.generator("some keys"))
        if self.counts_keys:
            return torch.arange(kv_len) < 1 + int(drawn[0] * (kv_len - 1))
        kept = drawn < 0.5
        kept[first] = True
        kept[(first + 1) % kv_len] = kv_len == 1
        return kept

    def gradients(self, x: MultiHeadInputs, cotangent: Tensor) -> dict[str, Tensor]:
        """Of sum(output x cotangent), for each weight that is trained and known, and for the tensors that are given.

        A tensor that is given twice has one gradient, under both names.
        """
        given = {name: getattr(x, name) for name in GIVEN if getattr(x, name) is not None}
        copies = {id(each): each.clone().requires_grad_() for each in given.values()}
        leaves = {name: copies[id(each)] for name, each in given.items()}
        output = self.output(x.but(**leaves))
        places = self.places_of(x.heads) if self.has("places") else {}
        parameters = {id(p): p for place in places.values() for p, _ in place.parts if p.requires_grad}
        if places and not parameters:
            raise NotApplicable("the weights want no gradient")
        self.require_a_graph(output)
        wanted = [*parameters.values(), *leaves.values()]
        found = self.clock.call(
            torch.autograd.grad, output, wanted, cotangent.to(output), materialize_grads=True
        )
        by_id = dict(zip(map(id, wanted), found, strict=True))
        trained = {n: each for n, each in places.items() if all(id(p) in by_id for p, _ in each.parts)}
        of_weights = {name: place.read(lambda p: by_id[id(p)]) for name, place in trained.items()}
        of_given = {name: by_id[id(leaf)] for name, leaf in leaves.items()}
        return {name: each.cpu().double() for name, each in {**of_weights, **of_given}.items()}
