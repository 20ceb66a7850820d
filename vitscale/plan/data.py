"""Which datasets can be read: asked before the first trial starts, and again by the trainer."""

from __future__ import annotations

READABLE = ("digits",)  # embedded in scikit-learn: needs no root


def refuse_unreadable(dataset: str, root: str = "") -> None:
    """Raises ValueError for a dataset that the trainer cannot read, naming those that it can."""
    if dataset not in READABLE:
        raise ValueError(
            f"a dataset must be one of {', '.join(READABLE)}, but got (dataset={dataset!r}, root={root!r})"
        )
