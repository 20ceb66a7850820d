"""The command line of a study script: plan, run or resume, and redraw."""

from __future__ import annotations

import argparse
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Literal, NoReturn, get_args, get_origin, get_type_hints

from vitscale.launch import plans
from vitscale.launch.costs import learn_costs
from vitscale.launch.driver import EXIT_DONE, EXIT_REFUSED, run
from vitscale.launch.resources import Resources, resources_for
from vitscale.plan.search import Search
from vitscale.plan.study import Study
from vitscale.record.store import Store

Made = Callable[..., Study | Search]
ADAPTIVE = ("asha", "sampler")  # options of a search; a study of frozen trials refuses them with the reason


def main(make_study: Made, arguments: Sequence[str] | None = None) -> NoReturn:
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


def _parser(make_study: Made) -> argparse.ArgumentParser:
    text = sys.modules[make_study.__module__].__doc__
    parser = Parser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    types = get_type_hints(make_study)
    for name, parameter in inspect.signature(make_study).parameters.items():
        default = parameter.default
        choices = get_args(types[name]) if get_origin(types[name]) is Literal else None
        if isinstance(default, bool):
            parser.add_argument(f"--{name.replace('_', '-')}", action="store_true", help="of the study")
            continue
        parser.add_argument(f"--{name.replace('_', '-')}", type=int if default is None else type(default),
                            default=default, choices=choices,
                            help=f"of the study (default: {'by scale' if default is None else default})")  # fmt: skip
    for name in ADAPTIVE:
        if name not in types:
            parser.add_argument(f"--{name}", nargs="?", const=True, help=argparse.SUPPRESS)
    parser.add_argument("--plan", action="store_true", help="print and write the plan, train nothing")
    parser.add_argument("--report", action="store_true", help="redraw from what is done, train nothing")
    add_published(parser)
    parser.add_argument("--store", default=os.environ.get("VITSCALE_STORE", "runs"), help="folder (default: runs)")
    plans.add_options(parser)
    where = parser.add_argument_group("where and how fast trials run; never part of what they are")
    add = where.add_argument
    add("--cpus-per-trial", type=float, help="cores, and threads, a trial (default: 1; of a profile on a CPU: all)")
    add("--gpus-per-trial", type=float, help="a fraction packs several trials on a GPU (default: 0; of a profile: 1)")
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


def add_published(parser: argparse.ArgumentParser) -> None:
    """The option that draws the papers' numbers."""
    parser.add_argument("--published", action="store_true", help="draw the papers' numbers behind ours, where a figure "
                        "has printed ones: context, on other data and models, never a target")  # fmt: skip


def _refuse_adaptive(make_study: Made, options: argparse.Namespace) -> None:
    """Raises ValueError for options of a search on a study that is none."""
    asked = [name for name in ADAPTIVE if name not in get_type_hints(make_study) and getattr(options, name)]
    if asked:
        raise ValueError(
            "the trials of a study must be fixed beforehand and trained to the end, but got "
            f"({asked[0]}={getattr(options, asked[0])}): points that a search proposes crowd where errors are low, and "
            "the rank of a training on its way does not foretell its end (Touvron 2022, thesis, Figure 6.10), so no "
            "share of them says how forgiving a model is; studies/tune_lr_wd.py is a search"
        )


def _run(make_study: Made, options: argparse.Namespace) -> int:
    chosen = {name: getattr(options, name) for name in inspect.signature(make_study).parameters}
    _refuse_adaptive(make_study, options)
    made = make_study(**chosen)
    if isinstance(made, Search):
        return _run_search(made, options)
    study = learn_costs(made)
    study = replace(study, published=study.published or options.published)
    if options.plan:
        plans.show(study, Store(Path(options.store).absolute()), options)
        return EXIT_DONE
    plans.refuse_options(options)
    store = Store.open(options.store)
    if options.report:
        report_only(study, store)
        return EXIT_DONE
    return run(study, store, _resources(study, options))


def _run_search(search: Search, options: argparse.Namespace) -> int:
    """The same for a search, whose plan has stand-ins for the points that it will ask for."""
    stand_in = learn_costs(search.stand_in())
    if options.plan:
        plans.show(stand_in, Store(Path(options.store).absolute()), options)
        if not options.json:
            print("Its points are stand-ins at random: a search asks round by round, from what came out.")
        return EXIT_DONE
    plans.refuse_options(options)
    store = Store.open(options.store)
    if options.report:
        from vitscale.launch.optuna_search import Rounds

        report_only(Rounds(search, store).study(), store)
        return EXIT_DONE
    return run(search, store, _resources(stand_in, options))


def _resources(study: Study, options: argparse.Namespace) -> Resources:
    """Paths become absolute: a worker may have another directory."""
    options.data_root = str(Path(options.data_root).absolute()) if options.data_root else ""
    return resources_for(study, {field.name: getattr(options, field.name) for field in fields(Resources)})


def report_only(study: Study, store: Store) -> None:
    """Draws the report of what is done, and says where it is."""
    from vitscale.launch.driver import draw
    from vitscale.record.table import read_trials

    report, headline, _ = draw(study, store, read_trials(study, store))
    print("\n".join([*headline, f"report  {report}"]))
