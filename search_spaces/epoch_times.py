"""What an epoch of ImageNet took in print: column epoch_time_min of published/xiao2021_table2.csv."""

import csv
from importlib.resources import files

SOURCE = "Xiao et al. 2021, Tables 1 and 2: minutes an epoch of ImageNet on 8 V100"
DEVICES = 8  # a trial; models that trained on more are printed as if on 8 (appendix D)


def epoch_minutes() -> dict[str, float]:
    """Model of Xiao et al. 2021 -> minutes an epoch took on 8 V100, under their own recipe and resolution."""
    text = (files("search_spaces") / "published" / "xiao2021_table2.csv").read_text()
    return {row["model"]: float(row["epoch_time_min"]) for row in csv.DictReader(text.splitlines())}
