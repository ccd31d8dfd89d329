"""Where a token stands: the sinusoidal code, rotary positions, ALiBi."""

from headcheck.proofs import Equations, Terms, equal, proof

# The sinusoidal code


@proof(proves=("sinusoidal/shifts/one-rotation-for-each-offset",))
def one_matrix_shifts_every_position(t: Terms) -> Equations:
    """A matrix that depends on the offset alone takes the code of p to that of p + k, for every p."""
    position, offset = t.number("p"), t.number("k")
    turns = t.diag(*(t.rotation(-offset * t.frequency(pair, 4)) for pair in range(2)))
    yield equal(t.sinusoid(position + offset, 4), turns * t.sinusoid(position, 4))


@proof(proves=("sinusoidal/shifts/inner-products-depend-on-the-offset-only",))
def inner_products_depend_on_the_offset(t: Terms) -> Equations:
    """PE(p).PE(p + k) is the sum of cos(k w) over the frequencies w: p is not in it."""
    position, offset = t.number("p"), t.number("k")
    product = t.dot(t.sinusoid(position, 4), t.sinusoid(position + offset, 4))
    yield equal(product, sum(t.cos(offset * t.frequency(pair, 4)) for pair in range(2)))


@proof(proves=("sinusoidal/waves/every-row-has-the-same-norm",))
def the_code_has_a_constant_norm(t: Terms) -> Equations:
    """|PE(p)|^2 = d / 2."""
    code = t.sinusoid(t.number("p"), 4)
    yield equal(t.dot(code, code), 2)


@proof(proves=("sinusoidal/waves/wavelengths-form-a-geometric-row",))
def the_wavelengths_are_a_geometric_row(t: Terms) -> Equations:
    """The first is 2 pi, each is 10000^(2 / d) times the one before, and the one after the last 10000 x 2 pi."""
    pair, dims = t.nonnegative("i"), t.positive("d")
    yield equal(t.wavelength(0, dims), 2 * t.pi)
    yield equal(t.wavelength(pair + 1, dims), 10000 ** (2 / dims) * t.wavelength(pair, dims))
    yield equal(t.wavelength(dims / 2, dims), 10000 * 2 * t.pi)


@proof()
def each_pair_repeats_after_its_wavelength(t: Terms) -> Equations:
    """Moved on by the wavelength of a pair, its two entries are the same."""
    position = t.number("p")
    for pair in range(2):
        entries = slice(2 * pair, 2 * pair + 2)
        moved = t.sinusoid(position + t.wavelength(pair, 4), 4)
        yield equal(t.Matrix(moved[entries]), t.Matrix(t.sinusoid(position, 4)[entries]))


# Rotary positions


@proof(proves=("rotary/rotation/dot-products-depend-on-the-distance-only",))
def dot_products_depend_on_the_relative_position(t: Terms) -> Equations:
    """R(m) q . R(n) k = q . R(n - m) k."""
    query, key = t.row("q", 4).T, t.row("k", 4).T
    here, there = t.number("m"), t.number("n")
    for rope in (t.rope, t.rope_half):
        yield equal(t.dot(rope(query, here), rope(key, there)), t.dot(query, rope(key, there - here)))


@proof(proves=("rotary/rotation/turns-add-up",))
def rotations_compose(t: Terms) -> Equations:
    """Turning by m and then by n is turning by m + n."""
    vector, here, there = t.row("x", 4).T, t.number("m"), t.number("n")
    yield equal(t.rope(t.rope(vector, here), there), t.rope(vector, here + there))


@proof(
    proves=(
        "rotary/rotation/position-zero-changes-nothing",
        "rotary/rotation/a-position-below-zero-turns-back",
    )
)
def rotations_invert(t: Terms) -> Equations:
    """Turning by m and then by -m gives the vector back; position 0 leaves it as it is."""
    vector, here = t.row("x", 4).T, t.number("m")
    yield equal(t.rope(t.rope(vector, here), -here), vector)
    yield equal(t.rope(vector, 0), vector)


@proof(proves=("rotary/rotation/norms-are-kept",))
def rotations_keep_norms(t: Terms) -> Equations:
    """|R(m) x|^2 = |x|^2, and so it is for each pair."""
    vector = t.row("x", 4).T
    turned = t.rope(vector, t.number("m"))
    for pair in (slice(0, 2), slice(2, 4)):
        yield equal(t.dot(turned[pair], turned[pair]), t.dot(vector[pair], vector[pair]))


@proof(proves=("rotary/rotation/turning-is-linear",))
def rotations_are_linear(t: Terms) -> Equations:
    """R(m) (a x + y) = a R(m) x + R(m) y."""
    vector, other, factor, here = t.row("x", 2).T, t.row("y", 2).T, t.number("a"), t.number("m")
    yield equal(t.rope(factor * vector + other, here), factor * t.rope(vector, here) + t.rope(other, here))


@proof(proves=("rotary/conventions/the-two-pairings-are-a-permutation-apart",))
def the_two_pairings_are_each_others_permutation(t: Terms) -> Equations:
    """Dims reordered from interleaved to half and turned by halves are the interleaved ones, reordered."""
    vector, here = t.row("x", 4).T, t.number("m")
    to_half = t.permutation((0, 2, 1, 3))
    yield equal(t.rope_half(to_half * vector, here), to_half * t.rope(vector, here))


@proof(proves=("rotary/conventions/pairs-are-multiplied-as-complex-numbers",))
def a_rotation_is_a_complex_factor(t: Terms) -> Equations:
    """A pair (x, y), read as x + i y, is multiplied by exp(i m)."""
    vector, here = t.row("x", 2).T, t.number("m")
    turned = t.rope(vector, here)
    yield equal(
        turned[0] + t.sympy.I * turned[1],
        (vector[0] + t.sympy.I * vector[1]) * t.sympy.expand_complex(t.exp(t.sympy.I * here)),
    )


# ALiBi


@proof()
def alibi_depends_on_the_relative_position(t: Terms) -> Equations:
    """Query and keys moved on by the same offset get the same biases."""
    slope, position, offset, keys = t.positive("m"), t.number("i"), t.number("t"), t.row("j", 3)
    yield equal(t.alibi(slope, position + offset, keys + offset * t.ones(3)), t.alibi(slope, position, keys))


@proof()
def causal_alibi_needs_no_query_position(t: Terms) -> Equations:
    """Under a causal mask -m (i - j) does what m j does: the rest is common to the row."""
    scores, slope, keys = t.row("s", 3), t.positive("m"), t.row("j", 3)
    biased = scores + t.alibi(slope, t.number("i"), keys)
    yield equal(t.softmax(biased), t.softmax(scores + slope * keys))
