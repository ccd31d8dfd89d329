"""Norms, feed-forward, multi-head attention, layers and stacks are held to torch.nn: forward and gradient."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from headcheck import reference as ref
from headcheck.reference import masks
from headcheck.reference.blocks import NormOrder
from tests.torch_names import gradients, in_our_names, load, require_close, scrambled

D_MODEL, HEADS, D_FF, LAYERS = 16, 4, 24, 2
ORDERS: tuple[NormOrder, ...] = ("pre", "post")
IS_REAL = torch.tensor([[True] * 5, [True] * 3 + [False] * 2, [True, True, False, True, False]])
"""Padding of a batch of three sequences of five tokens; the first token is real, so that torch gives no NaN."""


def normal(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def config(order: NormOrder = "pre", **changes: object) -> ref.LayerConfig:
    given = {"d_model": D_MODEL, "num_heads": HEADS, "d_ff": D_FF, "norm_order": order, "activation": "relu"}
    given["norm_eps"] = 0.01
    return ref.LayerConfig(**(given | changes))


def torch_options(order: NormOrder) -> dict[str, object]:
    options = {"d_model": D_MODEL, "nhead": HEADS, "dim_feedforward": D_FF, "dropout": 0.0}
    return options | {"layer_norm_eps": 0.01, "norm_first": order == "pre", "batch_first": True}


def require_same(ours: nn.Module, theirs: nn.Module, got: Tensor, want: Tensor, inputs: list[Tensor]) -> None:
    """Outputs, gradients of the inputs and gradients of all parameters."""
    require_close(got, want)
    cotangent = normal(*want.shape, seed=9)
    mine = torch.autograd.grad(got, inputs, cotangent, retain_graph=True)
    for number, (a, b) in enumerate(
        zip(mine, torch.autograd.grad(want, inputs, cotangent, retain_graph=True), strict=True)
    ):
        require_close(a, b, f"gradient of input {number}")
    got.backward(cotangent)
    want.backward(cotangent)
    wanted = in_our_names(gradients(theirs))
    found = gradients(ours)
    assert found.keys() == wanted.keys()
    for name, gradient in found.items():
        require_close(gradient, wanted[name], name)


# Norms


@pytest.mark.parametrize("shift", [0.0, 1e6])
def test_layer_norm_is_torchs(shift: float) -> None:
    """Also where the mean is large and the spread is small, forward and gradient."""
    x, weight, bias = normal(3, 5, 7) + shift, normal(7, seed=2), normal(7, seed=3)
    leaves = [each.requires_grad_() for each in (x, weight, bias)]
    got = ref.layer_norm(x, weight, bias, eps=1e-5)
    want = functional.layer_norm(x, (7,), weight, bias, eps=1e-5)
    cotangent = normal(3, 5, 7, seed=4)
    slack = max(1.0, shift)  # The mean itself is rounded by eps x shift; the spread is 1.
    assert (got - want).abs().max() <= 64 * slack * torch.finfo(torch.float64).eps
    for a, b in zip(*(torch.autograd.grad(each, leaves, cotangent) for each in (got, want)), strict=True):
        assert (a - b).abs().max() <= 512 * slack * torch.finfo(torch.float64).eps


def test_rms_norm_is_torchs() -> None:
    """Forward and gradient."""
    x, weight = normal(3, 5, 7).requires_grad_(), normal(7, seed=2).requires_grad_()
    got, want = ref.rms_norm(x, weight, eps=1e-6), functional.rms_norm(x, (7,), weight, eps=1e-6)
    require_close(got, want)
    cotangent = normal(3, 5, 7, seed=4)
    for a, b in zip(
        *(torch.autograd.grad(each, (x, weight), cotangent) for each in (got, want)), strict=True
    ):
        require_close(a, b)


def test_norms_need_no_weight() -> None:
    """[3, -1] has mean 1 and spread 2, and a mean square of 5."""
    x = torch.tensor([3.0, -1.0], dtype=torch.float64)
    require_close(ref.layer_norm(x, eps=0.0), torch.tensor([1.0, -1.0], dtype=torch.float64))
    require_close(ref.rms_norm(x, eps=0.0), x / math.sqrt(5))


def test_norm_modules_take_torchs_weights() -> None:
    """LayerNorm, without bias too, and RMSNorm."""
    x = normal(2, 3, 8)
    for ours, theirs in (
        (ref.LayerNorm(8, eps=1e-5), nn.LayerNorm(8)),
        (ref.LayerNorm(8, eps=1e-5, bias=False), nn.LayerNorm(8, bias=False)),
        (ref.RMSNorm(8, eps=1e-6), nn.RMSNorm(8, eps=1e-6)),
    ):
        scrambled(theirs)
        require_close(load(ours, theirs)(x), theirs(x))


@pytest.mark.parametrize("norm", [ref.layer_norm, ref.rms_norm])
def test_half_precision_is_rounded_once(norm: object) -> None:
    """bfloat16 in, the float32 result rounded out."""
    x = normal(4, 64).to(torch.bfloat16)
    assert callable(norm)
    assert torch.equal(norm(x), norm(x.float()).to(torch.bfloat16))


# Feed-forward


def test_activations_are_torchs() -> None:
    """relu, gelu and swish, forward and gradient; the gradient of relu at 0 is 0."""
    x = torch.cat((normal(200) * 3, torch.tensor([0.0, -40.0, 40.0], dtype=torch.float64))).requires_grad_()
    pairs = ((ref.relu, functional.relu), (ref.gelu, functional.gelu), (ref.swish, functional.silu))
    for ours, theirs in pairs:
        require_close(ours(x), theirs(x))
        require_close(torch.autograd.grad(ours(x).sum(), x)[0], torch.autograd.grad(theirs(x).sum(), x)[0])


def test_gelu_is_exact_in_its_tail() -> None:
    """gelu(-20) is -20 Phi(-20): tiny, not 0, and right to the last digits."""
    phi = 0.5 * math.erfc(20 / math.sqrt(2))
    got = ref.gelu(torch.tensor(-20.0, dtype=torch.float64)).item()
    assert got == pytest.approx(-20 * phi, rel=1e-12)  # erfc amplifies eps of its argument by 2 x 14^2
    assert got < 0


def test_swiglu_is_a_gate_times_a_line() -> None:
    """(silu(x W_gate) * x W_1) W_2 by torch's functions, biases included."""
    feed_forward = scrambled(ref.FeedForward(6, 10, "swiglu"))
    x = normal(2, 3, 6)
    assert isinstance(feed_forward.w_gate, nn.Linear)
    gate = functional.silu(functional.linear(x, feed_forward.w_gate.weight, feed_forward.w_gate.bias))
    line = functional.linear(x, feed_forward.w_1.weight, feed_forward.w_1.bias)
    require_close(
        feed_forward(x), functional.linear(gate * line, feed_forward.w_2.weight, feed_forward.w_2.bias)
    )


