"""Table 4 of the paper on early convolutions, typed a second time."""

from __future__ import annotations

# Xiao et al. 2021, Table 4, left: (lr, wd) of AdamW, (lr, wd) of SGD
TABLE_4_OPTIMA = {
    "RegNetY-1GF": (3.8e-3, 0.1, 2.54, 2.4e-5), "RegNetY-4GF": (3.8e-3, 0.1, 2.54, 2.4e-5),
    "RegNetY-16GF": (3.8e-3, 0.1, 2.54, 2.4e-5), "ViT_P-1GF": (2.0e-3, 0.20, 1.9, 1.3e-5),
    "ViT_P-4GF": (2.0e-3, 0.20, 1.9, 1.3e-5), "ViT_P-18GF": (1.0e-3, 0.24, 1.1, 1.2e-5),
    "ViT_C-1GF": (2.5e-3, 0.19, 1.9, 1.3e-5), "ViT_C-4GF": (1.0e-3, 0.24, 1.3, 2.2e-5),
    "ViT_C-18GF": (1.0e-3, 0.24, 1.1, 2.7e-5),
}  # fmt: skip
# Xiao et al. 2021, Table 4, right: (lr low, lr high, wd low, wd high)
TABLE_4_INTERVALS = {
    ("ViT", "adamw"): (2.5e-4, 8.0e-3, 0.02, 0.8),
    ("RegNetY", "adamw"): (1.25e-3, 4.0e-2, 0.0075, 0.24),
    ("ViT", "sgd"): (0.1, 3.2, 4.0e-6, 1.2e-4),
    ("RegNetY", "sgd"): (0.25, 8.0, 3.0e-6, 8.0e-5),
}
