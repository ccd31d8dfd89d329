"""Document 003, lines 1030 to 1038: the settings of the paper."""

from headcheck.golden.d003_training import PARTS, QUIET, WATCHED
from headcheck.golden.ledger import Section

SETTINGS = Section("003", "paper-settings")

SETTINGS.behaviour(
    "code-has-them",
    1033,
    "The loop's defaults are the settings of the table: betas, epsilon, warmup and smoothing.",
    setting=WATCHED.replace('rates.append(self.param_groups[0]["lr"])', "rates.append(self.defaults)"),
    blocks=PARTS,
    probe=f"""
import inspect
{QUIET}train_transformer(Words(), batches([[1, 2]]), 1, 3)
print(rates[0]["betas"], rates[0]["eps"])
defaults = inspect.signature(train_transformer).parameters
print(*(defaults[name].default for name in ("warmup_steps", "label_smoothing")))
""",
    prints="(0.9, 0.98) 1e-09\n4000 0.1",
)
for name, line, place, what, right in (
    (
        "adam",
        1033,
        "OptimizerAdam",
        "Adam with betas 0.9 and 0.98",
        "the same; epsilon is 10^-9, whose exponent was lost",
    ),
    ("warmup", 1034, "Warmup Steps4,000", "4,000 steps of warmup", "the same"),
    (
        "dropout",
        1035,
        "(attention, residual, embeddings)",
        "dropout 0.1 in three places",
        "0.1 for the base model and 0.3 for the big one, on sub-layers' outputs and embeddings; attention is not named",
    ),
    ("smoothing", 1036, "= 0.1", "label smoothing 0.1", "the same"),
    (
        "batch",
        1037,
        "~25,000 source + target tokens",
        "batches of about 25,000 tokens, source and target",
        "about 25,000 of the source and 25,000 of the target, so 50,000 if the plus is a sum",
    ),
    ("steps", 1038, "100,000 (base), 300,000 (big)", "100,000 and 300,000 steps", "the same"),
):
    SETTINGS.not_checkable(
        name,
        line,
        place,
        f"The paper has {what}.",
        reason=f"A fact about a paper that is not given. Its section 5 has {right}.",
    )
