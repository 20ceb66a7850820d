"""A study run by a call of Python, in a notebook or a script."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from vitscale.cli.loading import StudyResults, results_of
from vitscale.cli.process import tell, without_backend
from vitscale.cli.script import Parser, StudyFunction, add_options, perform, store_of_winners
from vitscale.cli.terminal import one_line
from vitscale.launch.command import name_call
from vitscale.launch.process import EXIT_INTERRUPTED, keep_handlers
from vitscale.plan.search import Search
from vitscale.plan.spelling import did_you_mean, shown
from vitscale.plan.study import Study
from vitscale.record.object_store import say_when_waiting
from vitscale.record.store import Store


def run(study: Study | Search | StudyFunction, **options: Any) -> StudyResults:
    """Trains what is missing of a study, draws its report, and returns its results.

    The same call starts, resumes, extends and redraws, as a study script does; a notebook shows
    the progress in the cell. `study` is a Study, a Search, or a function that returns one. Options
    are those of the command line, with underscores: `store="runs"`, `cpus_per_trial=2`,
    `plan=True`, and the parameters of the function. None means not given.

    An interrupt (Ctrl-C, or that of a kernel) stops the trainings and draws the report of what is
    done; then KeyboardInterrupt is raised, and `load` returns these results. A second interrupt
    stops at once. A trial that failed or is missing raises nothing: `results.trials` has its
    status.

    Raises ValueError, in one line, for what a command would refuse, and OSError for a store or a
    machine that does not permit it, before anything is trained.
    """
    make = study if callable(study) else lambda: study
    if not callable(study) and not isinstance(study, Study | Search):
        raise ValueError(
            f"run must get a Study, a Search or a function of a study, but got ({shown(study)})"
        )
    if (ray := sys.modules.get("ray")) and ray.is_initialized():
        raise ValueError(
            "Ray must not run in this process yet, for a study starts its own, or joins the one at "
            "`address`, but got a Ray that does; `ray.shutdown()` ends it"
        )
    stderr = sys.stderr  # not Ray's log, to which it may be redirected
    say_when_waiting(lambda line: tell(one_line(line), stderr))
    name_call(_as_call(study, options))
    with keep_handlers(), without_backend():
        parser = _Parser(prog="run", add_help=False)
        add_options(parser, make)
        try:
            chosen = parser.parse_args(list(_arguments(parser, options)))
            with store_of_winners(chosen.store):
                status, made, store = perform(make, chosen, goes_on=True)
        except ValueError as error:
            error.args = (_with_names(parser, str(error)),)
            raise
    if status == EXIT_INTERRUPTED:
        raise KeyboardInterrupt(f"the same call resumes, and load({made.slug!r}) has what is there")
    return StudyResults(results_of(_known_trials(made, store, chosen.plan), store), store)


class _Parser(Parser):
    """A parser that raises what it refuses."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(one_line(message))


def _as_call(study: Study | Search | StudyFunction, options: Mapping[str, Any]) -> str:
    first = getattr(study, "__name__", "study")
    return f"run({', '.join([first, *(f'{name}={value!r}' for name, value in options.items())])})"


def _arguments(parser: argparse.ArgumentParser, options: Mapping[str, Any]) -> Iterator[str]:
    """The options as they would be typed. Raises ValueError for one that does not exist."""
    actions = {
        action.dest: action for action in parser._actions if action.help != argparse.SUPPRESS
    }
    for name, value in options.items():
        if name not in actions:
            raise ValueError(
                f"an option of run must be among ({', '.join(actions)}), but got "
                f"({name}={shown(value)}){did_you_mean(name, actions)}"
            )
        if value is None:
            continue
        option, *opposite = actions[name].option_strings
        if actions[name].nargs == 0:  # a flag
            if type(value) is not bool:
                raise ValueError(f"{name} must be of type bool, but got ({name}={shown(value)})")
            if value or opposite:
                yield option if value else opposite[0]
        elif actions[name].nargs == "+" or isinstance(actions[name].default, list):
            several = value if isinstance(value, list | tuple) else [value]
            if actions[name].nargs == "+":
                yield from (option, *map(str, several))
            else:  # given several times
                yield from (f"{option}={x}" for x in several)
        else:
            yield f"{option}={os.fspath(value) if isinstance(value, os.PathLike) else value}"


def _with_names(parser: argparse.ArgumentParser, text: str) -> str:
    """A message with the options as this function takes them: `data_root` for `--data-root`."""
    names = {option: action.dest for action in parser._actions for option in action.option_strings}
    return re.sub(r"--[a-z][a-z-]*", lambda match: names.get(match[0], match[0]), text)


def _known_trials(made: Study | Search, store: Store, is_plan: bool) -> Study:
    """The study itself; of a search, that of the points so far."""
    if isinstance(made, Study):
        return made
    from vitscale.launch.optuna_search import Rounds

    rounds = Rounds(made, store)
    return rounds.plan() if is_plan else rounds.study()
