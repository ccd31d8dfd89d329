"""The models: exact sizes, padding, the cache, causality, tied tables, patches."""

import math
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise, product

import pytest
import torch
from torch import Tensor, nn

from headcheck import reference as ref
from headcheck.reference.embedding import AddedPositions
from tests.torch_names import require_close, scrambled

VOCAB, D_MODEL, LENGTH = 11, 16, 6
LM_POSITIONS = ("sinusoidal", "learned", "rotary", "rotary-half", "none")


def size(module: nn.Module) -> int:
    """The number of parameters, each tensor once."""
    return sum(parameter.numel() for parameter in module.parameters())


def config(**changes: object) -> ref.LayerConfig:
    given = {"d_model": D_MODEL, "num_heads": 4, "d_ff": 24, "norm_order": "pre", "activation": "gelu"}
    return ref.LayerConfig(**(given | changes))


def embedding(positions: AddedPositions = "sinusoidal", *, scaled: bool = True) -> ref.Embedding:
    return ref.Embedding(VOCAB, D_MODEL, scaled=scaled, positions=positions, max_len=LENGTH + 2)


def language_model(positions: str = "learned", *, tied: bool = True) -> ref.CausalLM:
    turns: dict[str, ref.Rotation] = {
        "rotary": ref.rotary,
        "rotary-half": partial(ref.rotary, pairing="half", rotary_dim=2),
    }
    added = positions if positions in {"sinusoidal", "learned"} else "none"
    stack = ref.Encoder(config(rotate=turns.get(positions), kv_heads=2), 2, final_norm=True)
    model = ref.CausalLM(embedding(added), stack, tied=tied)  # type: ignore[arg-type]  # one of the names
    return scrambled(model)  # type: ignore[return-value]  # the same module


def seq2seq() -> ref.Seq2Seq:
    encoder, decoder = (each(config(), 2, final_norm=True) for each in (ref.Encoder, ref.Decoder))
    return scrambled(
        ref.Seq2Seq(embedding(), embedding("learned"), encoder, decoder, tied=False, output_bias=True)
    )


def classifier() -> ref.Classifier:
    return scrambled(ref.Classifier(embedding("learned"), ref.Encoder(config(), 2, final_norm=True), 3))


def tokens(batch: int, length: int = LENGTH, seed: int = 1) -> Tensor:
    return torch.randint(VOCAB, (batch, length), generator=torch.Generator().manual_seed(seed))


def padded(lengths: list[int], side: str) -> Tensor:
    """is_real of sequences of these lengths in a batch of the longest."""
    count = torch.arange(max(lengths))
    right = count < torch.tensor(lengths)[:, None]
    return right if side == "right" else right.flip(-1)


# Sizes


def attention_size(d: int, *, bias: bool = True) -> int:
    return 4 * (d * d + bias * d)


def layer_size(d: int, d_ff: int, attentions: int = 1) -> int:
    """Attentions, feed-forward, and a norm for each of them, all with biases."""
    return attentions * attention_size(d) + 2 * d * d_ff + d_ff + d + (attentions + 1) * 2 * d


def reversal_model(d_ff: int, layers: int, vocab: int) -> ref.Seq2Seq:
    """Document 004: d_model 64, 4 heads; the paper's conventions, nothing shared."""
    shape = ref.LayerConfig(d_model=64, num_heads=4, d_ff=d_ff, norm_order="post", activation="relu")
    return ref.Seq2Seq(
        *(ref.Embedding(vocab, 64, scaled=True, positions="sinusoidal") for _ in range(2)),
        ref.Encoder(shape, layers, final_norm=False),
        ref.Decoder(shape, layers, final_norm=False),
        tied=False,
        output_bias=True,
    )


def test_multi_head_attention_has_16640_parameters() -> None:
    """Document 000, line 445: d_model 64, 8 heads."""
    assert size(ref.MultiHeadAttention(64, 8)) == attention_size(64) == 16640


