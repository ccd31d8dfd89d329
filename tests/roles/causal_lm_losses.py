"""Language models that give a loss beside their logits, right and wrong."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.roles import right, wrong
from tests.roles.causal_lm import Small

GROWS = "targets/the-loss-grows-with-the-surprise-at-each-target"
LEFT_OUT = "targets/targets-left-out-have-no-part-in-the-mean"


class Trained(Small):
    """Targets are those of the caller, each at the place of its logits."""

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Any:
        logits = super().forward(tokens)
        return (logits, None) if targets is None else (logits, self.loss(logits, targets))

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Labelled(Small):
    """Of transformers' kind: labels are the tokens themselves, shifted inside, in a dict."""

    def forward(self, tokens: Tensor, labels: Tensor | None = None) -> Any:
        logits = super().forward(tokens)
        return {"logits": logits} if labels is None else {"loss": self.loss(logits, labels), "logits": logits}

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten())


@right("Targets at the places of their logits; the loss is the mean over those that are not -100.")
def with_targets() -> nn.Module:
    return Trained()


@right("Labels are shifted inside; the loss is computed in float32.")
def with_labels() -> nn.Module:
    return Labelled()


@right("The loss comes first, summed, with smoothed targets and a term for large logits.")
def summed_and_smoothed() -> nn.Module:
    class Smoothed(Trained):
        def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Any:
            logits, loss = super().forward(tokens, targets)
            return logits if loss is None else (loss, logits)

        def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
            flat = logits.flatten(0, 1), targets.flatten()
            summed = functional.cross_entropy(*flat, reduction="sum", label_smoothing=0.1)
            return summed + 1e-3 * logits.logsumexp(dim=-1).square().sum()

    return Smoothed()


@right("The negative log-likelihood is read by indices: no target can be left out.")
def read_by_indices() -> nn.Module:
    class Indexed(Trained):
        def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
            return -logits.log_softmax(dim=-1).gather(2, targets[..., None]).mean()

    return Indexed()


@wrong("The logits are shifted, not the labels: each token is learned from the one behind it.", breaks=GROWS)
def shifted_the_other_way() -> nn.Module:
    class Wrong(Labelled):
        def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
            return functional.cross_entropy(logits[:, 1:].flatten(0, 1), labels[:, :-1].flatten())

    return Wrong()


@wrong("Labels that are shifted inside are shifted once more.", breaks=GROWS)
def shifted_twice() -> nn.Module:
    class Wrong(Labelled):
        def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
            return super().loss(logits[:, :-1], labels[:, 1:])

    return Wrong()


@wrong("The last place is dropped from the loss, though the targets are shifted by the caller.", breaks=GROWS)
def last_target_dropped() -> nn.Module:
    class Wrong(Trained):
        def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
            return super().loss(logits[:, :-1], targets[:, :-1])

    return Wrong()


@wrong("The loss is of the softmax of the logits, which takes them for logits again.", breaks=GROWS)
def softmax_before_cross_entropy() -> nn.Module:
    class Wrong(Trained):
        def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
            return super().loss(logits.softmax(dim=-1), targets)

    return Wrong()


@wrong("Logits and targets are laid end to end in different orders.", breaks=GROWS)
def rows_mixed_in_the_loss() -> nn.Module:
    class Wrong(Trained):
        def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
            return super().loss(logits.transpose(0, 1), targets)

    return Wrong()


@wrong("The mean divides by all targets, those left out as well.", breaks=LEFT_OUT)
def mean_over_all() -> nn.Module:
    class Wrong(Trained):
        def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
            flat = logits.flatten(0, 1), targets.flatten()
            return functional.cross_entropy(*flat, reduction="none").mean()

    return Wrong()


@wrong("A target that is left out counts as token 0.", breaks=LEFT_OUT)
def left_out_taken_for_a_token() -> nn.Module:
    class Wrong(Trained):
        def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
            return super().loss(logits, targets.clamp(min=0))

    return Wrong()


class Fused(torch.autograd.Function):
    """The cross-entropy, whose gradient is made on the way forward."""

    scaled = True

    @classmethod
    def forward(cls, ctx: Any, logits: Tensor, targets: Tensor) -> Tensor:
        probabilities = logits.softmax(dim=-1)
        ones = torch.ones_like(targets, dtype=logits.dtype)[:, None]
        ctx.save_for_backward(probabilities.scatter_add(1, targets[:, None], -ones) / len(targets))
        return functional.cross_entropy(logits, targets)

    @classmethod
    def backward(cls, ctx: Any, *sent: Tensor) -> Any:
        (gradient,) = ctx.saved_tensors
        return gradient * sent[0] if cls.scaled else gradient, None


class FusedUnscaled(Fused):
    scaled = False


class OfFused(Trained):
    by: type[torch.autograd.Function] = Fused

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        found: Tensor = self.by.apply(logits.flatten(0, 1), targets.flatten())
        return found


@right("A fused loss: its gradient is made on the way forward.")
def fused_loss() -> nn.Module:
    return OfFused()


@wrong(
    "A fused loss whose gradient is not multiplied by what comes back: a share of the loss trains like all of it.",
    breaks="targets/the-gradient-of-a-multiple-of-the-loss-is-its-slope",
)
def fused_loss_without_what_comes_back() -> nn.Module:
    model = OfFused()
    model.by = FusedUnscaled
    return model


class FusedOfSome(torch.autograd.Function):
    """The same over the targets that are not left out."""

    spared = True
    """Whether what is left out has no gradient."""

    @classmethod
    def forward(cls, ctx: Any, logits: Tensor, targets: Tensor) -> Tensor:
        counted = targets >= 0
        safe = targets.clamp(min=0)[:, None]
        gradient = logits.softmax(dim=-1).scatter_add(1, safe, -torch.ones_like(logits[:, :1]))
        if cls.spared:
            gradient = gradient * counted[:, None]
        ctx.save_for_backward(gradient / counted.sum())
        return functional.cross_entropy(logits, targets)

    @staticmethod
    def backward(ctx: Any, *sent: Tensor) -> Any:
        (gradient,) = ctx.saved_tensors
        return gradient * sent[0], None


class FusedOfAll(FusedOfSome):
    spared = False


@right("A fused loss that knows of targets that are left out.")
def fused_loss_of_some() -> nn.Module:
    model = OfFused()
    model.by = FusedOfSome
    return model


@wrong(
    "A fused loss leaves targets out, and not out of its gradient: those train as if they were token 0.",
    breaks="targets/targets-left-out-have-no-part-in-the-gradient",
)
def fused_gradient_of_what_is_left_out() -> nn.Module:
    model = OfFused()
    model.by = FusedOfAll
    return model


class Overwriting(Small):
    """Of transformers' kind, with a mask: padded labels are left out."""

    overwrites = True

    def forward(  # type: ignore[override]
        self, tokens: Tensor, is_real: Tensor | None = None, labels: Tensor | None = None
    ) -> Any:
        logits = super().forward(tokens, is_real)
        if labels is None:
            return logits
        labels = labels if self.overwrites else labels.clone()
        if is_real is not None:
            labels[~is_real] = -100
        return functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()), logits


@wrong(
    "Where there is a mask, labels of padding are overwritten in the tensor of the caller: it may be that of the tokens.",
    breaks="state/inputs-are-not-changed",
)
def labels_of_padding_overwritten() -> nn.Module:
    return Overwriting()


@right("Labels of padding are left out in a copy.")
def labels_of_padding_left_out() -> nn.Module:
    model = Overwriting()
    model.overwrites = False
    return model
