"""What an attention function can do: as its declaration says, its signature shows, and plain calls showed."""

from collections.abc import Mapping

from headcheck.attention import packs
from headcheck.attention.accepting import accepted_arguments
from headcheck.attention.features import FEATURES, RETURN_ARGUMENTS
from headcheck.attention.forms import canonical_shape, mask_shapes_of
from headcheck.declarations import ADDED, BROADCAST_SHAPES, PACKED, Attention
from headcheck.reference.masks import Alignment
from headcheck.signatures import require_parameters


class Abilities:
    """An attention function behind its declaration: what may be asked of it."""

    def __init__(self, declaration: Attention, refused: Mapping[str, str] | None = None) -> None:
        self.declaration = declaration
        self.refused = dict(refused or {})
        """Features that the signature offers and the function, undeclared, refused on a plain case."""
        self.found: frozenset[str] = frozenset()
        """Features that the signature does not show, and the function has."""
        require_parameters(declaration.function, declaration.arguments)
        self.arguments = accepted_arguments(declaration.function, declaration.arguments)
        if declaration.masks is None and self.arguments.get("attn_mask") == ADDED:
            self.refused["boolean"] = f"takes no boolean attn_mask: {ADDED} is what is added to the scores"

    def declared(self, feature: str) -> bool:
        """Whether the declaration says that the subject has the feature."""
        value = getattr(self.declaration, FEATURES[feature].field)
        if feature in ("boolean", "additive"):
            return value is not None and feature in value
        return value not in (None, False, ())

    def denies(self, feature: str) -> bool:
        """Whether the declaration says that the subject does not have the feature."""
        return getattr(self.declaration, FEATURES[feature].field) in (False, ())

    def lacks(self, feature: str) -> str | None:
        """Why the subject does not have a feature, or None if it has."""
        row = FEATURES[feature]
        if self.is_packed and feature in packs.WITHOUT:
            return "is called with packed sequences"
        if row.argument in self.declaration.always:
            return None
        if feature == "lengths" and not self.is_packed:
            return row.absent
        value = getattr(self.declaration, row.field)
        if value in (False, ()) or (feature in ("boolean", "additive") and value and feature not in value):
            return f"{row.absent}, as declared"
        if self.declaration.returns is not None and feature in RETURN_ARGUMENTS:
            return None if feature in self.declaration.returns else "is not among what every call returns"
        # Where the diagonal stands is declared of a function that has no argument for it, too, as for its ALiBi.
        read_off = (value is None and feature != "rectangular") or feature == "is_causal"
        unseen = read_off and row.argument not in self.arguments and feature not in self.found
        return self.refused.get(feature, row.absent if unseen else None)

    def has(self, feature: str) -> bool:
        return self.lacks(feature) is None

    @property
    def returns_more_if_asked(self) -> bool:
        """Whether it has an argument that asks for the weights or the log-sum-exp."""
        return any(argument in self.arguments for argument in RETURN_ARGUMENTS.values())

    @property
    def mask_shapes(self) -> tuple[str, ...] | None:
        """The shapes in which attn_mask may come, or None for all that torch broadcasts."""
        by_layout = None if self.is_packed else mask_shapes_of(self.declaration.layout)
        return self.declaration.mask_shapes or by_layout

    @property
    def mask_forms(self) -> tuple[str, ...]:
        """The broadcast shapes that attn_mask may have, the largest first."""
        forms = {canonical_shape(shape) for shape in self.mask_shapes or BROADCAST_SHAPES}
        return tuple(sorted(forms, key=BROADCAST_SHAPES.index))

    @property
    def is_packed(self) -> bool:
        """Whether the tokens of all sequences stand on one axis."""
        return self.declaration.layout == PACKED

    @property
    def alignment(self) -> Alignment:
        return self.declaration.causal or "top-left"
