"""A module that can be computed in several ways gives one answer."""

from collections.abc import Iterator

from headcheck.comparison import Comparison
from headcheck.laws import law
from headcheck.modules.subject import ModuleInputs
from headcheck.modules.tokens import TokenSubject


@law(
    source="which kernel computes the attention is no part of the model",
    formula="f_a(x) = f_b(x)",
    guards="A scale, a softcap, a sink or a bias that one of the kernels is not handed.",
    needs=("variants",),
    roles=("causal_lm", "seq2seq"),
)
def every_variant_gives_the_same(model: TokenSubject[ModuleInputs], x: ModuleInputs) -> Iterator[Comparison]:
    """Each way of computing that is declared gives the logits of the others."""
    return model.by_variants(lambda: model(x))
