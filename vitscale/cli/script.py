"""The command line of a study script: plan, run or resume, and redraw."""

from __future__ import annotations

import argparse
import atexit
import contextlib
import gc
import importlib.util
import inspect
import math
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from types import UnionType
from typing import Any, Literal, NoReturn, Union, get_args, get_origin, get_type_hints

from vitscale.analysis.names import check_known_names
from vitscale.cli import plans
from vitscale.cli.display import Display
from vitscale.cli.process import prepare_streams, tell, without_backend
from vitscale.cli.project import importing
from vitscale.cli.stores import add_data_root, add_store, add_trust
from vitscale.cli.terminal import one_line
from vitscale.launch.command import name_command
from vitscale.launch.costs import check_parts, with_costs
from vitscale.launch.driver import run
from vitscale.launch.earlier_plan import differing, plan_before
from vitscale.launch.process import (
    EXIT_DONE,
    EXIT_INCOMPLETE,
    EXIT_INTERRUPTED,
    EXIT_REFUSED,
    finish,
    handle_early_signals,
    keep_handlers,
)
from vitscale.launch.resources import Resources, resources_for
from vitscale.plan.data import check_readable
from vitscale.plan.fields import limits
from vitscale.plan.parts import in_store
from vitscale.plan.paths import data_root
from vitscale.plan.profile import ProfileConfig
from vitscale.plan.questions import COMPARED, SCALING_LAW
from vitscale.plan.search import Search
from vitscale.plan.spelling import did_you_mean, shown, shown_text
from vitscale.plan.study import MAX_TRIALS, Study
from vitscale.record.look_ledger import (
    OPEN,
    FinalSize,
    Ledger,
    check_final,
    check_within,
    declare,
    read_ledger,
    sizes,
)
from vitscale.record.object_store import say_when_waiting
from vitscale.record.outcome import Outcome, Status
from vitscale.record.sources import read_source
from vitscale.record.store import Store

StudyFunction = Callable[..., Study | Search]
# modules of the extra `train`: plans and reports do not need them
OF_TRAINING = ("torch", "torchvision", "timm", "sklearn", "PIL", "ray", "mlflow")
# options of a search; a study with fixed trials refuses them and gives the reason
ADAPTIVE = ("asha", "sampler")


