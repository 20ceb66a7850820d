"""`vitscale show`, `vitscale status --orphans` and `vitscale clean`: what single trials are, and
what a store need not keep.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from vitscale.cli.stores import add_store, existing
from vitscale.cli.terminal import columns, print_json, si
from vitscale.plan.parents import AT_END
from vitscale.record.cleanup import Leftover, Orphan, Waste, survey
from vitscale.record.cleanup import clean as remove
from vitscale.record.provenance import describe_commit
from vitscale.record.store import Store
from vitscale.record.trial_info import describe, find, readable_plans, when

MOST_OF_A_CONFIG = 60  # characters in a table


def add_housekeeping(parsers: Any) -> None:
    """The arguments of `vitscale show` and `vitscale clean`."""
    show_parser = parsers.add_parser(
        "show",
        help="what the store knows of a trial: config, studies, last row, files, provenance",
        description=(
            "A trial is named by a unique prefix of its id, or by study, arm and point: "
            "lr_wd_edf-demo:'ViT_C AdamW':7. STUDY:ARM lists the trials of an arm if it has "
            "several. Points are counted from 0; a trial without one is a reference."
        ),
    )
    show_parser.add_argument("trial", metavar="TRIAL", help="ID, STUDY:ARM or STUDY:ARM:POINT")
    show_parser.set_defaults(run=show)
    clean_parser = parsers.add_parser(
        "clean",
        help="delete trials that no plan names, and what killed processes left",
        description=(
            "Lists what `vitscale status --orphans` lists, asks, and deletes it. Never deletes a "
            "trial that a study plans or that a running study has claimed. A smaller plan than "
            "before makes orphans of the trials that it leaves out: they would be trained again."
        ),
    )
    clean_parser.add_argument("--yes", action="store_true", help="do not ask, for scripts")
    clean_parser.add_argument(
        "--set-aside",
        action="store_true",
        help="also delete trials that --retrain-other-code has moved aside (default: keep them)",
    )
    clean_parser.set_defaults(run=clean)
    for parser in (show_parser, clean_parser):
        add_store(parser)
    show_parser.add_argument(
        "--json", action="store_true", help="print one JSON document instead of text"
    )


# One trial


def show(options: argparse.Namespace) -> None:
    """Prints what is known of a trial; of several, one line each."""
    store = existing(options.store)
    plans = readable_plans(store)
    trials = describe(store, plans, find(store, plans, options.trial))
    if options.json:
        print_json({"store": str(store.root), "trials": trials})
    elif len(trials) == 1:
        print(columns(_lines(trials[0]), left=2))
    else:
        print(columns(_table(trials, options.trial.partition(":")[0]), left=3))


def _table(trials: Sequence[Mapping[str, Any]], slug: str) -> list[list[str]]:
    """One row per trial of an arm."""
    rows = [["trial", "point", "status", "epochs", "on disk"]]
    for trial in trials:
        names = [place["name"] for place in trial["planned_by"] if place["study"] == slug]
        size = sum(file["num_bytes"] for file in trial["files"])
        epoch = f"{trial['last_row'].get('epoch', 0):.0f}"
        rows.append([trial["trial_id"], *names, trial["status"], epoch, f"{si(size)}B"])
    return rows


def _lines(trial: Mapping[str, Any]) -> list[list[str]]:
    """(heading, text) of a trial; a heading is not repeated."""
    lines = [("trial", f"{trial['trial_id']}  {_status(trial)}")]
    lines += [("config", f"{name} = {value}") for name, value in sorted(trial["config"].items())]
    lines += [("study", f"{p['study']}: {p['arm']}, {p['name']}") for p in trial["planned_by"]]
    lines += [("study", f"{slug}: not in its plan any more") for slug in trial["earlier_of"]]
    lines += [("study", f"{slug}: a parent") for slug in trial["parent_in"]]
    if not trial["planned_by"] and not trial["parent_in"]:
        lines.append(("study", "no study plans it; `vitscale clean` deletes it"))
    if trunk := trial["trunk"]:
        kept = "" if trunk["kept"] else ", of which it kept nothing"
        lines.append(
            ("trunk", f"{trunk['trial_id']} ({trunk['status']}) up to step {trunk['step']}{kept}")
        )
    for what in ("parent", "teacher"):
        if parent := trial[what]:
            lines.append((what, f"{parent['trial_id']} ({parent['status']}), its final weights"))
    lines += [
        ("trunk of", f"{b['trial_id']} from step {b['step']}")
        if b["step"] != AT_END
        else ("parent of", b["trial_id"])
        for b in trial["branches"]
    ]
    lines.append(("last row", _numbers(trial["last_row"]) or "none"))
    for evaluation in trial["evaluations"]:
        numbers = {name: value for name, value in evaluation.items() if name != "name"}
        lines.append(("evaluated", f"{evaluation['name']}: {_numbers(numbers)}"))
    for name, value in trial["provenance"].items():
        lines.append((name, describe_commit(value) if name == "commit" else value))
    checkpoint = trial["checkpoint"]
    lines.append(("checkpoint", f"after step {checkpoint['step']}" if checkpoint else "none"))
    lines += [("files", f"{file['path']}  {si(file['num_bytes'])}B") for file in trial["files"]]
    before = ["", *(heading for heading, _ in lines)]
    return [
        ["" if heading == last else heading, text]
        for (heading, text), last in zip(lines, before, strict=False)
    ]


def _numbers(row: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.6g}" for name, value in row.items())


def _status(trial: Mapping[str, Any]) -> str:
    by = f" in {trial['running_in']}" if trial["running_in"] else ""
    return f"{trial['status']}{by}" + (f": {trial['error']}" if trial["error"] else "")


# What nobody needs


def orphans(options: argparse.Namespace) -> None:
    """Prints what `vitscale clean` would delete, and what has been set aside."""
    store = existing(options.store)
    waste = survey(store)
    if not options.json:
        print(_as_text(store, waste))
        return
    print_json(
        {
            "store": str(store.root),
            "num_bytes": waste.num_bytes,
            "orphans": [_as_json(orphan) for orphan in waste.orphans],
            "leftovers": [_as_json(leftover) for leftover in waste.leftovers],
        }
    )


def _as_json(item: Orphan | Leftover) -> dict[str, Any]:
    return {**item._asdict(), "changed": when(item.changed_s)}


def clean(options: argparse.Namespace) -> None:
    """Deletes trials that no plan names and leftovers, after a question on a terminal.

    Raises ValueError without a terminal and without --yes.
    """
    store = existing(options.store)
    leftovers = survey(store)
    waste = Waste(
        tuple(orphan for orphan in leftovers.orphans if not orphan.holder),
        tuple(
            item for item in leftovers.leftovers if options.set_aside or item.kind != "set aside"
        ),
    )
    if not waste.orphans and not waste.leftovers:
        print(f"nothing to delete in {store.root}")
        return
    if not options.yes:
        _ask(store, waste)
    gone = remove(store, waste)
    print(f"deleted {_counted(gone)} of {store.root}")
    if kept := len(waste.orphans) - len(gone.orphans):
        print(f"kept {kept} that a study has planned or claimed meanwhile")


def _ask(store: Store, waste: Waste) -> None:
    """Exits with status 1 unless a person agrees."""
    if not sys.stdin.isatty():
        raise ValueError(
            f"--yes must be given where no terminal can be asked, but got none ({_counted(waste)} "
            f"to delete in {store.root})"
        )
    print(_as_text(store, waste))
    if input(f"\ndelete {_counted(waste)}? [y/N] ").strip().lower() not in ("y", "yes"):
        print("nothing deleted")
        sys.exit(1)


def _counted(waste: Waste) -> str:
    trials, others = len(waste.orphans), len(waste.leftovers)
    parts = [f"{trials} trial{'s' * (trials != 1)}"] if trials or not others else []
    parts += [f"{others} leftover{'s' * (others != 1)}"] if others else []
    return f"{' and '.join(parts)} ({si(waste.num_bytes)}B)"


def _as_text(store: Store, waste: Waste) -> str:
    if not waste.orphans and not waste.leftovers:
        return f"every trial of {store.root} is planned by a study, and nothing is left over"
    parts = []
    if waste.orphans:
        heads = ["trial", "config", "earlier plan of", "status", "on disk", "age"]
        parts.append(columns([heads, *map(_orphan_row, waste.orphans)], left=4))
    if waste.leftovers:
        heads = ["left over", "kind", "on disk", "age"]
        parts.append(columns([heads, *map(_leftover_row, waste.leftovers)], left=2))
    parts.append(f"store {store.root}: {_counted(waste)} that no study plans")
    return "\n\n".join(parts)


def _orphan_row(orphan: Orphan) -> list[str]:
    config = " ".join(f"{name}={value}" for name, value in sorted(orphan.config.items()))
    short = config if len(config) <= MOST_OF_A_CONFIG else f"{config[: MOST_OF_A_CONFIG - 3]}..."
    status = f"{orphan.status.value} in {orphan.holder}" if orphan.holder else orphan.status.value
    size, age = f"{si(orphan.num_bytes)}B", _age(orphan.changed_s)
    return [orphan.trial_id, short, ", ".join(orphan.earlier), status, size, age]


def _leftover_row(leftover: Leftover) -> list[str]:
    return [
        leftover.path,
        leftover.kind,
        f"{si(leftover.num_bytes)}B",
        _age(leftover.changed_s),
    ]


def _age(changed_s: float) -> str:
    """Days, hours or minutes since then; empty without a file."""
    if not changed_s:
        return ""
    minutes = max(0.0, time.time() - changed_s) / 60
    if minutes < 60:
        return f"{minutes:.0f} min"
    return f"{minutes / 60:.0f} h" if minutes < 48 * 60 else f"{minutes / 1440:.0f} d"
