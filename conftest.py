"""What every test run of this repository needs: an installation that is up to date, and steady numbers."""

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import torch

from tests.shapes import check_the_reference, look_at_shapes

HERE = Path(__file__).parent
SOURCES = {"": "instrument", "reference": "reference", "properties": "properties", "golden": "golden"}
"""Sub-package of headcheck -> the folder that holds it."""
OF_THE_REFERENCE = ("test_reference", "test_golden", "test_learning")
"""The modules of tests in which each call of the reference is held to the shapes that its annotations say."""


def pytest_configure() -> None:
    """Stop early where tests would meet an old headcheck; the reference checked for shapes; inputs of our own."""
    stale = modules_not_installed()
    if stale:
        names = ", ".join(stale[:3]) + (" ..." if len(stale) > 3 else "")
        raise pytest.UsageError(
            f"added since headcheck was installed: {names}; run pip install -e . again (the editable "
            "installation is strict: it links the modules that were there)"
        )
    check_the_reference()
    # For the processes that xdist starts: with pages of 2 MiB a copy of one of a gigabyte takes 3 ms, and not 90.
    os.environ.setdefault("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
    # Not Hypothesis' own profile `ci`: loaded where CI is set, it draws the same inputs for ever.
    hypothesis.settings.register_profile("headcheck", deadline=None, print_blob=True)
    hypothesis.settings.load_profile("headcheck")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """One thread; shapes are looked at where the reference is tested, not in a hundred thousand calls by laws."""
    torch.set_num_threads(1)
    look_at_shapes(item.path.stem.startswith(OF_THE_REFERENCE))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One process more than there are cores: tests of what hangs wait, and some others for processes of their own."""
    affinity = getattr(os, "sched_getaffinity", None)  # Not everywhere.
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    return cores + 1


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A process that is done takes tests from one that is not: what is left at the end is long, and in one file."""
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log)


def modules_not_installed() -> list[str]:
    """Modules of this tree that an editable installation does not know; none where a wheel is installed."""
    spec = find_spec("headcheck")
    if spec is None or not spec.submodule_search_locations:
        return ["headcheck itself"]
    installed = Path(spec.submodule_search_locations[0])
    if HERE not in installed.parents:
        return []
    return sorted(
        f"{folder}/{module.relative_to(HERE / folder)}"
        for package, folder in SOURCES.items()
        for module in (HERE / folder).rglob("*.py")
        if not (installed / package / module.relative_to(HERE / folder)).exists()
    )
