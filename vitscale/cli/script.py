"""The command line of a study script: plan, run or resume, and redraw."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import inspect
import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from types import UnionType
from typing import Any, Literal, NoReturn, Union, get_args, get_origin, get_type_hints

from vitscale.analysis.names import check_known_names
from vitscale.cli import plans
from vitscale.cli.costs import with_costs
from vitscale.cli.display import Display
from vitscale.cli.terminal import one_line
from vitscale.launch.driver import EXIT_DONE, EXIT_REFUSED, handle_early_signals, run
from vitscale.launch.resources import Resources, resources_for
from vitscale.plan.config import limits, shown, shown_text
from vitscale.plan.data import check_readable
from vitscale.plan.profile import ProfileConfig
from vitscale.plan.search import Search
from vitscale.plan.study import MAX_TRIALS, Study
from vitscale.record.store import Store

Made = Callable[..., Study | Search]
# modules of the extra `train`: plans and reports do without them
OF_TRAINING = ("torch", "torchvision", "timm", "sklearn", "PIL", "ray", "mlflow")
# options of a search; a study of frozen trials refuses them with the reason
ADAPTIVE = ("asha", "sampler")


def main(make_study: Made, arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs a study script: `make_study(scale, ...)` states the study, and its other parameters
    become options.

    A parameter of `make_study` has a default and a type: int, float, str, bool, one of them or
    None, or a Literal, whose values are the choices. A `scale` of type str has its default as the
    only choice: a script says which scales it has by Literal["demo", "cifar"]. Whatever is refused,
    is so in one line and with status 2.

    The same command starts, resumes, extends and redraws. Exit status: 0 all trials done; 1 some
    are not; 2 refused; 3 all done, but the MLflow view is not up to date; 130 interrupted.
    """
    handle_early_signals()
    parser = Parser(formatter_class=argparse.RawDescriptionHelpFormatter)
    with refusals(parser.prog):
        _add_options(parser, make_study)
    options = parser.parse_args(arguments)
    with refusals(parser.prog):
        sys.exit(_run(make_study, options))


@contextlib.contextmanager
def refusals(prog: str) -> Iterator[None]:
    """Says what was refused in one line and exits with status
    2; with VITSCALE_TRACEBACK set, where it was.
    """
    try:
        yield
    except (ValueError, OSError, ModuleNotFoundError) as error:
        if isinstance(error, ModuleNotFoundError) and error.name not in OF_TRAINING:
            raise
        if os.environ.get("VITSCALE_TRACEBACK"):
            raise
        reason = _missing(error.name) if isinstance(error, ModuleNotFoundError) else error
        print(f"{prog}: error: {one_line(reason)}", file=sys.stderr)
        sys.exit(EXIT_REFUSED)


def _missing(module: str | None) -> str:
    return (
        f"{module} must be installed for this, but is not; `pip install 'vitscale[train]'` "
        "installs all that trains and shows runs"
    )


def check_installed(*modules: str) -> None:
    """Raises ModuleNotFoundError for the first of the modules that is not there, before a thread
    or another process finds out.
    """
    for name in modules:
        if importlib.util.find_spec(name) is None:
            raise ModuleNotFoundError(_missing(name), name=name)


