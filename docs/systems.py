"""Every system that the documents define or use: where it is here, and what holds it. Rendered by generate.py."""

import importlib
from dataclasses import dataclass, field

from headcheck import reference
from headcheck.golden.ledger import ledger
from headcheck.laws import all_laws
from headcheck.proofs import all_proofs


@dataclass(frozen=True, kw_only=True)
class System:
    """One row. An empty cell has its reason in `why`."""

    name: str
    documents: str
    """Document and line of its definition, or of its use."""
    reference: tuple[str, ...]
    """Names of headcheck.reference, or of a module of it."""
    laws: tuple[str, ...] = ()
    """Families of laws, or whole roles."""
    proofs: tuple[str, ...] = ()
    """Names of proofs, or themes."""
    golden: tuple[str, ...] = ()
    """Sections of the ledger: document/section."""
    why: dict[str, str] = field(default_factory=dict)
    """Column -> why it is empty."""


NO_LAW = "held to torch, in tests/test_reference*.py: no role of its own"
NO_PROOF = "wiring of parts that are proved by themselves"

SYSTEMS = (
    System(
        name="attention without weights",
        documents="000, line 41",
        reference=("attention_without_weights",),
        laws=("attention/symmetry",),
        proofs=("attention/self-attention-permutes-with-its-tokens",),
        golden=("000/similarity-by-hand", "000/similarity-code", "000/similarity-read"),
    ),
    System(
        name="projections to query, key and value",
        documents="000, line 205; 002, line 32; 003, line 102",
        reference=("SingleHeadAttention",),
        laws=("multi-head-attention/accuracy",),
        proofs=("heads/one-projection-is-that-of-each-head",),
        golden=("000/projections-by-hand", "000/projections-code", "002/filing-cabinet", "003/projections"),
    ),
    System(
        name="softmax",
        documents="000, line 68; 001, line 57; 002, line 91; 003, line 44",
        reference=("softmax", "log_sum_exp"),
        laws=("softmax",),
        proofs=("softmax",),
        golden=("000/similarity-by-hand", "002/scores-by-hand"),
    ),
    System(
        name="scaled dot-product attention",
        documents="000, line 242; 001, line 67; 002, line 45; 003, line 51; 004, line 6",
        reference=("attention", "attention_gradients"),
        laws=("attention",),
        proofs=("attention", "gradients"),
        golden=(
            "000/scaled-dot-product",
            "000/scaled-code",
            "000/packaged",
            "001/scaled-dot-product",
            "002/attention-by-hand",
            "002/why-scaled",
            "003/scaled-dot-product",
            "004/scaled-dot-product",
        ),
    ),
    System(
        name="masks: causal, padding, both",
        documents="000, line 935; 002, line 207; 003, line 229; 004, line 42",
        reference=("masks.causal", "masks.padding", "masks.additive"),
        laws=("attention/masks", "causal-lm/causality"),
        proofs=("attention/a-masked-key-is-no-key",),
        golden=(
            "003/causal",
            "004/future-blind-mask",
            "000/causal-mask",
            "000/padding-mask",
            "000/combined-masks",
        ),
    ),
    System(
        name="multi-head attention",
        documents="000, line 397; 001, line 98; 002, line 252; 003, line 295; 004, line 17",
        reference=("MultiHeadAttention", "split_heads", "merge_heads"),
        laws=("multi-head-attention", "attention/heads"),
        proofs=("heads",),
        golden=(
            "000/multi-head",
            "000/multi-head-code",
            "001/multi-head",
            "002/multi-head",
            "003/multi-head",
            "000/built-in",
        ),
    ),
    System(
        name="cross-attention",
        documents="000, line 474; 002, line 219; 003, line 890",
        reference=("MultiHeadAttention", "DecoderLayer"),
        laws=("multi-head-attention", "decoder"),
        proofs=("attention/permuting-queries-permutes-rows",),
        golden=(
            "002/cross-attention",
            "000/cross-attention",
            "003/cross-attention",
        ),
    ),
    System(
        name="sinusoidal positions",
        documents="000, line 537; 001, line 155; 002, line 125; 003, line 448",
        reference=("sinusoidal", "sinusoidal_at"),
        laws=("sinusoidal",),
        proofs=(
            "positions/one-matrix-shifts-every-position",
            "positions/inner-products-depend-on-the-offset",
            "positions/the-code-has-a-constant-norm",
            "positions/the-wavelengths-are-a-geometric-row",
        ),
        golden=(
            "001/positions",
            "002/sinusoidal",
            "003/sinusoidal",
            "000/sinusoidal-positions",
            "003/why-sinusoids",
        ),
    ),
    System(
        name="learned positions",
        documents="000, line 586; 002, line 144; 003, line 515",
        reference=("LearnedPositions",),
        golden=("002/learned-positions", "003/learned-positions"),
        why={"laws": NO_LAW, "proofs": "a table: there is nothing to prove"},
    ),
    System(
        name="rotary positions",
        documents="002, line 147",
        reference=("rotary", "rotary_angles"),
        laws=("rotary",),
        proofs=(
            "positions/dot-products-depend-on-the-relative-position",
            "positions/rotations-compose",
            "positions/rotations-invert",
            "positions/rotations-keep-norms",
        ),
        golden=("002/rotary",),
    ),
    System(
        name="layer norm, RMS norm",
        documents="000, line 598; 001, line 192; 002, line 164; 003, line 596",
        reference=("layer_norm", "rms_norm", "LayerNorm", "RMSNorm"),
        laws=("layer-norm", "rms-norm"),
        proofs=("norms",),
        golden=("002/layer-norm",),
    ),
    System(
        name="feed-forward: ReLU, GELU, SwiGLU",
        documents="000, line 645; 001, line 44; 002, line 278; 003, line 574",
        reference=("FeedForward",),
        laws=("encoder",),
        golden=("001/core-concepts", "002/feed-forward"),
        why={"proofs": "a composition without an identity of its own"},
    ),
    System(
        name="residual blocks, pre-norm and post-norm",
        documents="000, line 645; 002, line 178; 003, line 596; 004, line 33",
        reference=("Residual", "LayerConfig"),
        laws=("encoder",),
        golden=("002/residual-stream", "002/layer-norm"),
        why={"proofs": NO_PROOF},
    ),
    System(
        name="encoder layer and stack",
        documents="000, line 645; 001, line 192; 002, line 290; 003, line 596; 004, line 33",
        reference=("EncoderLayer", "Encoder"),
        laws=("encoder",),
        golden=(
            "001/encoder-layer",
            "002/encoder-block",
            "002/encoder-code",
            "003/encoder-layer",
            "003/encoder",
            "000/encoder-block",
        ),
        why={"proofs": NO_PROOF},
    ),
    System(
        name="decoder layer and stack",
        documents="000, line 723; 002, line 200; 003, line 731; 004, line 39",
        reference=("DecoderLayer", "Decoder"),
        laws=("decoder",),
        golden=(
            "002/decoder-block",
            "003/decoder-layer",
            "003/decoder",
            "000/decoder-block",
        ),
        why={"proofs": NO_PROOF},
    ),
    System(
        name="embeddings: scale, tied weights",
        documents="000, line 848; 002, line 302; 003, line 1126",
        reference=("Embedding", "output_layer"),
        laws=("causal-lm",),
        proofs=("training/tied-weights-add-their-gradients",),
        golden=("002/encoder-code",),
    ),
    System(
        name="encoder-decoder transformer",
        documents="000, line 848; 002, line 224; 003, line 1222; 004, line 50",
        reference=("Seq2Seq",),
        laws=("seq2seq",),
        golden=(
            "002/architecture",
            "004/parameters",
            "000/full-model",
            "000/torch-transformer",
        ),
        why={"proofs": NO_PROOF},
    ),
    System(
        name="encoder-only classifier with [CLS]",
        documents="003, line 1051",
        reference=("Classifier",),
        laws=("encoder",),
        why={"proofs": NO_PROOF},
        golden=("003/encoder-only",),
    ),
    System(
        name="decoder-only language model",
        documents="003, line 1102",
        reference=("CausalLM",),
        laws=("causal-lm",),
        why={"proofs": NO_PROOF},
        golden=("003/decoder-only",),
    ),
    System(
        name="generation: temperature, greedy, sampled; key-value cache",
        documents="003, line 1153",
        reference=("generate", "next_token", "token_probabilities", "Cache", "KeyValues"),
        laws=("causal-lm/cache", "softmax/limits"),
        proofs=(
            "softmax/a-low-temperature-picks-the-highest-score",
            "softmax/a-high-temperature-makes-weights-equal",
        ),
        golden=("003/decoder-only",),
    ),
    System(
        name="vision transformer: patches by convolution and by unfold",
        documents="000, line 1089",
        reference=("PatchEmbedding", "VisionTransformer", "unfold_patches"),
        laws=("vision",),
        why={"proofs": NO_PROOF},
        golden=(
            "000/vision",
            "000/vision-code",
        ),
    ),
    System(
        name="sliding-window attention",
        documents="000, line 1186",
        reference=("sliding_window_attention", "window_keys", "number_of_scores", "receptive_field"),
        laws=("attention/features",),
        proofs=("efficient/layers-of-windows-reach-layers-times-the-window",),
        golden=(
            "000/quadratic-growth",
            "000/sliding-window",
        ),
    ),
    System(
        name="sparse attention: local, global, random",
        documents="000, line 1228",
        reference=("sparse", "global_tokens", "random_keys", "reachable"),
        why={"laws": NO_LAW, "proofs": "random keys: there is no identity"},
        golden=("000/other-efficient",),
    ),
    System(
        name="linear attention",
        documents="000, line 1226",
        reference=(
            "linear_attention",
            "causal_linear_attention",
            "recurrent_linear_attention",
            "kernel_attention",
        ),
        proofs=("efficient",),
        why={"laws": NO_LAW},
        golden=("000/other-efficient",),
    ),
    System(
        name="warm-up schedule",
        documents="003, line 905",
        reference=("warmup_schedule",),
        proofs=(
            "training/the-schedule-is-continuous-at-its-peak",
            "training/the-schedule-is-highest-at-the-warmup",
        ),
        why={"laws": NO_LAW},
        golden=("003/schedule",),
    ),
    System(
        name="label smoothing and loss",
        documents="003, line 968",
        reference=("smoothed_targets", "cross_entropy", "token_loss", "smallest_loss"),
        proofs=("training/the-loss-is-least-at-the-smoothed-target", "training/smoothed-targets-sum-to-one"),
        why={"laws": NO_LAW},
        golden=(
            "003/training-loop",
            "003/paper-settings",
        ),
    ),
    System(
        name="training: teacher forcing, shifted targets, clipping",
        documents="002, line 217; 003, line 959",
        reference=("shift", "teacher_forced", "clip_gradients", "train_step", "train"),
        proofs=("training/a-clipped-gradient-has-the-norm-allowed",),
        why={"laws": "learning itself is checked in tests/test_learning.py"},
        golden=("003/training-loop",),
    ),
)

