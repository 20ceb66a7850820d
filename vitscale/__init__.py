"""vitscale: studies of how robustly vision models train.

A study script needs these names; `run` is for a notebook, and `load` for what comes after it.
"""

import sys

try:
    from vitscale.cli.adoption import winners
    from vitscale.cli.call import run
    from vitscale.cli.loading import StudyResults, load
    from vitscale.cli.script import main
    from vitscale.plan.config import TrainConfig
    from vitscale.plan.data import facts
    from vitscale.plan.design import cross, grid, interleaved, sample, sobol, trials
    from vitscale.plan.metrics import Metric
    from vitscale.plan.parents import on_trunks
    from vitscale.plan.parts import reports
    from vitscale.plan.profile import ProfileConfig
    from vitscale.plan.search import Search
    from vitscale.plan.study import Study
    from vitscale.plan.trial import Arm, Trial
except ModuleNotFoundError as missing:
    if sys.argv[0] != "-m":  # what Python says while it looks for a module to run
        raise
    raise SystemExit(
        f"{missing}: run `make demo` once, then .venv/bin/python; or see docs/install.md"
    ) from None

__all__ = [
    "Arm",
    "Metric",
    "ProfileConfig",
    "Search",
    "Study",
    "StudyResults",
    "TrainConfig",
    "Trial",
    "cross",
    "facts",
    "grid",
    "interleaved",
    "load",
    "main",
    "on_trunks",
    "reports",
    "run",
    "sample",
    "sobol",
    "trials",
    "winners",
]