# Multi-head attention


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("cross", [True, False])
def test_multi_head_attention_is_torchs(bias: bool, masked: bool, cross: bool) -> None:
    """Self and cross, with and without masks and biases: outputs, weights and gradients."""
    theirs = scrambled(nn.MultiheadAttention(D_MODEL, HEADS, bias=bias, batch_first=True))
    ours = load(ref.MultiHeadAttention(D_MODEL, HEADS, bias=bias), theirs)
    query = normal(3, 4 if cross else 5, D_MODEL).requires_grad_()
    key, value = (normal(3, 5, D_MODEL, seed=seed).requires_grad_() for seed in (2, 3))
    inputs = [query, key, value] if cross else [query]
    keep = masks.causal(query.shape[1], 5) if masked else None
    may_attend = keep & IS_REAL[:, None, None, :] if keep is not None else None
    with ref.attention_weights(ours) as seen:
        got = ours(*inputs, may_attend=may_attend)
    want, weights = theirs(
        *(inputs if cross else inputs * 3),
        attn_mask=~keep if keep is not None else None,
        key_padding_mask=~IS_REAL if masked else None,
        average_attn_weights=False,
    )
    require_close(seen[""], weights)
    require_same(ours, theirs, got, want, inputs)


def test_a_query_that_sees_nothing_hears_nothing() -> None:
    """Its heads are zeros, so that the output is the bias of W_o; gradients are finite."""
    attend = scrambled(ref.MultiHeadAttention(D_MODEL, HEADS))
    may_attend = torch.ones(1, 1, 3, 3, dtype=torch.bool)
    may_attend[..., 1, :] = False
    x = normal(1, 3, D_MODEL).requires_grad_()
    output = attend(x, may_attend=may_attend)
    assert torch.equal(output[0, 1], attend.w_o.bias)
    output.sum().backward()
    assert x.grad is not None
    assert all(each.isfinite().all() for each in (x.grad, *gradients(attend).values()))


def test_grouped_heads_are_repeated_heads() -> None:
    """kv_heads = 2 of 4 is plain attention whose key and value weights are repeated for each group."""
    grouped = scrambled(ref.MultiHeadAttention(D_MODEL, HEADS, kv_heads=2))
    plain = ref.MultiHeadAttention(D_MODEL, HEADS).double()
    state = dict(grouped.state_dict())
    for name in ("w_k.weight", "w_k.bias", "w_v.weight", "w_v.bias"):
        rows = state[name].reshape(2, D_MODEL // HEADS, *state[name].shape[1:])
        state[name] = rows.repeat_interleave(2, dim=0).flatten(0, 1)
    plain.load_state_dict(state)
    x = normal(2, 5, D_MODEL)
    require_close(grouped(x), plain(x))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"d_model": 10, "num_heads": 3}, "d_model = 10 is not num_heads = 3 times a head_dim"),
        ({"d_model": 10, "num_heads": 0}, "num_heads = 0"),
        ({"d_model": 8, "num_heads": 4, "kv_heads": 3}, "num_heads = 4 is not kv_heads = 3 times a group"),
    ],
)
def test_heads_must_divide_the_width(given: dict[str, int], message: str) -> None:
    """A clear error where the module is built."""
    with pytest.raises(ValueError, match=message):
        ref.MultiHeadAttention(**given)


