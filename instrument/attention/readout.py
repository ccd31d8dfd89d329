"""Reading the weights out of any implementation: with the identity as values, the output is the weights."""

import torch

from headcheck.attention.inputs import Inputs
from headcheck.attention.subject import AttentionSubject


def reading_the_weights(attention: AttentionSubject, x: Inputs) -> Inputs:
    """The inputs with value j the unit vector of dim j: output (batch, heads, q_len, kv_len or more).

    Where value_dim must equal head_dim, query and key get dims of zero until there are as many dims as keys;
    dims beyond the keys read as zero.
    """
    width = x.kv_len
    if attention.declaration.value_dim is False:
        width = max(x.kv_len, x.head_dim)
        padding = (0, width - x.head_dim)
        x = x.but(
            query=torch.nn.functional.pad(x.query, padding), key=torch.nn.functional.pad(x.key, padding)
        )
    identity = torch.eye(x.kv_len, width, dtype=x.dtype).expand(*x.key.shape[:3], width)
    return x.but(value=identity, strides="contiguous" if x.strides.startswith("expanded") else x.strides)
