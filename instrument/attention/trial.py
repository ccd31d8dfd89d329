"""A subject is tried on small cases before it is judged: what it takes, and how it rounds."""

import re
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import product

import torch

from headcheck.arithmetic import Arithmetic
from headcheck.attention.case import Case
from headcheck.attention.edge import GRADIENTS
from headcheck.attention.features import FEATURES
from headcheck.attention.hints import hints, read_as_the_other
from headcheck.attention.layout_shown import as_laid_out
from headcheck.attention.mask_needed import as_given_a_mask
from headcheck.attention.mask_shapes_shown import PLAINLY, as_masked
from headcheck.attention.merging import in_sixteen_bits_too
from headcheck.attention.refusals import answered_elsewhere, refused_by
from headcheck.attention.returning import as_returned
from headcheck.attention.rounding import arithmetic_of
from headcheck.attention.sizes_shown import as_sized
from headcheck.attention.subject import (
    CAUSAL_SCALES,
    DEAD_ROWS,
    MASK_WITH_CAUSAL,
    SCALES,
    AttentionSubject,
)
from headcheck.attention.trying import PLAIN, SIZES, attempt, built, is_right, is_right_on, willing
from headcheck.calling import OtherDtype, SubjectRaised, impatient, is_for_laws, require_callable
from headcheck.comparison import Failure, LawBroken, NotApplicable, failure_of
from headcheck.declarations import DTYPES, LOW_PRECISION, Attention
from headcheck.errors import SubjectError
from headcheck.forks import can_fork, fate_of
from headcheck.formats import MIXED, mixes_masks
from headcheck.modules.copying import on_device
from headcheck.signatures import needed_by
from headcheck.verdict import Hint

REFUSES_GRADIENTS = re.compile(r"numpy\(\) on Tensor that requires grad|support automatic differentiation")
"""What torch says where a step cannot be followed by gradients."""
TAKEN_NOTE = (
    "fewer key heads than query heads are taken, and the answer is wrong even where all key heads are alike: they are "
    "not judged; where they are meant, declare grouped_heads=interleaved or tiled"
)
NOT_ASKED_NOTE = (
    "fewer key heads than query heads were not tried, as no copy of this process can be made: where they are taken, "
    "declare grouped_heads=interleaved or tiled"
)
HALF_WAY_NOTE = (
    "under torch.autocast a call is answered and its {why}: it is not judged there; where it is meant to be trained so, "
    "--declare autocast=True makes that a broken law (torch.amp.custom_fwd and custom_bwd are the usual cure)"
)
BACKWARD = "backward"
"""How it is told that not the call failed, but the way back from it."""
OF_TORCH = "attn_mask"
"""The name of a mask of both kinds, as torch documents it; by another name one kind may be meant for all."""
DIMS_THERE = (1, 8, 64)
"""Head dims by which functions choose a kernel of a device: any, a multiple of 8, one of a model."""
SETTLED = (as_given_a_mask, as_laid_out, as_sized, as_returned)
"""What is found out first, as no call can be made without it: each gives the declaration that it settles, and notes."""
TRIAL_S = 5.0
"""Seconds for a call that a subject may not survive."""


def prepare(
    declaration: Attention, *, dtypes: tuple[str, ...], device: str, seed: int
) -> tuple[AttentionSubject, list[str]]:
    """The subject as laws see it, and what was found out about it."""
    wanted = dtypes or declaration.dtypes or DTYPES
    function, notes_of_copy = on_device(declaration.function, device)
    declaration = declaration.but(function=function)
    settled: list[str] = []
    for settle in SETTLED:
        declaration, shown = settle(declaration, wanted, device)
        settled += shown
    trial = AttentionSubject(declaration, dtypes=wanted, device=device)
    supported, notes = _supported_dtypes(trial, wanted)
    trial.dtypes = supported
    with impatient(trial.seconds):
        arithmetic, found_out = _find_out(trial, seed)
    subject = trial.but(arithmetic=arithmetic)
    return subject, [*dict.fromkeys([*notes_of_copy, *notes, *settled, *found_out])]


def _find_out(trial: AttentionSubject, seed: int) -> tuple[dict[str, Arithmetic], list[str]]:
    """How the subject rounds, and notes; all else is written into the trial."""
    notes = [note for step in STEPS for note in step(trial)]
    arithmetic: dict[str, Arithmetic] = {}
    for dtype in sorted(trial.dtypes, key=LOW_PRECISION.__contains__):
        arithmetic[dtype], note = arithmetic_of(trial, dtype, seed, arithmetic.get("float32"))
        notes += [note] if note else []
    return arithmetic | in_sixteen_bits_too(trial, arithmetic), notes