class Parser(argparse.ArgumentParser):
    """A parser that refuses with one line."""

    def error(self, message: str) -> NoReturn:
        """One line, as for every other bad input, instead of the usage."""
        self.exit(EXIT_REFUSED, f"{self.prog}: error: {one_line(message)}\n")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As of argparse, which makes a list of the value of `--num=--`."""
        given = sys.argv[1:] if args is None else list(args)
        for argument in given:
            if re.fullmatch(r"--[^=]+=--", argument):
                self.error(f"a value must be given after =, but got ({argument})")
        return super().parse_known_args(given, namespace)


def _add_options(parser: Parser, make_study: Made) -> None:
    """The options of a study, which are the parameters of
    its function, and those of every study.
    """
    parser.description = sys.modules[make_study.__module__].__doc__
    types = get_type_hints(make_study)
    for name, parameter in inspect.signature(make_study).parameters.items():
        if name not in types or parameter.default is parameter.empty:
            raise ValueError(
                "a parameter of a study's function must have a type and a default, but got "
                f"({name})"
            )
        option, default = f"--{name.replace('_', '-')}", parameter.default
        if isinstance(default, bool):
            action = argparse.BooleanOptionalAction if default else "store_true"
            parser.add_argument(option, default=default, action=action, help="of the study")
            continue
        kind, choices = _kind(name, types[name], default)
        parser.add_argument(
            option,
            type=_reader(name, kind),
            default=default,
            choices=choices,
            help=(f"of the study (default: {'by scale' if default is None else default})"),
        )
    for name in ADAPTIVE:
        if name not in types:
            parser.add_argument(f"--{name}", nargs="?", const=True, help=argparse.SUPPRESS)
    _add_own_options(parser)


def _kind(name: str, annotated: Any, default: object) -> tuple[type, tuple[Any, ...] | None]:
    """(type, choices) of a parameter. Raises ValueError for a type that no option can have."""
    parts = [part for part in get_args(annotated) if part is not type(None)]
    union = get_origin(annotated) in (UnionType, Union)
    if union and len(parts) == 1:
        return _kind(name, parts[0], default)
    if get_origin(annotated) is Literal:
        return type(parts[0]), tuple(parts)
    if annotated not in (int, float, str):
        raise ValueError(
            "a parameter of a study's function must be of type int, float, str, bool or Literal, "
            f"but got ({name}: {shown_text(str(annotated))})"
        )
    return annotated, (
        default,
    ) if name == "scale" and annotated is str and default is not None else None


def _reader(name: str, kind: type) -> Callable[[str], Any]:
    """What reads an option's text: as its type, within limits, so
    that no study is asked for more than there can be.
    """
    most = (
        2**63 - 1
        if "seed" in name and not name.startswith("num")
        else limits(ProfileConfig).get(name, MAX_TRIALS)
    )

    def read(text: str) -> Any:
        if kind is str:
            return text
        try:
            number = kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(
                f"must be of type {kind.__name__}, but got {shown(text)}"
            ) from None
        if kind is int and number > most:
            raise argparse.ArgumentTypeError(f"must be {most} at most, but got {shown(text)}")
        if kind is float and not math.isfinite(number):
            raise argparse.ArgumentTypeError(f"must be finite, but got {shown(text)}")
        return number

    return read


def _add_own_options(parser: Parser) -> None:
    parser.add_argument(
        "--plan", action="store_true", help="print and write the plan, train nothing"
    )
    parser.add_argument(
        "--report", action="store_true", help="redraw from what is done, train nothing"
    )
    add_published(parser)
    parser.add_argument(
        "--store", default=os.environ.get("VITSCALE_STORE", "runs"), help="folder (default: runs)"
    )
    plans.add_options(parser)
    where = parser.add_argument_group("where and how fast trials run; never part of what they are")
    add = where.add_argument
    add(
        "--cpus-per-trial",
        type=float,
        help="cores, and threads, a trial (default: 1; of a profile on a CPU: all)",
    )
    add(
        "--gpus-per-trial",
        type=float,
        help="a fraction packs several trials on a GPU (default: 0; of a profile: 1)",
    )
    add(
        "--workers-per-trial",
        type=int,
        default=1,
        help=(
            "train a trial data-parallel on this many workers, each with the cores and GPUs above "
            "(default: 1)"
        ),
    )
    add(
        "--micro-batch",
        type=int,
        default=0,
        help="most images at once; gradients accumulate (default: no limit)",
    )
    add(
        "--parallel-branches",
        action="store_true",
        help="compute the branches of parallel ViTs in one go",
    )
    add("--compiled", action="store_true", help="torch.compile the models")
    add(
        "--device",
        choices=("auto", "cpu", "cuda"),
        default="auto",
        help="auto: cuda if a trial has a GPU",
    )
    add("--max-concurrent", type=int, default=0, help="trials at once (default: as many as fit)")
    add(
        "--address",
        default="",
        help="of an existing Ray cluster, such as auto (default: start one here)",
    )
    add("--data-root", default=os.environ.get("VITSCALE_DATA", ""), help="folder of the datasets")
    add(
        "--num-loader-workers",
        type=int,
        default=0,
        help="processes that make batches, a trial (default: 0)",
    )
    add(
        "--checkpoint-every-s",
        type=float,
        default=5.0,
        help="seconds between checkpoints; more if writing one takes over 5%% of that (default: 5)",
    )
    add(
        "--keep-weights",
        action=argparse.BooleanOptionalAction,
        help="final weights, which `vitscale evaluate` needs (default: up to 64 MiB per trial)",
    )


def add_published(parser: argparse.ArgumentParser) -> None:
    """The option that draws the papers' numbers."""
    parser.add_argument(
        "--published",
        action="store_true",
        help=(
            "draw the papers' numbers behind ours, where a figure has printed ones: context, on "
            "other data and models, never a target"
        ),
    )


