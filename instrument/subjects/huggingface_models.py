"""Hugging Face architectures as black boxes: `hf:llama` is a tiny random model of that type, made without weights.

So are `hf-encoder:bert`, `hf-seq2seq:t5`, `hf-vision:vit` and, with one layer and a window, `hf-window:mistral`.
`hf:llama@eager` has the attention that is named, and is compared with the usual one.
`causal_lm(config)` declares the model of any configuration, for a file of one's own, as `encoder`, `seq2seq` and
`vision` do:

    from transformers import LlamaConfig
    from headcheck.subjects.huggingface_models import causal_lm

    subject = causal_lm(LlamaConfig(hidden_size=32, num_hidden_layers=2, vocab_size=99))
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from headcheck.errors import SubjectError
from headcheck.modules.causal_lm import CausalLM
from headcheck.modules.encoder import Encoder
from headcheck.modules.seq2seq import Seq2Seq
from headcheck.modules.vision import Vision
from headcheck.subjects import family

SEED = 0
IMAGES: Mapping[str, Any] = {"image_size": 16, "patch_size": 4, "num_labels": 5}
"""Of a tiny vision model."""
TOKENS = 23
SPREAD = 0.15
"""Of the weights: with the usual 0.02 of a tiny model every token would count next to nothing."""
SIZES: Mapping[str, Any] = {
    "vocab_size": TOKENS,
    "hidden_size": 32,
    "d_model": 32,
    "n_embd": 32,
    "dim": 32,
    "embedding_size": 32,
    "word_embed_proj_dim": 32,
    "num_hidden_layers": 2,
    "num_layers": 2,
    "n_layer": 2,
    "n_layers": 2,
    "decoder_layers": 2,
    "encoder_layers": 2,
    "num_attention_heads": 4,
    "num_heads": 4,
    "n_head": 4,
    "n_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 48,
    "ffn_dim": 48,
    "ffn_hidden_size": 48,
    "decoder_ffn_dim": 48,
    "encoder_ffn_dim": 48,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
    "shared_intermediate_size": 16,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "moe_num_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "rotary_dim": 4,
    "max_position_embeddings": 64,
    "n_positions": 64,
    "max_seq_len": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
    "is_decoder": True,
    "initializer_range": SPREAD,
    "init_std": SPREAD,
    "mamba_d_state": 8,
    "mamba_expand": 2,
    "tie_word_embeddings": False,
}
"""What a tiny model is made with, as far as its configuration has a field of that name."""
LATENT = {"num_key_value_heads": 4}
"""Of latent attention, where every head has keys of its own."""
OF_TYPE: Mapping[str, Mapping[str, Any]] = {
    "deepseek_v2": LATENT,
    "deepseek_v3": LATENT,
    "minicpm3": LATENT,
    "youtu": LATENT,
    "qwen3_next": {"num_hidden_layers": 4, "linear_num_key_heads": 2, "linear_num_value_heads": 2},
    "qwen3_5_text": {"num_hidden_layers": 4, "linear_num_key_heads": 2, "linear_num_value_heads": 2},
    "recurrent_gemma": {"num_hidden_layers": 3},
    "jamba": {"num_hidden_layers": 8},
    "mamba2": {"num_heads": 4, "head_dim": 16},
    "bamba": {"mamba_n_heads": 4},
    "granitemoehybrid": {"mamba_n_heads": 4},
    "gpt_neo": {"attention_types": [[["global"], 2]], "intermediate_size": 48},
    "gemma3n_text": {"num_kv_shared_layers": 0},
    "bloom": {"hidden_size": 32},
    "deit": {"architectures": []},
    "beit": {"use_relative_position_bias": True},
    "data2vec-vision": {"use_relative_position_bias": True},
    "fsmt": {
        "langs": ["a", "b"],
        "src_vocab_size": TOKENS,
        "tgt_vocab_size": TOKENS,
    },
    "falcon": {"new_decoder_architecture": False, "multi_query": True},
}
"""What the sizes do not tell of one type."""
RIGHT_PADDED = (
    "bart",
    "mbart",
    "pegasus",
    "blenderbot",
    "marian",
    "plbart",
    "mvp",
    "trocr",
    "whisper",
    "bigbird_pegasus",
)
"""Types with absolute positions that are counted from the first column: their documentation says to pad on the right."""
UNPACKED = (
    *("jamba", "minimax"),
    *("opt", "biogpt", "xglm", "openai-gpt"),
    *("bert", "big_bird", "camembert", "electra", "megatron-bert", "rembert", "roberta"),
)
"""Types with a recurrent state, which runs on, and older ones that make their masks without positions. Of the others
several documents in one sequence stay apart by position_ids, without a cache (transformers 39194)."""
CACHE_BY_KEYWORD = ("granitemoe", "granitemoeshared")
"""Types whose use_cache is one of **kwargs, so that their signature does not show it."""
RELATIVE = (
    *("t5", "mt5", "umt5", "longt5", "switch_transformers", "roformer"),
    *("modernbert", "eurobert", "nomic_bert", "gte", "jina_embeddings_v3"),
)
"""Encoders and encoder-decoders whose positions are relative: a batch may be padded on either side."""
UNMASKED = ("fnet",)
"""Encoders that take no attention_mask, as their documentation says."""
PROJECTED = ("albert", "mobilebert", "fnet")
"""Encoders that project their vectors before the first layer, past which no skip path leads."""


FLEX = "flex_attention"
SLOW = 0.2
"""The share of the examples for its eager form, of which a call takes a quarter of a second."""
WINDOW = 4
WINDOWED: Mapping[str, Mapping[str, Any]] = {
    "qwen2": {"use_sliding_window": True, "max_window_layers": 0},
    "qwen3": {"use_sliding_window": True, "max_window_layers": 0},
    "qwen3_moe": {"use_sliding_window": True, "max_window_layers": 0},
    "gpt_neo": {"num_layers": 1, "attention_types": [[["local"], 1]], "window_size": WINDOW},
}
"""What a type needs beside sliding_window and layer_types to have a window in its one layer."""


def causal_lm(config: Any, name: str = "", **conventions: Any) -> CausalLM:
    """The causal language model of a configuration of transformers, random and in evaluation.

    conventions: fields of `headcheck.CausalLM`, such as full_context=False for a sliding window.
    """
    usual: dict[str, Any] = {
        "padding": ("right",) if config.model_type in RIGHT_PADDED else ("left", "right"),
        "packed": config.model_type not in UNPACKED,
        "variants": _variants("AutoModelForCausalLM", config),
        "arguments": {"use_cache": "use_cache"} if config.model_type in CACHE_BY_KEYWORD else {},
        "effort": SLOW if _attention_of(config) == FLEX else 1.0,
    }
    return CausalLM(
        lambda: _made("AutoModelForCausalLM", config),
        name=name or f"hf:{config.model_type}",
        **(usual | conventions),
    )


def encoder(config: Any, name: str = "", **conventions: Any) -> Encoder:
    """The encoder of a configuration, from vectors in the place of those of tokens to its last states."""
    from torch import Tensor, nn

    class OfVectors(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = _made("AutoModel", config)

    class Masked(OfVectors):
        def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Any:
            return self.model(inputs_embeds=x, attention_mask=attention_mask)

    class Unmasked(OfVectors):
        def forward(self, x: Tensor) -> Any:
            return self.model(inputs_embeds=x)

    usual: dict[str, Any] = {
        "padding": ("right", "left") if config.model_type in RELATIVE else ("right",),
        "positions": True,
        "skip_path": config.model_type not in PROJECTED,
        "d_model": config.hidden_size,
    }
    module = Unmasked if config.model_type in UNMASKED else Masked
    return Encoder(module, name=name or f"hf-encoder:{config.model_type}", **(usual | conventions))


def seq2seq(config: Any, name: str = "", **conventions: Any) -> Seq2Seq:
    """The encoder-decoder of a configuration."""
    usual: dict[str, Any] = {
        "padding": ("left", "right") if config.model_type in RELATIVE else ("right",),
        "variants": _variants("AutoModelForSeq2SeqLM", config),
    }
    return Seq2Seq(
        lambda: _made("AutoModelForSeq2SeqLM", config),
        name=name or f"hf-seq2seq:{config.model_type}",
        **(usual | conventions),
    )


def vision(config: Any, name: str = "", **conventions: Any) -> Vision:
    """The image classifier of a configuration."""
    return Vision(
        lambda: _made("AutoModelForImageClassification", config),
        name=name or f"hf-vision:{config.model_type}",
        **({"other_sizes": True} | conventions),
    )


def tiny(model_type: str, **changes: Any) -> Any:
    """A configuration of that type of which a model takes milliseconds; changes: fields, where it has them.

    TYPE@ATTENTION asks for one of eager, sdpa and flex_attention.
    """
    from transformers import CONFIG_MAPPING

    model_type, _, attention = model_type.partition("@")
    if model_type not in CONFIG_MAPPING:
        raise SubjectError(f"transformers has no model type {model_type!r}")
    made = CONFIG_MAPPING[model_type]
    usual = made()
    wanted = {**SIZES, **OF_TYPE.get(model_type, {}), **changes}
    own = {*OF_TYPE.get(model_type, ()), *WINDOWED.get(model_type, ())}
    fitting = {name: value for name, value in wanted.items() if name in own or hasattr(usual, name)}
    asked = {"attn_implementation": attention} if attention else {}
    try:
        return made(**{**fitting, **asked})
    except Exception as problem:
        why = str(problem).strip().partition("\n")[0].rstrip(":")
        raise SubjectError(
            f"no tiny {model_type} is made here: its configuration takes other sizes ({why})"
        ) from problem


def _made(auto: str, config: Any) -> Any:
    """The model of a configuration by one of the library's automatic classes, random and in evaluation."""
    import torch
    import transformers

    with torch.random.fork_rng(devices=()):
        torch.manual_seed(SEED)
        model = getattr(transformers, auto).from_config(config, dtype=torch.float32).eval()
        _spread(model)
    if _attention_of(config) == FLEX:
        _flex_as_it_is()
    return model


