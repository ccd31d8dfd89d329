"""Notes on what no law asks of a subject, and on parameters that are left alone: they explain nothing that broke."""

import torch
from torch import Tensor
from torch.nn import functional

from headcheck.attention.accepting import TORCHS_OWN
from headcheck.attention.features import FEATURES
from headcheck.attention.inputs import Inputs
from headcheck.attention.readout import reading_the_weights
from headcheck.attention.subject import AttentionSubject
from headcheck.attention.trying import PLAIN, built, is_right_on
from headcheck.comparison import LawBroken, NotApplicable
from headcheck.signatures import left_at_defaults, not_recognised, parameters_of
from headcheck.verdict import Hint

INPUTS = ("query", "key", "value")
NEARLY = 1e-3
"""How far from a fit weights may be: an epsilon in a norm, a format of 16 bits."""
NO_MASKS = ("len", "cache", "pos", "window")
"""What stands in the name of a parameter that is no mask, though its default is None."""


def second_derivatives_note(trial: AttentionSubject) -> str:
    """Whether a backward pass that can be followed by another gives other derivatives than differences do."""
    if "float64" not in trial.dtypes or trial.declaration.gradients is False:
        return ""
    x, step = built(trial, PLAIN.but(dtype="float64")), 1e-3
    turn = {name: x.normal_like(getattr(x, name), f"turn/{name}") for name in INPUTS}
    moved = [x.but(**{name: getattr(x, name) + by * turn[name] for name in INPUTS}) for by in (step, -step)]
    try:
        size, inputs = _size_of_gradients(trial, x)
        if not size.requires_grad:
            return ""
        second = trial.clock.call(torch.autograd.grad, size, [*inputs.values()], materialize_grads=True)
        there, back = (float(_size_of_gradients(trial, each)[0].detach()) for each in moved)
    except (LawBroken, NotApplicable):
        return ""
    given = (trial.canonical_gradient(x, name, each) for name, each in zip(inputs, second, strict=True))
    told = sum(
        float((each * turn[name]).sum()) for name, each in zip(inputs, given, strict=True) if each is not None
    )
    slope = (there - back) / (2 * step)
    if abs(told - slope) <= 0.1 * abs(slope) + 1e-3 * abs(there):
        return ""
    return "second derivatives are given and are wrong; no law tests them"


def normalised_note(trial: AttentionSubject, x: Inputs) -> str:
    """Whether the weights of a plain call are those of a query and a key that are normalised first (QK-norm)."""
    logs = logs_of_weights(trial, x)
    query, key = (functional.normalize(each.double(), dim=-1) for each in (x.query, x.key))
    products = centred(query @ key.mT)
    if logs is None or not logs.isfinite().all():
        return ""
    scale = (logs * products).sum() / products.square().sum()
    if scale <= 0 or (logs - scale * products).norm() > NEARLY * logs.norm():
        return ""
    return (
        "a plain call is right for query and key that are normalised first (QK-norm), which these laws do not know: "
        "judge what comes after that, in a function of its own"
    )


def logs_of_weights(trial: AttentionSubject, x: Inputs) -> Tensor | None:
    """The logarithms of the weights of a call, each row about its mean; None where there is no answer."""
    x = reading_the_weights(trial, x)
    try:
        return centred(trial(x)[..., : x.kv_len].double().log())
    except (LawBroken, NotApplicable):
        return None


def centred(rows: Tensor) -> Tensor:
    """Each row about its mean."""
    return rows - rows.mean(dim=-1, keepdim=True)


def overflow_note(trial: AttentionSubject) -> str:
    """Whether products of 80,000, which float16 cannot hold, are lost although they are 40,000 once scaled."""
    if "float16" not in trial.dtypes:
        return ""
    x = built(trial, PLAIN.but(dtype="float16"))
    entry = (40_000 / x.resolved_scale / x.head_dim) ** 0.5
    x = x.but(query=torch.full_like(x.query, entry), key=torch.full_like(x.key, entry), generic=False)
    try:
        lost = not trial(x).isfinite().all()
    except (LawBroken, NotApplicable):
        return ""
    said = "products of query and key above 65,504 overflow, although they would fit once scaled"
    return f"float16: {said}; not judged, as most eager code does so" if lost else ""


