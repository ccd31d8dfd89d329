"""Document 003, lines 1094 to 1204: the decoder-only model."""

import sympy
import torch
from torch import nn

from headcheck.golden.derived import Derived, counted
from headcheck.golden.exact import contracted
from headcheck.golden.ledger import Run, Section
from headcheck.golden.stated import count, exactly, shape
from headcheck.reference import CausalLM, Embedding, Encoder, LayerConfig, generate, token_probabilities

GPT = Section("003", "decoder-only")

PARTS = ("class", "003/multi-head/module", "003/encoder-layer/layer")
"""The class, then the two blocks that define what its layers are made of, when they are made."""
SMALL = "DecoderOnlyTransformer(9, 8, 2, 16, 2, max_seq_len=6)"


def _model() -> CausalLM:
    """A small one of the reference."""
    config = LayerConfig(d_model=4, num_heads=2, d_ff=8, norm_order="post", activation="relu")
    embedding = Embedding(5, 4, scaled=True, positions="learned", max_len=32)
    return CausalLM(embedding, Encoder(config, 1, final_norm=True), tied=True).eval()


def _zeros(length: int) -> torch.Tensor:
    return torch.zeros(1, length, dtype=torch.long)


# Lines 1096 to 1204

GPT.not_checkable(
    "who-uses-it",
    1096,
    "GPT-3, GPT-4, LLaMA",
    "It scales well, and modern models have this architecture.",
    reason="Facts about models that are not given. The code is post-norm with ReLU, which GPT-2 and LLaMA are not.",
)
GPT.block(
    "model",
    1098,
    1204,
    "The model, and twenty tokens from it. Alone it fails: attention and network stand in earlier blocks.",
    alone=Run(error="NameError: name 'MultiHeadAttention' is not defined"),
    in_order=Run(prints=("Prompt length: 10, Generated length: 30",)),
)
GPT.block("class", 1098, 1195, "The classes of that block, without the example: only defined.", alone=Run())
for name, line, place, axes, derived in (
    (
        "logits",
        1148,
        "(batch, seq_len, vocab_size)",
        (1, 10, 5),
        counted(
            lambda: contracted("bnd,dv->bnv", (1, 10, 4), (4, 5)),
            lambda: nn.Linear(4, 5, bias=False)(torch.zeros(1, 10, 4)).shape,
            lambda: _model()(_zeros(10)).shape,
        ),
    ),
    (
        "last-logits",
        1157,
        "(batch, vocab)",
        (1, 5),
        counted(
            lambda: (1, 5),
            lambda: torch.zeros(1, 10, 5)[:, -1, :].shape,
            lambda: _model()(_zeros(10))[:, -1].shape,
        ),
    ),
):
    GPT.confirmed(
        f"shape-{name}",
        line,
        place,
        "The shape: of one prompt of 10 tokens and 5 words of our own.",
        shape(*axes),
        derived,
    )
GPT.confirmed(
    "prompt-length",
    1202,
    "torch.randint(0, 50000, (1, 10))",
    "The shape of the prompt.",
    shape(1, 10),
    counted(lambda: (1, 10), lambda: _zeros(10).shape),
)
GPT.confirmed(
    "generated-length",
    1204,
    "Generated length",
    "What is printed as generated length, the prompt's ten tokens included.",
    count(30),
    counted(
        lambda: 10 + 20,
        lambda: torch.cat([_zeros(10), *[_zeros(1)] * 20], dim=1).shape[1],
        lambda: generate(_model(), _zeros(10), 20).shape[1],
    ),
    formula=r"10 + 20",
)
GPT.confirmed(
    "temperature",
    1159,
    "Apply temperature",
    "Logits 0 and ln 2 at temperature 1/2 have the probabilities 1/5 and 4/5, sharper than 1/3 and 2/3.",
    exactly("0.2 0.8"),
    Derived(
        lambda: [sympy.Rational(1, 1 + 4), sympy.Rational(4, 1 + 4)],
        lambda: [sympy.exp(2 * each) / (1 + sympy.exp(2 * sympy.log(2))) for each in (0, sympy.log(2))],
        lambda: token_probabilities(torch.tensor([[1.0, 2.0]], dtype=torch.float64).log(), 0.5)[0],
    ),
    formula=r"\text{softmax}(z / T)",
)
for name, line, what in (
    ("causal-throughout", 1096, "Causal throughout: another last token changes no earlier logits."),
    ("no-encoder", 1105, "The same: it needs no mask and no encoder from outside."),
):
    GPT.behaviour(
        name,
        line,
        what,
        blocks=PARTS,
        probe=f"""
small = {SMALL}.eval()
a, b = (small(torch.tensor([[1, 2, last]]))[0] for last in (3, 4))
print(torch.equal(a[:2], b[:2]), torch.equal(a[2], b[2]))
""",
        prints="True False",
    )
