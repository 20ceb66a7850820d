"""vitscale: studies of how robustly vision models train. A study script needs these names."""

from vitscale.cli.adoption import winners
from vitscale.cli.script import main
from vitscale.plan.config import TrainConfig
from vitscale.plan.data import facts
from vitscale.plan.design import cross, grid, interleaved, sample, sobol, trials
from vitscale.plan.profile import ProfileConfig
from vitscale.plan.search import Search
from vitscale.plan.study import Arm, Study, Trial

__all__ = [
    "Arm",
    "ProfileConfig",
    "Search",
    "Study",
    "TrainConfig",
    "Trial",
    "cross",
    "facts",
    "grid",
    "interleaved",
    "main",
    "sample",
    "sobol",
    "trials",
    "winners",
]
