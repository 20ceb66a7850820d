"""The command line of a study script: plan, run or resume, and redraw."""

from __future__ import annotations

import argparse
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Literal, NoReturn, get_args, get_origin, get_type_hints

from vitscale.launch import plans
from vitscale.launch.costs import learn_costs
from vitscale.launch.driver import EXIT_DONE, EXIT_REFUSED, run
from vitscale.launch.resources import Resources
from vitscale.plan.study import Study
from vitscale.record.store import Store


def main(make_study: Callable[..., Study], arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs a study script: `make_study(scale, ...)` states the study, and its other parameters become options.

    The same command starts, resumes, extends and redraws. Exit status: 0 all trials done; 1 some are not; 2 refused;
    3 all done, but the MLflow view is not up to date; 130 interrupted.
    """
    parser = _parser(make_study)
    options = parser.parse_args(arguments)
    try:
        sys.exit(_run(make_study, options))
    except (ValueError, OSError) as error:
        if os.environ.get("VITSCALE_TRACEBACK"):
            raise
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        sys.exit(EXIT_REFUSED)


class Parser(argparse.ArgumentParser):
    """A parser that refuses with one line."""

    def error(self, message: str) -> NoReturn:
        """One line, as for every other bad input, instead of the usage."""
        self.exit(EXIT_REFUSED, f"{self.prog}: error: {message}\n")


def _parser(make_study: Callable[..., Study]) -> argparse.ArgumentParser:
    text = sys.modules[make_study.__module__].__doc__
    parser = Parser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    types = get_type_hints(make_study)
    for name, parameter in inspect.signature(make_study).parameters.items():
        default = parameter.default
        choices = get_args(types[name]) if get_origin(types[name]) is Literal else None
        parser.add_argument(f"--{name.replace('_', '-')}", type=int if default is None else type(default),
                            default=default, choices=choices,
                            help=f"of the study (default: {'by scale' if default is None else default})")  # fmt: skip
    parser.add_argument("--plan", action="store_true", help="print and write the plan, train nothing")
    parser.add_argument("--report", action="store_true", help="redraw from what is done, train nothing")
    parser.add_argument("--store", default=os.environ.get("VITSCALE_STORE", "runs"), help="folder (default: runs)")
    plans.add_options(parser)
    where = parser.add_argument_group("where and how fast trials run; never part of what they are")
    add = where.add_argument
    add("--cpus-per-trial", type=float, default=1.0, help="cores, and threads, a trial (default: 1)")
    add("--gpus-per-trial", type=float, default=0.0, help="a fraction packs several trials on a GPU (default: 0)")
    add("--workers-per-trial", type=int, default=1, help="train a trial data-parallel on this many workers, each with "
        "the cores and GPUs above (default: 1)")  # fmt: skip
    add("--micro-batch", type=int, default=0, help="most images at once; gradients accumulate (default: no limit)")
    add("--parallel-branches", action="store_true", help="compute the branches of parallel ViTs in one go")
    add("--compiled", action="store_true", help="torch.compile the models")
    add("--device", choices=("auto", "cpu", "cuda"), default="auto", help="auto: cuda if a trial has a GPU")
    add("--max-concurrent", type=int, default=0, help="trials at once (default: as many as fit)")
    add("--address", default="", help="of an existing Ray cluster, such as auto (default: start one here)")
    add("--data-root", default=os.environ.get("VITSCALE_DATA", ""), help="folder of the datasets")
    add("--num-loader-workers", type=int, default=0, help="processes that make batches, a trial (default: 0)")
    add("--checkpoint-every-s", type=float, default=5.0,
        help="seconds between checkpoints; more if writing one takes over 5%% of that (default: 5)")  # fmt: skip
    return parser


def _run(make_study: Callable[..., Study], options: argparse.Namespace) -> int:
    chosen = {name: getattr(options, name) for name in inspect.signature(make_study).parameters}
    study = learn_costs(make_study(**chosen))
    if options.plan:
        plans.show(study, Store(Path(options.store).absolute()), options)
        return EXIT_DONE
    plans.refuse_options(options)
    store = Store.open(options.store)
    if options.report:
        report_only(study, store)
        return EXIT_DONE
    return run(study, store, _resources(options))


def _resources(options: argparse.Namespace) -> Resources:
    """Paths become absolute: a worker may have another directory."""
    options.data_root = str(Path(options.data_root).absolute()) if options.data_root else ""
    return Resources(**{field.name: getattr(options, field.name) for field in fields(Resources)})


def report_only(study: Study, store: Store) -> None:
    """Draws the report of what is done, and says where it is."""
    from vitscale.launch.driver import draw
    from vitscale.record.table import read_trials

    report, headline, _ = draw(study, store, read_trials(study, store))
    print("\n".join([*headline, f"report  {report}"]))
