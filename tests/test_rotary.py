"""The role rotary: what is found out of a function that declares nothing, and what a declaration may say."""

import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import headcheck
from headcheck.declaring import declaring
from headcheck.errors import SubjectError
from headcheck.functions.rotary import RotarySubject, role
from headcheck.functions.rotary_inputs import Rotary, RotaryCase
from headcheck.reference.positions import rotary, rotary_angles
from headcheck.verdict import IF_MEANT, Hint
from tests.roles import RIGHT, WRONG
from tests.roles.rotary_tables import stacked


def prepared(declaration: Rotary, *dtypes: str) -> tuple[RotarySubject, list[str]]:
    subject, notes = role.prepare(declaration, dtypes=dtypes or ("float32",), device="cpu", seed=0)
    assert isinstance(subject, RotarySubject)
    return subject, notes


def right(name: str, *dtypes: str) -> tuple[RotarySubject, list[str]]:
    return prepared(RIGHT[f"rotary/{name}"].declaration(), *dtypes)


@pytest.mark.parametrize(
    ("name", "pairing", "share"),
    [("complex-numbers", "interleaved", 1.0), ("hugging-face", "half", 1.0),
     ("every-two", "interleaved", 4), ("quarter", "half", 0.25)],
)  # fmt: skip
def test_pairing_and_turned_dims_are_found_out(name: str, pairing: str, share: float) -> None:
    """Neighbours or halves; all dims, a number of them or a share."""
    subject, notes = right(name)
    assert (subject.pairing, subject.rotary_share) == (pairing, share)
    assert f"pairing: {pairing}, as found" in notes
    assert (f"rotary_dim: {share:g}, as found" in notes) == (share != 1.0)


def test_a_share_of_the_dims_is_asked_for_where_it_is_an_even_number() -> None:
    """A quarter of 4, 6 or 10 dims is no number of pairs."""
    subject, _ = right("quarter")
    assert subject.dims == (8, 16, 32, 64, 80, 96, 128)
    assert role.fit(RotaryCase(dim=6), subject).dim == 8


def test_a_declared_share_is_asked_of_dims_of_which_it_is_an_even_number() -> None:
    """As where it is found out; what cannot turn in pairs is no declaration."""
    subject, _ = prepared(RIGHT["rotary/quarter"].declaration().but(rotary_dim=0.25, base=None))
    assert subject.dims == (8, 16, 32, 64, 80, 96, 128)
    assert Rotary(rotary, rotary_dim=0.5).in_pairs((2, 4, 6, 8)) == (4, 8)
    subject, notes = prepared(RIGHT["rotary/quarter"].declaration().but(rotary_dim=0.25, dims=(4, 8)))
    assert subject.dims == (8,)
    assert "dims: 8, of which that share is an even number" in notes
    wrong: dict[str, Any]
    for wrong in ({"rotary_dim": 3}, {"rotary_dim": 0.5, "dims": (2,)}):
        with pytest.raises(SubjectError, match="dims turn in pairs, and rotary_dim="):
            Rotary(rotary, **wrong)


def test_the_dims_and_the_reach_of_a_table_are_found_out() -> None:
    """What a module was not made for is not asked of it, and the notes say so."""
    subject, notes = right("one-module")
    assert (subject.dims, subject.furthest) == ((32,), 2047)
    assert any(note.startswith("positions: up to 2047 (further ones are refused: raised") for note in notes)
    assert any(note.startswith("dims: 32 (2 is refused: raised ValueError: made for") for note in notes)
    fitted = role.fit(RotaryCase(start=100_003, length=33, spacing=1000.0), subject)
    assert fitted.start + fitted.span <= 2047
    assert str(subject.lacks("fractional")).startswith("takes whole positions only (raised")


