"""The exact answer: the reference's multi-head attention in float64, with the weights of the case."""

import torch
from torch import Tensor
from torch.func import functional_call

from headcheck import reference
from headcheck.modules.multi_head.cases import MultiHeadInputs
from headcheck.reference.attention import attention, group_heads
from headcheck.reference.multi_head import attention_weights, merge_heads, split_heads

GIVEN = ("query", "key", "value")


def _reference(x: MultiHeadInputs) -> reference.MultiHeadAttention:
    d_model = x.query.shape[-1]
    return reference.MultiHeadAttention(d_model, x.heads, kv_heads=x.kv_heads).double()


def _parameters(x: MultiHeadInputs, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """By the reference's names; a bias that the module lacks is zero."""
    found = {f"{name}.weight": weights[name] for name in ("w_q", "w_k", "w_v", "w_o")}
    for name in ("w_q", "w_k", "w_v", "w_o"):
        bias = weights.get(name.replace("w", "b"))
        found[f"{name}.bias"] = torch.zeros(len(weights[name]), dtype=torch.float64) if bias is None else bias
    return found


def expected(x: MultiHeadInputs, visible: Tensor) -> Tensor:
    """The output (batch, q_len, d_model) for what is visible to each query."""
    given = tuple(each.double() for each in (x.query, x.keys, x.values))
    with torch.no_grad():
        output: Tensor = functional_call(
            _reference(x), _parameters(x, x.weights), given, {"may_attend": visible}
        )
    return output


def expected_weights(x: MultiHeadInputs, visible: Tensor) -> Tensor:
    """The weights (batch, heads, q_len, kv_len)."""
    module = _reference(x)
    module.load_state_dict(_parameters(x, x.weights))
    with torch.no_grad(), attention_weights(module) as weights:
        module(*(each.double() for each in (x.query, x.keys, x.values)), may_attend=visible)
    return weights[""]


@torch.enable_grad()
def expected_gradients(x: MultiHeadInputs, visible: Tensor, cotangent: Tensor) -> dict[str, Tensor]:
    """The gradient of sum(output x cotangent) for each weight, and for query, key and value where they are given."""
    weights = {name: each.clone().requires_grad_() for name, each in x.weights.items()}
    given = {
        name: each.double().clone().requires_grad_()
        for name in GIVEN
        if (each := getattr(x, name)) is not None
    }
    key = given.get("key", given["query"])
    call = (given["query"], key, given.get("value", key))
    output = functional_call(_reference(x), _parameters(x, weights), call, {"may_attend": visible})
    wanted = weights | given
    found = torch.autograd.grad(output, list(wanted.values()), cotangent.double(), materialize_grads=True)
    return dict(zip(wanted, found, strict=True))


def projected(x: MultiHeadInputs, letter: str) -> Tensor:
    """Query, key or value by heads, (batch, heads, length, head_dim), written out; heads in groups repeated."""
    tensor = {"q": x.query, "k": x.keys, "v": x.values}[letter].double()
    bias = x.weights.get(f"b_{letter}")
    whole = tensor @ x.weights[f"w_{letter}"].mT + (0.0 if bias is None else bias)
    heads = split_heads(whole, x.heads if letter == "q" else x.kv_heads)
    return heads if letter == "q" else group_heads(heads, x.heads)


def put_out(x: MultiHeadInputs, heads: Tensor) -> Tensor:
    """The output (batch, q_len, d_model) of what the heads give, (batch, heads, q_len, head_dim)."""
    bias = x.weights.get("b_o")
    return merge_heads(heads) @ x.weights["w_o"].mT + (0.0 if bias is None else bias)


def with_bias(x: MultiHeadInputs, bias: Tensor, visible: Tensor) -> Tensor:
    """The output where `bias` (batch, heads or 1, q_len, kv_len) is added to the scores of what is visible."""
    query, key, value = (projected(x, letter) for letter in "qkv")
    return put_out(x, attention(query, key, value, bias=bias, may_attend=visible).output)
