"""Layer norm and RMS norm of a row of three entries."""

from headcheck.proofs import Equations, Terms, equal, proof


@proof(proves=("layer-norm/statistics/a-normalised-row-has-mean-zero",))
def layer_norm_has_mean_zero(t: Terms) -> Equations:
    """The entries of the output sum to 0."""
    yield equal(t.centre(t.layer_norm(t.row("x", 3), t.positive("epsilon")), "'"), 0)


@proof(proves=("layer-norm/statistics/the-mean-square-is-what-eps-leaves",))
def layer_norm_has_almost_variance_one(t: Terms) -> Equations:
    """The variance of the output is var / (var + eps): 1 where eps is 0."""
    entries, eps = t.row("x", 3), t.positive("epsilon")
    variance = t.spread(entries)
    yield equal(t.spread(t.layer_norm(entries, eps), "'"), variance / (variance + eps))
    yield equal(t.spread(t.layer_norm(entries, 0), "'"), 1)


@proof(proves=("layer-norm/statistics/a-common-shift-changes-nothing",))
def layer_norm_ignores_a_shift(t: Terms) -> Equations:
    """Adding one number to all entries changes nothing."""
    entries, eps = t.row("x", 3), t.positive("epsilon")
    yield equal(t.layer_norm(entries + t.number("t") * t.ones(3), eps, "'"), t.layer_norm(entries, eps))


@proof(proves=("layer-norm/epsilon/eps-scales-with-the-square-of-the-row",))
def layer_norm_ignores_a_scale(t: Terms) -> Equations:
    """Entries times a > 0 with eps times a^2 give the same: without eps, the scale changes nothing."""
    entries, eps, factor = t.row("x", 3), t.positive("epsilon"), t.positive("a")
    yield equal(t.layer_norm(factor * entries, factor**2 * eps, "'"), t.layer_norm(entries, eps))
    yield equal(t.layer_norm(factor * entries, 0, "'"), t.layer_norm(entries, 0))


@proof(proves=("layer-norm/statistics/a-constant-row-gives-the-bias",))
def layer_norm_of_a_constant_row_is_zero(t: Terms) -> Equations:
    """If all entries are equal and eps > 0, the output is 0."""
    yield equal(t.layer_norm(t.number("c") * t.ones(3), t.positive("epsilon")), t.zeros(t.ones(3)))


@proof()
def the_gradient_of_layer_norm(t: Terms) -> Equations:
    """dx = (g - mean(g) - y mean(g y)) / sqrt(var + eps), where y is the output and g its cotangent."""
    entries, cotangent, eps = t.row("x", 3), t.row("g", 3), t.positive("epsilon")
    output = t.named("y", t.layer_norm(entries, eps))
    along = t.dot(cotangent, output) / len(output)
    formula = (cotangent - t.average(cotangent) * t.ones(3) - along * output) / t.sqrt(
        t.spread(entries) + eps
    )
    yield equal(t.jacobian([t.dot(cotangent, output)], entries), formula)


@proof(proves=("rms-norm/statistics/the-mean-square-is-what-eps-leaves",))
def rms_norm_has_almost_mean_square_one(t: Terms) -> Equations:
    """The mean square of the output is ms / (ms + eps), ms that of the input: 1 where eps is 0."""
    entries, eps = t.row("x", 3), t.positive("epsilon")
    output, before = t.rms_norm(entries, eps), t.mean_square(entries)
    yield equal(t.mean_square(output, "'"), before / (before + eps))


@proof(proves=("rms-norm/epsilon/eps-scales-with-the-square-of-the-row",))
def rms_norm_ignores_a_scale(t: Terms) -> Equations:
    """RMS norm of a > 0 times the entries, with eps times a^2, is the same: without eps, the scale changes nothing."""
    entries, eps, factor = t.row("x", 3), t.positive("epsilon"), t.positive("a")
    yield equal(t.rms_norm(factor * entries, factor**2 * eps, "'"), t.rms_norm(entries, eps))
    yield equal(t.rms_norm(factor * entries, 0, "'"), t.rms_norm(entries, 0))


@proof()
def layer_norm_is_rms_norm_of_the_centred_row(t: Terms) -> Equations:
    """Layer norm is RMS norm after the mean is taken off."""
    entries, eps = t.row("x", 3), t.positive("epsilon")
    yield equal(t.layer_norm(entries, eps), t.rms_norm(entries - t.centre(entries) * t.ones(3), eps))


@proof()
def the_gradient_of_rms_norm(t: Terms) -> Equations:
    """dx = (g - y mean(g y)) / sqrt(ms + eps), where y is the output and g its cotangent."""
    entries, cotangent, eps = t.row("x", 3), t.row("g", 3), t.positive("epsilon")
    output = t.named("y", t.rms_norm(entries, eps))
    along = t.dot(cotangent, output) / len(output)
    formula = (cotangent - along * output) / t.sqrt(t.mean_square(entries) + eps)
    yield equal(t.jacobian([t.dot(cotangent, output)], entries), formula)
