"""Whether padding is nothing to a module that reads tokens, and what may be said of its plain calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from headcheck.comparison import LawBroken, NotApplicable
from headcheck.declarations import LOW_PRECISION
from headcheck.errors import SubjectError
from headcheck.modules.settling import OF_CAUSALITY, of_unknown_masks
from headcheck.signatures import left_at_defaults, not_recognised
from headcheck.verdict import IF_MEANT, Hint

if TYPE_CHECKING:  # It imports this module.
    from headcheck.modules.causal_lm import CausalLMSubject, TokenInputs

ALIKE = 1e-3
"""The share of the largest number up to which logits are alike: a wrong order of axes moves far more."""
GENERATE = "generate"
"""The method by which a language model of Hugging Face's kind makes more tokens."""
OTHER = 4
"""A token that is not taken for padding."""
LENGTH_FIRST = (
    "sequences change the logits of those beside them, and do not where tokens are (length, batch): where that is "
    "meant, name a function around it that exchanges both axes of tokens and of logits"
)
HOLDS_THE_CAUSAL_ONE = (
    "{} is required, and given as a mask of padding: where the causal mask belongs in it, "
    "name a module around it that adds it"
)


def different(subject: Any) -> Tensor:
    """Two sequences of three tokens, as different as there are tokens."""
    return torch.arange(6).view(2, 3) % int(subject.vocab)


def are_alike(
    subject: Any, one: Any, other: Any, kept: slice = slice(None), among: slice = slice(None)
) -> bool:
    """Whether the first sequences of two calls have the same finite logits, at `kept` in one and `among` in the other."""
    try:
        found, expected = subject(one)[:1, kept], subject(other)[:1, among]
        return bool(expected.isfinite().all()) and not subject.close(found, expected, other).broken
    except (LawBroken, NotApplicable):
        return False


def settle_pad(subject: Any, reading: Callable[[Tensor], Any]) -> None:
    """Take token 0 or 1 for padding where it alone changes nothing behind a source: the module makes its own mask.

    subject: of a role with a source. reading: the inputs of a source.
    """
    if subject.pad is not None or subject.has("source_is_real") or subject.source_vocab <= OTHER:
        return
    try:  # Where rounding to 16 bits hides other tokens, too.
        fine = subject.in_float32() if subject.dtypes[0] in LOW_PRECISION else subject
    except NotApplicable:
        return

    def is_nothing(token: int) -> bool:
        return are_alike(fine, reading(torch.tensor([[2, 3, token]])), reading(torch.tensor([[2, 3]])))

    unseen = [token for token in (0, 1) if is_nothing(token)]
    if len(unseen) == 1 and not is_nothing(OTHER):
        (subject.unseen,) = unseen
        for counted in ("vocab", "source_vocab"):  # Without the token that is padding.
            vars(subject).pop(counted, None)


def unrecognised(subject: Any, inputs: int) -> list[str]:
    """Notes on what no law asks of: parameters after so many inputs, as those of a cache, and its own way to generate."""
    unknown = not_recognised(subject.function, [*subject.places.values(), *subject.left_at_none], inputs)
    generates = callable(getattr(subject.module, GENERATE, None))
    notes = [f"its {GENERATE} is not judged: laws call the model itself"] if generates else []
    if not unknown:
        return notes
    said = left_at_defaults(unknown)
    masks = [each.name for each in unknown if "mask" in each.name or "pad" in each.name]
    open_places = [name for name in subject.MASKS if not subject.places.get(name)]
    if masks and open_places:
        cures = " or ".join(f"--declare arguments.{name}={masks[0]}" for name in open_places)
        said = f"{said}; if {masks[0]} says what is padding, {cures}"
    of_cache = "step" in subject.FEATURES and not subject.has("step")
    return [*notes, f"{said}; if one is of a cache, declare step (docs/adapting.md)" if of_cache else said]


def is_blind(subject: CausalLMSubject, plain: TokenInputs) -> bool:
    """Whether no later token counts, where calls work."""
    try:
        tokens = different(subject)
    except (LawBroken, NotApplicable):
        return False
    return are_alike(subject, plain.but(tokens=tokens), plain.but(tokens=tokens[:, :2]), slice(2))


def padding_is_nothing(subject: CausalLMSubject, plain: TokenInputs) -> bool:
    """Whether padding behind a sequence changes nothing, nor what stands in padding before it, nor later tokens."""
    if subject.lacks("is_real") and not subject.with_causal:
        return True
    tokens, real = different(subject), torch.tensor([[True, True, False], [True, True, True]])
    right = plain.but(tokens=tokens, is_real=real)
    left = right.but(is_real=real.flip(1))
    other = left.but(tokens=torch.where(real.flip(1), tokens, tokens.flip(0)))
    alone = plain.but(tokens=tokens[:, :2])
    if not is_blind(subject, plain):
        return False
    if subject.lacks("is_real"):
        return True
    return ("right" not in subject.sides or are_alike(subject, right, alone, slice(2))) and (
        "left" not in subject.sides or are_alike(subject, left, other, slice(1, None), slice(1, None))
    )


def of_axes_and_masks(subject: CausalLMSubject, plain: TokenInputs) -> list[Hint]:
    """That tokens are (length, batch), or that the causal mask is the caller's, where plain calls look like it."""
    try:
        if not _apart(subject, turned=False) and _apart(subject, turned=True):
            return [Hint(LENGTH_FIRST)]
    except (LawBroken, NotApplicable):
        pass
    if subject.with_causal or subject.has_own_causal or is_blind(subject, plain):
        return []
    for fields in OF_CAUSALITY:
        try:
            told = type(subject)(
                subject.declaration.but(**fields), dtypes=subject.dtypes, device=subject.device
            )
        except SubjectError:
            continue
        if (told.with_causal or told.has_own_causal) and is_blind(told, plain):
            declared = " ".join(f"--declare {name}={value}" for name, value in fields.items())
            return [Hint(f"a plain call is right with {declared}, {IF_MEANT}")]
    if found := of_unknown_masks(subject, lambda _: (), lambda told: is_blind(told, plain), "plain call"):
        return found
    return (
        [Hint(HOLDS_THE_CAUSAL_ONE.format(subject.places["is_real"]))]
        if "is_real" in subject.required
        else []
    )


def _apart(subject: CausalLMSubject, *, turned: bool) -> bool:
    """Whether each of two sequences has the logits that it has alone; turned: the length is the first axis."""
    tokens = different(subject)

    def logits(tokens: Tensor) -> Tensor:
        with torch.no_grad():
            given = subject.given(tokens.mT if turned else tokens)
            found = subject.logits_in(subject.call(given), tuple(given.shape)).double()
        return found.transpose(0, 1) if turned else found

    both = logits(tokens)
    alone = torch.cat([logits(tokens[:1]), logits(tokens[1:])])
    return bool((both - alone).abs().max() <= ALIKE * both.abs().max())
