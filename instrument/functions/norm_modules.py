"""A norm that is a module, or a class that makes one: called as a function of its weight and its bias."""

import inspect
from collections.abc import Callable
from copy import deepcopy
from functools import lru_cache
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from headcheck.declarations import Declaration
from headcheck.errors import SubjectError
from headcheck.recognising import from_its_file

EPS = ("eps", "epsilon", "variance_epsilon", "norm_eps", "layer_norm_eps")
"""How the argument eps is called, of functions and of constructors."""

WEIGHTS = ("weight", "gain", "scale", "gamma", "g", "w", "a_2", "alpha")
BIASES = ("bias", "beta", "b", "b_2", "shift", "offset")
AXES = ("axis", "axes")
"""How the first argument of a constructor is called that takes no width."""
WIDTHS = (
    *("ndim", "dim", "width", "d_model", "n_embd"),
    *("hidden_size", "hidden_dim", "features", "normalized_shape"),
)
"""How the first argument is called of a function that makes norms, and is no norm itself."""
TRIED = 16
"""The width of the module that shows what a class makes."""

AnyNorm = TypeVar("AnyNorm", bound=Declaration)


def as_function(declaration: AnyNorm) -> AnyNorm:
    """The declaration of a function, where a module or a class of modules is declared; itself otherwise.

    A class, or a function of a width that makes a module, is called with a width, by name with eps where that is taken,
    and once for each width; a class whose first argument is an axis is called without, and learns the width of the first
    rows that it sees. The weights of the module are those that the laws give. A weight that is zeros in a new module is
    one to which 1 is added (`weight_offset`).
    """
    given = declaration.function
    if (isinstance(given, type) and issubclass(given, nn.Module)) or _makes_norms(given):
        return _of_class(declaration, given)
    if isinstance(given, nn.Module) and _width(given):
        return _of_instance(declaration, given)
    return declaration


def _makes_norms(given: Callable[..., Any]) -> bool:
    """Whether a function is one that makes norms of a width, as its first parameter is called."""
    return inspect.isfunction(given) and next(iter(inspect.signature(given).parameters), "") in WIDTHS


def _of_class(declaration: AnyNorm, kind: Callable[..., nn.Module]) -> AnyNorm:
    parameters = inspect.signature(kind).parameters
    eps_name = next((name for name in EPS if name in parameters), None)
    learns = next(iter(parameters), "") in AXES
    constant = (
        {"bias": True} if getattr(parameters.get("bias"), "default", None) is inspect.Parameter.empty else {}
    )

    @lru_cache(maxsize=64)
    def made(width: int, eps: float | None) -> nn.Module:
        given = {eps_name: eps} if eps_name and eps is not None else {}
        module = kind(*(() if learns else (width,)), **given, **constant).eval()
        if learns:
            # Of no rows: whoever watches the call in which it is made sees no numbers.
            module(torch.ones(1, 0, width))
        return module

    try:
        module = made(TRIED, None)
    except Exception as problem:
        raise SubjectError(
            f"{kind.__name__}({'' if learns else TRIED}) raised {type(problem).__name__}: {problem}; name a function "
            f"(x, weight, eps) around it, or a module that is made{from_its_file(kind, '')}"
        ) from problem
    return _declared(declaration, module, made, takes_eps=eps_name is not None)


def _of_instance(declaration: AnyNorm, module: nn.Module) -> AnyNorm:
    try:
        kept = deepcopy(module).eval()
    except Exception as problem:
        raise SubjectError(
            f"the module cannot be copied: {problem}; name the class that makes it"
        ) from problem
    width = _width(module)
    if width == 1:
        raise SubjectError(
            "its weight is one number, for rows of any width; name a function (x, eps) around it"
        )
    dims = getattr(declaration, "dims", None) or (width,)
    return _declared(declaration.but(dims=dims), kept, lambda width, eps: kept, takes_eps=False)


def _declared(
    declaration: AnyNorm,
    module: nn.Module,
    made: Callable[[int, float | None], nn.Module],
    *,
    takes_eps: bool,
) -> AnyNorm:
    """The declaration with a function that calls what is made, with the weights that are given."""
    weight, bias = _named(module)
    if bias and "bias" not in declaration.ARGUMENTS:
        raise SubjectError(
            f"{declaration.name} has a bias, and a norm of the role {declaration.role} has none"
        )
    names = [
        "x",
        *(["weight"] if weight else []),
        *(["bias"] if bias else []),
        *(["eps"] if takes_eps else []),
    ]
    signature = inspect.Signature(
        [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in names]
    )

    def norm(*positional: Any, **by_name: Any) -> Any:
        given = signature.bind(*positional, **by_name).arguments
        x: Tensor = given["x"]
        norm_module = made(x.shape[-1], given.get("eps"))
        own = dict(norm_module.named_parameters())
        values = {
            place: given[name].view(own[place].shape)
            for name, place in (("weight", weight), ("bias", bias))
            if place
        }
        return functional_call(norm_module, values, (x,))

    norm.__signature__ = signature  # type: ignore[attr-defined]  # Read by inspect.signature.
    norm.__name__ = declaration.name
    changes: dict[str, Any] = {"function": norm, "arguments": {}}
    if weight:
        changes["weightless"] = False
        if not getattr(declaration, "weight_offset", 0.0) and not torch.any(module.get_parameter(weight)):
            changes["weight_offset"] = 1.0
    if bias:
        changes["biasless"] = False
    return declaration.but(**changes)


def _width(module: nn.Module) -> int:
    """The length of the parameters of a norm; 0 where it has none, or several lengths."""
    lengths = {each.numel() for each in module.parameters()}
    return lengths.pop() if len(lengths) == 1 else 0


def _named(module: nn.Module) -> tuple[str, str]:
    """The names of the parameters that are weight and bias; '' where there is none."""
    names = [name for name, _ in module.named_parameters()]
    bias = next((name for name in names if name.rpartition(".")[2] in BIASES), "")
    weight = next((name for name in names if name.rpartition(".")[2] in WEIGHTS), "")
    left = [name for name in names if name not in (bias, weight)]
    if left and not weight:
        weight = left.pop(0)
    if left:
        raise SubjectError(
            f"which parameters are weight and bias is not known: {', '.join(names)}; name a function"
        )
    return weight, bias
