"""Generation: with the cache and without, greedy as the limit of temperature, drawn as the softmax says."""

import math

import pytest
import torch
from torch import Tensor, nn

from headcheck import reference as ref
from tests.torch_names import scrambled

VOCAB, D_MODEL = 11, 16
PROMPT = torch.tensor([[3, 1, 4, 1], [5, 9, 2, 6], [0, 7, 0, 10]])


def config() -> ref.LayerConfig:
    return ref.LayerConfig(
        d_model=D_MODEL, num_heads=4, d_ff=24, norm_order="pre", activation="swiglu", rotate=ref.rotary
    )


def lively(model: nn.Module) -> nn.Module:
    """Large matrices and no bias: what comes next then depends on what was before."""
    scrambled(model)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.mul_(0 if name.endswith("bias") else 3)
    return model


def language_model() -> ref.CausalLM:
    table = ref.Embedding(VOCAB, D_MODEL, scaled=False, positions="none")
    return lively(ref.CausalLM(table, ref.Encoder(config(), 2, final_norm=True), tied=True))  # type: ignore[return-value]  # the same module


def seq2seq() -> ref.Seq2Seq:
    tables = [ref.Embedding(VOCAB, D_MODEL, scaled=True, positions="sinusoidal") for _ in range(2)]
    stacks = ref.Encoder(config(), 1, final_norm=True), ref.Decoder(config(), 1, final_norm=True)
    return lively(ref.Seq2Seq(*tables, *stacks, tied=False, output_bias=True))  # type: ignore[return-value]  # the same module


def test_the_models_here_say_something() -> None:
    """What they write depends on the prompt and changes on the way, so that the tests below see mistakes."""
    for written in (
        ref.generate(language_model(), PROMPT, 10)[:, 4:],
        ref.generate_target(seq2seq(), PROMPT, 2, 10),
    ):
        assert len({tuple(row) for row in written.tolist()}) == 3
        assert len(written.unique()) >= 6


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_generation_by_cache_is_generation_without(temperature: float) -> None:
    """The same tokens, greedy and drawn with the same seed."""
    model = language_model()
    cached, plain = (
        ref.generate(model, PROMPT, 12, temperature=temperature, generator=seeded(), use_cache=use_cache)
        for use_cache in (True, False)
    )
    assert cached.shape == (3, 16)
    assert torch.equal(cached[:, :4], PROMPT)
    assert torch.equal(cached, plain)


@pytest.mark.parametrize("use_cache", [True, False])
@pytest.mark.parametrize(
    "is_real",
    [[[1, 1, 1, 1], [0, 0, 1, 1], [0, 1, 1, 1]], [[1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 0]]],
    ids=["left", "right"],
)
def test_a_padded_prompt_goes_on_as_alone(is_real: list[list[int]], use_cache: bool) -> None:
    """Padding on either side changes no token that is generated."""
    model, real = language_model(), torch.tensor(is_real).bool()
    together = ref.generate(model, PROMPT, 8, is_real=real, use_cache=use_cache)
    for prompt, keep, row in zip(PROMPT, real, together, strict=True):
        alone = ref.generate(model, prompt[keep][None], 8)
        assert torch.equal(row[4:], alone[0, -8:])


def test_greedy_takes_the_largest_logit_each_time() -> None:
    """Step by step, from the full model."""
    model, row = language_model(), PROMPT
    for _ in range(6):
        row = torch.cat((row, model(row)[:, -1].argmax(dim=-1, keepdim=True)), dim=1)
    assert torch.equal(ref.generate(model, PROMPT, 6), row)


def test_target_generation_is_the_decoder_step_by_step() -> None:
    """Greedy, from a start token; a padded source is the source alone."""
    model, want = seq2seq(), torch.full((3, 1), 2)
    for _ in range(6):
        want = torch.cat((want, model(PROMPT, want)[:, -1].argmax(dim=-1, keepdim=True)), dim=1)
    assert torch.equal(ref.generate_target(model, PROMPT, 2, 6), want)
    is_real = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [0, 1, 1, 1]]).bool()
    together = ref.generate_target(model, PROMPT, 2, 6, source_is_real=is_real)
    for source, keep, row in zip(PROMPT, is_real, together, strict=True):
        assert torch.equal(row, ref.generate_target(model, source[keep][None], 2, 6)[0])


def logits() -> Tensor:
    return torch.tensor([[1.0, 3.0, 2.0], [-1.0, -1.5, -1.25]], dtype=torch.float64)


def test_temperature_by_hand() -> None:
    """Logits 0 and ln 4 at temperature 2: the odds are 1 to 2."""
    got = ref.token_probabilities(torch.tensor([[0.0, math.log(4)]], dtype=torch.float64), 2.0)
    assert got[0].tolist() == pytest.approx([1 / 3, 2 / 3], rel=1e-15)


@pytest.mark.parametrize("temperature", [1e-3, 1e-30, 1e-308])
def test_greedy_is_the_limit_of_temperature(temperature: float) -> None:
    """Logits 0.25 apart leave exp(-250) at 0.001; no temperature, however small, gives NaN."""
    greedy = ref.token_probabilities(logits(), 0.0)
    assert greedy.tolist() == [[0, 1, 0], [1, 0, 0]]
    assert (ref.token_probabilities(logits(), temperature) - greedy).abs().max() <= math.exp(-250)
    assert torch.equal(ref.next_token(logits(), temperature, seeded()), ref.next_token(logits(), 0.0))


def test_a_high_temperature_knows_no_difference() -> None:
    """Logits that differ by at most 2, over 1e6, give odds within exp(2e-6) of each other."""
    probabilities = ref.token_probabilities(logits(), 1e6)
    assert (probabilities * 3 - 1).abs().max() <= 2e-6


def test_tokens_are_drawn_as_often_as_they_are_probable() -> None:
    """Of 40 000 draws, each count lies within five standard deviations."""
    count, temperature = 40_000, 0.8
    drawn = ref.next_token(logits()[:1].expand(count, 3), temperature, seeded())
    want = torch.softmax(logits()[0] / temperature, dim=-1)
    deviation = (want * (1 - want) / count).sqrt()
    got = torch.bincount(drawn[:, 0], minlength=3) / count
    assert ((got - want).abs() <= 5 * deviation).all()


def test_greedy_draws_nothing() -> None:
    """The generator, and torch's own, are as before."""
    model, generator = language_model(), seeded()
    before = torch.random.get_rng_state()
    ref.generate(model, PROMPT, 3, generator=generator)
    assert torch.equal(generator.get_state(), seeded().get_state())
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("temperature", [-1.0, math.nan])
def test_a_temperature_is_not_negative(temperature: float) -> None:
    """Nor is it no number."""
    with pytest.raises(ValueError, match="is not 0"):
        ref.token_probabilities(logits(), temperature)
    with pytest.raises(ValueError, match="is not 0"):
        ref.next_token(logits(), temperature)
