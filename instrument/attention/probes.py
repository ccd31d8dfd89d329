"""What is found out about a subject: one function for each convention.

Each probe gives the subject an input on which the possible conventions have different answers, and sees which
of them the oracle shares. Where none or several do, nothing is claimed. Most queries are zero: then every key
counts the same, whatever the scale, and the answer is a mean that names the keys it was taken over.

Adding a probe is adding one function under `@probe()`; they run in the order of this file, each with the
conventions that those before it have found. With `compared`, `headcheck agree` asks it of each of its subjects.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from headcheck import inference
from headcheck.arithmetic import MODELS
from headcheck.attention.bench import Bench, Finding, Found, as_asked, probe
from headcheck.attention.hints import band_of_every_call, read_as_the_other
from headcheck.attention.inputs import Inputs
from headcheck.attention.merging import in_sixteen_bits_too, shown_by_large_numbers
from headcheck.attention.notes import mask_candidates, unrecognised_note
from headcheck.attention.rounding import computes_in_float32, infer_arithmetic
from headcheck.attention.scale_shown import SCALES, other_scale
from headcheck.attention.subject import AttentionSubject
from headcheck.attention.trial import OF_TORCH
from headcheck.attention.trying import PLAIN
from headcheck.comparison import LawBroken, NotApplicable
from headcheck.declarations import BROADCAST_SHAPES, DTYPES, LOW_PRECISION, MASK_SHAPES
from headcheck.errors import SubjectError
from headcheck.reference.masks import additive


@probe()
def dtypes(bench: Bench) -> Finding:
    """Heads and length are equal here, so that the layout does not matter."""
    why, accepted = "", []
    for dtype in DTYPES:
        bench.dtype = dtype
        problem = bench.problem(bench.inputs(heads=3, q_len=3, kv_len=3))
        why = why or problem
        accepted += [] if problem else [dtype]
    bench.dtype = accepted[0] if accepted else "float32"
    if not accepted:
        raise SubjectError(f"no plain call of the subject works: {why}")
    return Finding("dtypes", tuple(accepted), "a plain call returns a tensor of the same dtype")


@probe()
def layout(bench: Bench) -> Iterator[Finding]:
    """The values are averaged over the axis that is the sequence: over all of it, or, in each call, over the past."""
    found, x = bench.declaration, bench.inputs(heads=2, kv_heads=2, q_len=3, kv_len=3)
    if not bench.fits(x):
        if not bench.fits(x, x.but(is_causal=True)):
            yield Finding("layout", None, bench.problem(x) or "no layout fits", told=False)
            return
        why = "a plain call is right only as if it were causal"
        yield Finding("always", {**found.always, "is_causal": True}, why)
    yield Finding("layout", found.layout, "equal scores average the values over the sequence axis")
    if found.output_layout:
        yield Finding("output_layout", found.output_layout, "the order of the axes of the output")
    always = bench.declaration.always
    if (band := band_of_every_call(bench.subject())) is not None:
        yield Finding("always", {**always, "window": band}, "a call of 48 tokens is right only so")


@probe(compared="value_dim other than head_dim", otherwise="True")
def value_dim(bench: Bench) -> Finding:
    """Whether value may have another dim than query and key."""
    if bench.declaration.value_dim is False:
        return Finding("value_dim", False, "another dim than that of query and key is refused")
    dims = bench.declaration.head_dims or (4, 3)
    x = bench.inputs(head_dim=dims[0], value_dim=dims[-1])
    return _supported("value_dim", bench, x, "value of another dim than query and key")


@probe(compared="any strides", otherwise="True")
def any_strides(bench: Bench) -> Finding:
    """Whether the last axis may have any stride."""
    x = bench.inputs().but(strides="dim-first")
    return _supported("any_strides", bench, x, "a last axis whose stride is not 1")


@probe()
def default_scale(bench: Bench) -> Iterator[Finding]:
    """The scale where none is given; another one is declared by `always` where it is a number."""
    x = bench.built(heads=2, kv_heads=2, q_len=5, kv_len=5, head_dim=4, value_dim=4, seed=2)
    usual = "1 / sqrt(head_dim)"
    scales = {usual: x.head_dim**-0.5, **{name: scale(x) for name, scale in SCALES.items()}}
    # In 16 bits the scores of wide heads may be off by so much that several scales explain the answer.
    nearest = min(scales, key=lambda name: bench.error(x, x.but(scale=scales[name])))
    is_usual = nearest == usual and bench.fits(x)
    other = None if is_usual else other_scale(bench.subject(), PLAIN.but(dtype=bench.dtype))
    if other is None:
        yield bench.which(
            "default scale",
            scales,
            lambda name: is_usual and name == usual,
            "random query and key, no scale given",
            why_not=bench.problem(x),
            declarable=False,
        )
    elif other.number is None:
        how = "no convention of headcheck's: a law will break; wrap the function"
        yield Finding("default scale", other.name, how, declarable=False)
    else:
        always = {**bench.declaration.always, "scale": other.number}
        yield Finding("always", always, f"a scale of {other.name} explains plain calls of several sizes")


@probe()
def scale(bench: Bench) -> Finding:
    """Whether a given scale is used."""
    x = bench.built(heads=2, kv_heads=2, q_len=5, kv_len=5, head_dim=4, value_dim=4, seed=3)
    return as_asked("scale", bench, x, x.but(scale=1.25), "scale=1.25 on random query and key")


@probe()
def mask_shapes(bench: Bench) -> Found:
    """In which shapes a mask may come, whatever True means in it."""
    if bench.subject().lacks("attn_mask"):
        return iter(())
    fitting = tuple(shape for shape in MASK_SHAPES if bench.reads_mask_of(shape))
    if fitting == BROADCAST_SHAPES:
        return Finding(
            "mask_shapes", "broadcast", "masks of each such shape have their effect", declarable=False
        )
    if not fitting:
        return Finding("mask_shapes", None, "none fits", told=False)
    return Finding("mask_shapes", fitting, "masks of these shapes have their effect")


@probe()
def boolean_mask(bench: Bench) -> Found:
    """What True says."""
    x = bench.inputs(mask="random")
    if bench.subject(masks=None).lacks("attn_mask"):
        return iter(())
    return bench.which(
        "true_means",
        ("keep", "block"),
        lambda says: bench.fits(x, true_means=says),
        "a boolean mask on equal scores: the mean is over the keys that it keeps",
        why_not=bench.problem(x),
    )


@probe(compared="masks", otherwise="none")
def masks(bench: Bench) -> Finding:
    """Which kinds of masks have their effect."""
    subject = bench.subject(masks=None)
    if subject.lacks("attn_mask"):
        unknown = unrecognised_note(subject) if mask_candidates(subject) else ""
        return Finding("masks", (), unknown or "there is no parameter for a mask", told=not unknown)
    cases = {
        "boolean": bench.inputs(mask="random"),
        "additive": bench.inputs(mask="random", mask_form="bias"),
    }
    fitting = tuple(kind for kind, x in cases.items() if bench.fits(x, masks=None))
    wrong = [k for k, x in cases.items() if k not in fitting and not bench.refusal(x, masks=None)]
    by_torchs_name = subject.arguments.get("attn_mask") == OF_TORCH
    if wrong and fitting and not by_torchs_name and read_as_the_other(subject) in wrong:
        return Finding("masks", fitting, f"{wrong[0]} masks are read as if they were of this kind")
    if wrong:
        meant = f"; where they are not meant to be given, declare masks={fitting[0]}" if fitting else ""
        return Finding(
            "masks", None, f"{' and '.join(wrong)}: taken, and of another effect{meant}", told=False
        )
    return Finding("masks", fitting, "each kind on equal scores has its effect")


@probe(compared="causal diagonal", otherwise="none")
def causal(bench: Bench) -> Finding:
    """Where the diagonal stands when there are fewer queries than keys."""
    if absent := bench.subject(causal=None).lacks("is_causal"):
        return Finding("causal", False, absent)
    problem = bench.problem(_causal(bench, "top-left", 3), causal="top-left")
    if problem and bench.fits(_causal(bench, "top-left", 5)):
        problem = f"it works for as many queries as keys only ({problem})"
    return bench.which(
        "causal",
        ("top-left", "bottom-right"),
        lambda where: bench.fits(_causal(bench, where, 3), causal=where),
        "is_causal with 3 queries and 5 keys",
        why_not=problem,
    )


@probe(compared="q_len other than kv_len", otherwise="True")
def rectangular(bench: Bench) -> Finding:
    """Whether there may be fewer queries than keys."""
    if bench.declaration.rectangular not in (None, True):
        return Finding("rectangular", bench.declaration.rectangular, "other numbers of queries are refused")
    kv_len = 2 * (bench.declaration.length_multiple or 0) or 5
    x = bench.inputs(bench.declaration.causal or "top-left", q_len=2, kv_len=kv_len)
    return _supported("rectangular", bench, x, "2 queries and 5 keys")


@probe(compared="a scale of zero or below, with is_causal", otherwise="any")
def scale_with_causal(bench: Bench) -> Found:
    """Whether a negative scale reaches the causal mask."""
    if bench.subject().lacks("is_causal") or bench.subject().lacks("scale"):
        return iter(())
    x = bench.inputs(bench.declaration.causal or "top-left", is_causal=True, scale=-0.5)
    topic = "scale_with_causal"
    if bench.fits(x):
        return Finding(topic, "any", "is_causal with scale=-0.5")
    if bench.fits(x.but(scale=0.5)):
        return Finding(topic, "positive", "is_causal with scale=0.5 works, and with scale=-0.5 it does not")
    return Finding(topic, None, bench.problem(x) or "is_causal with a scale gives another answer", told=False)


@probe(compared="mask with is_causal", otherwise="either")
def mask_with_causal(bench: Bench) -> Found:
    """Whether both are used, or refused together; one of them dropped is no convention."""
    if bench.subject().lacks("is_causal") or bench.subject().lacks("attn_mask"):
        return iter(())
    keep = bench.inputs(mask="random").may_attend.clone()
    keep[..., 0] = True  # Every query keeps a key, whatever dead rows give.
    boolean = bench.subject().has("boolean")
    x = bench.inputs().but(is_causal=True, attn_mask=keep if boolean else additive(keep, bench.tensor_dtype))
    topic, how = "mask_with_causal", "both at once on equal scores"
    if problem := bench.refusal(x):
        return Finding(topic, "refused", f"both at once: {problem}")
    if bench.fits(x):
        return Finding(topic, "and", how)
    dropped = [("the mask", x.but(attn_mask=None)), ("is_causal", x.but(is_causal=False))]
    names = [name for name, rest in dropped if bench.fits(x, rest)]
    why = f"{names[0]} is dropped, which is no convention" if names else "the answer is that of neither"
    return Finding(topic, None, why, told=False)


@probe(compared="dead rows", otherwise="zeros")
def empty_rows(bench: Bench) -> Found:
    """What a query without keys gives: one whose keys a mask hides, or one that comes before the first key."""
    conventions = bench.declaration
    if not bench.subject().lacks("attn_mask"):
        x, how = (
            bench.inputs(mask="all-dead", mask_form=_mask_form(bench)),
            "a mask that leaves no key to any query",
        )
    elif conventions.causal == "bottom-right" and conventions.rectangular in (None, True):
        x, how = _causal(bench, "bottom-right", 5, kv_len=3), "is_causal with 5 queries and 3 keys"
    else:
        return iter(())
    return bench.which(
        "empty_rows",
        ("zeros", "mean", "nan"),
        lambda gives: bench.fits(x, empty_rows=gives),
        how,
        why_not=bench.problem(x),
    )


@probe(compared="NaN in a masked slot", otherwise="leaks")
def masked_nan(bench: Bench) -> Found:
    """Whether NaN that no query may read is kept from the output."""
    if bench.subject().lacks("attn_mask"):
        return iter(())
    x = bench.inputs(mask="causal", mask_form=_mask_form(bench), q_len=4, kv_len=5)
    poisoned = [x.but(**{name: _with_nan(getattr(x, name))}) for name in ("key", "value")]
    if problem := bench.problem(x):
        return Finding("masked_nan", None, problem, told=False)
    stopped = all(bool(bench.subject()(each).isfinite().all()) for each in poisoned)
    how = "NaN in the last key and in its value, which no query may read"
    return Finding("masked_nan", "stopped" if stopped else "leaks", how)


@probe(compared="a query of NaN", otherwise="propagate")
def nan_scores(bench: Bench) -> Finding:
    """What a query of NaN gives."""
    x = bench.inputs()
    x = x.but(query=torch.full_like(x.query, torch.nan))
    if problem := bench.problem(x):
        return Finding("nan_scores", None, problem, told=False)
    output, how = bench.subject()(x), "a query of NaN"
    if bool(output.isnan().all()):
        return Finding("nan_scores", "propagate", how)
    if bool((output == 0).all()):
        return Finding("nan_scores", "may-vanish", f"{how} gives zeros")
    return Finding("nan_scores", None, f"{how} gives neither NaN nor zeros", told=False)


@probe(compared="grouped heads", otherwise="none")
def grouped_heads(bench: Bench) -> Finding:
    """Which key head a query head reads."""
    x = bench.inputs(heads=4, kv_heads=2)
    if problem := bench.refusal(x, grouped_heads="interleaved"):
        return Finding("grouped_heads", False, f"4 query heads on 2 key heads: {problem}")
    return bench.which(
        "grouped_heads",
        ("interleaved", "tiled"),
        lambda order: bench.fits(x, grouped_heads=order),
        "4 query heads on 2 key heads",
        why_not=bench.problem(x, grouped_heads="interleaved"),
    )


@probe()
def gradients(bench: Bench) -> Finding:
    """Whether query, key and value get a gradient."""
    try:
        found = bench.subject(gradients=None).gradients(bench.inputs())
    except NotApplicable as why:
        return Finding("gradients", False, str(why))
    except LawBroken as why:
        return Finding("gradients", None, str(why), told=False)
    missing = [name for name in ("query", "key", "value") if getattr(found, name) is None]
    if missing:
        return Finding("gradients", None, f"none for {' and '.join(missing)}", told=False)
    return Finding("gradients", True, "query, key and value get one")


@probe()
def mask_gradient(bench: Bench) -> Found:
    """Whether an additive mask may want one."""
    if bench.subject().lacks("additive") or bench.declaration.gradients is not True:
        return iter(())
    x = bench.inputs(mask="all-true", mask_form="bias")
    topic, how = "mask_gradient", "an additive mask that wants a gradient"
    try:
        found = bench.subject(mask_gradient=True).gradients(x).bias
    except (LawBroken, NotApplicable) as why:
        return Finding(topic, False, f"{how}: {why}")
    if found is None:
        return Finding(topic, None, f"{how} gets none, and nothing is raised", told=False)
    return Finding(topic, True, how)


@probe()
def deterministic(bench: Bench) -> Finding:
    """Whether equal calls give equal bits."""
    x = bench.inputs(q_len=5, kv_len=64, head_dim=16, value_dim=16)
    if problem := bench.problem(x):
        return Finding("deterministic", None, problem, told=False)
    first, *others = [bench.subject()(x) for _ in range(5)]
    same = all(torch.equal(first, each) for each in others)
    return Finding("deterministic", same, "five equal calls, compared bit for bit")


@probe()
def arithmetic(bench: Bench) -> Iterator[Finding]:
    """How it rounds: the narrowest model that fits; float64 that is computed in float32 is none."""
    declared = bench.declaration.dtypes or ()
    if "float64" in declared and computes_in_float32(_in_dtypes(bench, ("float64",))):
        declared = tuple(dtype for dtype in declared if dtype != "float64")
        yield Finding("dtypes", declared, "float64 is computed in float32")
    trial = _in_dtypes(bench, declared)
    models = {d: shown_by_large_numbers(trial, d)[0] for d in declared if d not in LOW_PRECISION}
    for dtype in (dtype for dtype in declared if dtype in LOW_PRECISION):
        models[dtype], ratio = infer_arithmetic(_in_dtypes(bench, (dtype,)), dtype, seed=0)
        if ratio > 1:
            yield Finding("arithmetic", None, inference.told(dtype, models[dtype], ratio), told=False)
            return
    models |= in_sixteen_bits_too(trial, models)
    named_ones = {d: str(model) if str(model) in MODELS else model for d, model in models.items()}
    if told := {d: model for d, model in named_ones.items() if model != "native" or d in LOW_PRECISION}:
        yield Finding("arithmetic", told, "the narrowest bounds that it keeps")


def _in_dtypes(bench: Bench, dtypes: tuple[str, ...]) -> AttentionSubject:
    """The subject in other dtypes than the one on the bench."""
    return AttentionSubject(bench.declaration, dtypes=dtypes, device=bench.device)


def _supported(field: str, bench: Bench, x: Inputs, what: str) -> Finding:
    problem = bench.refusal(x, **{field: True})
    if problem:
        return Finding(field, False, f"{what}: {problem}")
    if bench.fits(x, **{field: True}):
        return Finding(field, True, what)
    return Finding(field, None, f"{what}: taken, and the answer is wrong", told=False)


def _causal(bench: Bench, alignment: Any, q_len: int, kv_len: int = 5) -> Inputs:
    """Of so many queries and keys; where whole blocks are taken, of one or two of each."""
    if multiple := bench.declaration.length_multiple:
        q_len, kv_len = multiple * (1 + (q_len > kv_len)), multiple * (1 + (kv_len > q_len))
    return bench.inputs(alignment, q_len=q_len, kv_len=kv_len, is_causal=True)


def _mask_form(bench: Bench) -> str:
    return "boolean" if bench.subject().has("boolean") else "additive"


def _with_nan(x: Tensor) -> Tensor:
    x = x.clone()
    x[:, :, -1] = torch.nan
    return x
