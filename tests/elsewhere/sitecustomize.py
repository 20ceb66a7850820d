"""On the PYTHONPATH of a driver and its workers: the store's root is where no file can be, and only
the verbs of vitscale.record.workdir lead to its files, which are in $ELSEWHERE.
"""

import os
import sys
from pathlib import Path

ROOT, ELSEWHERE = Path("/dev/null/store"), os.environ.get("ELSEWHERE", "")


def move(module) -> None:
    """Moves all files of a store."""
    module.Workdir._at = lambda self, name="": Path(ELSEWHERE) / self.path.relative_to(ROOT) / name


if ELSEWHERE:
    sys.path.append(str(Path(__file__).parents[1]))
    from support.patched import change_on_import

    change_on_import({"vitscale.record.workdir": move})