def test_the_reversal_model_has_169933_parameters() -> None:
    """Document 004, line 53: ten symbols and three special ones, two layers each, d_ff 128."""
    assert size(reversal_model(d_ff=128, layers=2, vocab=13)) == 169_933


def test_no_other_reversal_model_of_equal_depth_has_as_many() -> None:
    """Among nothing shared, fixed positions, up to 8 layers, 200 tokens, d_ff a multiple of 32, 0 to 2 final norms."""
    found = [
        (layers, d_ff, vocab, norms)
        for layers, d_ff, vocab, norms in product(range(1, 9), range(32, 2049, 32), range(3, 201), range(3))
        if layers * (layer_size(64, d_ff) + layer_size(64, d_ff, 2)) + norms * 128 + vocab * (3 * 64 + 1)
        == 169_933
    ]
    assert found == [(2, 128, 13, 0)]


def test_the_encoder_of_document_002_has_34_5_million_parameters() -> None:
    """Vocabulary 30 000, 512 learned positions, six layers, a final norm; the document's 39 million are not there."""
    with torch.device("meta"):
        shape = ref.LayerConfig(d_model=512, num_heads=8, d_ff=2048, norm_order="pre", activation="gelu")
        table = ref.Embedding(30_000, 512, scaled=True, positions="learned", max_len=512)
        encoder = ref.Encoder(shape, 6, final_norm=True)
    want = 30_000 * 512 + 512 * 512 + 6 * layer_size(512, 2048) + 2 * 512
    assert size(table) + size(encoder) == want == 34_537_472


def test_published_models_have_their_published_sizes() -> None:
    """GPT-2 small with its tied table has 124 439 808 parameters, ViT-B/16 for 1000 classes 86 567 656."""
    with torch.device("meta"):
        base = ref.LayerConfig(d_model=768, num_heads=12, d_ff=3072, norm_order="pre", activation="gelu")
        table = ref.Embedding(50_257, 768, scaled=False, positions="learned", max_len=1024)
        gpt2 = ref.CausalLM(table, ref.Encoder(base, 12, final_norm=True), tied=True)
        patches = ref.PatchEmbedding(224, 16, 3, 768, patches="convolution")
        vit = ref.VisionTransformer(patches, ref.Encoder(base, 12, final_norm=True), 1000)
    assert size(gpt2) == 124_439_808
    assert size(vit) == 86_567_656


def test_other_sizes_by_formula() -> None:
    """The classifier's head, SwiGLU's third matrix, RMS norms without bias, fewer heads of key and value."""
    d, d_ff = D_MODEL, 24
    assert size(classifier().head) == d * d + d + 3 * d + 3
    llama = config(activation="swiglu", norm="rms", bias=False, kv_heads=2)
    assert size(ref.EncoderLayer(llama)) == 2 * d * d + 2 * d * d // 2 + 3 * d * d_ff + 2 * d


# Embedding, tied tables


@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "none"])
def test_embedding_is_table_times_scale_plus_position(scaled: bool, positions: AddedPositions) -> None:
    """The scale, sqrt(16) = 4, is on the table's rows only."""
    embed = scrambled(embedding(positions, scaled=scaled))
    added: dict[str, Tensor] = {
        "sinusoidal": ref.sinusoidal(LENGTH, D_MODEL),
        "none": torch.zeros(LENGTH, D_MODEL),
    }
    if embed.learned is not None:
        added["learned"] = embed.learned.weight[:LENGTH]
    want = embed.table.weight[tokens(2)] * (4 if scaled else 1) + added[positions].double()
    require_close(embed(tokens(2)), want)


def test_tied_weights_are_one_tensor() -> None:
    """The output layer has the table itself, counted once; its gradient is the sum of both uses."""
    tied, untied = language_model(), language_model(tied=False)
    assert tied.output.weight is tied.embedding.table.weight
    assert size(untied) - size(tied) == VOCAB * D_MODEL
    untied.load_state_dict(tied.state_dict())
    for model in (tied, untied):
        model(tokens(2)).square().sum().backward()
    parts = untied.embedding.table.weight.grad, untied.output.weight.grad
    assert parts[0] is not None
    assert parts[1] is not None
    grad = tied.embedding.table.weight.grad
    assert grad is not None
    require_close(grad, parts[0] + parts[1])


