"""`vitscale`: inspect the studies of a store, show them in MLflow, prepare datasets.

A study is run by its own script.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path
from typing import Any

from vitscale.cli import commands, doctor, evaluation, housekeeping
from vitscale.cli.new import KINDS
from vitscale.cli.script import Parser, add_published, collect_rarely, refusals
from vitscale.cli.terminal import one_line
from vitscale.record.provenance import installed


def main() -> None:
    """Entry point of `vitscale`. A mistake of the user is reported in one line, with status 2."""
    warnings.formatwarning = lambda message, *_, **__: f"vitscale: warning: {one_line(message)}\n"
    collect_rarely()
    with refusals("vitscale"):
        options = _parser().parse_args()
        options.run(options)


def _parser() -> Parser:
    parser = Parser(prog="vitscale", description=__doc__)
    # sources alone, as `ray job submit` ships them, have none
    version = f"vitscale {installed('vitscale') or '(not installed)'}"
    parser.add_argument("--version", action="version", version=version)
    parsers = parser.add_subparsers(required=True, metavar="COMMAND")
    add_scripts(parsers)
    add_studies(parsers)
    ui = parsers.add_parser("ui", help="serve the MLflow UI for the studies of a store")
    commands.add_store(ui)
    ui.add_argument("--host", default="127.0.0.1")
    ui.add_argument("--port", type=int, help="(default: 5000, or the next free port)")
    ui.set_defaults(run=commands.ui)
    sync = parsers.add_parser(
        "sync", help="bring MLflow up to date with the store; also fills an empty server"
    )
    sync.add_argument("studies", nargs="*", help="such as lr_wd_edf-demo (default: all)")
    sync.add_argument(
        "--reread",
        action="store_true",
        help="read every run from the server, as after `mlflow gc`, a restored backup, or changes "
        "by hand",
    )
    commands.add_store(sync)
    sync.set_defaults(run=commands.sync)
    evaluation.add_evaluate(parsers)
    housekeeping.add_housekeeping(parsers)
    add_prepare(parsers)
    add_fields(parsers)
    doctor.add_doctor(parsers)
    complexity = parsers.add_parser(
        "complexity", help="compare published costs of models with those of our models as built"
    )
    complexity.add_argument("--json", action="store_true", help="print JSON instead of a table")
    complexity.add_argument(
        "--runtime",
        action="store_true",
        help="how the printed costs of Xiao et al. 2021, Table 2 correlate with minutes per epoch",
    )
    complexity.set_defaults(run=commands.complexity)
    completion = parsers.add_parser(
        "completion",
        help="print a script that completes commands and options in a shell",
        description=(
            'In bash and zsh: eval "$(vitscale completion bash)", or zsh. In fish: '
            "vitscale completion fish | source."
        ),
    )
    completion.add_argument("shell", choices=("bash", "zsh", "fish"))
    completion.set_defaults(run=commands.completion, parser=parser)
    return parser


def add_scripts(parsers: Any) -> None:
    """Adds the commands about study scripts."""
    run = parsers.add_parser(
        "run",
        help="run a study: a script, or a name from this folder or of a shipped study",
        usage="%(prog)s [-h] [STUDY [OPTION ...]]",
        description=(
            "Trains what is missing and draws the report. A name is looked up in the current "
            "folder and its studies/, then among the studies that vitscale ships; without a name, "
            "all are listed. `vitscale run STUDY --help` lists the options of a study."
        ),
    )
    run.add_argument("study", metavar="STUDY", nargs="?", help="lr_wd_edf, or studies/mine.py")
    run.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    run.set_defaults(run=commands.run_script)
    init = parsers.add_parser(
        "init", help="copy the shipped studies and search spaces to a folder, to edit them"
    )
    init.add_argument(
        "folder", metavar="FOLDER", type=Path, help="target folder; nothing in it is overwritten"
    )
    init.set_defaults(run=commands.init)
    new = parsers.add_parser(
        "new", help="write a short study of your own, on scikit-learn's digits, to start from"
    )
    new.add_argument(
        "name", metavar="NAME", help="such as my_study: my_study.py, in studies/ if any"
    )
    new.add_argument(
        "--kind",
        choices=tuple(KINDS),
        default="repeats",
        help=(
            "repeats: arms over seeds (default); shapes: arms over seeds, each at the best of "
            "several lr; distribution: arms over draws of lr and wd; scaling: sizes and numbers "
            "of images; search: Optuna proposes points"
        ),
    )
    new.set_defaults(run=commands.new)


def add_studies(parsers: Any) -> None:
    """Adds the commands about the studies of a store."""
    plan = parsers.add_parser(
        "plan",
        help="show what a study would train, and how long it would take",
        usage="%(prog)s [-h] STUDY [OPTION ...]",
        description=(
            "For a script: the same as running it with --plan. For a study that was started: the "
            "plan of its last start. `vitscale plan STUDY --help` lists the options: those of the "
            "study, such as --scale, and --devices, --throughput, --epoch-minutes, --json."
        ),
    )
    plan.add_argument(
        "study",
        metavar="STUDY",
        help="a script, studies/lr_wd_edf.py or lr_wd_edf; or a study of the store, lr_wd_edf-demo",
    )
    plan.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    plan.set_defaults(run=commands.plan)
    status = parsers.add_parser("status", help="show the progress of every study in the store")
    status.add_argument(
        "--orphans",
        action="store_true",
        help="trials that no study plans any more, which `vitscale clean` deletes",
    )
    status.set_defaults(run=commands.status)
    report = parsers.add_parser(
        "report", help="draw the report of a study so far, also if it is unfinished"
    )
    report.add_argument("study", metavar="STUDY", help="such as lr_wd_edf-demo")
    add_published(report)
    report.add_argument(
        "--format",
        metavar="LIST",
        default="",
        help=(
            "draw only these, such as pdf,tex: html, csv, md, tex, parquet, png, svg, pdf; other "
            "files stay as they are (default: all)"
        ),
    )
    report.set_defaults(run=commands.report)
    adopt = parsers.add_parser(
        "adopt", help="use the winners of a search in the studies at its scale"
    )
    adopt.add_argument("study", metavar="SEARCH", help="such as tune_lr_wd-demo")
    adopt.set_defaults(run=commands.adopt)
    compare = parsers.add_parser("compare", help="compare two studies, or two arms, side by side")
    for name in ("a", "b"):
        compare.add_argument(
            name, metavar=name.upper(), help="STUDY, for all arms with the same name, or STUDY:ARM"
        )
    compare.set_defaults(run=commands.compare)
    for parser in (status, report, adopt, compare):
        commands.add_store(parser)
    for parser in (status, report, compare):
        parser.add_argument(
            "--json", action="store_true", help="print one JSON document instead of a table"
        )


def add_fields(parsers: Any) -> None:
    """The arguments of `vitscale fields`."""
    parser = parsers.add_parser(
        "fields",
        help="what a config and a study may say: every field, its values and its default",
        description=(
            "Without NAME, all fields of a config. With NAME, what one of them means, also by "
            "what other libraries call it, such as weight_decay."
        ),
    )
    parser.add_argument("name", metavar="NAME", nargs="?", help="such as wd, or weight_decay")
    parser.add_argument(
        "--markdown",
        metavar="TABLE",
        nargs="?",
        const="TrainConfig",
        help="print TrainConfig (default), Study, Search, kinds, ... as a table of Markdown",
    )
    parser.set_defaults(run=commands.fields)


def add_prepare(parsers: Any) -> None:
    """Adds the command `vitscale prepare`."""
    parser = parsers.add_parser(
        "prepare",
        help="convert a dataset to files that load fast, with all images at one size",
        description=(
            "Writes DEST/NAME-SIZE (CIFAR at its own size keeps its name): DEST is the data "
            "root of studies, NAME-SIZE is their dataset. The same command resumes after a kill."
        ),
    )
    parser.add_argument("source", metavar="SOURCE", help="a dataset's folder, or torchvision:CLASS")
    parser.add_argument(
        "data_root",
        metavar="DEST",
        nargs="?",
        type=Path,
        help="the data root, not the dataset's folder",
    )
    parser.add_argument(
        "--size", type=int, default=256, help="pixels per side (default: %(default)s)"
    )
    parser.add_argument(
        "--splits", nargs="+", default=[], metavar="SPLIT", help="such as train val (default: all)"
    )
    parser.add_argument(
        "--val-fraction",
        type=float,
        metavar="F",
        help="hold out this share of each class as val, of class folders without val/",
    )
    parser.add_argument("--seed", type=int, metavar="N", help="of --val-fraction (default: 0)")
    parser.add_argument(
        "--dataset", default="", metavar="NAME", help="(default: the name of the folder or class)"
    )
    parser.add_argument(
        "--source-root",
        default="",
        metavar="FOLDER",
        help="folder with the files of torchvision:CLASS",
    )
    parser.add_argument(
        "--channels",
        type=int,
        choices=(1, 3),
        default=3,
        help="channels per image: 3 (default) or 1 (grey)",
    )
    parser.add_argument(
        "--skip-unreadable",
        action="store_true",
        help="skip damaged images and those that the next two options refuse (default: stop)",
    )
    parser.add_argument(
        "--max-megapixels",
        type=float,
        default=100.0,
        metavar="M",
        help=("refuse larger images; decoding takes 16 bytes of memory per pixel (default: 100)"),
    )
    parser.add_argument(
        "--follow-symlinks", action="store_true", help="also out of SOURCE (default: refuse them)"
    )
    parser.add_argument(
        "--num-workers",
        type=int,
        default=0,
        metavar="N",
        help="number of processes that decode images",
    )
    parser.add_argument(
        "--verify",
        action="store_true",
        help="only verify the checksums of SOURCE, a prepared dataset",
    )
    parser.set_defaults(run=commands.prepare)


if __name__ == "__main__":
    main()
