"""`pytest golden`: every claim, code block and probe of the ledger is one item.

Blocks and probes are run where the documents are at hand (`--documents DIR`), and skipped with the reason where
they are not.
"""

from pathlib import Path

import pytest

from headcheck.golden.blocks import block_problems, not_applicable, place_problem, probe_problems
from headcheck.golden.judging import judge
from headcheck.golden.ledger import Block, Claim, Probe, ledger

LEDGER = ledger()


@pytest.fixture(scope="session")
def documents(request: pytest.FixtureRequest) -> Path | None:
    """The folder of the documents, where it was given."""
    given = request.config.getoption("--documents")
    return Path(given).resolve() if given else None


def require(reason: str) -> None:
    """Skip what is not applicable, with its reason."""
    if reason:
        pytest.skip(f"not applicable: {reason}")


@pytest.mark.parametrize("claim", LEDGER.claims.values(), ids=list(LEDGER.claims))
def test_the_verdict_is_the_declared_one(claim: Claim, documents: Path | None) -> None:
    """The computed verdict is the declared one; the second way, the reference, the chain and the slip agree."""
    problems = list(judge(claim).problems)
    if documents is not None:
        problems += filter(None, [place_problem(claim.document, claim.line, claim.place, documents)])
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("block", LEDGER.blocks.values(), ids=list(LEDGER.blocks))
def test_a_block_does_what_the_ledger_says(block: Block, documents: Path | None) -> None:
    """Run as printed, alone and in the order of the document."""
    require(not_applicable(block, documents))
    assert documents is not None
    problems = block_problems(block, documents)
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("probe", LEDGER.probes.values(), ids=list(LEDGER.probes))
def test_a_probe_finds_what_the_ledger_says(probe: Probe, documents: Path | None) -> None:
    """Run after the blocks, on the smallest input that shows it, it prints what the ledger says."""
    require(not_applicable(probe, documents))
    assert documents is not None
    problems = probe_problems(probe, documents)
    assert not problems, "\n".join(problems)