def test_positions_count_on_from_the_cache() -> None:
    """Rotary attention of two chunks, no positions given, is that of the whole."""
    attend, cache = scrambled(ref.MultiHeadAttention(D_MODEL, HEADS, rotate=ref.rotary)), ref.KeyValues()
    x = normal(2, 5, D_MODEL)
    first = attend(x[:, :3], may_attend=masks.causal(3, 3), cache=cache)
    second = attend(x[:, 3:], may_attend=masks.causal(2, 5, "bottom-right"), cache=cache)
    require_close(torch.cat((first, second), dim=1), attend(x, may_attend=masks.causal(5, 5)))
    require_close(attend(x, positions=torch.arange(5)), attend(x))


def test_cross_attention_takes_no_cache() -> None:
    """Nor rotary positions: the key stands in another sequence."""
    x = normal(1, 2, D_MODEL)
    attend = ref.MultiHeadAttention(D_MODEL, HEADS).double()
    with pytest.raises(ValueError, match="pass no key"):
        attend(x, x, cache=ref.KeyValues())
    with pytest.raises(ValueError, match="pass no key"):
        ref.MultiHeadAttention(D_MODEL, HEADS, rotate=ref.rotary).double()(x, x)


def test_one_head_with_an_identity_behind_it_is_single_head_attention() -> None:
    """Multi-head attention of one head, W_o = I, is `SingleHeadAttention`."""
    many = scrambled(ref.MultiHeadAttention(D_MODEL, 1))
    one = ref.SingleHeadAttention(D_MODEL, D_MODEL, D_MODEL).double()
    nn.init.eye_(many.w_o.weight)
    nn.init.zeros_(many.w_o.bias)
    one.load_state_dict({name: value for name, value in many.state_dict().items() if "w_o" not in name})
    x, memory = normal(2, 4, D_MODEL), normal(2, 5, D_MODEL, seed=2)
    require_close(one(x, may_attend=masks.causal(4, 4)).output[:, 0], many(x, may_attend=masks.causal(4, 4)))
    require_close(one(x, memory).output[:, 0], many(x, memory))


def test_attention_without_weights_by_hand() -> None:
    """Of x_0 = [0], x_1 = [1]: z_0 = 1/2, and z_1 = e / (1 + e), as exp(x_1 x_1) = e and exp(x_1 x_0) = 1."""
    x = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    want = torch.tensor([[0.5], [math.e / (1 + math.e)]], dtype=torch.float64)
    require_close(ref.attention_without_weights(x), want)


# Layers and stacks


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("bias", [True, False])
def test_encoder_layer_is_torchs(order: NormOrder, activation: str, bias: bool) -> None:
    """Under a causal and a padding mask."""
    theirs = scrambled(nn.TransformerEncoderLayer(**torch_options(order), activation=activation, bias=bias))
    ours = load(ref.EncoderLayer(config(order, activation=activation, bias=bias)), theirs)
    x = normal(3, 5, D_MODEL).requires_grad_()
    got = ours(x, may_attend=masks.causal(5, 5) & IS_REAL[:, None, None, :])
    want = theirs(x, src_mask=~masks.causal(5, 5), src_key_padding_mask=~IS_REAL)
    require_same(ours, theirs, got, want, [x])


@pytest.mark.parametrize("order", ORDERS)
def test_decoder_layer_is_torchs(order: NormOrder) -> None:
    """With a memory of another length, padded."""
    theirs = scrambled(nn.TransformerDecoderLayer(**torch_options(order)))
    ours = load(ref.DecoderLayer(config(order)), theirs)
    x, memory = normal(3, 4, D_MODEL).requires_grad_(), normal(3, 5, D_MODEL, seed=2).requires_grad_()
    got = ours(x, memory, may_attend=masks.causal(4, 4), memory_may_attend=IS_REAL[:, None, None, :])
    want = theirs(x, memory, tgt_mask=~masks.causal(4, 4), memory_key_padding_mask=~IS_REAL)
    require_same(ours, theirs, got, want, [x, memory])


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("final_norm", [True, False])
def test_encoder_is_torchs(order: NormOrder, final_norm: bool) -> None:
    """A stack, with a final norm or without."""
    norm = nn.LayerNorm(D_MODEL, eps=0.01) if final_norm else None
    layer = nn.TransformerEncoderLayer(**torch_options(order))
    theirs = scrambled(nn.TransformerEncoder(layer, LAYERS, norm=norm, enable_nested_tensor=False))
    ours = load(ref.Encoder(config(order), LAYERS, final_norm=final_norm), theirs)
    x = normal(3, 5, D_MODEL).requires_grad_()
    got, want = ours(x, may_attend=IS_REAL[:, None, None, :]), theirs(x, src_key_padding_mask=~IS_REAL)
    require_same(ours, theirs, got, want, [x])


