"""Which parts of a module are the layers of a stack, and which weights no output depends on."""

import torch
from torch import Tensor, nn

from headcheck.modules.encoder import role
from headcheck.modules.stacks import stacks_in
from tests.roles.encoder import Block


class Listed(nn.Module):
    """Three blocks, one after the other, the first or the last never called; or two of them beside each other."""

    norm_first = True

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.layers = how, nn.ModuleList(Block() for _ in range(3))

    def forward(self, x: Tensor, is_real: Tensor | None = None) -> Tensor:
        first, second, _ = self.layers
        if self.how == "beside":
            return first(x, is_real) + second(x, is_real)
        through = second(x if self.how == "late" else first(x, is_real), is_real=is_real)
        return through if self.how == "short" else self.layers[2](x=through, is_real=is_real)


def test_layers_of_a_stack_are_given_what_the_one_before_gave() -> None:
    """By keyword, too, and one that is never called is one of them; of those beside each other the input may choose."""
    x = torch.randn(1, 2, 8)
    for how, names in (("whole", ["layers"]), ("short", ["layers"]), ("late", ["layers"]), ("beside", [])):
        module = Listed(how)
        assert [each.name for each in stacks_in(module, lambda module=module: module(x))] == names  # type: ignore[misc]


def test_experts_beside_each_other_are_no_stack() -> None:
    """An expert that no token is given has no influence, and need not have any."""
    experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
    x = torch.randn(1, 2, 8)
    assert stacks_in(experts, lambda: experts[0](x) + experts[1](x)) == []


def test_a_list_may_hold_none() -> None:
    """As x-transformers keeps norms that it does not have."""
    module = nn.Module()
    module.norms = nn.ModuleList([None, None])  # type: ignore[list-item]
    assert stacks_in(module, lambda: None) == []


def test_weights_that_no_output_depends_on_are_told() -> None:
    """In a note, as they may be meant; and none where all take part."""
    for how, told in (("whole", False), ("short", True)):
        _, notes = role.prepare(role.declaration(Listed(how)), dtypes=(), device="cpu", seed=0)
        found = [
            note for note in notes if note.startswith("no output of 3 calls depends on the weights layers.2.")
        ]
        assert bool(found) is told