def test_one_embedding_given_twice_is_shared() -> None:
    """Vaswani et al. 2017, section 3.4: source, target and output have one table."""
    shared = embedding()
    stacks = ref.Encoder(config(), 1, final_norm=True), ref.Decoder(config(), 1, final_norm=True)
    model = ref.Seq2Seq(shared, shared, *stacks, tied=True, output_bias=False)
    assert size(model) == VOCAB * D_MODEL + sum(size(each) for each in stacks)


@pytest.mark.parametrize("scaled", [True, False])
def test_scaled_embeddings_start_at_variance_1(scaled: bool) -> None:
    """Scaled or not: of n normal numbers the mean square lies within five times sqrt(2/n) of 1."""
    torch.manual_seed(0)
    table = ref.Embedding(500, 64, scaled=scaled, positions="none")
    assert abs(table(torch.arange(500)[None]).square().mean().item() - 1) <= 5 * (2 / (500 * 64)) ** 0.5


@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_a_tied_model_starts_near_the_loss_of_a_guess(scaled: bool, positions: AddedPositions) -> None:
    """ln 100, within 0.1: logits of deviation 8 x 0.02 = 0.16 add 0.16^2 / 2 on average, and a mean over 4000 draws."""
    torch.manual_seed(0)
    table = ref.Embedding(100, 64, scaled=scaled, positions=positions, max_len=40)
    shape = ref.LayerConfig(d_model=64, num_heads=4, d_ff=128, norm_order="pre", activation="gelu")
    model = ref.CausalLM(table, ref.Encoder(shape, 2, final_norm=True), tied=True)
    text = torch.randint(100, (100, 41))
    loss = nn.functional.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
    assert abs(loss.item() - math.log(100)) <= 0.1


# Padding


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("positions", LM_POSITIONS)
def test_a_padded_sequence_of_a_language_model_is_the_sequence_alone(side: str, positions: str) -> None:
    """On either side, with positions of every kind; gradients stay finite where padding sees nothing."""
    model, batch, is_real = language_model(positions), tokens(3), padded([6, 4, 1], side)
    together = model(batch, is_real=is_real)
    for row, real, logits in zip(batch, is_real, together, strict=True):
        require_close(logits[real], model(row[real][None])[0])
    together[is_real].sum().backward()
    assert all(each.grad is None or each.grad.isfinite().all() for each in model.parameters())


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_padded_pair_of_the_encoder_decoder_is_the_pair_alone(side: str) -> None:
    """Source and target have different lengths."""
    model, source, target = seq2seq(), tokens(3), tokens(3, 5, seed=2)
    source_is_real, target_is_real = padded([3, 6, 1], side), padded([5, 2, 4], side)
    together = model(source, target, source_is_real=source_is_real, target_is_real=target_is_real)
    for b in range(3):
        alone = model(source[b, source_is_real[b]][None], target[b, target_is_real[b]][None])
        require_close(together[b, target_is_real[b]], alone[0])


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_padded_sequence_is_classified_as_alone(side: str) -> None:
    """[CLS] is the first real token, wherever padding puts it."""
    model, batch, is_real = classifier(), tokens(3), padded([6, 2, 4], side)
    together = model(batch, is_real=is_real)
    for row, real, logits in zip(batch, is_real, together, strict=True):
        require_close(logits, model(row[real][None])[0])


# Causality


