"""From what a user types to what it names: a built-in, package.module:attribute or file.py:attribute."""

import ast
import shlex
import sys
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from functools import lru_cache
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any
from zlib import crc32

from headcheck.errors import SubjectError, first_line_of
from headcheck.recognising import is_declaration, is_module_class, role_name
from headcheck.roles import role as role_named
from headcheck.subjects import builtins, families
from headcheck.subjects import named as built_in

DEFAULT = "torch-sdpa"
"""What is judged when no subject is named."""


def load(spec: str) -> tuple[Any, str]:
    """The object that SUBJECT names, and the name it goes by in reports."""
    if "==" in spec:
        return _pair(spec), spec
    place, colon, attribute = spec.rpartition(":")
    if not colon or spec.partition(":")[0] in families():
        return _builtin(spec), spec
    if not place or not attribute:
        raise SubjectError(
            f"cannot read the subject {spec!r}; write package.module:attribute or file.py:attribute"
        )
    module = _file(Path(place)) if is_path(place) else _module(place)
    return _callable(_attribute(module, attribute, place), spec), spec


def _pair(spec: str) -> Any:
    """ONE==OTHER: two attention subjects that should agree."""
    one, _, other = spec.partition("==")
    pair: Any = role_named("agreement")
    return pair.of(_side(one, _written(one)), _side(other, _written(other)))


def _written(spec: str) -> tuple[int, int]:
    """When the file that a subject stands in was last written, and its length; nothing where it is in none."""
    file = Path(spec.rpartition(":")[0])
    if not is_path(str(file)) or not file.is_file():
        return 0, 0
    return file.stat().st_mtime_ns, file.stat().st_size


@lru_cache(maxsize=64)
def _side(spec: str, written: tuple[int, int]) -> Any:
    """One side of a pair, declared. It is the same in every pair, so that it is tried once in a process.

    written: another number is another file, which is read again.
    """
    attribute = load(spec)[0]
    if role_name(attribute, None) != "attention":
        raise SubjectError(f"{spec}: both sides of a pair must be attention functions")
    return role_named("attention").declare(attribute, spec).but(name=spec)


def require_findable(name: str) -> None:
    """SubjectError: what stands without a colon is no built-in subject."""
    if ":" not in name:
        _of_that_name(name)


def _builtin(name: str) -> Any:
    return _of_that_name(name).declaration()


def _of_that_name(name: str) -> Any:
    found = built_in(name)
    if found is not None:
        return found
    if is_path(name):
        named = ", ".join(_callables_in(Path(name))) or "the name of your function"
        raise SubjectError(
            f"{name} names a file but no function in it; write {name}:NAME, NAME being {named}"
        )
    hint = _similar(name, builtins()) or "`headcheck subjects` lists them, `headcheck --help` the commands"
    raise SubjectError(
        f"there is no built-in subject {name!r} ({hint}); "
        "a subject of your own is package.module:attribute or path/to/file.py:attribute"
    )


def is_path(place: str) -> bool:
    """Whether what stands before the colon of a subject is a file, and no module."""
    return place.endswith(".py") or "/" in place or "\\" in place


def _callables_in(path: Path) -> list[str]:
    """The public functions and classes of a file, read without running it."""
    try:
        body = ast.parse(path.read_text(encoding="utf-8")).body
    except (OSError, ValueError, SyntaxError):
        return []
    named = (each.name for each in body if isinstance(each, ast.FunctionDef | ast.ClassDef))
    return [name for name in named if not name.startswith("_")]


def _module(name: str) -> ModuleType:
    try:
        with _importable(Path.cwd()):
            return import_module(name)
    except ModuleNotFoundError as problem:
        if problem.name and (name == problem.name or name.startswith(problem.name + ".")):
            raise SubjectError(
                f"there is no module {problem.name!r}; is its package installed, "
                "or is this the directory that holds it?"
            ) from problem
        raise _import_failed(name, problem, _found_by_a_path(problem)) from problem
    except (Exception, SystemExit) as problem:
        raise _import_failed(name, problem) from problem


def _file(path: Path) -> ModuleType:
    if not path.is_file():
        raise SubjectError(f"there is no file {path}")
    # A name of its own: a user's random.py must take the place neither of the standard library's nor of another folder's.
    name = f"headcheck_subject_file_{path.stem}_{crc32(bytes(path.resolve())):08x}"
    spec = spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None:
        raise SubjectError(f"{path} is no Python file")
    module = module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look a function's module up by name.
    try:
        with _importable(Path.cwd()), _importable(path.resolve().parent):
            spec.loader.exec_module(module)
    except (Exception, SystemExit) as problem:
        sys.modules.pop(name, None)
        cure = _in_its_package(path, problem) or _found_by_a_path(problem, path.resolve().parents[:-1])
        raise _import_failed(str(path), problem, cure) from problem
    return module