GPT.behaviour(
    "no-cross-attention",
    1172,
    "A layer has one attention: cross-attention is not among its parts.",
    blocks=PARTS,
    probe='print([name for name, _ in CausalDecoderLayer(4, 2, 8).named_children() if "attention" in name])',
    prints="['self_attention']",
)
GPT.behaviour(
    "tied-weights",
    1129,
    "The output layer's weight is the table of tokens itself, counted once.",
    blocks=PARTS,
    probe=f"""
small = {SMALL}
print(small.lm_head.weight is small.token_embedding.weight)
print(sum(weight.numel() for weight in small.parameters()) == sum(map(torch.Tensor.numel, {{*small.parameters()}})))
""",
    prints="True\nTrue",
)
GPT.behaviour(
    "parameters",
    1198,
    "The parameters of a small one by the formula (V + P) d + n (4 (d^2 + d) + 2 d d_ff + d_ff + d + 4 d) + 2 d.",
    blocks=PARTS,
    probe=f"""
small = {SMALL}
layer = 4 * (8**2 + 8) + 2 * 8 * 16 + 16 + 8 + 4 * 8
print(sum(weight.numel() for weight in small.parameters()) == (9 + 6) * 8 + 2 * layer + 2 * 8)
""",
    prints="True",
)
GPT.behaviour(
    "is-the-architecture",
    1102,
    "With the same weights it is the reference's causal model, post-norm with ReLU and a last norm.",
    blocks=PARTS,
    probe=f"""
from headcheck.reference import CausalLM, Embedding, Encoder, LayerConfig
config = LayerConfig(d_model=8, num_heads=2, d_ff=16, norm_order="post", activation="relu")
table = Embedding(9, 8, scaled=True, positions="learned", max_len=6)
same = CausalLM(table, Encoder(config, 2, final_norm=True), tied=True)
small, ids = {SMALL}.double().eval(), torch.tensor([[1, 2, 3, 4]])
with torch.no_grad():
    for weight, given in zip(same.double().parameters(), small.parameters(), strict=True):
        weight.copy_(given)
print(torch.allclose(small(ids), same(ids), rtol=1e-12))
""",
    prints="True",
)
GPT.behaviour(
    "autoregressive",
    1154,
    "Generation appends one token at a time and leaves the prompt as it was.",
    blocks=PARTS,
    probe=f"""
prompt = torch.tensor([[1, 2]])
out = {SMALL}.eval().generate(prompt, 3)
print(out.shape, torch.equal(out[:, :2], prompt))
""",
    prints="torch.Size([1, 5]) True",
)

# Latent faults

