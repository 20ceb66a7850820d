"""What an epoch of ImageNet took in print: column
epoch_time_min of published/xiao2021_table2.csv.
"""

import csv
from importlib.resources import files

SOURCE = (
    "Xiao et al. 2021, Tables 1 and 2: minutes per epoch of ImageNet on 8 V100 with the paper's "
    "software"
)
DEVICES = 8  # a trial; models that trained on more are printed as if on 8 (appendix D)


def epoch_minutes() -> dict[str, float]:
    """Model of Xiao et al. 2021 -> minutes that an epoch took on 8 V100 with their software, recipe
    and resolution.

    Current builds of torch have no kernels for a V100: hours by this count are a unit of 2021, and
    no forecast.
    """
    text = (files("search_spaces") / "published" / "xiao2021_table2.csv").read_text()
    return {row["model"]: float(row["epoch_time_min"]) for row in csv.DictReader(text.splitlines())}