COLUMNS = ("laws", "proofs", "golden")
INTRODUCTION = """\
Every system that the five documents define or use, and what holds it here. *Laws*: how many, of which families,
`headcheck laws` shows them. *Proofs* are in [proofs.md](proofs.md), *golden* statements in [golden.md](golden.md);
all of headcheck.reference is held to torch in tests/test_reference*.py."""


def found(system: System) -> dict[str, list[str]]:
    """What each name of a row stands for; ValueError: a name that stands for nothing."""
    known = {"laws": list(all_laws()), "proofs": list(all_proofs()), "golden": list(ledger().claims)}
    cells: dict[str, list[str]] = {}
    for column in COLUMNS:
        cells[column] = []
        for name in getattr(system, column):
            matching = [each for each in known[column] if each == name or each.startswith(f"{name}/")]
            if not matching:
                raise ValueError(f"{system.name}: no {column} are called {name}")
            cells[column] += matching
        if not cells[column] and column not in system.why:
            raise ValueError(f"{system.name}: {column} are missing without a reason")
    for name in system.reference:
        module, _, attribute = name.rpartition(".")
        home = importlib.import_module(f"headcheck.reference.{module}") if module else reference
        if not hasattr(home, attribute):
            raise ValueError(f"headcheck.reference has no {name}")
    return cells


def systems_page() -> str:
    """The table."""
    rows = ["| system | documents | reference | laws | proofs | golden |", "|---|---|---|---|---|---|"]
    for system in SYSTEMS:
        cells = found(system)
        shown = [
            f"{len(set(cells[column]))}: {', '.join(getattr(system, column))}"
            if cells[column]
            else system.why[column]
            for column in COLUMNS
        ]
        names = ", ".join(f"`{name}`" for name in system.reference)
        rows.append(f"| {system.name} | {system.documents} | {names} | {' | '.join(shown)} |")
    generated = "<!-- Generated by docs/generate.py from docs/systems.py; edit that. -->"
    return "\n\n".join(["# The systems of the documents", generated, INTRODUCTION, "\n".join(rows)]) + "\n"