def test_a_table_that_ends_early_is_held_to_511() -> None:
    """Who takes less than that says so aloud, or declares it."""

    def short(x: Tensor, positions: Tensor) -> Tensor:
        return rotary(x, torch.arange(100)[positions])

    subject, notes = prepared(Rotary(short))
    assert subject.furthest == 511
    assert [str(note) for note in notes if isinstance(note, Hint)] == [
        f"a plain call works with --declare max_position=63, {IF_MEANT}"
    ]
    assert prepared(Rotary(short, max_position=99))[0].furthest == 99

    def aloud(x: Tensor, positions: Tensor) -> Tensor:
        if positions.max() >= 100:
            raise ValueError("a table of 100 positions")
        return short(x, positions)

    assert prepared(Rotary(aloud))[0].furthest == 63


def test_the_base_is_read_off_the_signature() -> None:
    """A default of 500,000 is what the function is held to; other bases are asked for by the name."""
    subject, notes = right("of-two-minds")
    assert subject.base == 500_000.0
    assert "base: 500000, by the signature" in notes
    assert (subject.places["base"], subject.places["interleaved"]) == ("theta", "interleaved")


def test_what_stands_at_the_place_of_the_base_is_not_taken_for_it() -> None:
    """A third parameter of another name is left alone."""

    def turned(x: Tensor, positions: Tensor, inverse: bool = False, twice: bool = False) -> Tensor:
        assert not inverse and not twice
        return rotary(x, positions)

    subject, _ = prepared(Rotary(turned))
    assert str(subject.lacks("base")) == "has no argument for the base"
    assert subject.places["interleaved"] is None


def test_positions_of_each_sequence_only_are_found_out() -> None:
    """A function of (batch, length) is given shared positions expanded."""
    subject, notes = right("hugging-face")
    assert "positions: (batch, length) only" in notes
    assert str(subject.lacks("shared_positions")) == "takes no positions (length,)"
    assert subject.has("batched_positions")


def test_the_format_of_the_angles_is_found_out() -> None:
    """float64 where the narrower bound fits, float32 where it does not, and not asked of 16 bits."""
    assert right("exact-angles", "float32", "float64")[0].formats == {
        "float32": "float64",
        "float64": "float64",
    }
    assert right("by-logarithms", "float64", "bfloat16")[0].formats == {"float64": "float32"}
    declared = WRONG["rotary/from-one"].declaration().but(angles="float64")
    assert prepared(declared)[0].formats == {}


def test_a_layout_that_is_refused_is_asked_for_by_one_law() -> None:
    """An odd place in memory breaks the law of strides and no other."""
    entry = WRONG["rotary/complex-view"]
    assert prepared(entry.declaration())[0].avoids == ("offset",)
    verdict = headcheck.verify(entry.declaration(), dtype="float32", profile="gate", laws=("memory", "norms"))
    assert [row.id for row in verdict.laws if row.outcome == "breaks"] == [
        "rotary/memory/strided-equals-contiguous"
    ]


def test_the_order_of_the_axes_is_found_where_one_alone_works() -> None:
    """Of a function that takes (batch, length, heads, dim), as Llama's does."""
    subject, notes = prepared(Rotary(RIGHT["rotary/heads-inside"].function))
    assert subject.layout == "bshd"
    assert any(note.startswith("layout: bshd, as found (bhsd is refused: ") for note in notes)
    assert prepared(Rotary(RIGHT["rotary/exact-angles"].function))[0].layout == "bhsd"


