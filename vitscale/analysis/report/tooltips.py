"""What a mark of a figure is: shown in the SVG where the pointer rests on it, without a script."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape

import numpy as np
from matplotlib.artist import Artist
from matplotlib.collections import PathCollection, PolyCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from vitscale.analysis.report.layout import metric_label
from vitscale.analysis.results import Results
from vitscale.plan.trial import Trial

TEXTS = "vitscale_texts"  # attribute of an artist
MAX_POINTS = 5_000  # of one artist that are drawn as vectors
Texts = str | tuple[str, ...]  # one for the whole artist, or one for each of its points
_GROUP = re.compile(r'<g id="(points-\d+)">')
_USE, _PATH = re.compile(r"<(use) ([^>]*)/>"), re.compile(r"<(path) ([^>]*)/>")
_DEFINITIONS = re.compile(r"(<defs>.*?</defs>)", re.DOTALL)


def is_large(artist: Artist) -> bool:
    """Whether an artist has so many points, marks or corners that it is drawn as pixels."""
    match artist:
        case PathCollection():
            num = len(np.asarray(artist.get_offsets()))
        case Line2D():
            num = len(np.asarray(artist.get_xdata()))
        case PolyCollection():
            num = sum(len(np.asarray(path.vertices)) for path in artist.get_paths())
        case _:
            num = 0
    return num > MAX_POINTS


def describe(artist: Artist, texts: str | Iterable[str]) -> None:
    """Says what an artist is, or each of its points, in the order of its data; a large one is
    pixels, which say nothing.
    """
    if is_large(artist):
        return
    setattr(artist, TEXTS, texts if isinstance(texts, str) else tuple(texts))


def trial_texts(results: Results) -> Mapping[str, str]:
    """Trial id -> arm, draw, how it ended, and its config without fields at their default.

    Each is written when it is asked for.
    """
    return _TrialTexts(results)


class _TrialTexts(Mapping[str, str]):
    def __init__(self, results: Results) -> None:
        self._label, self._metric = metric_label(results.study), results.metric
        self._trials = {trial.config.id: trial for trial in results.study.trials}
        ended = zip(results.trials["status"], results.trials["value"], strict=True)
        self._ended = dict(zip(results.trials["trial_id"], ended, strict=True))

    def __getitem__(self, trial_id: str) -> str:
        return _trial_text(self._trials[trial_id], self._end(trial_id))

    def _end(self, trial_id: str) -> str:
        status, error = self._ended.get(trial_id, ("missing", 0.0))
        done = f"{self._label} {self._metric.text(float(error))}"
        return done if status == "finished" else str(status)

    def __iter__(self) -> Iterator[str]:
        return iter(self._trials)

    def __len__(self) -> int:
        return len(self._trials)


def _trial_text(trial: Trial, ended: str) -> str:
    name = trial.arm.name if trial.point is None else f"{trial.arm.name}, draw {trial.point}"
    fields = {"lr": trial.config.lr, "wd": trial.config.wd, **trial.config.non_default()}
    config = ", ".join(f"{name} {value}" for name, value in fields.items())
    return f"{name}: {ended}\n{config}\ntrial {trial.config.id}"


def arm_texts(results: Results) -> dict[str, str]:
    """Arm -> its number of trials, and the fields that all share and that are no default."""
    members: dict[str, list[Trial]] = {}
    for trial in results.study.trials:
        members.setdefault(trial.arm.name, []).append(trial)
    return {arm: f"{arm}: {_counted(trials)}\n{_shared(trials)}" for arm, trials in members.items()}


def text_of_arms(results: Results, arms: Iterable[str]) -> str:
    """What these arms are, each once."""
    return "\n".join(results.once(arm_texts)[arm] for arm in dict.fromkeys(arms))


def _counted(trials: Sequence[Trial]) -> str:
    draws = sum(trial.point is not None for trial in trials)
    return f"{draws} planned" + f" and {len(trials) - draws} references" * (draws < len(trials))


def _shared(trials: Sequence[Trial]) -> str:
    first, *others = [trial.config for trial in trials]
    return ", ".join(
        f"{name} {value}"
        for name, value in first.non_default().items()
        if all(getattr(config, name) == value for config in others)
    )


# ---- drawings


def name_groups(figure: Figure) -> dict[str, Texts]:
    """Gives what is described an id in the SVG; returns the texts by id."""
    described = figure.findobj(lambda artist: hasattr(artist, TEXTS))
    groups: dict[str, Texts] = {}
    for index, artist in enumerate(described):
        artist.set_gid(f"points-{index}")
        groups[f"points-{index}"] = getattr(artist, TEXTS)
    return groups


def with_titles(svg: str, groups: Mapping[str, Texts]) -> str:
    """The drawing with a title in each group, or for each of its marks.

    Marks of a group of which not all were drawn get none, so that none has another's.
    """
    parts, place = [], 0
    for group in _GROUP.finditer(svg):
        texts, begin = groups[group[1]], group.end()
        parts.append(svg[place:begin])
        place = begin
        if isinstance(texts, str):
            parts.append(_title(texts))
        elif (end := svg.find('<g id="', begin)) >= 0:
            parts.append(_titled(svg[begin:end], texts))
            place = end
    return "".join([*parts, svg[place:]])


def _titled(group: str, texts: Sequence[str]) -> str:
    parts = _DEFINITIONS.split(group)  # definitions of marks are at odd places
    for mark in (_USE, _PATH):  # a line with markers is one path and a use for each marker
        if sum(len(mark.findall(part)) for part in parts[::2]) == len(texts):
            titles = iter(texts)
            parts[::2] = [
                mark.sub(
                    lambda m, titles=titles: f"<{m[1]} {m[2]}>{_title(next(titles))}</{m[1]}>",
                    part,
                )
                for part in parts[::2]
            ]
            break
    return "".join(parts)


def _title(text: str) -> str:
    return f"<title>{escape(text)}</title>"
