"""Attention that does not look at every pair: windows, sparse patterns, and linear attention.

Full attention computes q_len x kv_len scores (document 000, line 1173). A window or a sparse pattern computes
fewer of the same scores; linear attention computes another function, without scores.

Axes: batch, heads, q_len, kv_len, head_dim, value_dim; `length` where queries and keys are the same tokens.
A query that may attend to no key gives a row of zeros.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from headcheck.reference.attention import MayAttend, attention
from headcheck.reference.masks import Alignment, query_positions, sliding_window

# Sliding windows


def window_keys(position: int, kv_len: int, left: int | None, right: int | None) -> range:
    """The keys that a query at `position` sees: position - left to position + right, as far as there are keys."""
    start = 0 if left is None else max(0, position - left)
    stop = kv_len if right is None else min(kv_len, position + right + 1)
    return range(start, max(start, stop))


def sliding_window_attention(
    query: Float[Tensor, "batch heads q_len head_dim"],
    key: Float[Tensor, "batch kv_heads kv_len head_dim"],
    value: Float[Tensor, "batch kv_heads kv_len value_dim"],
    *,
    left: int | None,
    right: int | None,
    alignment: Alignment = "top-left",
    scale: float | None = None,
) -> Float[Tensor, "batch heads q_len value_dim"]:
    """Each query attends to its own window of keys and computes no other score.

    Equal to attention under `masks.sliding_window` with the same left, right and alignment; None is unbounded.
    Beltagy et al. 2020 (Longformer), section 3.1; document 000, line 1181, which computes all scores and masks.
    """
    kv_len = key.shape[2]
    output = query.new_zeros(*query.shape[:3], value.shape[-1])
    for i, position in enumerate(query_positions(query.shape[2], kv_len, alignment).tolist()):
        seen = window_keys(position, kv_len, left, right)
        keys, values = (x[:, :, seen.start : seen.stop] for x in (key, value))
        output[:, :, i] = attention(query[:, :, i : i + 1], keys, values, scale=scale).output[:, :, 0]
    return output


def number_of_scores(q_len: int, kv_len: int, left: int | None = None, right: int | None = None) -> int:
    """The scores of one head: q_len x kv_len, or at most q_len x (left + 1 + right) with a window.

    Document 000, lines 1173 and 1181; document 002, line 76.
    """
    return sum(len(window_keys(i, kv_len, left, right)) for i in range(q_len))


def receptive_field(layers: int, left: int, right: int) -> tuple[int, int]:
    """How many tokens before and after its own reach a token through so many layers: layers x window.

    Beltagy et al. 2020, section 3.1; Jiang et al. 2023 (Mistral 7B), section 2.
    """
    return layers * left, layers * right


# Sparse patterns: `may_attend`, True keeps


def global_tokens(length: int, count: int) -> Bool[Tensor, "length length"]:
    """The first `count` tokens see every token and are seen by every token.

    Beltagy et al. 2020, section 3.1; Zaheer et al. 2020 (BigBird), section 2, the internal construction.
    """
    is_global = torch.arange(length) < count
    return is_global[:, None] | is_global


def random_keys(length: int, count: int, generator: torch.Generator) -> Bool[Tensor, "length length"]:
    """Each query sees `count` different keys drawn at random.  Zaheer et al. 2020, section 2.

    ValueError: more keys are asked for than there are.
    """
    if count > length:
        raise ValueError(f"{count} random keys of {length}: there are not so many")
    drawn = torch.rand(length, length, generator=generator).argsort(dim=-1)[:, :count]
    return torch.zeros(length, length, dtype=torch.bool).scatter(1, drawn, value=True)


def sparse(
    length: int, *, radius: int, global_count: int, random_count: int, generator: torch.Generator
) -> Bool[Tensor, "length length"]:
    """A local window, a few global tokens and random long-range connections together.

    Zaheer et al. 2020, section 2; with random_count=0 it is the pattern of Beltagy et al. 2020, section 3.1.
    Document 000, line 1228.
    """
    local = sliding_window(length, length, radius, radius)
    return local | global_tokens(length, global_count) | random_keys(length, random_count, generator)


def reachable(may_attend: Bool[Tensor, "length length"], layers: int) -> Bool[Tensor, "length length"]:
    """Which token (row) hears from which (column) through so many layers, with residual connections.

    Without layers each token hears from itself; each layer adds what those hear whom it attends to.
    """
    heard = torch.eye(len(may_attend), dtype=torch.bool)
    for _ in range(layers):
        heard = heard | (may_attend.double() @ heard.double() > 0)
    return heard


# Linear attention: Katharopoulos et al. 2020, "Transformers are RNNs"; document 000, line 1226


class LinearState(NamedTuple):
    """All that causal linear attention remembers of the past, however long, of each head.  Section 3.4."""

    values: Float[Tensor, "*heads head_dim value_dim"]
    """s = sum_j phi(k_j) v_j^T."""
    normaliser: Float[Tensor, "*heads head_dim"]
    """z = sum_j phi(k_j)."""


def feature_map(x: Float[Tensor, "*axes"]) -> Float[Tensor, "*axes"]:
    """phi(x) = elu(x) + 1, equation (7): x + 1 above zero, exp(x) below, so that no rounding makes it 0."""
    return torch.where(x > 0, x + 1, torch.exp(x.clamp(max=0)))


def kernel_attention(
    query: Float[Tensor, "batch heads q_len head_dim"],
    key: Float[Tensor, "batch heads kv_len head_dim"],
    value: Float[Tensor, "batch heads kv_len value_dim"],
    *,
    may_attend: MayAttend = None,
) -> Float[Tensor, "batch heads q_len value_dim"]:
    """sum_j sim(q_i, k_j) v_j / sum_j sim(q_i, k_j), equation (3), with sim(q, k) = phi(q).phi(k).

    Linear attention written with its q_len x kv_len similarities; the forms below do without them.
    """
    similarity = feature_map(query) @ feature_map(key).mT
    if may_attend is not None:
        similarity = similarity.masked_fill(~may_attend, 0.0)
    return _mean(similarity @ value, similarity.sum(dim=-1))


def linear_attention(
    query: Float[Tensor, "batch heads q_len head_dim"],
    key: Float[Tensor, "batch heads kv_len head_dim"],
    value: Float[Tensor, "batch heads kv_len value_dim"],
) -> Float[Tensor, "batch heads q_len value_dim"]:
    """phi(Q) (phi(K)^T V) / phi(Q) (phi(K)^T 1), equations (5) and (6): the keys are summed first."""
    features, key_features = feature_map(query), feature_map(key)
    return _mean(
        features @ (key_features.mT @ value), (features @ key_features.sum(dim=-2)[..., None])[..., 0]
    )


def causal_linear_attention(
    query: Float[Tensor, "batch heads length head_dim"],
    key: Float[Tensor, "batch heads length head_dim"],
    value: Float[Tensor, "batch heads length value_dim"],
) -> Float[Tensor, "batch heads length value_dim"]:
    """phi(q_i)^T s_i / phi(q_i)^T z_i, where s_i and z_i sum over j <= i: all at once.  Section 3.3."""
    features, key_features = feature_map(query), feature_map(key)
    values = (key_features[..., :, None] * value[..., None, :]).cumsum(dim=2)
    normaliser = key_features.cumsum(dim=2)
    return _read(features, LinearState(values, normaliser))


def empty_state(
    query: Float[Tensor, "batch heads q_len head_dim"], value: Float[Tensor, "batch heads kv_len value_dim"]
) -> LinearState:
    """s_0 = 0, z_0 = 0: nothing was seen."""
    batch, heads, _, head_dim = query.shape
    return LinearState(
        query.new_zeros(batch, heads, head_dim, value.shape[-1]), query.new_zeros(batch, heads, head_dim)
    )


def recurrent_linear_attention(
    query: Float[Tensor, "batch heads length head_dim"],
    key: Float[Tensor, "batch heads length head_dim"],
    value: Float[Tensor, "batch heads length value_dim"],
    state: LinearState | None = None,
) -> tuple[Float[Tensor, "batch heads length value_dim"], LinearState]:
    """Causal linear attention token by token: the outputs, and the state that continues the sequence.

    s_i = s_(i-1) + phi(k_i) v_i^T;  z_i = z_(i-1) + phi(k_i).  Section 3.4, equations (16) to (20).
    """
    values, normaliser = empty_state(query, value) if state is None else state
    output = query.new_zeros(*query.shape[:3], value.shape[-1])
    for i in range(query.shape[2]):
        features, key_features = feature_map(query[:, :, i]), feature_map(key[:, :, i])
        values = values + key_features[..., :, None] * value[:, :, i, None, :]
        normaliser = normaliser + key_features
        output[:, :, i] = _read(features, LinearState(values, normaliser))
    return output, LinearState(values, normaliser)


def _read(features: Float[Tensor, "*rows head_dim"], state: LinearState) -> Float[Tensor, "*rows value_dim"]:
    """phi(q)^T s / phi(q)^T z for every row."""
    total = (features * state.normaliser).sum(dim=-1)
    return _mean((features[..., None, :] @ state.values)[..., 0, :], total)


def _mean(
    weighted: Float[Tensor, "*rows value_dim"], total: Float[Tensor, "*rows"]
) -> Float[Tensor, "*rows value_dim"]:
    """weighted / total; zeros where there was nothing to weigh."""
    empty = (total == 0)[..., None]
    return torch.where(empty, 0.0, weighted / torch.where(empty, 1.0, total[..., None]))