def test_causal_models_do_not_see_the_future() -> None:
    """Logits at t have no gradient in later inputs, and one in every earlier input."""
    language, pair = language_model(), seq2seq()
    memory = pair.encode(tokens(1, seed=3))
    runs: list[tuple[nn.Embedding, Callable[[], Tensor]]] = [
        (language.embedding.table, lambda: language(tokens(1))),
        (pair.target_embedding.table, lambda: pair.decode(tokens(1), memory)),
    ]
    for table, run in runs:
        rows: list[Tensor] = []
        handle = table.register_forward_hook(lambda _module, _given, rows_: rows.append(rows_))  # noqa: B023  # run at once
        logits = run()
        handle.remove()
        for t in range(LENGTH):
            (gradient,) = torch.autograd.grad(logits[0, t].square().sum(), rows[0], retain_graph=True)
            assert torch.equal(gradient[0].abs().sum(dim=-1) > 0, torch.arange(LENGTH) <= t)


# The cache


def splits(length: int) -> Iterator[list[int]]:
    """Every way to cut a length into chunks."""
    for cuts in product((False, True), repeat=length - 1):
        edges = [0, *(i + 1 for i, cut in enumerate(cuts) if cut), length]
        yield [after - before for before, after in pairwise(edges)]


@pytest.mark.parametrize("positions", LM_POSITIONS)
def test_the_cache_gives_what_the_full_pass_gives(positions: str) -> None:
    """For every split of six tokens into chunks, with padding."""
    model, batch, is_real = language_model(positions), tokens(2), padded([6, 4], "left")
    want = model(batch, is_real=is_real)[is_real]
    for chunks in splits(LENGTH):
        cache = model.new_cache()
        parts = zip(batch.split(chunks, dim=1), is_real.split(chunks, dim=1), strict=True)
        got = torch.cat([model(part, is_real=real, cache=cache) for part, real in parts], dim=1)
        require_close(got[is_real], want, str(chunks))


def test_given_positions_are_taken() -> None:
    """Rotary positions are relative: an offset for all changes nothing. Learned ones are not."""
    shifted = torch.arange(LENGTH)[None] + 2
    turning, learned = language_model("rotary"), language_model("learned")
    require_close(turning(tokens(2), positions=shifted), turning(tokens(2)))
    assert not torch.allclose(learned(tokens(2), positions=shifted), learned(tokens(2)))


# Vision


def test_patches_by_convolution_and_by_unfold_are_equal() -> None:
    """With equal weights: outputs, and gradients of images and weights."""
    by_name = {
        name: scrambled(ref.PatchEmbedding(8, 4, 3, 10, patches=name)) for name in ("convolution", "unfold")
    }
    images = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    cotangent = torch.randn(2, 4, 10, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    results = []
    for module in by_name.values():
        given = images.clone().requires_grad_()
        output = module(given)
        results.append((output, *torch.autograd.grad(output, [given, *module.parameters()], cotangent)))
    for a, b in zip(*results, strict=True):
        require_close(a, b)


def test_unfolded_patches_are_torchs() -> None:
    """`torch.nn.functional.unfold` lists the same patches in the same order."""
    images = torch.arange(2 * 3 * 8 * 12.0).reshape(2, 3, 8, 12)
    want = nn.functional.unfold(images, kernel_size=4, stride=4).mT
    assert torch.equal(ref.unfold_patches(images, 4), want)


def test_vision_reads_its_class_token() -> None:
    """The logits are the head of the encoder's output at [CLS], which stands before the patches."""
    patches = ref.PatchEmbedding(8, 4, 3, D_MODEL, patches="unfold")
    model = scrambled(ref.VisionTransformer(patches, ref.Encoder(config(), 2, final_norm=True), 5))
    images = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    x = (
        torch.cat((model.cls_token.expand(2, 1, -1), model.patch_embedding(images)), dim=1)
        + model.positions.weight
    )
    require_close(model(images), model.head(model.encoder(x)[:, 0]))


def test_images_are_whole_patches() -> None:
    """An image that patches do not fill is refused."""
    with pytest.raises(ValueError, match="image_size = 10 is not a multiple of patch_size = 4"):
        ref.PatchEmbedding(10, 4, 3, 8, patches="unfold")
