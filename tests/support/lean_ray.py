"""The command `ray`, with the environment of forked_worker.py."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).parents[1])

from support.forked_worker import change_ray  # noqa: E402

change_ray()

from ray.scripts.scripts import main  # noqa: E402

sys.exit(main())