def _masks(trial: AttentionSubject) -> Iterable[str]:
    """The shapes and the meaning of masks."""
    trial.declaration, notes = as_masked(trial)
    return notes


def _refusals(trial: AttentionSubject) -> Iterable[str]:
    """Features that are refused, and a kind of mask that is read as the other one."""
    refused = refused_by(trial)
    notes = []
    for feature in answered_elsewhere(trial, refused):
        trial.declaration = trial.declaration.but(may_refuse=True)
        notes.append(f"{feature}: some calls are refused, which are not asked for ({refused.pop(feature)})")
    trial.refused.update(refused)
    if trial.arguments.get("attn_mask") != OF_TORCH and (kind := read_as_the_other(trial)):
        trial.refused[kind] = f"{FEATURES[kind].absent}{PLAINLY} it has another effect than torch's"
    return notes


def _groups(trial: AttentionSubject) -> Iterable[str]:
    grouped, note = _grouped_heads(trial)
    if grouped:
        trial.found |= {"grouped_heads"}
    return [note] if note else []


def _gradients(trial: AttentionSubject) -> Iterable[str]:
    if refusal := _refuses_gradients(trial):
        trial.declaration = trial.declaration.but(gradients=False)
        return [f"gradients: not asked for ({refusal})"]
    if _carries_gradients(trial):
        trial.found |= {GRADIENTS}
    return ()


def _autocast(trial: AttentionSubject) -> Iterable[str]:
    if trial.declaration.autocast is not None:
        return ()
    why = _fails_under_autocast(trial)
    if not why:
        trial.found |= {"autocast"}
        return ()
    trial.refused["autocast"] = f"does not work under torch.autocast ({why})"
    return [Hint(HALF_WAY_NOTE.format(why=why))] if why.startswith(BACKWARD) else []


def _log_sum_exps(trial: AttentionSubject) -> Iterable[str]:
    """In which dtypes the log-sum-exp may be that of rounded scores, as it is rounded itself."""
    if trial.has("log_sum_exp"):
        trial.rounded_log_sum_exps = frozenset(filter(partial(_rounds_log_sum_exps, trial), trial.dtypes))
    return ()


def _avoidance(trial: AttentionSubject) -> Iterable[str]:
    """What cases leave out, as one law of its own asks about it."""
    trial.avoids = _avoided(trial)
    notes = []
    if SCALES in trial.avoids:
        notes.append(
            f"{SCALES} is refused or answered wrongly: the laws about scales say so, all others avoid it"
        )
    if DEAD_ROWS in trial.avoids and trial.declaration.empty_rows is None:
        notes.append(
            f"{DEAD_ROWS} do not give zeros and zero gradients: the laws about such rows say so, all others avoid them"
        )
    return notes


def _told_plainly(trial: AttentionSubject) -> Iterable[str]:
    """What is refused that a reader of the verdict should know of."""
    return dict.fromkeys(why for why in trial.refused.values() if PLAINLY in why)


STEPS = (_masks, _refusals, _groups, _gradients, _autocast, _log_sum_exps, _avoidance, _told_plainly, hints)
"""Each writes what it finds out into the trial, where those after it read it, and gives notes."""


def _supported_dtypes(trial: AttentionSubject, wanted: tuple[str, ...]) -> tuple[tuple[str, ...], list[str]]:
    """The dtypes in which a plain call works, and, if it works in one, those in which its answer is wrong.

    A declared one is held to work, and is not tried.
    """
    declared = set(trial.declaration.dtypes or ())
    problems = {
        dtype: None if dtype in declared else failure_of(trial, built(trial, PLAIN.but(dtype=dtype)))
        for dtype in wanted
    }
    supported = [dtype for dtype, problem in problems.items() if is_for_laws(problem, problems)]
    if len(supported) > 1 and "float64" in {*supported} - declared and _mixes_masks(trial):
        problems.pop("float64")
        rest, notes = _supported_dtypes(trial, tuple(problems))
        return rest, [MIXED, *notes]
    unsupported = {dtype: problem for dtype, problem in problems.items() if dtype not in supported}
    notes = [f"{dtype}: not supported ({problem})" for dtype, problem in unsupported.items()]
    otherwise = {dtype: str(each) for dtype, each in unsupported.items() if isinstance(each, OtherDtype)}
    trial.answered_otherwise = otherwise
    if set(supported) - declared:
        return tuple(supported), notes
    works_elsewhere = not supported and "float32" not in wanted and attempt(trial, PLAIN) is None
    if works_elsewhere:
        raise SubjectError(f"the subject does not work in {', '.join(wanted)}: {notes[0].partition(': ')[2]}")
    require_callable(_plain_calls(trial, wanted), "f(query, key, value)", _cure(trial))
    judged = tuple(supported) or (("float32",) if "float32" in wanted else wanted)
    return judged, [note for note in notes if note.partition(":")[0] not in judged]


