"""What is known of a model before any training."""

import math

import torch

from headcheck.comparison import Comparison, within
from headcheck.laws import law
from headcheck.modules.subject import ModuleInputs, ModuleSubject


@law(
    source="a model that knows nothing gives each token the same probability, 1/vocab, and the loss ln(vocab)",
    formula="mean over v of -ln softmax(logits)[v] is between ln(vocab) and ln(vocab) + 1",
    guards="A tied table of standard deviation 1, an output that is scaled twice: training starts with unlearning.",
    needs=("fresh",),
    roles=("causal_lm", "seq2seq"),
)
def the_first_loss_is_near_ln_vocab(model: ModuleSubject[ModuleInputs], x: ModuleInputs) -> Comparison:
    """Before any training the loss of tokens drawn evenly is at most one above the logarithm of their number."""
    logits = model(x).double()
    loss = (logits.logsumexp(dim=-1) - logits.mean(dim=-1)).mean(dim=1)
    guessing = math.log(logits.shape[-1])
    return within(loss, torch.full_like(loss, guessing), 1.0, "first loss")