def _size_of_gradients(trial: AttentionSubject, x: Inputs) -> tuple[Tensor, dict[str, Tensor]]:
    """The sum of the squares of all gradients, and the inputs that it can be differentiated by."""
    arguments = trial.arguments_for(x)
    inputs = trial.want_gradients(arguments, INPUTS)
    output = trial.run(x, arguments).output
    if not output.requires_grad:
        raise NotApplicable("the output carries no gradient")
    sent = x.cotangent.to(output)
    first = trial.clock.call(
        torch.autograd.grad, output, [*inputs.values()], sent, create_graph=True, materialize_grads=True
    )
    return torch.stack([each.square().sum() for each in first]).sum(), inputs


def lengths_note(trial: AttentionSubject) -> str:
    """Whether what is taken for the number of keys of each sequence gives another answer than that."""
    if trial.declared("key_lengths") or not trial.has("key_lengths"):
        return ""
    x = built(trial, PLAIN.but(batch=2, dtype=trial.dtypes[0]))
    x = x.but(key_lengths=(x.kv_len, max(1, x.kv_len - 1)))
    if is_right_on(trial, x, if_refused=True):
        return ""
    name = trial.arguments["key_lengths"]
    said = (
        f"{name} is taken for how many keys each sequence has, and a plain call with it gives another answer"
    )
    return f"{said}: where it is something else, --declare key_lengths=False"


def mask_candidates(trial: AttentionSubject) -> list[str]:
    """The parameters that are not recognised and may be a mask: by their names, or else by their default, None."""
    unknown = not_recognised(trial.declaration.function, trial.arguments.values(), len(INPUTS))
    named = [
        each.name
        for each in unknown
        if ("mask" in each.name or "bias" in each.name) and not isinstance(each.default, bool)
    ]
    return named or [
        each.name
        for each in unknown
        if each.default is None and not any(part in each.name for part in NO_MASKS)
    ]


def unrecognised_note(trial: AttentionSubject) -> str:
    """Which parameters are not recognised, and how a mask among them is declared; '' where there are none."""
    unknown = not_recognised(trial.declaration.function, trial.arguments.values(), len(INPUTS))
    if not unknown:
        return ""
    said, masks = left_at_defaults(unknown), mask_candidates(trial)
    if widths := [each.name for each in unknown if "window" in each.name]:
        cure = "a function around it that takes window=(left, right) has it judged (docs/adapting.md)"
        said = Hint(f"{said}; if {widths[0]} is the width of a window, {cure}")
    if "attn_mask" in trial.arguments or len(masks) != 1:
        return said
    meaning = " --declare true_means=block" if masks[0].endswith("key_padding_mask") else ""  # Torch's name.
    return f"{said}; if {masks[0]} is the mask, --declare arguments.attn_mask={masks[0]}{meaning}"


def any_keyword_note(trial: AttentionSubject) -> str:
    """What is not asked of a function that takes any keyword, as its signature does not name it; '' elsewhere."""
    parameters = (parameters_of(trial.declaration.function) or {}).values()
    if not any(each.kind is each.VAR_KEYWORD for each in parameters):
        return ""
    unnamed = [
        row.argument
        for feature, row in FEATURES.items()
        if row.argument in TORCHS_OWN and row.argument not in trial.arguments and not trial.denies(feature)
    ]
    names = [str(name) for name in dict.fromkeys(unnamed) if name not in trial.declaration.always]
    if not names:
        return ""
    cure = f"where one of them is read, declare it, as with --declare arguments.{names[0]}={names[0]}"
    return f"takes any keyword, and is not asked for {', '.join(names)}; {cure}"


def dropout_note(trial: AttentionSubject) -> str:
    """Whether a rate is taken that changes no weight of many, as by a function that takes any keyword."""
    if trial.declaration.dropout is not None or not trial.has("dropout"):
        return ""
    x = built(trial, PLAIN.but(dtype=trial.dtypes[0], batch=2, q_len=4, kv_len=4))
    try:
        unheard = torch.equal(trial(x.but(dropout_p=0.9)), trial(x))
    except (LawBroken, NotApplicable):
        return ""
    name = trial.arguments["dropout_p"]
    return (
        f"{name}=0.9 changes nothing: where no dropout is meant, --declare dropout=False" if unheard else ""
    )
