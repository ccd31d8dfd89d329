"""headcheck: laws that any attention implementation must keep, and the smallest case that breaks one.

The whole public surface. Names are loaded when first used, because the pytest plugin lives in this package
and every pytest run of an environment imports it: torch, which takes seconds, must not come along.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headcheck.arithmetic import Arithmetic
    from headcheck.declarations import Attention
    from headcheck.functions.softmax import Softmax
    from headcheck.judging import probe, replay, verify
    from headcheck.laws import law
    from headcheck.modules.causal_lm import CausalLM
    from headcheck.modules.seq2seq import Seq2Seq
    from headcheck.modules.vision import Vision
    from headcheck.verdict import Verdict

__version__ = "0.1.0"
__all__ = [
    "Arithmetic",
    "Attention",
    "CausalLM",
    "Seq2Seq",
    "Softmax",
    "Verdict",
    "Vision",
    "law",
    "probe",
    "replay",
    "verify",
]

_HOMES = {
    "Arithmetic": "headcheck.arithmetic",
    "Attention": "headcheck.declarations",
    "CausalLM": "headcheck.modules.causal_lm",
    "Seq2Seq": "headcheck.modules.seq2seq",
    "Softmax": "headcheck.functions.softmax",
    "Verdict": "headcheck.verdict",
    "Vision": "headcheck.modules.vision",
    "law": "headcheck.laws",
    "probe": "headcheck.judging",
    "replay": "headcheck.judging",
    "verify": "headcheck.judging",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'headcheck' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
