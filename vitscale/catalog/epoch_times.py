"""Printed time per epoch of ImageNet: column epoch_time_min of xiao2021_table2."""

from vitscale.catalog.tables import table_rows

SOURCE = (
    "Xiao et al. 2021, Tables 1 and 2: minutes per epoch of ImageNet on 8 V100 with the paper's "
    "software"
)
DEVICES = 8  # a trial; models that trained on more are printed as if on 8 (appendix D)


def epoch_minutes() -> dict[str, float]:
    """Model of Xiao et al. 2021 -> minutes per epoch on 8 V100 with their software, recipe and
    resolution.

    Current builds of torch have no kernels for a V100: hours by this count are a unit of 2021,
    not a forecast.
    """
    return {row["model"]: float(row["epoch_time_min"]) for row in table_rows("xiao2021_table2")}