def _flex_as_it_is() -> None:
    """flex_attention as torch computes it without a compiler, which takes most of a minute for each new shape."""
    from torch.nn.attention import flex_attention
    from transformers.integrations.flex_attention import WrappedFlexAttention

    flex_attention._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = True  # noqa: SLF001  # There is no public way.
    # It compiles where none has been, and wherever training begins or ends.
    WrappedFlexAttention.__init__ = lambda self, training: None
    WrappedFlexAttention._compiled_flex_attention = staticmethod(flex_attention.flex_attention)  # noqa: SLF001


def _attention_of(config: Any) -> Any:
    """The implementation of attention that is asked for, or None."""
    return config._attn_implementation  # noqa: SLF001  # Written as attn_implementation, read so.


def _variants(auto: str, config: Any) -> dict[str, Any]:
    """Where an implementation of attention is asked for: the usual one, to which the model is switched beside it."""
    import transformers

    asked = _attention_of(config)
    model = getattr(transformers, auto)._model_mapping[type(config)]  # noqa: SLF001  # There is no public way.
    switches = model._supports_sdpa and model._can_set_attn_implementation()  # noqa: SLF001  # Its own flags.
    return {"sdpa": partial(_switched, "sdpa")} if switches and asked not in (None, "sdpa") else {}