@pytest.mark.filterwarnings("ignore:enable_nested_tensor:UserWarning")  # torch's word on its own fast path
@pytest.mark.parametrize("order", ORDERS)
def test_transformer_is_torchs(order: NormOrder) -> None:
    """nn.Transformer has a final norm in both stacks, whatever the order."""
    layers = {"num_encoder_layers": LAYERS, "num_decoder_layers": LAYERS + 1}
    theirs = scrambled(nn.Transformer(**torch_options(order), **layers))
    encoder = ref.Encoder(config(order), LAYERS, final_norm=True)
    decoder = ref.Decoder(config(order), LAYERS + 1, final_norm=True)
    ours = load(nn.ModuleDict({"encoder": encoder, "decoder": decoder}), theirs)
    source, target = normal(3, 5, D_MODEL).requires_grad_(), normal(3, 4, D_MODEL, seed=2).requires_grad_()
    keep = IS_REAL[:, None, None, :]
    memory = encoder(source, may_attend=keep)
    got = decoder(target, memory, may_attend=masks.causal(4, 4), memory_may_attend=keep)
    want = theirs(
        source,
        target,
        tgt_mask=~masks.causal(4, 4),
        src_key_padding_mask=~IS_REAL,
        memory_key_padding_mask=~IS_REAL,
    )
    require_same(ours, theirs, got, want, [source, target])


def test_norm_orders_by_hand() -> None:
    """For f(x) = 3x: pre is x + 3 norm(x), post is norm(4x)."""
    x = normal(1, 2, D_MODEL)
    pre, post = (ref.Residual(config(order)).double() for order in ORDERS)
    require_close(pre(x, lambda y: 3 * y), x + 3 * functional.layer_norm(x, (D_MODEL,), eps=0.01))
    require_close(post(x, lambda y: 3 * y), functional.layer_norm(4 * x, (D_MODEL,), eps=0.01))


def test_a_layer_has_the_norm_of_its_config() -> None:
    """RMS, with the eps of the config."""
    residual = ref.Residual(config("post", norm="rms")).double()
    x = normal(1, 2, D_MODEL)
    require_close(residual(x, torch.zeros_like), functional.rms_norm(x, (D_MODEL,), eps=0.01))


@pytest.mark.parametrize("where", ["attention", "feed_forward"])
def test_dropout_of_everything_leaves_the_biases(where: str) -> None:
    """With p = 1 in training no weight of attention and no hidden unit is left; in eval all are."""
    module = (
        ref.MultiHeadAttention(8, 2, dropout=1.0)
        if where == "attention"
        else ref.FeedForward(8, 9, "gelu", dropout=1.0)
    )
    last = scrambled(module).get_submodule("w_o" if where == "attention" else "w_2")
    x = normal(1, 3, 8)
    assert torch.equal(module(x), last.bias.expand(1, 3, 8))
    assert not torch.allclose(module.eval()(x), last.bias.expand(1, 3, 8))


def test_dropout_around_a_sublayer_leaves_the_skip_path() -> None:
    """With p = 1 a pre-norm layer in training is the identity."""
    layer = scrambled(ref.EncoderLayer(config("pre", dropout=1.0)))
    x = normal(1, 3, D_MODEL)
    assert torch.equal(layer(x), x)
    assert not torch.allclose(layer.eval()(x), x)


@pytest.mark.parametrize("name", ["norm_order", "norm", "activation"])
def test_a_choice_has_a_known_name(name: str) -> None:
    """A misspelt convention is refused, not taken for the other one."""
    with pytest.raises(ValueError, match=f"{name}='Pre' is none of"):
        ref.EncoderLayer(config(**{name: "Pre"}))


def test_layers_work_in_float32() -> None:
    """The dtype is kept; float64 agrees to 4096 roundings of float32."""
    encoder = scrambled(ref.Encoder(config("pre", activation="swiglu", norm="rms"), LAYERS, final_norm=True))
    x = normal(2, 5, D_MODEL)
    want = encoder(x)
    got = encoder.float()(x.float())
    assert got.dtype == torch.float32
    assert (got - want).abs().max() <= 4096 * torch.finfo(torch.float32).eps * want.abs().max()
