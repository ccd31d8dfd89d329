"""headcheck: laws that any attention implementation must keep, and the smallest case that breaks one.

The whole public surface. Names are loaded when first used, because the pytest plugin lives in this package
and every pytest run of an environment imports it: torch, which takes seconds, must not come along.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headcheck.arithmetic import Arithmetic
    from headcheck.declarations import Attention
    from headcheck.functions.layer_norm import LayerNorm
    from headcheck.functions.rms_norm import RMSNorm
    from headcheck.functions.rotary_inputs import Rotary
    from headcheck.functions.sinusoidal_inputs import Sinusoidal
    from headcheck.functions.softmax import Softmax
    from headcheck.judging import probe, replay, verify
    from headcheck.laws import law
    from headcheck.modules.causal_lm import CausalLM
    from headcheck.modules.decoder import Decoder
    from headcheck.modules.encoder import Encoder
    from headcheck.modules.multi_head.conventions import MultiHeadAttention
    from headcheck.modules.seq2seq import Seq2Seq
    from headcheck.modules.vision import Vision
    from headcheck.verdict import Verdict

__version__ = "0.1.0"
__all__ = [
    "Arithmetic",
    "Attention",
    "CausalLM",
    "Decoder",
    "Encoder",
    "LayerNorm",
    "MultiHeadAttention",
    "RMSNorm",
    "Rotary",
    "Seq2Seq",
    "Sinusoidal",
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
    "Decoder": "headcheck.modules.decoder",
    "Encoder": "headcheck.modules.encoder",
    "LayerNorm": "headcheck.functions.layer_norm",
    "MultiHeadAttention": "headcheck.modules.multi_head.conventions",
    "RMSNorm": "headcheck.functions.rms_norm",
    "Rotary": "headcheck.functions.rotary_inputs",
    "Seq2Seq": "headcheck.modules.seq2seq",
    "Sinusoidal": "headcheck.functions.sinusoidal_inputs",
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


def __dir__() -> list[str]:
    """The public names, for completion: most are not loaded yet."""
    return [*__all__, "__version__"]