@contextmanager
def _switched(implementation: str, module: Any) -> Iterator[None]:
    before = module.config._attn_implementation  # noqa: SLF001  # As above.
    module.set_attn_implementation(implementation)
    try:
        yield
    finally:
        module.set_attn_implementation(before)


def _spread(model: Any) -> None:
    """Weights that were made narrow, made wide enough for every token to count."""
    import torch

    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1 and 0 < parameter.std() < SPREAD / 2:
                parameter.mul_(SPREAD / parameter.std())


FAMILY: Mapping[str, Any] = {"needs": ("transformers",), "install": "pip install transformers"}


@family(
    "hf",
    "causal language models of transformers by model type (hf:llama, hf:qwen3, ...), tiny and random.",
    **FAMILY,
)
def by_model_type(model_type: str) -> CausalLM:
    """The causal language model of that type."""
    return causal_lm(tiny(model_type), f"hf:{model_type}")


@family(
    "hf-window",
    "models of one layer with a sliding window of 4 (hf-window:mistral, ...), tiny and random.",
    **FAMILY,
)
def windowed_by_model_type(model_type: str) -> CausalLM:
    """The causal language model of that type: a position sees itself and three before it."""
    window = {"sliding_window": WINDOW, "layer_types": ["sliding_attention"], "num_hidden_layers": 1}
    config = tiny(model_type, **window, **WINDOWED.get(model_type.partition("@")[0], {}))
    if WINDOW not in (getattr(config, name, None) for name in ("sliding_window", "window_size")):
        raise SubjectError(f"the configuration of {model_type} names no sliding window")
    return causal_lm(config, f"hf-window:{model_type}", reach=WINDOW, full_context=False)


@family(
    "hf-encoder", "encoders of transformers by model type (hf-encoder:bert, ...), tiny and random.", **FAMILY
)
def encoder_by_model_type(model_type: str) -> Encoder:
    """The encoder of that type."""
    return encoder(tiny(model_type, is_decoder=False), f"hf-encoder:{model_type}")


@family(
    "hf-seq2seq",
    "encoder-decoders of transformers by model type (hf-seq2seq:t5, ...), tiny and random.",
    **FAMILY,
)
def seq2seq_by_model_type(model_type: str) -> Seq2Seq:
    """The encoder-decoder of that type."""
    return seq2seq(tiny(model_type, is_decoder=False, tie_word_embeddings=True), f"hf-seq2seq:{model_type}")


@family(
    "hf-vision",
    "image classifiers of transformers by model type (hf-vision:vit, ...), tiny and random.",
    **FAMILY,
)
def vision_by_model_type(model_type: str) -> Vision:
    """The image classifier of that type."""
    return vision(tiny(model_type, is_decoder=False, **IMAGES), f"hf-vision:{model_type}")
