"""`vitscale`: the studies of a store, and what is about no single study.

A study itself is run by its script.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path
from typing import Any

from vitscale.cli import commands, evaluation
from vitscale.cli.script import Parser, add_published, refusals
from vitscale.cli.terminal import one_line


def main() -> None:
    """Entry point of the `vitscale` command. Exit status 2 for whatever is refused, in one line."""
    warnings.formatwarning = lambda message, *_, **__: f"vitscale: warning: {one_line(message)}\n"
    options = _parser().parse_args()
    with refusals("vitscale"):
        options.run(options)


def _parser() -> Parser:
    parser = Parser(prog="vitscale", description=__doc__)
    parsers = parser.add_subparsers(required=True, metavar="COMMAND")
    add_scripts(parsers)
    add_studies(parsers)
    ui = parsers.add_parser("ui", help="open the MLflow UI on the studies of a store")
    commands.add_store(ui)
    ui.add_argument("--host", default="127.0.0.1")
    ui.add_argument("--port", type=int, help="(default: 5000, or the next that is free)")
    ui.set_defaults(run=commands.ui)
    sync = parsers.add_parser(
        "sync", help="bring MLflow up to date with the store, or fill an empty server"
    )
    sync.add_argument("studies", nargs="*", help="such as lr_wd_edf-demo (default: all)")
    commands.add_store(sync)
    sync.set_defaults(run=commands.sync)
    evaluation.add_evaluate(parsers)
    add_prepare(parsers)
    complexity = parsers.add_parser(
        "complexity", help="published costs of models next to ours, as built"
    )
    complexity.add_argument("--json", action="store_true", help="print JSON instead of a table")
    complexity.set_defaults(run=commands.complexity)
    return parser


def add_scripts(parsers: Any) -> None:
    """The arguments of what is about study scripts."""
    run = parsers.add_parser(
        "run",
        help="run a study by name, of this folder or as shipped, or a script",
        usage="%(prog)s [-h] [STUDY [OPTION ...]]",
        description=(
            "Trains what is missing and draws the report. A name is looked up in studies/ of the "
            "current folder, then among the studies that vitscale ships. Without a name: lists "
            "them. `vitscale run STUDY --help` lists the options of a study."
        ),
    )
    run.add_argument("study", metavar="STUDY", nargs="?", help="lr_wd_edf, or studies/mine.py")
    run.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    run.set_defaults(run=commands.run_script)
    init = parsers.add_parser(
        "init", help="copy the shipped studies and search spaces to a folder, to edit them"
    )
    init.add_argument("folder", metavar="FOLDER", type=Path, help="nothing in it is overwritten")
    init.set_defaults(run=commands.init)


def add_studies(parsers: Any) -> None:
    """The arguments of what is about the studies of a store."""
    plan = parsers.add_parser(
        "plan",
        help="what a study would train, and when it would be done",
        usage="%(prog)s [-h] STUDY [OPTION ...]",
        description=(
            "The same as the study's script with --plan, for a script; for a study that was "
            "started, the plan of its last start. `vitscale plan STUDY --help` lists the "
            "options: of the study, such as --scale, and --devices, --throughput, "
            "--epoch-minutes, --json."
        ),
    )
    plan.add_argument(
        "study",
        metavar="STUDY",
        help=("studies/lr_wd_edf.py or lr_wd_edf; or of the store: lr_wd_edf-demo"),
    )
    plan.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    plan.set_defaults(run=commands.plan)
    status = parsers.add_parser("status", help="how far every study of the store is")
    status.set_defaults(run=commands.status)
    report = parsers.add_parser(
        "report", help="draw the report of a study as it stands, unfinished too"
    )
    report.add_argument("study", metavar="STUDY", help="such as lr_wd_edf-demo")
    add_published(report)
    report.set_defaults(run=commands.report)
    adopt = parsers.add_parser(
        "adopt", help="make the winners of a search those that the studies of its scale use"
    )
    adopt.add_argument("study", metavar="SEARCH", help="such as tune_lr_wd-demo")
    adopt.set_defaults(run=commands.adopt)
    compare = parsers.add_parser("compare", help="two studies, or two arms, side by side")
    for name in ("a", "b"):
        compare.add_argument(
            name, metavar=name.upper(), help="STUDY, for all arms of one name, or STUDY:ARM"
        )
    compare.set_defaults(run=commands.compare)
    for parser in (status, report, adopt, compare):
        commands.add_store(parser)
    for parser in (status, report, compare):
        parser.add_argument(
            "--json", action="store_true", help="print one JSON document instead of a table"
        )


def add_prepare(parsers: Any) -> None:
    """The arguments of `vitscale prepare`."""
    parser = parsers.add_parser(
        "prepare",
        help="write a dataset once as files that load fast, with all images at one size",
        description=(
            "Writes DEST/NAME-SIZE (CIFAR at its own size keeps its name): DEST is the data "
            "root of studies, NAME-SIZE is their dataset. Killed and run again, it goes on."
        ),
    )
    parser.add_argument("source", metavar="SOURCE", help="a dataset's folder, or torchvision:CLASS")
    parser.add_argument(
        "data_root",
        metavar="DEST",
        nargs="?",
        type=Path,
        help="the data root, not the set's folder",
    )
    parser.add_argument(
        "--size", type=int, default=256, help="pixels per side (default: %(default)s)"
    )
    parser.add_argument(
        "--splits", nargs="+", default=[], metavar="SPLIT", help="such as train val (default: all)"
    )
    parser.add_argument(
        "--dataset", default="", metavar="NAME", help="(default: the name of the folder or class)"
    )
    parser.add_argument(
        "--source-root",
        default="",
        metavar="FOLDER",
        help="where the files of torchvision:CLASS are",
    )
    parser.add_argument(
        "--channels", type=int, choices=(1, 3), default=3, help="of images: 3 (default) or 1, grey"
    )
    parser.add_argument(
        "--skip-unreadable",
        action="store_true",
        help=("leave out damaged images (default: stop), and those that the next two refuse"),
    )
    parser.add_argument(
        "--max-megapixels",
        type=float,
        default=100.0,
        metavar="M",
        help=(
            "refuse larger images, which take 16 bytes of memory a pixel to decode (default: 100)"
        ),
    )
    parser.add_argument(
        "--follow-symlinks", action="store_true", help="out of SOURCE, too (default: refuse them)"
    )
    parser.add_argument(
        "--num-workers", type=int, default=0, metavar="N", help="processes that decode images"
    )
    parser.add_argument(
        "--verify", action="store_true", help="only compare the checksums of SOURCE, a prepared set"
    )
    parser.set_defaults(run=commands.prepare)


if __name__ == "__main__":
    main()
