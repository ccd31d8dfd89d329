"""Modules that read images."""

from headcheck.modules.vision import Vision
from headcheck.subjects import builtin


@builtin("reference-vit", "headcheck's own vision transformer: patches by convolution, a class token.")
def reference_vit() -> Vision:
    """Images of 3 x 8 x 8 in patches of 4 x 4."""
    from headcheck import reference

    def make() -> reference.VisionTransformer:
        config = reference.LayerConfig(d_model=16, num_heads=4, d_ff=32, norm_order="pre", activation="gelu")
        patches = reference.PatchEmbedding(8, 4, 3, 16, patches="convolution")
        return reference.VisionTransformer(patches, reference.Encoder(config, 2, final_norm=True), 5)

    return Vision(make, name="reference-vit", other_sizes=True)
