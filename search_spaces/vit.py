"""ViT shapes of Dosovitskiy et al. 2021, Table 1 (B, L, H), and Touvron et al. 2022, Table 1
(Ti, S, B, L).
"""

from collections.abc import Mapping

from vitscale.catalog.tables import printed_errors

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

# Dosovitskiy et al. 2021, Table 8, and Touvron 2022 (thesis), Table 3.13: each arm's fields beside
# those of the baseline, ViT-B/16 with 1-D positions after the stem and DeiT-S.
TABLE_8: dict[str, dict[str, object]] = {
    "no positions": {"pos_embed": "none"},
    "1-D, every layer": {"pos_at": "layer"},
    "1-D, shared": {"pos_at": "shared"},
    "2-D": {"pos_embed": "learned2d"},
    "2-D, every layer": {"pos_embed": "learned2d", "pos_at": "layer"},
    "2-D, shared": {"pos_embed": "learned2d", "pos_at": "shared"},
    "relative": {"pos_embed": "relative"},
}
TABLE_3_13: dict[str, dict[str, object]] = {"average pooling": {"pool": "avg"}}
TABLE_3_13 |= {f"token at {layer}": {"token_layer": layer} for layer in (2, 4, 8, 10, 11)}
TABLE_3_13 |= {
    f"{depth} + {blocks} blocks": {"depth": depth, "class_blocks": blocks}
    for depth, blocks in ((9, 3), (10, 2), (11, 1), (12, 1), (12, 2), (12, 3))
}


def _of_table_3_13(row: Mapping[str, str]) -> str:
    if row["class_attention_layers"] != "0":
        return f"{row['self_attention_layers']} + {row['class_attention_layers']} blocks"
    if row["pooling"] == "average":
        return "average pooling"
    return "DeiT-S" if row["insertion_layer"] == "0" else f"token at {row['insertion_layer']}"


def _of_table_3_21(row: Mapping[str, str]) -> str:
    return "DeiT-S" if row["heads"] == "6" else f"heads {row['heads']}"


# arm -> error on val, of Touvron 2022 (thesis), Tables 3.13 and 3.21
_TOP_1 = {"val": "top1_pct"}
TABLE_ERRORS = {
    **printed_errors("thesis_table3_13", _of_table_3_13, _TOP_1)["val"],
    **printed_errors("thesis_table3_21", _of_table_3_21, _TOP_1)["val"],
}

# Dosovitskiy et al. 2021, Figure 8: dimension -> shapes that differ in it from the baseline. That
# is printed, and depth 64; the other shapes are ours. 64 channels per head, as in Table 1.
_AT = {"depth": 8, "width": 1024, "mlp_ratio": 2.0, "heads": 16, "patch_size": 32}
_WIDE = {width: {"width": width, "heads": width // 64} for width in (1280, 1536, 2048, 3072)}
FIGURE_8: dict[str, dict[str, dict[str, object]]] = {
    "base": {"8 layers, width 1024": {**_AT}},
    "depth": {f"depth {depth}": {**_AT, "depth": depth} for depth in (16, 32, 64)},
    "width": {  # MLPs keep 2048 hidden channels
        f"width {width}": {**_AT, **_WIDE[width], "mlp_ratio": 2048 / width}
        for width in (1536, 2048, 3072)
    },
    "width of MLP": {f"MLP {4096 << i}": {**_AT, "mlp_ratio": 4.0 * 2**i} for i in range(3)},
    "patch size": {f"patch {size}": {**_AT, "patch_size": size} for size in (16, 8)},
    "all": {  # patches of 25.6 and 21.3 pixels would divide no image
        "all x 1.25": {**_AT, "depth": 10, **_WIDE[1280], "patch_size": 28},
        "all x 1.5": {**_AT, "depth": 12, **_WIDE[1536], "patch_size": 16},
    },
}
