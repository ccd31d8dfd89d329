"""What holds for the repository itself: arrows, sizes, packaging, and pages that are up to date."""

import ast
import importlib.util
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import headcheck
from headcheck.laws import all_laws

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SHIPPED = {
    "instrument": "headcheck",
    "golden": "headcheck.golden",
    "reference": "headcheck.reference",
    "properties": "headcheck.properties",
}
"""Folder -> package."""
LONGEST = 400
TEXT = (".py", ".md", ".toml", ".cfg", ".txt", ".in", ".yml", ".json", "run")

MODULES = [path for folder in SHIPPED for path in sorted((ROOT / folder).rglob("*.py"))]


def name_of(path: Path) -> str:
    """The name by which a module of a shipped folder is imported."""
    folder, *inside = path.relative_to(ROOT).with_suffix("").parts
    return ".".join([SHIPPED[folder], *(part for part in inside if part != "__init__")])


def imports_of(tree: ast.AST) -> Iterator[str]:
    """Every module that a piece of code imports, relative imports as dots."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def parsed(path: Path) -> ast.Module:
    """The syntax tree of a module."""
    return ast.parse(path.read_text(encoding="utf-8"))


# Arrows


def test_the_reference_knows_only_torch() -> None:
    """headcheck.reference imports torch, jaxtyping, the standard library and itself."""
    allowed = {"torch", "jaxtyping", *sys.stdlib_module_names}
    for path in (ROOT / "reference").rglob("*.py"):
        for name in imports_of(parsed(path)):
            own = name.startswith("headcheck.reference")
            assert own or name.partition(".")[0] in allowed, f"{path.relative_to(ROOT)} imports {name}"


def test_the_ledger_knows_only_the_reference() -> None:
    """headcheck.golden imports the reference, exact numbers and the errors; only the command imports it."""
    allowed = {"torch", "sympy", "mpmath", "pytest", *sys.stdlib_module_names}
    for path in MODULES:
        for name in imports_of(parsed(path)):
            if path.is_relative_to(ROOT / "golden"):
                own = name == "headcheck" or name.startswith(
                    ("headcheck.golden", "headcheck.reference", "headcheck.errors")
                )
                assert own or name.partition(".")[0] in allowed, f"{path.relative_to(ROOT)} imports {name}"
            elif path != ROOT / "instrument" / "commands" / "golden.py":
                assert not f"{name}.".startswith("headcheck.golden."), path.relative_to(ROOT)


def test_nothing_imports_the_laws() -> None:
    """Only headcheck.laws names headcheck.properties, inside a function; laws do not import each other."""
    for path in MODULES:
        tree = parsed(path)
        found = {name for name in imports_of(tree) if name.startswith("headcheck.properties")}
        if path == ROOT / "instrument" / "laws.py":
            found -= {
                n for each in ast.walk(tree) if isinstance(each, ast.FunctionDef) for n in imports_of(each)
            }
        assert not found, f"{path.relative_to(ROOT)} imports {', '.join(sorted(found))}"


def test_no_law_knows_a_built_in_subject() -> None:
    """Laws meet subjects through their declarations only."""
    for path in (ROOT / "properties").rglob("*.py"):
        found = [name for name in imports_of(parsed(path)) if name.startswith("headcheck.subjects")]
        assert not found, f"{path.relative_to(ROOT)} imports {found}"


def test_imports_are_absolute() -> None:
    """`pytest properties/` would load a relative import a second time."""
    for path in MODULES:
        relative = [name for name in imports_of(parsed(path)) if name.startswith(".")]
        assert not relative, f"{path.relative_to(ROOT)} imports {relative}"


@pytest.mark.parametrize("module", ["headcheck", "headcheck.pytest_plugin", "headcheck.command"])
def test_what_every_pytest_run_imports_is_light(module: str) -> None:
    """The plugin is loaded by every pytest run of its environment; torch takes seconds."""
    heavy = "torch", "numpy", "hypothesis", "jaxtyping"
    code = f"import sys, {module}; print([name for name in {heavy!r} if name in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.strip() == "[]"


# Sizes and words


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_modules_are_short_and_say_what_they_are(path: Path) -> None:
    """At most 400 lines; the module, its public functions and its public classes have a docstring."""
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= LONGEST
    if not text.strip():
        return
    tree = parsed(path)
    assert ast.get_docstring(tree), "the module has no docstring"
    definitions = [each for each in tree.body if isinstance(each, ast.FunctionDef | ast.ClassDef)]
    silent = [
        each.name
        for each in definitions
        if not each.name.startswith(("_", "pytest_"))
        and not ast.get_docstring(each)
        and "overload" not in {getattr(mark, "id", "") for mark in each.decorator_list}
    ]
    assert not silent, f"without a docstring: {', '.join(silent)}"


def test_every_law_says_where_it_comes_from() -> None:
    """A law has a statement, a formula, a source and what it guards against; its id is stable in form."""
    for law in all_laws().values():
        assert re.fullmatch(r"[a-z0-9-]+/[a-z-]+/[a-z-]+", law.id)
        for field in ("statement", "formula", "source", "guards"):
            assert getattr(law, field).strip(), f"{law.id} has no {field}"
        assert law.share > 0, law.id


def test_generated_pages_are_up_to_date() -> None:
    """What docs/generate.py writes is what the repository holds."""
    for path, render in _docs().PAGES.items():
        assert path.read_text(encoding="utf-8") == render(), "run python docs/generate.py"


def _docs() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_links_between_pages_lead_somewhere() -> None:
    """Every relative link of a page names a file that exists."""
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_what_the_pages_say_where_is_there() -> None:
    """Every module that is named to who adds something exists, and holds the table that is named beside it."""
    lines = [
        line
        for page in ("ARCHITECTURE.md", "docs/extending.md")
        for line in (ROOT / page).read_text().splitlines()
    ]
    named = 0
    for line in lines:
        modules = re.findall(
            r"\b(?:instrument|properties|tests|golden|reference|benchmarks|docs)/[\w/]+\.py\b", line
        )
        assert not [each for each in modules if not (ROOT / each).exists()], line
        held = "".join((ROOT / each).read_text(encoding="utf-8") for each in modules)
        tables = re.findall(r"`([A-Z_]{4,})`", line) if held else []
        assert not [each for each in tables if each not in held], line
        named += len(modules)
    assert named > 10


def test_no_file_names_a_path_of_one_machine() -> None:
    """Nothing here depends on where somebody keeps it."""
    places = re.compile("/" + r"(?:work|home|root|tmp|Users)/\w+")
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if listed.returncode:
        pytest.skip("not a git checkout: no list of files")
    for name in listed.stdout.splitlines():
        path = ROOT / name
        if path.is_file() and name.endswith(TEXT):
            found = places.findall(path.read_text(encoding="utf-8"))
            assert not found, f"{name} names {found[0]}"


# Packaging


def test_the_wheel_holds_every_package_and_nothing_else() -> None:
    """pyproject.toml lists each folder of a shipped tree that is a package."""
    declared = PYPROJECT["tool"]["setuptools"]["packages"]
    found = [name_of(path.with_suffix("")) for path in MODULES if path.name == "__init__.py"]
    assert sorted(declared) == sorted(found)
    homes = PYPROJECT["tool"]["setuptools"]["package-dir"]
    assert homes == {package: folder for folder, package in SHIPPED.items()}
    assert (ROOT / "instrument" / "py.typed").exists()


def test_every_module_lies_in_a_package() -> None:
    """A folder without __init__.py would be missing in the wheel."""
    for path in MODULES:
        assert (path.parent / "__init__.py").exists(), path.relative_to(ROOT)


def test_versions_agree() -> None:
    """pyproject.toml, the package and the changelog name one version."""
    version = PYPROJECT["project"]["version"]
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert headcheck.__version__ == version
    assert re.search(r"^## \[([\d.]+)\]", changelog, re.MULTILINE)[1] == version  # type: ignore[index]


def test_constraints_pin_what_is_declared() -> None:
    """Every dependency of a plain installation and of the tests has its tested version."""
    project = PYPROJECT["project"]
    asked = [*project["dependencies"], *(each for each in project["optional-dependencies"]["test"])]
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {line.partition("==")[0] for line in lines if "==" in line}
    assert {re.split(r"[<>=]", each)[0] for each in asked} <= pinned


def test_public_names_are_there() -> None:
    """Each name of headcheck.__all__ can be had."""
    for name in headcheck.__all__:
        assert getattr(headcheck, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        headcheck.nonsense  # noqa: B018


def test_the_public_surface_is_listed_for_completion() -> None:
    """dir() gives the names, though each is loaded when it is first used."""
    assert {*headcheck.__all__} <= set(dir(headcheck))
