"""The role of what a user names: by its declaration, its kind, its name and its parameters."""

import inspect
import re
import sys
from typing import Any

from headcheck.errors import SubjectError
from headcheck.roles import HOMES, MODULES
from headcheck.roles import role as role_named

OF_TOKENS = r"(bert|encoder).* .*(token|\bids?$|_ids?$)"
"""The name of an encoder, and of a first input that is tokens."""


def role_name(attribute: Any, asked: str | None = None) -> str:
    """The role of a subject: a declaration says it; a plain callable has the one asked for, or one that knows it."""
    if not is_declaration(attribute):
        found = asked or _recognised(attribute) or _attention(attribute)
        if isinstance(attribute, type) and not _makes_instances(found):
            makers = ", ".join(filter(_makes_instances, HOMES))
            raise SubjectError(
                f"{attribute.__name__} is a class; make an instance of it, or a function around one "
                "(docs/adapting.md), and name that, or say its role with --role, where that is one of which headcheck "
                f"makes instances: {makers}{from_its_file(attribute, '')}"
            )
        return found
    role: str = attribute.role
    if asked and asked != role:
        raise SubjectError(f"the subject is declared as {role}; leave out --role {asked}")
    return role


def made(attribute: Any, asked: str | None = None) -> Any:
    """An instance of a class whose constructor needs nothing, where its role does not make instances itself."""
    if not isinstance(attribute, type) or not _needs_nothing(attribute):
        return attribute
    if _makes_instances(asked or _recognised(attribute) or "attention"):
        return attribute
    try:
        return attribute()
    except Exception as problem:
        raise SubjectError(
            f"making an instance of {attribute.__name__} failed: {type(problem).__name__}: {problem}"
        ) from problem


def from_its_file(kind: Any, before: str = "lambda: ") -> str:
    """How an instance is made of a class whose file has KernelBench's get_init_inputs; '' of others."""
    beside = getattr(sys.modules.get(getattr(kind, "__module__", "")), "get_init_inputs", None)
    if not isinstance(kind, type) or not callable(beside):
        return ""
    return f"; of KernelBench's form: subject = {before}{kind.__name__}(*get_init_inputs())"


def is_declaration(attribute: Any) -> bool:
    """Whether an object is a declaration, such as `headcheck.Attention(...)`, and no plain callable."""
    return isinstance(getattr(type(attribute), "role", None), str) and hasattr(attribute, "function")


def is_module_class(attribute: type) -> bool:
    """Whether it is a class of torch modules: some roles make their modules themselves."""
    return any(
        base.__name__ == "Module" and base.__module__ == "torch.nn.modules.module"
        for base in attribute.__mro__
    )


def _recognised(attribute: Any) -> str | None:
    """The first role that knows a callable by its name or its kind; a function of query, key and value is attention."""
    if not isinstance(attribute, type) and not is_module_class(type(attribute)):
        names = [each.name for each in _parameters(attribute) or ()]
        if _are_query_key_value(names):
            return "attention"
    return next((name for name in HOMES if role_named(name).recognises(attribute)), None)


def _makes_instances(role: str) -> bool:
    return bool(getattr(role_named(role), "classes", False))


def _needs_nothing(attribute: type) -> bool:
    parameters = _parameters(attribute)
    stars = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return parameters is not None and all(
        each.default is not each.empty or each.kind in stars for each in parameters
    )


def _parameters(function: Any) -> list[inspect.Parameter] | None:
    """What a callable takes; None where that cannot be known, as of some functions of C."""
    from headcheck.signatures import parameters_of

    found = parameters_of(function)
    return None if found is None else [*found.values()]


def _attention(attribute: Any) -> str:
    """'attention'; SubjectError if what it takes cannot be query, key and value."""
    kind = attribute if isinstance(attribute, type) else type(attribute)
    of_module = is_module_class(kind)
    unbound = of_module and isinstance(attribute, type)
    takes = _parameters(attribute.forward if unbound else attribute)
    if takes is None:
        return "attention"
    takes = takes[unbound:]  # without self
    names = [each.name for each in takes]
    if not takes and not of_module:
        raise SubjectError(
            f"{_name(attribute)} is a function that takes nothing; if it makes a module, say the role of that with "
            f"--role: {', '.join(MODULES)}"
        )
    if of_module:
        likely = "" if _module_may_attend(takes) else _likely_roles(kind.__name__, names)
    else:
        likely = "" if _starred(takes) else _roles_of_parameters(names)
    if likely:
        what = f"{kind.__name__} is a module" if of_module else f"{_name(attribute)} is a function"
        raise SubjectError(
            f"{what} that takes ({', '.join(names)}), not query, key and value, "
            f"and its name tells no other role; say it with --role: {likely}, or attention"
        )
    return "attention"


def _name(function: Any) -> str:
    return getattr(function, "__name__", type(function).__name__)


def _starred(takes: list[inspect.Parameter]) -> bool:
    """Whether any of the first three parameters takes as many as there are."""
    return any(each.kind is each.VAR_POSITIONAL for each in takes[:3])


def _module_may_attend(takes: list[inspect.Parameter]) -> bool:
    """Whether a forward has three parameters first, of which only keys and values need not be given."""
    first = takes[:3]
    optional = any(each.default is not each.empty and each.name[0] not in "kv" for each in first)
    return _starred(takes) or (len(first) == 3 and not optional)


def _likely_roles(name: str, parameters: list[str]) -> str:
    """The role that its name or first parameter points to, or all roles that modules have."""
    words = {
        "multi_head_attention": "att",
        "encoder, with a module around it that is given states (docs/adapting.md)": OF_TOKENS,
        "causal_lm": "token|ids|idx",
        "vision": "image|img|pixel",
        "sinusoidal or rotary, with a function around it (docs/adapting.md)": "position",
    }
    if any(re.match("tgt|trg|target|decoder_input", each) for each in parameters[1:]):
        return "seq2seq"
    said = f"{name} {parameters[0] if parameters else ''}".lower()
    return next(
        (role for role, signs in words.items() if re.search(signs, said)),
        ", ".join((*MODULES, "rms_norm", "layer_norm", *(["softmax"] if len(parameters) == 1 else []))),
    )


def _are_query_key_value(names: list[str]) -> bool:
    """Whether the first three parameters begin with q, k and v."""
    return [name[:1].lower() for name in names[:3]] == ["q", "k", "v"]


def _roles_of_parameters(names: list[str]) -> str:
    """The roles of functions that the names of parameters point to; '' where they may be query, key and value."""
    first = [name.lower() for name in names[:3]]
    if _are_query_key_value(names):
        return ""
    words = {
        "layer_norm": {"bias", "beta"} if {"eps", "epsilon"} & {*names} else set(),
        "rms_norm or layer_norm": {"eps", "epsilon", "gamma"},
        "rotary": {"positions", "position_ids", "cos", "freqs_cis"},
        "sinusoidal": {"d_model"},
        "softmax": {"dim", "axis"},
    }
    return next(
        (role for role, signs in words.items() if signs & {*(first if role == "softmax" else names)}), ""
    )
