"""headcheck: laws that any attention implementation must keep, and the smallest case that breaks one.

The whole public surface. Names are loaded when first used, because the pytest plugin lives in this package
and every pytest run of an environment imports it: torch, which takes seconds, must not come along.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # The homes below once more, for who checks types.
    from headcheck.arithmetic import Arithmetic as Arithmetic
    from headcheck.declarations import Attention as Attention
    from headcheck.engine import Profile as Profile
    from headcheck.errors import HeadcheckError as HeadcheckError
    from headcheck.functions.layer_norm import LayerNorm as LayerNorm
    from headcheck.functions.rms_norm import RMSNorm as RMSNorm
    from headcheck.functions.rotary_inputs import Rotary as Rotary
    from headcheck.functions.sinusoidal_inputs import Sinusoidal as Sinusoidal
    from headcheck.functions.softmax import Softmax as Softmax
    from headcheck.laws import law as law
    from headcheck.modules.causal_lm import CausalLM as CausalLM
    from headcheck.modules.decoder import Decoder as Decoder
    from headcheck.modules.encoder import Encoder as Encoder
    from headcheck.modules.multi_head.conventions import MultiHeadAttention as MultiHeadAttention
    from headcheck.modules.seq2seq import Seq2Seq as Seq2Seq
    from headcheck.modules.vision import Vision as Vision
    from headcheck.python_front import probe as probe
    from headcheck.python_front import replay as replay
    from headcheck.python_front import verify as verify
    from headcheck.verdict import Verdict as Verdict

__version__ = "0.1.0"
_HOMES = {
    "Arithmetic": "headcheck.arithmetic",
    "Attention": "headcheck.declarations",
    "CausalLM": "headcheck.modules.causal_lm",
    "Decoder": "headcheck.modules.decoder",
    "Encoder": "headcheck.modules.encoder",
    "HeadcheckError": "headcheck.errors",
    "LayerNorm": "headcheck.functions.layer_norm",
    "MultiHeadAttention": "headcheck.modules.multi_head.conventions",
    "Profile": "headcheck.engine",
    "RMSNorm": "headcheck.functions.rms_norm",
    "Rotary": "headcheck.functions.rotary_inputs",
    "Seq2Seq": "headcheck.modules.seq2seq",
    "Sinusoidal": "headcheck.functions.sinusoidal_inputs",
    "Softmax": "headcheck.functions.softmax",
    "Verdict": "headcheck.verdict",
    "Vision": "headcheck.modules.vision",
    "law": "headcheck.laws",
    "probe": "headcheck.python_front",
    "replay": "headcheck.python_front",
    "verify": "headcheck.python_front",
}
"""Public name -> the module that it is loaded from when first used."""
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'headcheck' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """The public names, for completion: most are not loaded yet."""
    return [*__all__, "__version__"]