def test_strides_may_be_refused_but_not_misread() -> None:
    """torch.view_as_complex raises, and names strides, where x does not lie as it must; a note says so."""
    entry, strides = RIGHT["rotary/complex-numbers-where-they-lie"], "strided-equals"
    assert "x in memory: not dim-first, every-second, offset (refuses" in "".join(
        prepared(entry.declaration())[1]
    )
    for strides_declared in (None, False):
        declaration = entry.declaration().but(any_strides=strides_declared)
        verdict = headcheck.verify(declaration, laws=strides, profile="quick")
        assert verdict.verdict == "conforms", "the packed layout is left"
    held = entry.declaration().but(any_strides=True)
    assert "any_strides=False declares it" in "".join(prepared(held)[1])
    assert headcheck.verify(held, laws=strides, profile="quick").verdict == "breaks"

    def crashes(x: Tensor, positions: Tensor) -> Tensor:
        if not x.is_contiguous():
            raise RuntimeError("no kernel for this")
        return rotary(x, positions).to(x.dtype)

    def viewed(x: Tensor, positions: Tensor) -> Tensor:
        return rotary(x.view(-1, *x.shape[2:]).view(x.shape), positions).to(x.dtype)

    for crash in (crashes, viewed):
        assert headcheck.verify(Rotary(crash), laws=strides, profile="gate").verdict == "breaks"

    def misread(x: Tensor, positions: Tensor) -> Tensor:
        packed = x.as_strided(x.shape, torch.empty(x.shape, device="meta").stride(), x.storage_offset())
        return rotary(packed, positions).to(x.dtype)

    silent = Rotary(misread, any_strides=False)
    assert headcheck.verify(silent, laws=strides, profile="quick").verdict == "breaks"


class Module(nn.Module):
    """Positions by a name of its own, which the signature of a module does not show."""

    def forward(self, x: Tensor, *, input_pos: Tensor) -> Tensor:
        return rotary(x, input_pos, pairing="half")


def test_a_module_is_read_by_its_forward() -> None:
    """The parameters of forward say how positions are given."""
    subject, _ = prepared(Rotary(Module()))
    assert subject.places["positions"] == "input_pos"
    assert subject.pairing == "half"


def test_a_table_of_frequencies_needs_the_dim_that_it_is_for() -> None:
    """It has an angle for each pair of one dim."""
    with pytest.raises(SubjectError, match=r"needs the one dim that they are for: dims=\(64,\)"):
        Rotary(rotary, frequencies=(1.0, 0.1))


def test_powers_of_the_base_as_a_table_are_the_same_rotation() -> None:
    """With a table, the exact answer is that of the reference with the base."""
    table = tuple(rotary_angles(torch.ones(1), 8)[0].tolist())
    by_table, _ = prepared(Rotary(rotary, frequencies=table, dims=(8,)))
    by_base, _ = prepared(Rotary(rotary, dims=(8,)))
    x = role.build(RotaryCase(dim=8, batch=2, heads=2, length=5, per_sequence=True, start=300), by_base)
    assert (by_table.expected(x) - by_base.expected(x)).abs().max() < 300 * torch.finfo(torch.float64).eps
    torch.testing.assert_close(by_table.bound(x), by_base.bound(x), rtol=1e-9, atol=0.0)


def test_dims_that_are_not_turned_have_no_room_for_an_error() -> None:
    """The bound is zero there, and above zero where something is turned."""
    subject, _ = right("every-two")
    bound = subject.bound(role.build(RotaryCase(dim=8, length=3, start=1), subject))
    assert (bound[..., 4:] == 0).all()
    assert (bound[..., :4] > 0).all()


@pytest.mark.parametrize("order", ["rising", "falling", "shuffled", "repeated"])
@pytest.mark.parametrize("spacing", [1.0, 0.5])
def test_positions_stay_within_the_span_of_their_case(order: str, spacing: float) -> None:
    """From the start to start + span, whole where the spacing is whole."""
    case: Any = RotaryCase(batch=3, length=8, start=5, spacing=spacing, order=order, per_sequence=True)
    positions = case.positions()
    assert positions.shape == (3, 8)
    assert positions.is_floating_point() == (spacing == 0.5)
    assert positions.min() == 5
    assert positions.max() <= 5 + case.span


def test_a_rotary_function_is_recognised_by_its_name() -> None:
    """apply_rotary_emb and rope need no --role."""
    assert headcheck.verify(rotary, profile="quick", dtype="float32", laws="norms").role == "rotary"


def test_what_refuses_vmap_in_a_copy_is_not_said_to_hold() -> None:
    """A buffer that is written to cannot be mapped over, as a copy of the process finds of what has no gradients."""
    declaration = RIGHT["rotary/one-buffer-for-all-calls"].declaration()
    verdict = headcheck.verify(declaration, profile="quick", laws="mapped-calls")
    (row,) = verdict.laws
    assert row.outcome == "not-applicable"
    assert "cannot be called under torch.func.vmap" in row.reason


