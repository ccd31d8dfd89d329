"""Attention of a sequence to itself, before there are heads: first without weights, then with projections."""

from jaxtyping import Float
from torch import Tensor, nn

from headcheck.reference.attention import Attended, MayAttend, attention, softmax


def attention_without_weights(x: Float[Tensor, "*batch length dim"]) -> Float[Tensor, "*batch length dim"]:
    """softmax(X X^T) X: similar tokens hear each other; nothing is learned, nothing scaled.

    Document 000, line 45.
    """
    return softmax(x @ x.mT) @ x


class SingleHeadAttention(nn.Module):
    """Attention(X W_q, Y W_k, Y W_v), where Y is X or another sequence; causal by its mask.

    Vaswani et al. 2017, section 3.2; document 003, lines 102, 165 and 235.
    """

    def __init__(self, d_model: int, d_k: int, d_v: int, *, bias: bool = True) -> None:
        super().__init__()
        self.w_q = nn.Linear(d_model, d_k, bias=bias)
        self.w_k = nn.Linear(d_model, d_k, bias=bias)
        self.w_v = nn.Linear(d_model, d_v, bias=bias)

    def forward(
        self,
        query: Float[Tensor, "batch q_len d_model"],
        key: Float[Tensor, "batch kv_len d_model"] | None = None,
        *,
        may_attend: MayAttend = None,
    ) -> Attended:
        """Self-attention where `key` is None. The values of `Attended` have one head."""
        key = query if key is None else key
        q, k, v = (x[:, None] for x in (self.w_q(query), self.w_k(key), self.w_v(key)))
        return attention(q, k, v, may_attend=may_attend)