GPT.latent_fault(
    "functional-is-not-imported",
    1163,
    "`F` is not imported in this block: alone, with its parts at hand, the class fails when it generates.",
    setting="""
import torch.nn as nn
class MultiHeadAttention(nn.Module):
    def __init__(self, *sizes):
        super().__init__()
    def forward(self, query, key, value, mask):
        return query, None
class PositionwiseFeedForward(nn.Identity):
    pass
""",
    blocks=("class",),
    probe=f"""
try:
    {SMALL}.generate(torch.tensor([[1]]), 1)
except NameError as problem:
    print(problem)
""",
    prints="name 'F' is not defined",
    why_no_fault="It is an error of an import; nothing is computed.",
)
GPT.latent_fault(
    "generates-with-dropout",
    1203,
    "`generate` does not switch dropout off, nor does the example: two passes over one prompt differ.",
    blocks=PARTS,
    probe=f"""
small, ids = {SMALL}, torch.tensor([[1, 2, 3]])
with torch.no_grad():
    print(torch.equal(small(ids), small(ids)), torch.equal(small.eval()(ids), small(ids)))
""",
    prints="False True",
    why_no_fault="Dropout is on because the model is in training; the roles judge evaluation, and see to it themselves.",
)
GPT.latent_fault(
    "temperature-zero",
    1160,
    "Temperature 0, the usual word for greedy, divides by zero: the draw is refused.",
    blocks=PARTS,
    probe=f"""
try:
    {SMALL}.eval().generate(torch.tensor([[1]]), 1, temperature=0.0)
except RuntimeError as problem:
    print(str(problem).split("\\n")[0])
""",
    prints="probability tensor contains either `inf`, `nan` or element < 0",
    why_no_fault="No role draws tokens.",
)
GPT.latent_fault(
    "beyond-max-seq-len",
    1157,
    "All tokens are fed again each time, without a limit: beyond max_seq_len, here 6, the table of positions fails.",
    blocks=PARTS,
    probe=f"""
try:
    {SMALL}.eval().generate(torch.tensor([[1, 2, 3, 4]]), 4)
except IndexError as problem:
    print(problem)
""",
    prints="index out of range in self",
    fault="causal_lm/table-ends",
)
GPT.latent_fault(
    "untrained-model-echoes",
    1130,
    "The tied table starts with deviation 1 and its rows are scaled by sqrt(d) besides: an untrained model predicts the "
    "token that it is given, with a loss far above that of guessing.",
    blocks=PARTS,
    probe="""
model, ids = DecoderOnlyTransformer(100, 64, 4, 128, 2).eval(), torch.arange(100).view(2, 50)
logits = model(ids)
loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
print(torch.equal(logits.argmax(dim=-1), ids), bool(loss > 3 * math.log(100)))
""",
    prints="True True",
    fault="causal_lm/tied-and-large",
)
GPT.latent_fault(
    "drowned-positions",
    1138,
    "Both tables start with deviation 1 and the tokens alone are scaled: with 64 dims they are 8 times the positions.",
    blocks=PARTS,
    probe="""
model = DecoderOnlyTransformer(1000, 64, 2, 8, 1)
print(round((model.token_embedding.weight.std() * model.scale / model.position_embedding.weight.std()).item()))
""",
    prints="8",
    why_no_fault="The positions still count, and more than that no law asks: how large tables start is a choice.",
)
GPT.latent_fault(
    "norm-after-norm",
    1145,
    "The layers are post-norm, so that the last norm follows another: when the model starts it changes next to nothing.",
    blocks=PARTS,
    probe=f"""
small, given = {SMALL}.eval(), []
small.norm.register_forward_hook(lambda module, args, out: given.append((args[0], out)))
small(torch.tensor([[1, 2]]))
print(torch.allclose(*given[0], atol=1e-4))
""",
    prints="True",
    why_no_fault="It changes next to nothing, and which norms follow each other is a choice.",
)
GPT.latent_fault(
    "no-padding-mask",
    1132,
    "The model takes no mask: a prompt padded on the left attends to its padding.",
    blocks=PARTS,
    probe=f"""
small = {SMALL}.eval()
a, b = (small(torch.tensor([[padding, 2]]))[0, 1] for padding in (0, 1))
print(torch.equal(a, b))
""",
    prints="False",
    fault="causal_lm/padding-is-read",
)
