"""Encoder-decoders."""

from typing import Any

from headcheck.modules.seq2seq import Seq2Seq
from headcheck.subjects import builtin


@builtin("reference-seq2seq", "headcheck's own encoder-decoder: the paper's, with pre-norm and a tied table.")
def reference_seq2seq() -> Seq2Seq:
    """With encode and decode, and padding on either side."""
    from headcheck import reference

    def make() -> reference.Seq2Seq:
        config = reference.LayerConfig(d_model=16, num_heads=4, d_ff=32, norm_order="pre", activation="relu")
        table = reference.Embedding(17, 16, scaled=True, positions="sinusoidal")
        encoder = reference.Encoder(config, 2, final_norm=True)
        decoder = reference.Decoder(config, 2, final_norm=True)
        return reference.Seq2Seq(table, table, encoder, decoder, tied=True, output_bias=False)

    return Seq2Seq(make, name="reference-seq2seq")


@builtin("torch-transformer", "torch.nn.Transformer between tables of embeddings and an output layer.")
def torch_transformer() -> Seq2Seq:
    """Padding on the right: its mask of padding is True at padding, and a row that sees nothing gives NaN."""
    return Seq2Seq(_torch_module, name="torch-transformer", padding=("right",))


def _torch_module() -> Any:
    import torch
    from torch import Tensor, nn

    class Transformer(nn.Module):
        """torch.nn.Transformer as its documentation puts it to use."""

        def __init__(self) -> None:
            super().__init__()
            self.source, self.target, self.places = (
                nn.Embedding(13, 16),
                nn.Embedding(17, 16),
                nn.Embedding(32, 16),
            )
            self.body = nn.Transformer(16, 4, 2, 2, 32, batch_first=True)
            self.head = nn.Linear(16, 17)

        def forward(
            self,
            source: Tensor,
            target: Tensor,
            src_key_padding_mask: Tensor | None = None,
            tgt_key_padding_mask: Tensor | None = None,
        ) -> Tensor:
            length = target.shape[1]
            hidden: Tensor = self.body(
                self.source(source) + self.places(torch.arange(source.shape[1], device=source.device)),
                self.target(target) + self.places(torch.arange(length, device=target.device)),
                tgt_mask=torch.ones(length, length, dtype=torch.bool, device=target.device).triu(1),
                src_key_padding_mask=src_key_padding_mask,
                tgt_key_padding_mask=tgt_key_padding_mask,
                memory_key_padding_mask=src_key_padding_mask,
            )
            logits: Tensor = self.head(hidden)
            return logits

    return Transformer()
