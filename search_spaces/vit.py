"""ViT shapes of Dosovitskiy et al. 2021, Table 1 (B, L, H), and Touvron et al. 2022, Table 1
(Ti, S, B, L).
"""

# Ti, S, B, L have patches of 16 pixels. H has patches of 14 in both papers that train it:
# Dosovitskiy et al. 2021, Table 2, and Touvron 2022 (thesis), section 6.3, where 126 pixels give 81
# tokens.
SHAPES: dict[str, dict[str, object]] = {
    "Ti": {"depth": 12, "width": 192, "heads": 3, "mlp_ratio": 4.0, "patch_size": 16},
    "S": {"depth": 12, "width": 384, "heads": 6, "mlp_ratio": 4.0, "patch_size": 16},
    "B": {"depth": 12, "width": 768, "heads": 12, "mlp_ratio": 4.0, "patch_size": 16},
    "L": {"depth": 24, "width": 1024, "heads": 16, "mlp_ratio": 4.0, "patch_size": 16},
    "H": {"depth": 32, "width": 1280, "heads": 16, "mlp_ratio": 4.0, "patch_size": 14},
}

# Touvron 2022 (thesis), Table 3.11: DeiT-S of other depths.
SHAPES |= {f"S{depth}": {**SHAPES["S"], "depth": depth} for depth in (18, 24, 36)}