def main(make_study: StudyFunction, arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs a study script: the parameters of `make_study(scale, ...)` become its options.

    Each parameter of `make_study` needs a default and a type: int, float, str, bool, one of these
    or None, or a Literal, whose values are the choices. A `scale` of type str has its default as
    the only choice; a script declares its scales by Literal["demo", "cifar"].

    The same command starts, resumes, extends and redraws. Exit status: 0 all trials done; 1 some
    are not; 2 refused, with a message of one line; 3 all done, but the MLflow view is not up to
    date; 130 interrupted.
    """
    if script := importing.get():
        raise ValueError(
            'a script must call main under `if __name__ == "__main__":`, but got one that runs '
            f"when it is imported ({script})"
        )
    parser = Parser(formatter_class=argparse.RawDescriptionHelpFormatter)
    with keep_handlers() if arguments is not None else contextlib.nullcontext():
        handle_early_signals()
        collect_rarely()
        name_command(make_study, arguments)
        with refusals(parser.prog):
            add_options(parser, make_study)
            options = parser.parse_args(arguments)
            with store_of_winners(options.store):
                sys.exit(perform(make_study, options)[0])


@contextlib.contextmanager
def store_of_winners(store: str) -> Iterator[None]:
    """Lets `winners`, which the function of a study may call, look in the store of --store."""
    before = os.environ.get("VITSCALE_STORE")
    if store:
        os.environ["VITSCALE_STORE"] = store
    try:
        yield
    finally:
        os.environ.pop("VITSCALE_STORE", None)
        if before is not None:
            os.environ["VITSCALE_STORE"] = before


def collect_rarely() -> None:
    """Lets Python look for garbage less often: imports, plans and figures make many objects that
    live on, which the default of 700 visits again and again: a tenth of a report's time. Nor at the
    end, when all of it goes anyway: a second for 100,000 trials. But triton, which torch may have
    imported, prints a list of what then is left of it.
    """
    gc.set_threshold(100_000)
    atexit.register(_leave_garbage)


def _leave_garbage() -> None:
    if "triton" not in sys.modules:
        gc.freeze()


@contextlib.contextmanager
def refusals(prog: str) -> Iterator[None]:
    """Prints a ValueError or OSError in one line and exits with status 2; Ctrl-C with 130.

    With VITSCALE_TRACEBACK set, the exception is raised instead. A reader that has closed the
    output (`vitscale status | head`) has seen what it wanted: the status is that of SIGPIPE.
    """
    prepare_streams()
    stderr = sys.stderr  # not Ray's log, to which it may be redirected
    say_when_waiting(lambda line: tell(f"{prog}: {one_line(line)}", stderr))
    try:
        with without_backend():
            try:
                yield
            finally:
                sys.stdout.flush()
    except KeyboardInterrupt:
        if os.environ.get("VITSCALE_TRACEBACK"):
            raise
        tell(f"\n{prog}: interrupted", sys.stderr)
        sys.exit(EXIT_INTERRUPTED)
    except BrokenPipeError:
        sys.exit(128 + signal.SIGPIPE)
    except (ValueError, OSError, ModuleNotFoundError) as error:
        if isinstance(error, ModuleNotFoundError) and error.name not in OF_TRAINING:
            raise
        if os.environ.get("VITSCALE_TRACEBACK"):
            raise
        reason = _missing(error.name) if isinstance(error, ModuleNotFoundError) else error
        tell(f"{prog}: error: {one_line(reason)}", sys.stderr)
        sys.exit(EXIT_REFUSED)
    finally:
        for stream in (sys.stdout, sys.stderr):
            finish(stream)


def _missing(module: str | None) -> str:
    return (
        f"{module} must be installed for this, but is not; `pip install 'vitscale[train]'` "
        "installs what training and MLflow need"
    )


def check_installed(*modules: str) -> None:
    """Raises ModuleNotFoundError for the first module that is not installed.

    Otherwise a thread or another process would fail later.
    """
    for name in modules:
        if importlib.util.find_spec(name) is None:
            raise ModuleNotFoundError(_missing(name), name=name)


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    given: Sequence[str] = ()  # what it last parsed

    def error(self, message: str) -> NoReturn:
        """Prints one line, as for every other bad input, instead of the usage."""
        self.exit(EXIT_REFUSED, f"{self.prog}: error: {one_line(message + self._meant(message))}\n")

    def _meant(self, message: str) -> str:
        """The option or the command that a refused one resembles, as a question."""
        option = re.match(r"unrecognized arguments: (--[^\s=]+)", message)
        command = re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message)
        if option:
            commands = (a for a in self._actions if isinstance(a, argparse._SubParsersAction))
            choices = {name: p for action in commands for name, p in action.choices.items()}
            asked = next((choices[word] for word in self.given if word in choices), self)
            return did_you_mean(option[1], asked._option_string_actions)
        return did_you_mean(command[1], re.findall(r"[^\s',]+", command[2])) if command else ""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As in argparse, but refuses `--num=--`, whose value argparse turns into a list."""
        given = sys.argv[1:] if args is None else list(args)
        for argument in given:
            if re.fullmatch(r"--[^=]+=--", argument):
                self.error(f"a value must be given after =, but got ({argument})")
        self.given = given
        return super().parse_known_args(given, namespace)


def add_options(parser: Parser, make_study: StudyFunction) -> None:
    """Adds the parameters of a study's function as options, and the options of all studies."""
    parser.description = sys.modules[make_study.__module__].__doc__
    types = get_type_hints(make_study)
    own = parser.add_argument_group("parameters of the study", inspect.getdoc(make_study))
    for name, parameter in inspect.signature(make_study).parameters.items():
        if name not in types or parameter.default is parameter.empty:
            raise ValueError(
                "a parameter of a study's function must have a type and a default, but got "
                f"({name})"
            )
        option, default = f"--{name.replace('_', '-')}", parameter.default
        if isinstance(default, bool):
            action = argparse.BooleanOptionalAction if default else "store_true"
            own.add_argument(
                option,
                default=default,
                action=action,
                help="default: on" if default else "default: off",
            )
            continue
        kind, choices = _kind(name, types[name], default)
        own.add_argument(
            option,
            type=_reader(name, kind),
            default=default,
            choices=choices,
            help=f"default: {'by scale' if default is None else default}",
        )
    for name in ADAPTIVE:
        if name not in types:
            parser.add_argument(f"--{name}", nargs="?", const=True, help=argparse.SUPPRESS)
    add_own_options(parser)


def _kind(name: str, annotated: Any, default: object) -> tuple[type, tuple[Any, ...] | None]:
    """(type, choices) of a parameter. Raises ValueError for a type that an option cannot have."""
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


def _final_num(text: str) -> int:
    """A number of draws or seeds, or 0 for a study without an end."""
    if text == OPEN:
        return 0
    if not re.fullmatch(r"[+-]?\d+", text):
        raise argparse.ArgumentTypeError(f"must be a number or {OPEN!r}, but got {shown(text)}")
    num: int = _reader("final_num", int)(text)
    if num < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, but got {num}")
    return num


def _reader(name: str, kind: type) -> Callable[[str], Any]:
    """A function that converts an option's text to its type and refuses values above the limits."""
    maximum = (
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
        if kind is int and number > maximum:
            raise argparse.ArgumentTypeError(f"must be at most {maximum}, but got {shown(text)}")
        if kind is float and not math.isfinite(number):
            raise argparse.ArgumentTypeError(f"must be finite, but got {shown(text)}")
        return number

    return read


def add_own_options(parser: Parser) -> None:
    """Adds the options that all studies have."""
    parser.add_argument(
        "--plan",
        action="store_true",
        help="print the plan and write it to the store; train nothing",
    )
    parser.add_argument(
        "--report",
        action="store_true",
        help="redraw the report from the done trials; train nothing",
    )
    add_published(parser)
    parser.add_argument(
        "--final-num",
        type=_final_num,
        metavar="N",
        help=(
            "the --num that the study will grow to, declared before its first report: p values "
            f"then hold for all reports together; {OPEN}: without an end, at a cost in power"
        ),
    )
    add_store(parser)
    add_trust(parser)
    plans.add_options(parser)
    where = parser.add_argument_group("where and how fast trials run; no effect on their ids")
    add = where.add_argument
    add(
        "--cpus-per-trial",
        type=float,
        help=(
            "cores and threads per trial (default: 1; for a profile on a CPU: all; with a GPU and "
            "images on disk: its share of the node's cores)"
        ),
    )
    add(
        "--gpus-per-trial",
        type=float,
        help="GPUs per trial; a fraction packs several on one (default: 0; for a profile: 1)",
    )
    add(
        "--accelerator-type",
        default="",
        metavar="NAME",
        help="only GPUs of this name in Ray, such as H100 (default: any)",
    )
    add(
        "--workers-per-trial",
        type=int,
        default=1,
        help=(
            "train each trial data-parallel on this many workers, each with the cores and GPUs "
            "above (default: 1)"
        ),
    )
    add(
        "--micro-batch",
        type=int,
        default=0,
        help="maximum images per forward pass; gradients are accumulated (default: no limit)",
    )
    add(
        "--parallel-branches",
        action="store_true",
        help="compute all branches of a parallel ViT in one operation",
    )
    add("--compiled", action="store_true", help="torch.compile the models")
    add(
        "--capture",
        action=argparse.BooleanOptionalAction,
        help="launch the steps of a GPU as CUDA graphs (default: no)",
    )
    add(
        "--deterministic",
        action="store_true",
        help=(
            "deterministic algorithms alone, so that a GPU repeats a training bit for bit; a trial "
            "with an operation that has none ends as missing, with its name"
        ),
    )
    add(
        "--device",
        choices=("auto", "cpu", "cuda"),
        default="auto",
        help="auto: cuda if a trial has a GPU (default: auto)",
    )
    add(
        "--max-concurrent",
        type=int,
        default=0,
        help="maximum number of concurrent trials (default: as many as fit)",
    )
    add(
        "--address",
        default="",
        help="address of an existing Ray cluster, or auto (default: start one on this machine)",
    )
    add(
        "--cluster-timeout-s",
        type=float,
        default=3600.0,
        metavar="SECONDS",
        help="how long to wait for a first node of a cluster that has none yet (default: 3600)",
    )
    add_data_root(where)
    add(
        "--num-loader-workers",
        type=_int_or_auto,
        metavar="N",
        help=(
            "data loading processes per trial; auto: none for images in memory, else one per core "
            "but the first (default: 0; with a GPU: auto)"
        ),
    )
    add(
        "--checkpoint-every-s",
        type=float,
        default=5.0,
        help=(
            "seconds between checkpoints; longer if they cost over 1%%, on a CPU below 5 seconds "
            "over 5%% (default: 5)"
        ),
    )
    add(
        "--keep-weights",
        action=argparse.BooleanOptionalAction,
        help="keep final weights for `vitscale evaluate` (default: if at most 64 MiB per trial)",
    )
    add(
        "--retrain-other-code",
        action="store_true",
        help=(
            "move done trials that another commit trained aside, and train them again (default: "
            "keep them)"
        ),
    )


def _int_or_auto(text: str) -> int | str:
    return text if text == "auto" else int(text)


def add_published(parser: argparse.ArgumentParser) -> None:
    """Adds the option that draws the papers' numbers."""
    parser.add_argument(
        "--published",
        action="store_true",
        help=(
            "draw the papers' numbers behind ours where a figure has published ones; but for scale "
            "imagenet they are from other data and models, so they are context and no target"
        ),
    )


def _with_search_options(
    made: Study | Search, make_study: StudyFunction, options: argparse.Namespace
) -> Study | Search:
    """A search with --sampler and --asha where its function has no such parameters.

    Raises ValueError for such an option of a study that is not a search.
    """
    types = get_type_hints(make_study)
    given = {name: getattr(options, name) for name in ADAPTIVE if name not in types}
    given = {name: value for name, value in given.items() if value}
    if isinstance(made, Study) and given:
        name, value = next(iter(given.items()))
        raise ValueError(
            "the trials of a study must be fixed beforehand and trained to the end, but got "
            f"({name}={value}): adaptive samples are biased toward low "
            "error, and intermediate rank does not predict final rank (Touvron 2022, thesis, "
            "Figure 6.10), so shares over them are invalid; studies/tune_lr_wd.py is a search"
        )
    return replace(made, **given) if given else made


def perform(
    make_study: StudyFunction, options: argparse.Namespace, goes_on: bool = False
) -> tuple[int, Study | Search, Store]:
    """Does what the options ask for: (exit status, the study, its store).

    `goes_on`: this process does so afterwards, and is not ended. Raises ValueError or OSError for
    mistakes that can be detected before anything is trained.
    """
    chosen = {name: getattr(options, name) for name in inspect.signature(make_study).parameters}
    token = in_store.set(lambda digest: read_source(digest, Store.at(options.store)))
    try:
        made = make_study(**chosen)
    finally:
        in_store.reset(token)
    if not isinstance(made, Study | Search):
        raise ValueError(
            f"the function of a study must return a Study or a Search, but got ({shown(made)})"
        )
    made = _with_search_options(made, make_study, options)
    if isinstance(made, Search):
        return _perform_search(made, options, goes_on), made, Store.at(options.store)
    check_known_names(made)
    check_parts(made, options.trust_parts, Store.at(options.store))
    study = with_costs(made)
    study = replace(study, published=study.published or options.published)
    resources = _resources(study, options)
    _check_retrain(options)
    store = Store.at(options.store)
    final = _final_size(make_study, chosen, options.final_num, study)
    ledger = _ledger(study, store, final)
    if options.plan:
        _check_data_root(study, options)
        plans.show(study, store, options, ledger)
        return EXIT_DONE, study, store
    plans.check_options(options)
    if options.report:
        _check_something_done(study, store)
        if final:
            declare(store, study.slug, final)
        _say_other_plan(study, store)
        return report_only(study, store), study, store
    check_installed("torch", "ray", "mlflow")
    hint = ""
    if not ledger.final and not ledger.looks and _tests_something(study):
        ways = ["N"] * ("num" in chosen) + [repr(OPEN) if goes_on else OPEN]
        hint = (
            "a study that will grow must say so before its first report, by "
            f"{'final_num=' if goes_on else '--final-num '}{' or '.join(ways)}: "
            "else this plan's report spends all that it may claim"
        )
    retrain = options.retrain_other_code
    return run(study, store, resources, Display, retrain, final, goes_on, hint), study, store


def _tests_something(study: Study) -> bool:
    return bool(study.pairs) or any(name in COMPARED for name in study.tables)


def _final_size(
    make_study: StudyFunction, chosen: Mapping[str, Any], num: int | None, study: Study
) -> FinalSize | None:
    """The size that --final-num declares. Raises ValueError if the study cannot grow to it."""
    if num is None:
        return None
    if num == 0:
        return FinalSize(0, {})
    if "num" not in chosen:
        raise ValueError(
            f"--final-num N must come with a function of a study that has the parameter num, but "
            f"got one without ({FinalSize(num, {}).option}); --final-num {OPEN} needs none"
        )
    final = make_study(**{**chosen, "num": num})
    assert isinstance(final, Study)
    ids = {trial.config.id for trial in final.trials}
    if others := sum(trial.config.id not in ids for trial in study.trials):
        raise ValueError(
            "the trials of a study must be among those of its final size, but got "
            f"(--final-num {num}: {others} of {len(study.trials)} planned trials are not)"
        )
    return FinalSize(num, sizes(final.trials))


def _ledger(study: Study, store: Store, final: FinalSize | None) -> Ledger:
    """The looks so far, with the size that holds now.

    Raises ValueError for a size that changes after a look, or a plan beyond it.
    """
    ledger = read_ledger(store, study.slug)
    if final:
        check_final(ledger, final, study.slug)
        ledger = replace(ledger, final=final)
    check_within(ledger, study.trials, study.slug)
    return ledger


def _perform_search(search: Search, options: argparse.Namespace, goes_on: bool) -> int:
    """As `perform` for a search, whose plan has random stand-ins for the points to be proposed."""
    if options.final_num is not None:
        raise ValueError(
            "--final-num must come with a study that tests something, but got a search "
            f"({FinalSize(options.final_num, {}).option})"
        )
    from vitscale.launch.optuna_search import Rounds

    check_known_names(search.stand_in())
    check_parts(search.stand_in(), options.trust_parts, Store.at(options.store))
    search = with_costs(search)
    stand_in = search.stand_in()
    resources = _resources(stand_in, options)
    _check_retrain(options)
    if options.plan:
        _check_data_root(stand_in, options)
        rounds = Rounds(search, Store.at(options.store))
        planned = with_costs(rounds.plan())
        plans.show(planned, Store.at(options.store), options)
        num = sum(len(points[: search.num]) for points in rounds.points.values())
        if not options.json and num * len(search.seeds) < len(planned.trials):
            which = f"{num} points are proposed; the others" if num else "The points"
            print(
                f"{which} are stand-ins: this search draws its own at random, round by round."
                if search.sampler == "random"
                else f"{which} are random stand-ins: a search proposes its points round by round, "
                "based on earlier results."
            )
        return EXIT_DONE
    plans.check_options(options)
    store = Store.at(options.store)
    if options.report:
        _check_something_done(stand_in, store)
        study = with_costs(Rounds(search, store).study())
        _say_other_plan(study, store)
        return report_only(study, store)
    check_installed("torch", "ray", "mlflow")
    return run(search, store, resources, Display, options.retrain_other_code, goes_on=goes_on)


def _check_retrain(options: argparse.Namespace) -> None:
    """Raises ValueError for a retraining where nothing is trained."""
    if options.retrain_other_code and (options.plan or options.report):
        other = "--plan" if options.plan else "--report"
        raise ValueError(
            f"--retrain-other-code must come without {other}, which trains nothing, but got both"
        )


def _check_something_done(study: Study, store: Store) -> None:
    """Raises ValueError for a report of a study without a plan or a done trial in the store."""
    if study.slug not in store.slugs() and not any(
        store.is_done(trial.config.id) for trial in study.trials
    ):
        raise ValueError(
            f"a report must have at least one done trial, but got none (study={study.slug}, "
            f"store={str(store.root)!r}); name another store with --store or VITSCALE_STORE"
        )


def _say_other_plan(study: Study, store: Store) -> None:
    """Says on stderr how the plan of a script, which its report is of, differs from the last one
    that was started.
    """
    if line := differing(plan_before(store, study.slug), study):
        tell(f"the plan of this report is not that of the last start: {line}", sys.stderr)


def _check_data_root(study: Study, options: argparse.Namespace) -> None:
    """Raises ValueError if --data-root lacks a dataset of the plan.

    A data root that comes from the environment alone is not checked.
    """
    if options.data_root and options.data_root != data_root():
        for dataset in {
            trial.config.dataset for trial in study.trials if trial.config.reads_images
        }:
            check_readable(dataset, options.data_root)


def _resources(study: Study, options: argparse.Namespace) -> Resources:
    """The resources of the options; paths become absolute, since workers have other directories."""
    options.data_root = data_root(options.data_root)
    names = {field.name for field in fields(Resources)} - {"cores_by_share"}  # it follows from them
    return resources_for(study, {name: getattr(options, name) for name in names})


def report_only(study: Study, store: Store, formats: Sequence[str] = ()) -> int:
    """Draws the report of the done trials, and prints its headline and path.

    `formats`: only these; all if there are none. Returns the exit status: not 0 if the report has
    nothing to say about an arm, which one line on stderr names.
    """
    from vitscale.analysis.report.draw import draw
    from vitscale.analysis.report.report import FORMATS, PAGE
    from vitscale.record.provenance import mixed_code
    from vitscale.record.table import read_trials

    read = read_trials(study, store)
    report, headline, _ = draw(study, store, read, formats or FORMATS)
    page = not formats or "html" in formats
    where = report.address(PAGE) if page else f"{report.address()} ({', '.join(formats)})"
    lines = [*headline, mixed_code(read), f"report  {where}"]
    print("\n".join(line for line in lines if line))
    return status_of_report(study, read)


def status_of_report(study: Study, read: Mapping[str, Outcome]) -> int:
    """The exit status of a report: not 0 if it has nothing to say about an arm, which one line on
    stderr names."""
    law, empty = _lacking(study, read)
    if not empty:
        return EXIT_DONE
    arms = len({trial.arm.name for trial in study.trials})
    named = ", ".join(empty[:3]) + ", ..." * (len(empty) > 3)
    print(
        f"vitscale: error: {law}, but got none for {len(empty)} of {arms} ({named})",
        file=sys.stderr,
    )
    return EXIT_INCOMPLETE


def _lacking(study: Study, read: Mapping[str, Outcome]) -> tuple[str, list[str]]:
    """(what an arm must have, the arms without it)."""
    if SCALING_LAW.is_asked(study):
        law = "an arm must have a finished or diverged trial to be in a law"
        lacking = [Status.MISSING, Status.RUNNING, Status.FAILED]
    else:
        law = "an arm must have a trial with an outcome to be in the report"
        lacking = [Status.MISSING, Status.RUNNING]
    complete = {t.arm.name for t in study.trials if read[t.config.id].status not in lacking}
    return law, [
        name for name in dict.fromkeys(t.arm.name for t in study.trials) if name not in complete
    ]