def hints(declaration: Rotary) -> tuple[RotarySubject, list[str]]:
    subject, notes = prepared(declaration)
    return subject, [note for note in notes if isinstance(note, Hint)]


@pytest.mark.parametrize(
    ("name", "declares"),
    [
        ("declared-base", "--declare base=500000,"),
        ("one-head-size", "--declare base=500000,"),
        ("scaled-frequencies", "--declare dims=32 --declare frequencies=1,0.44"),
        ("lengthened", "--declare dims=32 --declare magnitude=1.2079442 --declare frequencies=1,0.44"),
        ("halves-of-neighbours", "--declare pairing_out=half,"),
    ],
)
def test_another_rotation_is_measured_and_named(name: str, declares: str) -> None:
    """What it is held to stays as it is; the hint is a declaration under which nothing is left to say."""
    entry = RIGHT[f"rotary/{name}"]
    bare = Rotary(entry.function, dims=entry.declares.get("dims"))
    subject, (hint,) = hints(bare)
    assert declares in hint
    assert subject.base == 10000.0
    found = {field: value for field, value in role.found(subject).items() if value is not None}
    assert ("base" in found) == ("frequencies" not in found)
    said = re.findall(r"--declare (\S+?),? ", hint)
    assert not hints(declaring(bare, said))[1]


def test_a_rotation_that_nothing_explains_is_not_said_to_have_a_base() -> None:
    """A sine with a sign that is lost is no convention."""
    subject, said = hints(Rotary(lambda x, positions: -rotary(x, positions)))
    assert not said
    assert role.found(subject)["base"] is None


def test_positions_that_follow_each_other_are_found_out() -> None:
    """Where tokens at one position are refused, and a run of them is not."""
    subject, notes = right("from-an-offset")
    assert subject.consecutive
    assert any(note.startswith("positions: those that rise by one only") for note in notes)
    assert role.fit(RotaryCase(length=3, order="falling", spacing=2.0), subject).positions().tolist() == [
        0,
        1,
        2,
    ]
    with pytest.raises(
        SubjectError, match="does not turn tokens that all stand at position 1: raised ValueError"
    ):
        prepared(Rotary(_refusing_a_run))


def _refusing_a_run(x: Tensor, positions: Tensor) -> Tensor:
    if positions.flatten()[0]:
        raise ValueError("from zero")
    if x.shape[0] > 1:
        raise ValueError("one sequence")
    return rotary(x, positions)


def test_as_many_dims_are_turned_as_there_are_frequencies_for() -> None:
    """Pairs that stand still are pairs; a rotary_dim that says otherwise is refused."""
    subject, _ = right("axial")
    assert subject.rotary_share == 8
    with pytest.raises(SubjectError, match=r"has 2 angles, and dims=\(8,\) with rotary_dim=8 has 4 pairs"):
        Rotary(rotary, frequencies=(1.0, 0.1), dims=(8,), rotary_dim=8)
    assert Rotary(rotary, frequencies=(1.0, 0.1), dims=(8,)).turned == 4


@pytest.mark.parametrize(
    ("name", "tables", "layout", "pairing"),
    [
        ("by-tables-of-each", "bsd-doubled", "bhsd", "half"),
        ("by-halves-of-tables", "bsd-half", "bhsd", "interleaved"),
        ("by-complex-tables", "sd-complex", "bshd", "interleaved"),
        ("by-tables-with-an-axis", "b1sd-doubled", "bhsd", "half"),
        ("by-stacked-tables", "sd-stacked", "bshd", "interleaved"),
        ("by-a-cache-of-stacked-tables", "sd-stacked", "bshd", "interleaved"),
    ],
)
def test_the_form_of_tables_is_found_out(name: str, tables: str, layout: str, pairing: str) -> None:
    """By the first in which a plain call is right; what is found can be declared, and is then no news."""
    subject, notes = right(name)
    assert subject.tables is not None
    assert (subject.tables.form, subject.layout, subject.pairing) == (tables, layout, pairing)
    assert any(note.startswith(f"tables: {tables}, as found") for note in notes)
    assert role.found(subject)["tables"] == tables
    declared, notes = prepared(RIGHT[f"rotary/{name}"].declaration().but(tables=tables))
    assert declared.tables == subject.tables
    assert not any(note.startswith("tables: ") for note in notes)