def _mixes_masks(trial: AttentionSubject) -> bool:
    """Whether a call in float64, causal or with a mask, gives torch's attention a mask of another format."""
    plain = PLAIN.but(dtype="float64")

    def calls() -> None:
        for case in (plain, plain.but(is_causal=True), plain.but(mask="random")):
            attempt(trial, case)

    return trial.device == "cpu" and mixes_masks(calls)


def _cure(trial: AttentionSubject) -> str:
    """What may help where no plain call is answered."""
    if "cu_seqlens_q" in trial.always_given and not trial.is_packed:
        return "or declare layout='thd' where it takes packed sequences"
    needed = needed_by(trial.declaration.function) or []
    nothing = {"dropout_p": trial.no_rate}
    without = [f"{nothing.get(what)} for {name}" for what, name in trial.arguments.items() if name in needed]
    if without:
        return f"one that takes {' and '.join(without)}, which calls without give"
    return "or say its role with --role"


def _plain_calls(trial: AttentionSubject, dtypes: tuple[str, ...]) -> Iterator[Failure | None]:
    """Why each plain call does not work, or None if it does."""
    for (length, dim), dtype in product(SIZES, dtypes):
        sizes = {"q_len": length, "kv_len": length, "head_dim": dim, "value_dim": dim}
        yield failure_of(trial, built(trial, PLAIN.but(dtype=dtype, **sizes)))


def _grouped_heads(trial: AttentionSubject) -> tuple[bool, str]:
    """Whether a function without an argument for it takes fewer key heads than query heads; and a note, if it may.

    Where all key heads are alike, whoever reads one for each query head is right, in whatever order; not so who takes
    the numbers in memory for those of as many heads. It is asked in a copy of the process: a kernel that does not look
    at the shapes may read anything.
    """
    declared = trial.declaration.grouped_heads is not None or "enable_gqa" in trial.arguments
    if declared or "h" not in trial.declaration.layout or trial.device != "cpu":
        return False, ""
    if not can_fork():
        return False, NOT_ASKED_NOTE
    case = PLAIN.but(dtype=trial.dtypes[0], heads=4, kv_heads=2, batch=2, q_len=4, kv_len=4)
    x = built(trial, case.but(strides="expanded-heads"))
    alike = x.but(key=x.key.clone(), value=x.value.clone(), strides="contiguous")
    grouped = trial.but(declaration=trial.declaration.but(grouped_heads="interleaved"))
    if fate_of(lambda: is_right_on(grouped, alike, if_refused=False), TRIAL_S) == "yes":
        return True, ""
    # What is wrong of as many key heads, too, is no matter of groups.
    plain = is_right(trial, case.but(kv_heads=case.heads))
    taken = plain and fate_of(lambda: failure_of(grouped, alike) is None, TRIAL_S) == "yes"
    return False, TAKEN_NOTE if taken else ""


def _fails_under_autocast(trial: AttentionSubject) -> str | None:
    """Why a plain call of float32, or its backward, is refused under torch.autocast, or None if neither is."""
    if "float32" not in trial.dtypes:
        return "no float32"
    x = built(trial, willing(trial, "float32") or PLAIN).but(autocast=torch.bfloat16)
    try:
        trial(x)
    except (SubjectRaised, NotApplicable) as problem:
        return str(problem)
    except LawBroken:
        return None  # A law will say what is wrong.
    try:
        trial.gradients(x)
    except SubjectRaised as problem:
        return f"{BACKWARD} {problem}"
    except (LawBroken, NotApplicable):
        pass
    return None


def _rounds_log_sum_exps(trial: AttentionSubject, dtype: str) -> bool:
    """Whether that of a plain call comes in 16 bits, and nothing is declared of how it is computed."""
    if dtype not in LOW_PRECISION or trial.declares_arithmetic(dtype):
        return False
    try:
        return trial.log_sum_exp(built(trial, PLAIN.but(dtype=dtype))).dtype.itemsize == 2
    except (LawBroken, NotApplicable):
        return False


