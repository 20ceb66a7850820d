"""The store of a command, and the plans of its studies."""

from __future__ import annotations

import argparse

from vitscale.cli.terminal import one_line
from vitscale.plan.parents import entries
from vitscale.plan.spelling import did_you_mean
from vitscale.plan.study import Study, from_json
from vitscale.record import sources
from vitscale.record.store import Store
from vitscale.record.study_files import PLAN
from vitscale.record.workdir import Damaged


def add_store(parser: argparse._ActionsContainer) -> None:
    """Adds the option `--store`."""
    parser.add_argument(
        "--store",
        default="",
        help="a folder, or s3://bucket/prefix, gs:// or az:// (default: $VITSCALE_STORE, or runs)",
    )


def add_data_root(parser: argparse._ActionsContainer) -> None:
    """Adds the option `--data-root`."""
    parser.add_argument(
        "--data-root", default="", help="folder of the datasets (default: $VITSCALE_DATA)"
    )


def add_trust(parser: argparse._ActionsContainer) -> None:
    """Adds the option `--trust-parts`."""
    parser.add_argument(
        "--trust-parts",
        action="append",
        default=[],
        metavar="DIGEST",
        help="run a part of a store, by the digest of its source that a refusal names; repeatable",
    )


def existing(root: str, hint: str = "", option: str = "--store") -> Store:
    """An existing store; creates nothing. Raises ValueError if no study was started in it, which
    names the option that chooses another.
    """
    store = Store.at(root)
    if not store.slugs():
        raise ValueError(
            f"a study must be in the store, but got none (store={str(store.root)!r}); name "
            f"another store with {option} or VITSCALE_STORE{hint}"
        )
    return store


def read_plan(store: Store, slug: str) -> Study:
    """The study as it was planned at its last start.

    Raises ValueError if there is none, Damaged for a damaged plan.
    """
    if slug not in store.slugs():
        raise ValueError(
            f"a study must be in the store, but got ({slug!r}; the store has: "
            f"{', '.join(store.slugs())}){did_you_mean(slug, store.slugs())}"
        )
    where, plan = store.study(slug).address(PLAN), store.plan(slug)
    try:
        sources.read((entry["config"] for entry in entries(plan)), store)  # and runs none
        return from_json(plan)
    except Exception as error:  # a damaged plan may hold any value, and so raise anything
        reason = str(error) if isinstance(error, ValueError) else repr(error)
        if isinstance(error, KeyError):  # a plan of another version
            reason = f"no {error}; the study's script writes it again"
        raise Damaged(
            f"a plan must define a valid study, but got ({where}: {one_line(reason)})"
        ) from error
