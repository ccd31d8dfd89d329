"""Right code of tutorials and packages that was failed, or could not be called, or was given the wrong advice."""

import functools
import sys
import types
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import headcheck
from headcheck.verdict import Verdict


def quick(subject: Any, laws: str | tuple[str, ...], **asked: Any) -> Verdict:
    """The verdict of these laws in the quick profile."""
    return headcheck.verify(subject, laws=laws, profile="quick", **asked)


def hinted(verdict: Verdict, said: str) -> bool:
    """Whether a note says so."""
    return any(said in note for note in verdict.notes)


def test_a_module_that_loads_an_extra_when_it_is_looked_at_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As speechbrain's: Hypothesis looks at the file of every module that is loaded, and it raised."""

    class Lazy(types.ModuleType):
        def __getattr__(self, name: str) -> Any:
            raise ImportError(f"please install {self.__name__}")

    monkeypatch.setitem(sys.modules, "some_optional_extra", Lazy("some_optional_extra"))
    verdict = quick("torch-sdpa-math", laws="masks", dtype="float32")
    assert verdict.conforms


class Heads(nn.Module):
    """Two or more heads, by layers of common names."""

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__()
        if d_model % num_heads:
            raise ValueError("heads must divide the width")
        self.num_heads = num_heads
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(d_model, d_model) for _ in range(4))

    def layers(self) -> tuple[nn.Module, nn.Module, nn.Module, nn.Module]:
        return self.q_proj, self.k_proj, self.v_proj, self.out_proj

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.mT * q.shape[-1] ** -0.5

    def hidden(self, scores: Tensor, mask: Any) -> Tensor:
        return scores

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return self.attended(query, key, value, None)

    def attended(self, query: Tensor, key: Tensor, value: Tensor, mask: Any) -> Tensor:
        *inner, out = self.layers()
        q, k, v = (
            layer(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for layer, x in zip(inner, (query, key, value), strict=True)
        )
        weights = self.hidden(self.scores(q, k), mask).softmax(dim=-1)
        return out((weights @ v).transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


def test_a_refusal_by_an_exception_of_ones_own_is_one() -> None:
    """Sockeye's sizes are refused by a class of its package."""

    class OfThePackage(Exception):  # as it is called there
        pass

    class Own(Heads):
        def __init__(self, d_model: int, num_heads: int) -> None:
            if d_model % num_heads:
                raise OfThePackage("heads must divide the width")
            super().__init__(d_model, num_heads)

    assert quick(Own, role="multi_head_attention", laws="construction").conforms


def test_three_layers_in_a_list_and_one_beside_it_are_found() -> None:
    """BERT-pytorch keeps query, key and value in linear_layers, and the output in output_linear."""

    class Listed(Heads):
        def __init__(self, d_model: int, num_heads: int) -> None:
            super().__init__(d_model, num_heads)
            self.linear_layers = nn.ModuleList([self.q_proj, self.k_proj, self.v_proj])
            self.output_linear = self.out_proj
            del self.q_proj, self.k_proj, self.v_proj, self.out_proj

        def layers(self) -> tuple[nn.Module, nn.Module, nn.Module, nn.Module]:
            first, second, third = self.linear_layers
            return first, second, third, self.output_linear

    assert quick(Listed, role="multi_head_attention", laws="accuracy").conforms


class Packed(Heads):
    """As torch's tutorial of building blocks names its layers."""

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__(d_model, num_heads)
        self.packed_proj = nn.Linear(d_model, 3 * d_model)
        del self.q_proj, self.k_proj, self.v_proj

    def layers(self) -> Any:
        weights, biases = self.packed_proj.weight.chunk(3), self.packed_proj.bias.chunk(3)
        inner = (
            functools.partial(nn.functional.linear, weight=w, bias=b)
            for w, b in zip(weights, biases, strict=True)
        )
        return *inner, self.out_proj


def test_a_packed_projection_is_of_query_key_and_value() -> None:
    assert quick(Packed, role="multi_head_attention", laws="accuracy").conforms


class Unknown(Packed):
    """A layer without a known name."""

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__(d_model, num_heads)
        self.gamma = nn.Linear(d_model, d_model)


class UnknownOfItself(Unknown):
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x, x, x)


@pytest.mark.parametrize(("module", "told"), [(Unknown, False), (UnknownOfItself, True)])
def test_an_encoder_is_no_way_out_where_keys_must_be_given(module: type[nn.Module], told: bool) -> None:
    with pytest.raises(headcheck.HeadcheckError, match=r"gamma\.weight has no known name") as raised:
        quick(module, role="multi_head_attention", laws="accuracy")
    assert ("--role encoder" in str(raised.value)) is told


def test_a_constant_in_float32_is_told() -> None:
    """A root of head_dim that `.double()` does not reach: right in float32, and a hint says so."""

    class Rooted(Heads):
        def __init__(self, d_model: int, num_heads: int) -> None:
            super().__init__(d_model, num_heads)
            self.root = torch.sqrt(torch.FloatTensor([d_model // num_heads]))

        def scores(self, q: Tensor, k: Tensor) -> Tensor:
            return q @ k.mT / self.root

    verdict = quick(Rooted, role="multi_head_attention", laws="gradients")
    assert hinted(verdict, "right with --declare dtypes=float32")
    declared = headcheck.MultiHeadAttention(Rooted, dtypes=("float32",))
    assert quick(declared, laws="gradients").conforms


def test_a_mask_that_is_always_given_may_say_what_to_hide() -> None:
    """What was meant to hide nothing hides all: the hint names the other meaning."""

    class Hiding(Heads):
        def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:  # type: ignore[override]
            return self.attended(query, key, value, mask)

        def hidden(self, scores: Tensor, mask: Tensor) -> Tensor:
            return scores.masked_fill(mask.unsqueeze(1), -1e9)

    assert hinted(quick(Hiding, role="multi_head_attention", laws="accuracy"), "--declare true_means=block")
    declared = headcheck.MultiHeadAttention(Hiding, true_means="block")
    assert quick(declared, laws="accuracy").conforms


@pytest.mark.parametrize("scale", [0.5, 1 / 3])
def test_a_scale_that_never_changes_is_told(scale: float) -> None:
    """Of 0.5, too, which is the default one of the smallest call."""

    def fixed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q * scale @ k.mT).softmax(dim=-1) @ v

    assert hinted(quick(fixed, laws="accuracy", dtype="float32"), f"--declare always.scale={scale!r}")


def test_dropout_that_is_a_module_drops_nothing() -> None:
    """A parameter that has to be given, and is a module by its type, is one of rate 0 where nothing is dropped."""

    def attention(query: Tensor, key: Tensor, value: Tensor, mask: Any, dropout: nn.Dropout) -> Tensor:
        scores = query @ key.mT * query.shape[-1] ** -0.5
        weights = (scores if mask is None else scores.masked_fill(mask == 0, -torch.inf)).softmax(dim=-1)
        return dropout(weights) @ value  # type: ignore[no-any-return]

    declared = headcheck.Attention(attention, empty_rows="nan")
    assert quick(declared, laws="masks", dtype="float32").conforms


def test_padding_on_the_left_that_spoils_gradients_is_told() -> None:
    """A row of a softmax that sees nothing is NaN, which comes back where padding stands before a sequence."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

        def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
            q, k, v = self.qkv(x).chunk(3, dim=-1)
            seen = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).tril()
            seen = seen if mask is None else seen & mask[:, None]
            return x + self.out((q @ k.mT / 4).masked_fill(~seen, -torch.inf).softmax(dim=-1) @ v)  # type: ignore[no-any-return]

    subject = headcheck.Encoder(Layer, causal=True, arguments={"is_real": "mask"})
    assert hinted(quick(subject, laws="padding"), "--declare padding=right")
    assert quick(subject.but(padding=("right",)), laws="padding").conforms


class Rotating(nn.Module):
    """Angles of frozen frequencies, kept as long as the longest sequence so far; centred, which rounds otherwise."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        frequencies = 10000.0 ** (-torch.arange(0, dim, 2).double() / dim)
        self.frequencies = nn.Parameter(frequencies, requires_grad=False)
        self.kept: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        if self.kept is None or len(self.kept) < length:
            with torch.inference_mode(mode=False):
                centred = torch.arange(length, dtype=torch.float64) - length // 2
                self.kept = (centred[:, None] * self.frequencies).repeat(1, 2).detach().clone()
        angles = self.kept[:length].to(x.dtype)
        first, second = x.chunk(2, dim=-1)
        return x * angles.cos() + torch.cat((-second, first), dim=-1) * angles.sin()


def test_what_is_frozen_and_kept_is_no_state() -> None:
    """No optimiser changes frequencies that want no gradient, and a longer table may round otherwise."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.rotate = nn.Linear(16, 48), Rotating(16)

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.qkv(x).chunk(3, dim=-1)
            return x + (self.rotate(q) @ self.rotate(k).mT / 4).softmax(dim=-1) @ v  # type: ignore[no-any-return]

    assert quick(headcheck.Encoder(Layer, positions=True), laws="state").conforms


class Counting(nn.Module):
    """A language model that counts what it was given with use_cache, and whose cache grows in place."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.places, self.head = nn.Embedding(11, 16), nn.Embedding(64, 16), nn.Linear(16, 11)
        self.seen = 0

    def forward(self, tokens: Tensor, use_cache: bool = False, cache: Any = None) -> Tensor:
        length = tokens.shape[1]
        x = self.table(tokens) + self.places(torch.arange(self.seen, self.seen + length))
        self.seen += length if use_cache else 0
        hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
        return self.head(x + (x @ x.mT / 4).masked_fill(hidden, -torch.inf).softmax(dim=-1) @ x)  # type: ignore[no-any-return]


def test_looking_for_a_cache_leaves_the_module_as_it_was() -> None:
    """A copy is asked: what it counts is not what laws see afterwards."""
    verdict = quick(headcheck.CausalLM(Counting), laws="state")
    assert verdict.conforms, [row.id for row in verdict.laws if row.outcome == "breaks"]


def test_no_law_asks_for_gradients_that_are_declared_to_be_none() -> None:
    """A cache that is written in place keeps the graph of the last call, which cannot be followed twice."""

    class Writing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.Embedding(11, 16), nn.Linear(16, 11)
            self.cache = torch.zeros(32, 64, 16, dtype=torch.float64)

        def forward(self, tokens: Tensor) -> Tensor:
            batch, length = tokens.shape
            self.cache[:batch, :length] = self.table(tokens)
            return self.head(self.cache[:batch, :length].cumsum(dim=1))  # type: ignore[no-any-return]

    declared = headcheck.CausalLM(Writing, positions=False, gradients=False)
    assert quick(declared, laws="gradients").broken == []


def test_channels_are_those_that_the_class_takes_by_default() -> None:
    """Where no attribute says them, and no convolution."""

    class Bare(nn.Module):
        def __init__(self, in_chans: int = 5, patch: int = 4) -> None:
            super().__init__()
            self.embed, self.head = nn.Linear(in_chans * patch * patch, 8), nn.Linear(8, 4)

        def forward(self, images: Tensor) -> Tensor:
            cut = nn.functional.unfold(images, 4, stride=4).mT
            return self.head(self.embed(cut).tanh().mean(dim=1))  # type: ignore[no-any-return]

    assert hinted(quick(headcheck.Vision(Bare), laws="batch"), "images of 5 x")


def test_a_function_of_a_width_makes_norms() -> None:
    """It is called with a width, as a class is."""

    def layer_norm(ndim: int, bias: bool = True) -> nn.Module:
        return nn.LayerNorm(ndim, bias=bias)

    def rms_norm(hidden_size: int) -> nn.Module:
        return nn.RMSNorm(hidden_size, eps=1e-6)

    assert quick(layer_norm, role="layer_norm", laws="accuracy", dtype="float32").conforms
    assert quick(rms_norm, role="rms_norm", laws="accuracy", dtype="float32").conforms


class Forgetting(nn.Module):
    """A gated recurrence that keeps a tenth of what was, with a norm in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.inner, self.head = nn.Embedding(11, 16), nn.Linear(16, 16), nn.Linear(16, 11)

    def states(self, x: Tensor) -> Tensor:
        kept, found = torch.zeros_like(x[:, 0]), []
        for each in self.inner(x).unbind(dim=1):
            kept = 0.1 * kept + 0.9 * each
            found.append(nn.functional.rms_norm(kept.float(), (16,), eps=1e-6).to(x.dtype))
        return torch.stack(found, dim=1)


class ForgettingTokens(Forgetting):
    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.states(self.table(tokens)))  # type: ignore[no-any-return]


class ForgettingStates(Forgetting):
    def forward(self, x: Tensor) -> Tensor:
        return x + self.states(x)


class CutOff(ForgettingTokens):
    """Nothing fades: the first tokens are cut off."""

    def states(self, x: Tensor) -> Tensor:
        ends = range(1, x.shape[1] + 1)
        return torch.stack([self.inner(x)[:, max(0, end - 6) : end].mean(dim=1) for end in ends], dim=1)


def test_what_fades_below_rounding_is_not_asked_for() -> None:
    """A recurrence that forgets has no influence that could be seen from afar; what is cut off has not faded."""
    for subject in (headcheck.CausalLM(ForgettingTokens), headcheck.Encoder(ForgettingStates, causal=True)):
        verdict = quick(subject, laws="every-earlier")
        assert not verdict.broken, [row.reason for row in verdict.broken]
    assert quick(headcheck.CausalLM(CutOff), laws="every-earlier").broken


def test_what_is_missing_beside_a_mask_is_told_as_that() -> None:
    """Another form of the mask would not help where cos and sin are not given."""

    class Turned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Linear(16, 48)

        def forward(self, x: Tensor, mask: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
            return x

    with pytest.raises(headcheck.HeadcheckError, match=r"'cos' and 'sin'.*around it, that gives them"):
        quick(headcheck.Encoder(Turned), laws="padding")