def _in_its_package(path: Path, problem: BaseException) -> str:
    """How a file of a package is named whose relative imports failed."""
    if not isinstance(problem, ImportError) or not (path.resolve().parent / "__init__.py").is_file():
        return ""
    root, dotted = place_in_its_package(path.resolve())
    return f"; it is part of a package: name it as {dotted}:NAME, with {root} as the working directory"


def _found_by_a_path(problem: BaseException, folders: Iterable[Path] = ()) -> str:
    """How a module is found that an import missed; folders: where it is looked for, the nearest first."""
    name = problem.name if isinstance(problem, ModuleNotFoundError) else None
    if not name or "." in name:  # Of a dotted one the package was found.
        return ""
    places = (each / below for each in folders for below in ("", "src"))
    root = next((each for each in places if _holds(each, name)), None)
    if root is not None:
        return f"; it lies in {root}: run with PYTHONPATH={shlex.quote(str(root))}, or install it by pip install -e"
    return f"; install {name}, or run with PYTHONPATH=FOLDER, the folder that holds it"


def _holds(folder: Path, module: str) -> bool:
    """Whether a module lies there; not, where that cannot be read."""
    with suppress(OSError):
        return (folder / module).is_dir() or (folder / f"{module}.py").is_file()
    return False


def place_in_its_package(file: Path) -> tuple[Path, str]:
    """The folder that must be on the path, and the dotted name of the file from there."""
    root, name = file.parent, file.stem
    while (root / "__init__.py").is_file():
        root, name = root.parent, f"{root.name}.{name}"
    return root, name


@contextmanager
def _importable(directory: Path) -> Iterator[None]:
    """The directory comes first on sys.path, as when running a script, and last once that is over.

    It stays, because a function may import its neighbours when it is called.
    """
    path = str(directory)
    sys.path.insert(0, path)
    try:
        yield
    finally:
        sys.path.remove(path)
        if path not in sys.path:
            sys.path.append(path)


def _import_failed(what: str, problem: BaseException, cure: str = "") -> SubjectError:
    if isinstance(problem, SyntaxError):
        line = f", line {problem.lineno}" if problem.lineno else ""
        return SubjectError(f"{problem.filename or what}{line}: syntax error: {problem.msg}")
    first_line = first_line_of(problem)
    ours = (__file__, "<frozen importlib")
    frames = [f for f in traceback.extract_tb(problem.__traceback__) if not f.filename.startswith(ours)]
    inside = [f for f in frames if "importlib" not in f.filename]
    where = f" ({inside[-1].filename}, line {inside[-1].lineno})" if inside else ""
    return SubjectError(f"importing {what} failed{where}: {type(problem).__name__}: {first_line}{cure}")


def _attribute(module: ModuleType, dotted: str, place: str) -> Any:
    found: Any = module
    for name in dotted.split("."):
        try:
            found = getattr(found, name)
        except AttributeError as problem:
            public = [each for each in dir(found) if not each.startswith("_")]
            hint = (
                _similar(name, public) or f"it has: {', '.join(_subjects_of(found)[:8]) or 'nothing to call'}"
            )
            raise SubjectError(f"{place} has no attribute {name!r} ({hint})") from problem
        except Exception as problem:
            raise _import_failed(f"{place}:{name}", problem) from problem
    return found


def _subjects_of(holder: Any) -> list[str]:
    """What of a module or a class may be named as a subject: what is defined there first, and no imports of torch."""
    home = holder.__name__ if isinstance(holder, ModuleType) else getattr(holder, "__module__", "")
    own, others = [], []
    # One that is made when asked for may raise: it is left out.
    for name, each in sorted(vars(holder).items()) if hasattr(holder, "__dict__") else ():
        if name.startswith("_") or not (callable(each) or is_declaration(each)):
            continue
        defined = isinstance(each, type | FunctionType | BuiltinFunctionType)
        origin = str(getattr(each, "__module__", None))
        if is_declaration(each) or (defined and origin == home):
            own.append(name)
        elif not defined or origin.partition(".")[0] != "torch" or home.partition(".")[0] == "torch":
            others.append(name)
    return own + others


def _callable(attribute: Any, spec: str) -> Any:
    if (
        isinstance(attribute, type)
        and not is_module_class(attribute)
        and not _has_instances_to_call(attribute)
    ):
        raise SubjectError(
            f"{spec} is a class of what cannot be called; name a function, or a class of modules"
        )
    if not callable(attribute) and not is_declaration(attribute):
        raise SubjectError(
            f"{spec} is of type {type(attribute).__name__}, neither a callable nor a declaration"
        )
    return attribute


def _has_instances_to_call(attribute: type) -> bool:
    return any("__call__" in vars(base) for base in attribute.__mro__)


def _similar(name: str, known: Iterable[str]) -> str:
    close = get_close_matches(name, list(known), n=3, cutoff=0.6)
    return f"did you mean {' or '.join(close)}?" if close else ""