def _refuses_gradients(trial: AttentionSubject) -> str:
    """Why a plain call of tensors that want gradients is refused, as by NumPy; '' if it is not."""
    if trial.declaration.gradients is not None:
        return ""
    try:
        trial.gradients(built(trial, PLAIN.but(dtype=trial.dtypes[0])))
    except SubjectRaised as why:
        return str(why) if REFUSES_GRADIENTS.search(str(why)) else ""
    except (LawBroken, NotApplicable):
        pass
    return ""


def _carries_gradients(trial: AttentionSubject) -> bool:
    """Whether the output of a plain call does."""
    case = willing(trial, trial.dtypes[0])
    return case is not None and failure_of(trial.gradients, built(trial, case)) is None


def _avoided(trial: AttentionSubject) -> frozenset[str]:
    """What the subject declares otherwise, or, undeclared, does otherwise on a plain case.

    What is undeclared is left to the laws about it, so that one deviation does not break all the others.
    """
    conventions = trial.declaration
    does = {
        DEAD_ROWS: {"nan": False, "undefined": False, None: None}.get(conventions.empty_rows, True),
        SCALES: None,
        CAUSAL_SCALES: {"any": True, "positive": False}.get(conventions.scale_with_causal or ""),
        MASK_WITH_CAUSAL: {"and": True, "refused": False}.get(conventions.mask_with_causal or ""),
    }
    if "is_causal" in conventions.always:
        does[MASK_WITH_CAUSAL] = True

    def does_as_usual(what: str, plain: Case) -> bool:
        # What a scale does to the gradients has no law of its own: all others have to meet it.
        ask = {"if_refused": what != MASK_WITH_CAUSAL, "backward": what != SCALES}
        shown = _shown_by(trial, plain)[what]
        if what == SCALES and not all(is_right(trial, case.but(scale=None), **ask) for case in shown[:1]):
            return True  # It is not the scale.
        return all(is_right(trial, case, **ask) for case in shown)

    plain_cases = _plain_cases(trial)
    return frozenset(
        what
        for what, declared in does.items()
        if not (all(does_as_usual(what, plain) for plain in plain_cases) if declared is None else declared)
    )


def _plain_cases(trial: AttentionSubject) -> list[Case]:
    """A plain case; on a device, where one function may go to another kernel for each, also of other dtypes and dims.

    Of those none that is refused: that says nothing of what it is asked with. Eight keys, as a mask of fewer has left
    devices unusable.
    """
    first = PLAIN.but(dtype=trial.dtypes[0], kv_len=4)
    if trial.device == "cpu":
        return [first]
    there = product(trial.dtypes, DIMS_THERE)
    others = (first.but(dtype=dtype, head_dim=dim, value_dim=dim, kv_len=8) for dtype, dim in there)
    return [first, *(case for case in others if attempt(trial, case) is None)]


def _shown_by(trial: AttentionSubject, plain: Case) -> dict[str, list[Case]]:
    """Cases on which a subject shows what it does, undeclared; none where it cannot be asked."""
    causal = plain.but(is_causal=True)
    forms = [form for form in ("boolean", "additive") if trial.has(form)]
    dead = [plain.but(mask="all-dead", mask_form=form) for form in forms]
    shown = {DEAD_ROWS: dead, SCALES: [], CAUSAL_SCALES: [], MASK_WITH_CAUSAL: []}
    if trial.has("scale"):
        shown[SCALES] = [plain.but(scale=scale) for scale in (0.0, -0.5)]
    if trial.has("is_causal"):
        if trial.alignment == "bottom-right" and trial.has("rectangular"):
            dead.append(causal.but(q_len=6))
        if trial.has("scale"):
            shown[CAUSAL_SCALES] = [causal.but(scale=scale) for scale in (0.0, -0.5)]
        padded = causal.but(mask="padding", batch=3, q_len=4)
        both = [padded.but(mask_form=form) for form in forms]
        # Values of their own width may go to another kernel, which refuses what the usual one composes: torch's do.
        wider = (case.but(value_dim=case.head_dim + 1) for case in both)
        shown[MASK_WITH_CAUSAL] = [*both, *(case for case in wider if _refuses_causal(trial, case))]
    return shown


def _refuses_causal(trial: AttentionSubject, case: Case) -> bool:
    """Whether a call is refused in words that name is_causal. How else it ends is for laws to say."""
    failure = failure_of(trial, built(trial, case))
    return isinstance(failure, SubjectRaised) and "causal" in str(failure.problem)
