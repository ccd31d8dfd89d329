"""Which optional arguments of attention a function takes, as its signature or its documentation shows."""

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

from headcheck.declarations import ALIASES
from headcheck.signatures import parameters_of

TORCHS_OWN = ("attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
"""The arguments of torch's function: what takes any keyword is tried with them."""


def accepted_arguments(function: Callable[..., Any], declared: Mapping[str, str]) -> dict[str, str]:
    """Canonical argument -> the parameter that takes it, read off the signature; declared names win."""
    parameters = parameters_of(function)
    if parameters is None:
        return _builtin_arguments(function) | dict(declared)
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    accepted = {}
    for canonical, names in ALIASES.items():
        found = next((name for name in names if name in parameters and _is_meant(name, parameters)), None)
        if found is not None:
            accepted[canonical] = found
    if takes_any and not accepted.keys() & set(TORCHS_OWN):
        accepted |= {name: name for name in TORCHS_OWN}
    return accepted | dict(declared)


def _is_meant(name: str, parameters: Mapping[str, inspect.Parameter]) -> bool:
    """Whether a name that has other meanings elsewhere has ours here, as its default or its neighbours tell."""
    default = parameters[name].default
    told: dict[str, bool] = {
        "p": isinstance(default, float) and default == 0,
        **dict.fromkeys(("mask", "scale"), not isinstance(default, bool)),
        **dict.fromkeys(ALIASES["key_lengths"], default in (None, inspect.Parameter.empty)),
        **dict.fromkeys(("sinks", "window"), not isinstance(default, int)),
        "window_size": default in (None, inspect.Parameter.empty)
        or (isinstance(default, tuple) and set(default) <= {None, -1}),
        "s_aux": default is None,
        "learnable_sink": default is None,
        "return_attn_probs": "softmax_scale" in parameters,
    }
    return told.get(name, True)


def _builtin_arguments(function: Callable[..., Any]) -> dict[str, str]:
    """A function written in C has no signature; its documentation often begins with one."""
    head = (getattr(function, "__doc__", None) or "").strip().partition(")")[0]
    parameters = re.findall(r"(\w+)\s*=", head)
    return {
        canonical: found
        for canonical, names in ALIASES.items()
        if (found := next((name for name in names if name in parameters), None))
    }