def test_tables_of_the_first_sequence_alone_are_told() -> None:
    """Whether tables of each sequence are meant, nobody can see: a note names the declaration."""

    def first(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        if cos.ndim > 3:
            raise ValueError("tables are (length, dim) or (batch, length, dim)")
        cos, sin = (each[0] if each.ndim == 3 else each for each in (cos, sin))
        back, front = x.chunk(2, dim=-1)
        return x * cos + torch.cat((-front, back), dim=-1) * sin

    subject, notes = prepared(Rotary(first))
    assert subject.tables is not None
    assert subject.tables.form == "sd-doubled"
    assert any("--declare tables=bsd-doubled makes that a broken law" in str(note) for note in notes)
    assert subject.lacks("batched_positions")
    held, _ = prepared(Rotary(first, tables="bsd-doubled"))
    assert held.has("batched_positions")


def test_positions_beside_tables_are_no_tables_call() -> None:
    """What takes them by a table of its own is called otherwise, and the message says so."""

    def indexed(x: Tensor, cos: Tensor, sin: Tensor, position_ids: Tensor) -> Tensor:
        return x * cos[position_ids] + sin[position_ids]

    with pytest.raises(SubjectError, match=r"put a function around it \(docs/adapting.md"):
        prepared(Rotary(indexed))


def test_a_table_of_angles_is_told_apart_from_positions() -> None:
    """Megatron's freqs: what is given positions there says so."""

    def rotary(t: Tensor, freqs: Tensor) -> Tensor:
        half = t.shape[-1] // 2
        turned = torch.cat((-t[..., half:], t[..., :half]), dim=-1)
        return t * freqs.cos()[..., None] + turned * freqs.sin()[..., None]

    verdict = headcheck.verify(rotary, role="rotary", laws="norms-are-kept", profile="quick", dtype="float32")
    assert any(note.startswith("freqs is given positions") for note in verdict.notes)


def test_a_rotation_backwards_is_told_by_a_hint() -> None:
    """The products are right, the angles are not: what is declared of it is named, and is then right."""

    def backwards(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, dim=-1)
        return torch.cat((first * cos + second * sin, second * cos - first * sin), dim=-1)

    verdict = headcheck.verify(backwards, role="rotary", laws="frequencies", profile="quick", dtype="float64")
    assert not verdict.conforms
    assert any("is right with --declare backwards=True" in note for note in verdict.notes)
    declared = Rotary(backwards, backwards=True)
    assert headcheck.verify(declared, profile="quick", dtype="float64").conforms


def test_tables_of_no_known_form_are_refused() -> None:
    """In one line that names a function around it, by whatever name they are taken; not a dim that was tried."""

    def by_both(x: Tensor, freqs_cis: Tensor) -> Tensor:
        if freqs_cis.is_complex() or freqs_cis.shape != (2, x.shape[1], x.shape[-1] // 2):
            raise ValueError("cosines and sines are (2, length, dim / 2)")
        cos, sin = freqs_cis
        return stacked(x, torch.stack((cos, sin), dim=-1))

    def renamed(x: Tensor, table: Tensor) -> Tensor:
        return stacked(x, table)

    with pytest.raises(
        SubjectError, match=r"no plain call with freqs_cis as tables .*; put a function \(x, pos"
    ):
        prepared(Rotary(by_both))
    with pytest.raises(SubjectError, match=r"one that makes tables of positions.* 128: --declare dims=24$"):
        prepared(Rotary(renamed))
    with pytest.raises(SubjectError, match=r"or say its role with --role$"):
        prepared(Rotary(renamed, dims=(8,)))
