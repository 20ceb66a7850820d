"""Names of ViT shapes as in Touvron et al. 2022."""


def shape_name(size: str, depth: int, branches: int = 1) -> str:
    """B18x2: the width of ViT-B, 18 blocks deep, two branches of attention and MLP in each."""
    return f"{size}{depth}x{branches}"
