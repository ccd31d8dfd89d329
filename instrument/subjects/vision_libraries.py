"""Vision transformers of libraries on torch: images of 3 x 16 x 16 in patches of 4 x 4, to five classes."""

from typing import Any

from headcheck.modules.vision import Vision
from headcheck.subjects import builtin

SMALL: dict[str, Any] = {"img_size": 16, "patch_size": 4, "num_heads": 2, "num_classes": 5}
LUCIDRAINS: dict[str, Any] = {"image_size": 16, "patch_size": 4, "num_classes": 5}


@builtin(
    "timm-vit",
    "timm's VisionTransformer.",
    needs=("timm", "torchvision"),
    install="pip install timm torchvision",
)
def timm_vit() -> Vision:
    """A class token, learned positions."""
    from timm.models.vision_transformer import VisionTransformer

    return Vision(
        lambda: VisionTransformer(embed_dim=16, depth=2, **SMALL), name="timm-vit", other_sizes=True
    )


@builtin(
    "timm-vit-pooled",
    "timm's VisionTransformer, its states averaged.",
    needs=("timm", "torchvision"),
    install="pip install timm torchvision",
)
def timm_vit_pooled() -> Vision:
    """Without a class token."""
    from timm.models.vision_transformer import VisionTransformer

    def make() -> Any:
        return VisionTransformer(embed_dim=16, depth=2, global_pool="avg", class_token=False, **SMALL)

    return Vision(make, name="timm-vit-pooled", other_sizes=True)


@builtin(
    "timm-eva",
    "timm's Eva with rotary positions.",
    needs=("timm", "torchvision"),
    install="pip install timm torchvision",
)
def timm_eva() -> Vision:
    """Positions of two axes, turned into queries and keys; no learned ones."""
    from timm.models.eva import Eva

    def make() -> Any:
        return Eva(embed_dim=16, depth=2, use_rot_pos_emb=True, use_abs_pos_emb=False, **SMALL)

    return Vision(make, name="timm-eva", other_sizes=True)


@builtin("torchvision-vit", "torchvision's VisionTransformer.", needs=("torchvision",))
def torchvision_vit() -> Vision:
    """torch's MultiheadAttention inside."""
    from torchvision.models import VisionTransformer

    def make() -> Any:
        sizes = {"num_layers": 2, "num_heads": 2, "hidden_dim": 16, "mlp_dim": 32}
        return VisionTransformer(**LUCIDRAINS, **sizes)

    return Vision(make, name="torchvision-vit", other_sizes=True)


@builtin("monai-vit", "MONAI's ViT on images of two axes.", needs=("monai",))
def monai_vit() -> Vision:
    """A class token, learned positions; its head ends in tanh."""
    from monai.networks.nets import ViT

    def make() -> Any:
        sizes = {"hidden_size": 16, "mlp_dim": 32, "num_layers": 2, "spatial_dims": 2, "classification": True}
        return ViT(in_channels=3, **SMALL, **sizes)

    return Vision(make, name="monai-vit", other_sizes=True)


@builtin(
    "vit-pytorch",
    "vit_pytorch's ViT.",
    needs=("vit_pytorch", "torchvision"),
    install="pip install vit-pytorch torchvision",
)
def vit_pytorch() -> Vision:
    """A class token, learned positions."""
    from vit_pytorch import ViT

    return Vision(
        lambda: ViT(dim=16, depth=2, heads=2, mlp_dim=32, **LUCIDRAINS), name="vit-pytorch", other_sizes=True
    )


@builtin(
    "vit-pytorch-simple",
    "vit_pytorch's SimpleViT.",
    needs=("vit_pytorch", "torchvision"),
    install="pip install vit-pytorch torchvision",
)
def vit_pytorch_simple() -> Vision:
    """Sinusoidal positions of two axes, the states averaged."""
    from vit_pytorch import SimpleViT

    return Vision(
        lambda: SimpleViT(dim=16, depth=2, heads=2, mlp_dim=32, **LUCIDRAINS),
        name="vit-pytorch-simple",
        other_sizes=True,
    )


@builtin(
    "x-transformers-vit",
    "x_transformers' ViTransformerWrapper.",
    needs=("x_transformers",),
    install="pip install x-transformers",
)
def x_transformers_vit() -> Vision:
    """Learned positions, the states averaged."""
    from x_transformers import Encoder, ViTransformerWrapper

    def make() -> Any:
        return ViTransformerWrapper(attn_layers=Encoder(dim=16, depth=2, heads=2), **LUCIDRAINS)

    return Vision(make, name="x-transformers-vit", other_sizes=True)
