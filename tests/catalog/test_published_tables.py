"""The printed tables of vitscale/catalog/published: every file parses, and cells are as printed."""

from __future__ import annotations

import pytest

from vitscale.catalog.tables import FOLDER, table_rows

TABLES = sorted(path.stem for path in FOLDER.glob("*.csv") if path.stem != "items")  # no numbers
# Typed from the texts, not from the files: table, cells that name a row, column, what is printed.
PRINTED = [
    ("touvron2022_table6", {"model": "ViT-L", "part": "attn"}, "inat18_top1_pct", "75.3"),
    ("touvron2022_table6", {"model": "ViT-B", "part": "ffn"}, "cars_top1_pct", "88.9"),
    ("touvron2022_table7", {"stem": "hMLP", "norm": "LN"}, "beit_val_top1_pct", "83.24"),
    ("touvron2022_table7", {"model": "ViT-B13"}, "val_sd_points", "0.12"),
    (
        "dosovitskiy2021_table5",
        {"pretraining": "ImageNet", "model": "ViT-L/16"},
        "val_top1_pct",
        "76.53",
    ),
    ("dosovitskiy2021_table6", {"model": "ViT-H/14"}, "exaflops", "4262"),
    (
        "dosovitskiy2021_table7",
        {"model": "ResNet50", "optimizer": "SGD"},
        "flowers_top1_pct",
        "92.06",
    ),
    ("dosovitskiy2021_table8", {"positions": "1-D"}, "every_layer_shared_5shot", "0.64292"),
    ("thesis_table3_2", {"teacher": "RegNetY-8GF"}, "top1_384_pct", "83.8"),
    ("thesis_table3_3", {"method": "class+distillation"}, "s_top1_pct", "81.2"),
    ("thesis_table3_4", {"classifier": "deit"}, "convnet", "0.133"),
    ("thesis_table3_5", {"model": "DeiT-B distilled", "epochs": "1000"}, "real_top1_pct", "88.7"),
    ("thesis_table3_8", {"repeated_augmentation": "0"}, "top1_pct", "76.5"),
    ("thesis_table3_8", {"optimizer": "sgd"}, "top1_384_pct", "77.3"),
    ("thesis_table3_10", {"resolution": "320"}, "v2_top1_pct", "71.9"),
    ("thesis_table3_11", {"depth": "36", "method": "Fixup"}, "top1_pct", "82.4"),
    ("thesis_table3_12", {"depth": "24", "method": "LayerScale zero"}, "top1_pct", "82.1"),
    ("thesis_layerscale_retraining", {"depth": "24"}, "top1_pct", "81.2"),
    ("thesis_table3_13", {"insertion_layer": "10", "depth": "12"}, "top1_pct", "80.5"),
    ("thesis_table3_20", {"step": "36 blocks"}, "top1_pct", "69.9"),
    ("thesis_table3_21", {"heads": "3"}, "top1_pct", "79.35"),
    (
        "thesis_table3_22",
        {"model": "M36", "resolution": "384", "crop_ratio": "0.875"},
        "val_top1_pct",
        "85.9",
    ),
    ("thesis_table4_3", {"variant": "linear to none"}, "v2_top1_pct", "43.1"),
    (
        "thesis_table5_7",
        {"modification": "conv-stem to linear projection"},
        "top1_pct",
        "80.0",
    ),
    ("thesis_table5_8", {"model": "B36"}, "batchnorm_top1_pct", "83.5"),
    ("thesis_table6_2", {"color_jitter": "0.0"}, "v2_top1_pct", "72.0"),
    (
        "thesis_table6_3",
        {"augmentation": "TrivialAugment", "model": "ViT-B"},
        "val_top1_pct",
        "82.3",
    ),
    ("thesis_table6_4", {"model": "ViT-B", "loss": "CE"}, "v2_top1_pct", "68.5"),
    ("thesis_table6_5", {"resolution": "384", "model": "ViT-S"}, "v2_top1_pct", "75.1"),
    (
        "thesis_table6_6",
        {"model": "ViT-H", "epochs": "800", "resolution": "154"},
        "v2_top1_pct",
        "75.9",
    ),
    ("thesis_table6_13", {"model": "Swin-S"}, "val_top1_pct", "82.1"),
    ("thesis_table6_15", {"model": "ViT-B", "epochs": "600"}, "v2_top1_pct", "73.3"),
    (
        "xiao2021_table5",
        {"model": "ViT_P-18GF", "augmentation": "Auto", "ema": "0"},
        "error_400_epochs_pct",
        "20.0",
    ),
]


@pytest.mark.parametrize("name", TABLES)
def test_a_table_has_whole_rows_no_empty_column_and_percentages(name: str) -> None:
    rows = table_rows(name)
    columns = list(rows[0])
    assert rows and len(set(columns)) == len(columns)
    for row in rows:
        assert list(row) == columns, row  # a cell too many is under None
        assert name == "complexity" or None not in row.values(), row  # rows end early there
        assert all(value == value.strip() for value in row.values() if value), row
        assert all(0 <= float(row[c]) <= 100 for c in columns if c.endswith("_pct") and row[c]), row
    for column in columns:
        assert any(row[column] for row in rows), column


@pytest.mark.parametrize(("name", "cells", "column", "printed"), PRINTED)
def test_a_cell_is_as_printed(name: str, cells: dict[str, str], column: str, printed: str) -> None:
    rows = [row for row in table_rows(name) if cells.items() <= row.items()]
    assert printed in {row[column] for row in rows} and len(rows) <= 2, rows


def test_marks_of_table_5_of_xiao2021_are_those_of_its_text() -> None:
    """Its text has no grid, so the marks follow from gaps between them and from what the paper
    says: the default has an average and none of the others, DeiT's setup (second) has all three.
    Numbers that it copies from DeiT are those of Table 3.8 of the thesis, by what is left out.
    """
    rows = table_rows("xiao2021_table5")
    others = ("erasing", "stochastic_depth", "repeating")
    for model in ("ViT_P-4GF", "ViT_P-18GF"):
        first, second = [row for row in rows if row["model"] == model][:2]
        assert first["ema"] == "1" and {first[name] for name in others} == {"0"}
        assert second["ema"] == "0" and {second[name] for name in others} == {"1"}
    names = {"repeating": "repeated_augmentation", "ema": "ema"}
    names |= {name: name for name in ("erasing", "stochastic_depth")}
    copied = [row for row in rows if row["deit_error_300_epochs_pct"]]
    deit = [row for row in table_rows("thesis_table3_8") if row["optimizer"] == "adamw"]
    assert len(copied) == 5
    for row in copied:
        same = [
            other
            for other in deit
            if all(other[thesis] == row[ours] for ours, thesis in names.items())
            and other["mixup"] == other["cutmix"] == other["randaugment"] == "1"
            and other["optimizer_384"] == "adamw"
            and other["dropout"] == "0"
        ]
        errors = {
            round(100 - float(other[name]), 1)
            for other in same
            for name in ("top1_pct", "top1_384_pct")
        }
        assert float(row["deit_error_300_epochs_pct"]) in errors, row
