"""Where a module keeps its weights: found by the names that they commonly have.

The canonical weights are w_q, w_k, w_v, w_o of shape (out, in) and b_q, b_k, b_v, b_o. A module may keep
them in linear layers or bare parameters, fused (qkv, kv), or split into one for each head.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from headcheck.errors import SubjectError
from headcheck.modules.multi_head.conventions import MultiHeadAttention
from headcheck.signatures import needed_by

View = Callable[[Tensor], Tensor]
AFFIXES = (
    *("", "w", "b", "to", "in", "proj", "projection", "project", "linear", "lin", "fc", "layer", "dense"),
    *("map", "weight", "weights", "matrix", "bias", "head", "heads", "transform", "net", "c"),
    "projectionnet",
)
STEMS = {
    "q": ("q", "qs", "query", "queries"),
    "k": ("k", "ks", "key", "keys"),
    "v": ("v", "vs", "value", "values"),
    "o": ("o", "out", "output", "outputs", "attnout", "outproj", "outputproj", "concat"),
    "qkv": ("qkv", "querykeyvalue", "cattn", "inproj", "attn", "packed"),
    "kv": ("kv", "keyvalue", "keysvalues"),
}
ONLY_OUT = (
    "proj",
    "projection",
    "cproj",
    "fc",
    "dense",
    "linear",
    "combine",
    "combineheads",
    "unifyheads",
    "final",
)
NAMES = {
    **dict.fromkeys(ONLY_OUT, "o"),
    **{
        name: letters
        for letters, stems in STEMS.items()
        for stem in stems
        for affix in AFFIXES
        for name in (affix + stem, stem + affix)
    },
}
"""A name without underscores, in small letters -> the projections that it holds, in their order."""
LOAD = "declare headcheck.MultiHeadAttention(..., load=function of module and weights)"
AS_ENCODER = (
    "self-attention with parts that the paper does not have is judged without a reference by --role encoder --declare "
    "skip_path=False, and beside it causal=True where it is causal, positions=True where it adds or turns by positions"
)
IN_ORDER = ("linears", "projections", "projs", "layers", "linearlayers", "qkvnets", "qkvlinears", "qkvprojs")
"""Lists of layers: q, k, v and, where it stands among them, the output."""


@dataclass(frozen=True)
class Layout:
    """How fused and bare weights are laid out."""

    fused: str = "by-part"
    bare: str = "in-out"


@dataclass(frozen=True)
class Place:
    """One canonical weight: the parameters that hold it, one after the other along its first axis."""

    parts: tuple[tuple[Tensor, View], ...]
    is_bias: bool = False
    cure: str = LOAD
    """What may be declared where a weight does not fit."""

    def write(self, weight: Tensor) -> None:
        """Put a canonical weight there. SubjectError: it does not fit."""
        places = [view(parameter.detach()) for parameter, view in self.parts]
        pieces = weight.chunk(len(places))
        if [each.numel() for each in places] != [each.numel() for each in pieces]:
            there = " and ".join(str(tuple(each.shape)) for each in places)
            raise SubjectError(
                f"a weight of shape {tuple(weight.shape)} does not fit into {there}; {self.cure}"
            )
        for place, piece in zip(places, pieces, strict=True):
            place.copy_(piece.reshape(place.shape))

    def read(self, of: Callable[[Tensor], Tensor]) -> Tensor:
        """The canonical tensor of what `of` gives for each parameter, such as its gradient."""
        parts = [view(of(parameter)) for parameter, view in self.parts]
        return torch.cat([part.reshape(-1) if self.is_bias else part.flatten(0, -2) for part in parts])


def found_projections(module: nn.Module, heads: int, layout: Layout) -> dict[str, Place]:
    """Canonical name -> its place. SubjectError: a parameter has no known name, or a projection none."""
    parts: dict[str, list[tuple[Tensor, View]]] = defaultdict(list)
    unknown, cure = [], _cure(module)
    for path, parameter in module.named_parameters():
        letters, bare = _meaning(path)
        if letters is None:
            unknown.append(path)
            continue
        kind = "b" if parameter.ndim == 1 or path.lower().endswith("bias") else "w"
        of_two_axes = bare and parameter.ndim == 2 and kind == "w"
        turned = _is_turned(module, path) or (of_two_axes and layout.bare == "in-out")
        for letter, view in _views(letters, heads, layout, cure, turned=turned):
            parts[f"{kind}_{letter}"].append((parameter, view))
    lacking = [name for name in ("w_q", "w_k", "w_v", "w_o") if name not in parts]
    if unknown or lacking:
        problem = f"{unknown[0]} has no known name" if unknown else f"{lacking[0]} is not found"
        raise SubjectError(f"where the weights belong is not known ({problem}); {cure}")
    return {name: Place(tuple(each), is_bias=name[0] == "b", cure=cure) for name, each in parts.items()}


def _cure(module: nn.Module) -> str:
    """What may be declared: one that must be given key or value cannot be judged as an encoder."""
    names = {*MultiHeadAttention.ARGUMENTS["key"], *MultiHeadAttention.ARGUMENTS["value"]}
    return LOAD if names & {*(needed_by(module.forward) or ())} else f"{LOAD}; {AS_ENCODER}"


def _meaning(path: str) -> tuple[str | None, bool]:
    """Which projections a parameter holds, by its name or its layer's, and whether it is laid out as bare."""
    *owners, leaf = path.split(".")
    layer = leaf in ("weight", "bias")
    named = [each for each in owners if not each.isdigit()] if layer else [leaf]
    name = named[-1].lower().replace("_", "") if named else ""
    if name in ONLY_OUT and NAMES.get(owner := "".join(named[-2:-1]).lower().replace("_", "")) in (
        "q",
        "k",
        "v",
    ):
        name = owner  # A layer within one for the query, key or value.
    if layer and name in IN_ORDER and owners[-1] in ("0", "1", "2", "3"):
        return "qkvo"[int(owners[-1])], False
    torchs = leaf.endswith("proj_weight")
    return NAMES.get(name), not (layer or torchs)


def _is_turned(module: nn.Module, path: str) -> bool:
    """Whether a parameter is the weight (in, out) of a Conv1D, as GPT-2 has them."""
    owner, _, leaf = path.rpartition(".")
    return leaf == "weight" and type(module.get_submodule(owner)).__name__ == "Conv1D"


def _views(
    letters: str, heads: int, layout: Layout, cure: str, *, turned: bool
) -> Iterator[tuple[str, View]]:
    def straight(x: Tensor) -> Tensor:
        return x.mT if turned else x

    for number, letter in enumerate(letters):
        yield letter, _part(straight, number, len(letters), heads if layout.fused == "by-head" else 1, cure)


def _part(straight: View, number: int, parts: int, groups: int, cure: str) -> View:
    """One of the parts that a fused weight holds: of the whole, or of each group of its rows."""
    if parts == 1:
        return straight

    def part(x: Tensor) -> Tensor:
        rows = straight(x)
        if len(rows) % (groups * parts):
            raise SubjectError(
                f"{len(rows)} rows of a weight are not {parts} parts for {groups} heads; {cure}"
            )
        return torch.unflatten(rows, 0, (groups, parts, -1))[:, number]

    return part


def fits(module: nn.Module, heads: int, layout: Layout) -> bool:
    """Whether the weights, laid out so, have shapes that can follow each other."""
    try:
        places = found_projections(module, heads, layout)
        q, k, v, o = (places[f"w_{letter}"].read(Tensor.detach).shape for letter in "qkvo")
    except SubjectError:
        return False
    return k == v and q[1] == k[1] == o[0] and q[0] == o[1]
