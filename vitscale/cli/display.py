"""Shows a running study: live on a terminal and in a notebook, else a line every 15 s."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING

from vitscale.cli.process import is_live
from vitscale.launch.progress import Progress
from vitscale.plan.study import Study
from vitscale.plan.trial import Trial

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

LINE_EVERY_S = 15.0
MAX_LINES = 12  # trials in the table


def table(progress: Progress, width: int = 80) -> Text:
    """Counts, a progress bar, and one line per running trial; `width` is in characters."""
    from rich.text import Text

    n, slug = progress.counts(), progress.study.slug
    done, total = n["finished"] + n["diverged"] + n["stopped"], len(progress.statuses)
    bar_width = min(width, 60)
    filled = round(bar_width * done / total)
    text = Text(
        "\n".join(_packed(slug, progress.parts(), width)), no_wrap=True, overflow="ellipsis"
    )
    text.stylize("bold", 0, len(slug))
    text.append("\n" + "━" * filled, "green").append("━" * (bar_width - filled), "bright_black")
    running, waiting = progress.running(), progress.waiting()
    cells = [_cells(progress, trial) for trial, _ in running[:MAX_LINES]]
    for i, line in enumerate(_aligned([_titles(progress.study), *cells], width) if cells else []):
        text.append(f"\n{line}", "" if i else "dim")
    if len(running) > MAX_LINES:
        text.append(f"\nand {len(running) - MAX_LINES} more")
    for trial, holder in waiting[:3]:
        text.append(f"\n{trial.arm.name} waits for {holder}"[: width + 1])
    return text


def _packed(first: str, parts: list[str], width: int) -> list[str]:
    """Joins the parts into as few lines as possible; no part is broken."""
    lines, sep = [first], "  "
    for i, part in enumerate(parts):
        part += "," if i + 1 < len(parts) else ""
        if len(lines[-1]) + len(sep) + len(part) <= width:
            lines[-1] += sep + part
        else:
            lines.append(part)
        sep = " "
    return lines


def _aligned(rows: list[list[str]], width: int) -> list[str]:
    """Formats rows as aligned columns; the first column is truncated if necessary.

    A row may have fewer cells than the first row; its last cell may then be wider than its column.
    """
    full = [row for row in rows if len(row) == len(rows[0])]
    widths = [max(len(row[i]) for row in full) for i in range(len(rows[0]))]
    longest = max(
        sum(2 + max(w, len(c)) for w, c in zip(widths[1:], row[1:], strict=False)) for row in rows
    )
    widths[0] = max(3, min(max(len(row[0]) for row in rows), width - longest))
    lines = []
    for row in rows:
        name = row[0] if len(row[0]) <= widths[0] else f"{row[0][: widths[0] - 1]}…"
        cells = [cell.ljust(w) for w, cell in zip(widths, [name, *row[1:]], strict=False)]
        lines.append("  ".join(cells).rstrip())
    return lines


def _titles(study: Study) -> list[str]:
    config, metric = study.trials[0].config, study.column.metric
    return ["arm", *config.shown, config.row_unit, metric.label]


def _cells(progress: Progress, trial: Trial) -> list[str]:
    """The cells of a running trial, in the order of `_titles`."""
    c, study, row = trial.config, progress.study, progress.rows.get(trial.config.id)
    value, done = (
        row.get(study.metric) if row else None,
        f"{progress.epoch(trial)}/{trial.config.last_row}",
    )
    where = [trial.arm.name, *c.shown.values()]
    if progress.resumes(trial):
        return [*where, f"resumes at {c.row_unit} {progress.epoch(trial)}"]
    return [*where, done, "" if value is None else study.column.metric.text(value)]


class Display:
    """Shows a Progress in a thread while the context is open."""

    def __init__(self, progress: Progress, console: Console) -> None:
        self.progress, self.console = progress, console
        self.stop = threading.Event()
        self.in_notebook = in_notebook()
        self.thread = threading.Thread(target=self._run, name="display", daemon=True)

    def __enter__(self) -> Display:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self.thread.join()

    def _run(self) -> None:
        if self.in_notebook:
            self._run_in_notebook()
            return
        if not is_live(self.console):
            while not self.stop.wait(LINE_EVERY_S):
                self.console.print(
                    f"{self.progress.study.slug}: {self.progress.line()}", highlight=False
                )
            return
        from rich.live import Live

        # rich must not redirect stdout and stderr, because Ray's output is redirected already; this
        # process prints through the console.
        live = Live(
            console=self.console, transient=True, redirect_stdout=False, redirect_stderr=False
        )
        with live:
            while not self.stop.wait(0.25):
                live.update(table(self.progress, self.console.width))

    def _run_in_notebook(self) -> None:
        """Draws over one output of the cell, which stays as it was last. It needs no widgets, for
        which a notebook may lack the package.
        """
        from IPython.display import display

        shown = display(table(self.progress), display_id=True)
        while not self.stop.wait(1.0):
            shown.update(table(self.progress))
        shown.update(table(self.progress))


def in_notebook() -> bool:
    """Whether the output of this process is that of a cell of a notebook."""
    from rich.console import Console

    return "IPython" in sys.modules and Console().is_jupyter
