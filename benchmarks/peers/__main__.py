"""The fault corpus against headcheck and against what people use today, in one run.

    python -m benchmarks.peers [--peer NAME ...] [--only PART] [--processes 2] [--markdown docs/peers.md]

Each peer judges the same wrong and the same right functions by its own rule; what the rules are stands in the
modules beside this one. The exit code is 1 where a peer catches a fault that headcheck does not, or where headcheck
fails a right function.
"""

import argparse
import sys
from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import torch

from benchmarks.peers import (
    arrays,
    assert_close,
    corpus,
    flash,
    fudge,
    kernelbench,
    onnx_rotary,
    onnx_vectors,
    ourselves,
)
from benchmarks.peers.page import Run, page
from benchmarks.peers.rules import Outcome, judged

MODULES = (assert_close, flash, onnx_vectors, kernelbench, fudge, arrays)
PEERS = {
    peer.name: peer
    for peer in (ourselves.PEER, *(module.PEER for module in MODULES), ourselves.ROTARY, onnx_rotary.PEER)
}


def outcome(peer: str, name: str) -> Outcome:
    """What one peer says of one function."""
    torch.set_num_threads(1)
    return judged(PEERS[peer], corpus.subject(PEERS[peer].role, name))


def work(chosen: list[str], only: str) -> list[tuple[str, str]]:
    """Every pair of a peer and a function; each peer is done with before the next begins."""
    return [
        (peer, name)
        for peer in chosen
        for name in (*corpus.wrong(PEERS[peer].role), *corpus.right(PEERS[peer].role))
        if only in name
    ]


def run(pairs: list[tuple[str, str]], processes: int) -> dict[tuple[str, str], Outcome]:
    """The outcome of every pair."""
    outcomes = {}
    with ProcessPoolExecutor(processes) as pool:
        pending = {pair: pool.submit(outcome, *pair) for pair in pairs}
        for done, (pair, future) in enumerate(pending.items(), 1):
            outcomes[pair] = future.result()
            if done % 50 == 0:
                print(f"{done} of {len(pairs)}", file=sys.stderr, flush=True)
    return outcomes


def main() -> int:
    arguments = _arguments()
    missing = [name for name in arguments.peer if PEERS[name].needs and not find_spec(PEERS[name].needs)]
    notes = [f"Not run, for want of a package: {', '.join(missing)} ({onnx_vectors.HOW_TO_GET})."] * bool(
        missing
    )
    chosen = [name for name in arguments.peer if name not in missing]
    outcomes = run(work(chosen, arguments.only), arguments.processes)
    runs = [
        Run(role, peers, outcomes)
        for role in ("attention", "rotary")
        if (peers := [PEERS[name] for name in chosen if PEERS[name].role == role])
    ]
    text = page(runs, "python -m benchmarks.peers --markdown docs/peers.md", notes)
    print(text)
    if arguments.markdown:
        arguments.markdown.write_text(text, encoding="utf-8")
    return 1 if any(behind(each) for each in runs) else 0


def behind(run: Run) -> bool:
    """Whether a peer is ahead of headcheck, or headcheck fails what is right; said aloud."""
    ahead = {peer.title: names for peer in run.peers if (names := run.ahead(peer))}
    alarms = [each.id for each in run.failed(run.ourselves, corpus.right(run.role))] if run.ourselves else []
    for title, names in ahead.items():
        print(f"AHEAD OF HEADCHECK: {title} catches {', '.join(names)}", file=sys.stderr)
    if alarms:
        print(f"HEADCHECK FAILS RIGHT FUNCTIONS: {', '.join(alarms)}", file=sys.stderr)
    return bool(ahead or alarms)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="The fault corpus against what people use today.")
    parser.add_argument("--peer", nargs="+", default=list(PEERS), choices=list(PEERS), help="only these")
    parser.add_argument("--only", default="", help="part of the ids to judge")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--markdown", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
