"""What is found out about dtypes: what a subject answers in under autocast, and what it makes of two dtypes.

Neither is declared: torch's documentation leaves both open, and laws hold whatever is chosen to its bound.
"""

import torch

from headcheck.attention.bench import Bench, Finding, probe
from headcheck.attention.inputs import Inputs
from headcheck.comparison import LawBroken, NotApplicable


@probe(compared="float32 under autocast to bfloat16")
def under_autocast(bench: Bench) -> Finding:
    """The dtype of the output, where inputs are float32 and the region is bfloat16."""
    x = _in(bench, torch.float32).but(autocast=torch.bfloat16)
    return _dtype(bench, "under_autocast", x, "a call in float32 under torch.autocast in bfloat16")


@probe(compared="query in float32, key and value in bfloat16")
def two_dtypes(bench: Bench) -> Finding:
    """The dtype of the output, where the query is float32 and key and value are bfloat16."""
    x = _in(bench, torch.float32)
    mixed = x.but(key=x.key.bfloat16(), value=x.value.bfloat16())
    return _dtype(bench, "two_dtypes", mixed, "a query in float32, key and value in bfloat16")


def _in(bench: Bench, dtype: torch.dtype) -> Inputs:
    x = bench.inputs()
    return x.but(query=x.query.to(dtype), key=x.key.to(dtype), value=x.value.to(dtype))


def _dtype(bench: Bench, topic: str, x: Inputs, how: str) -> Finding:
    try:
        output = bench.subject()(x)
    except (LawBroken, NotApplicable) as problem:
        return Finding(topic, "refused", f"{how}: {problem}", declarable=False)
    return Finding(topic, f"in {str(output.dtype).removeprefix('torch.')}", how, declarable=False)