def _check_search_options(make_study: Made, options: argparse.Namespace) -> None:
    """Raises ValueError for options of a search on a study that is none."""
    asked = [
        name
        for name in ADAPTIVE
        if name not in get_type_hints(make_study) and getattr(options, name)
    ]
    if asked:
        raise ValueError(
            "the trials of a study must be fixed beforehand and trained to the end, but got "
            f"({asked[0]}={getattr(options, asked[0])}): points that a search proposes crowd "
            "where errors are low, and the rank of a training on its way does not foretell its "
            "end (Touvron 2022, thesis, Figure 6.10), so no share of them says how forgiving a "
            "model is; studies/tune_lr_wd.py is a search"
        )


def _run(make_study: Made, options: argparse.Namespace) -> int:
    chosen = {name: getattr(options, name) for name in inspect.signature(make_study).parameters}
    _check_search_options(make_study, options)
    made = make_study(**chosen)
    if not isinstance(made, Study | Search):
        raise ValueError(
            f"the function of a study must return a Study or a Search, but got ({shown(made)})"
        )
    if isinstance(made, Search):
        return _run_search(made, options)
    check_known_names(made)
    study = with_costs(made)
    study = replace(study, published=study.published or options.published)
    resources = _resources(study, options)
    if options.plan:
        _check_data_root(study, options)
        plans.show(study, Store.at(options.store), options)
        return EXIT_DONE
    plans.check_options(options)
    if options.report:
        _check_something_done(study, Store.at(options.store))
    store = Store.open(options.store)
    if options.report:
        report_only(study, store)
        return EXIT_DONE
    check_installed("torch", "ray", "mlflow")
    return run(study, store, resources, Display)


def _run_search(search: Search, options: argparse.Namespace) -> int:
    """The same for a search, whose plan has stand-ins for the points that it will ask for."""
    check_known_names(search.stand_in())
    search = with_costs(search)
    stand_in = search.stand_in()
    resources = _resources(stand_in, options)
    if options.plan:
        _check_data_root(stand_in, options)
        plans.show(stand_in, Store.at(options.store), options)
        if not options.json:
            print(
                "Its points are stand-ins at random: a search asks round by round, from what came "
                "out."
            )
        return EXIT_DONE
    plans.check_options(options)
    if options.report:
        _check_something_done(stand_in, Store.at(options.store))
    store = Store.open(options.store)
    if options.report:
        from vitscale.launch.optuna_search import Rounds

        report_only(Rounds(search, store).study(), store)
        return EXIT_DONE
    check_installed("torch", "ray", "mlflow")
    return run(search, store, resources, Display)


def _check_something_done(study: Study, store: Store) -> None:
    """Raises ValueError for a report of a study that was
    never started here and of which nothing is done.
    """
    if study.slug not in store.slugs() and not any(
        store.is_done(trial.config.id) for trial in study.trials
    ):
        raise ValueError(
            f"a trial of the study must be done for a report, but got none (study={study.slug}, "
            f"store={str(store.root)!r}); name another store with --store or VITSCALE_STORE"
        )


def _check_data_root(study: Study, options: argparse.Namespace) -> None:
    """Raises ValueError if a data root is named on the command
    line, and a dataset of the plan is not there.
    """
    if options.data_root and options.data_root != str(
        Path(os.environ.get("VITSCALE_DATA", "")).absolute()
    ):
        for dataset in {trial.config.dataset for trial in study.trials if not study.measures}:
            check_readable(dataset, options.data_root)


def _resources(study: Study, options: argparse.Namespace) -> Resources:
    """Paths become absolute: a worker may have another directory."""
    options.data_root = str(Path(options.data_root).absolute()) if options.data_root else ""
    return resources_for(
        study, {field.name: getattr(options, field.name) for field in fields(Resources)}
    )


def report_only(study: Study, store: Store) -> None:
    """Draws the report of what is done, and says where it is."""
    from vitscale.launch.driver import PAGE, draw
    from vitscale.record.table import read_trials

    report, headline, _ = draw(study, store, read_trials(study, store))
    print("\n".join([*headline, f"report  {report.address(PAGE)}"]))
