"""A report of which nothing changed is not drawn again; figures are drawn in processes."""

from __future__ import annotations

import importlib.metadata
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from subprocess import PIPE
from typing import BinaryIO

import numpy as np
import pytest
from matplotlib.artist import Artist
from matplotlib.backend_bases import RendererBase
from matplotlib.figure import Figure
from test_loading import stored

from vitscale.analysis.report.beside import Beside
from vitscale.analysis.report.kept import KEPT, code, inputs, packages, read_kept
from vitscale.analysis.report.save import as_files
from vitscale.launch.driver import draw
from vitscale.plan.study import Study
from vitscale.record.looks import Look, add_look, read_ledger
from vitscale.record.outcome import Outcome, Status
from vitscale.record.store import Store
from vitscale.record.workdir import Held

FACTS = {"command": "python studies/one.py"}
Read = dict[str, Outcome]


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, Study, Read]:
    """A store with a report of one figure and one table."""
    store, study, read = stored(tmp_path_factory.mktemp("kept") / "runs")
    study = replace(study, figures=("learning_curves",), tables=("edf_summary",))
    draw(study, store, read)
    return store, study, read


def times(store: Store, study: Study) -> dict[str, int]:
    folder = Path(store.report(study.slug).address())
    return {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}


def test_what_is_there_is_not_written_again(drawn: tuple[Store, Study, Read]) -> None:
    store, study, read = drawn
    before = times(store, study)
    folder, headline, summary = draw(study, store, read)
    assert times(store, study) == before and {"learning_curves.pdf", "report.html"} <= set(before)
    page = folder.read("report.html").decode()
    assert len(headline) > 3 and headline[0] in page
    assert set(summary) == set(study.arms)
    # from nothing: the same files and the same answers, so what was kept is what would be made
    files = {name: folder.read(name) for name in before}
    folder.remove(KEPT)
    assert draw(study, store, read)[1:] == (headline, summary)
    again = times(store, study)
    assert all(again[name] > before[name] for name in before)
    assert {name: folder.read(name) for name in again} == files


def test_a_file_that_is_lost_or_edited_is_written_again(drawn: tuple[Store, Study, Read]) -> None:
    store, study, read = drawn
    folder = store.report(study.slug)
    svg, csv = folder.read("learning_curves.svg"), folder.read("edf_summary.csv")
    folder.remove("learning_curves.svg")
    draw(study, store, read)
    folder.write("edf_summary.csv", csv + b" ")
    draw(study, store, read)
    assert (folder.read("learning_curves.svg"), folder.read("edf_summary.csv")) == (svg, csv)
    kept = json.loads(folder.read(KEPT))
    folder.write(KEPT, json.dumps(kept | {"headline": ["All arms are equal."]}).encode())
    assert draw(study, store, read)[1] == kept["headline"] != ["All arms are equal."]
    for content in (b"", b"{", b"[]", b"{}", b'{"files": 1, "headline": [], "summary": {}}'):
        folder.write(KEPT, content)
        assert read_kept(folder, "0") is None


def one_value(study: Study, read: Read) -> tuple[Study, Read]:
    """The smallest change of one number that only a curve shows."""
    trial_id = next(i for i, outcome in read.items() if outcome.status is Status.FINISHED)
    first, *others = read[trial_id].rows
    changed = {**first, study.metric: float(np.nextafter(first[study.metric], np.inf))}
    return study, {**read, trial_id: replace(read[trial_id], rows=(changed, *others))}


def one_fact(study: Study, read: Read) -> tuple[Study, Read]:
    trial_id = study.trials[0].config.id
    facts = {**read[trial_id].facts, "machine": "another"}
    return study, {**read, trial_id: replace(read[trial_id], facts=facts)}


def one_lost(study: Study, read: Read) -> tuple[Study, Read]:
    return study, {**read, study.trials[0].config.id: Outcome(Status.MISSING)}


CHANGES: dict[str, Callable[[Study, Read], tuple[Study, Read]]] = {
    "value": one_value,
    "fact": one_fact,
    "lost": one_lost,
    "published": lambda study, read: (replace(study, published=True), read),
    "figures": lambda study, read: (replace(study, figures=("lr_wd_scatter",)), read),
    "notes": lambda study, read: (replace(study, notes="Another note."), read),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_another_plan_or_outcome_is_another_report(
    drawn: tuple[Store, Study, Read], change: Callable[[Study, Read], tuple[Study, Read]]
) -> None:
    store, study, read = drawn
    ledger = read_ledger(store, study.slug)
    made_of = inputs(study, read, FACTS)(ledger)
    assert made_of == inputs(study, dict(read), dict(FACTS))(ledger) != ""
    assert inputs(*change(study, read), FACTS)(ledger) != made_of


def test_looks_facts_and_packages_count(
    drawn: tuple[Store, Study, Read], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, study, read = drawn
    ledger = read_ledger(store, study.slug)
    made_of = inputs(study, read, FACTS)(ledger)
    assert inputs(study, read, {"command": "python studies/two.py"})(ledger) != made_of
    name = f"matplotlib-{importlib.metadata.version('matplotlib')}.dist-info\n"
    assert name in packages()
    (tmp_path / "matplotlib-99.0.dist-info").mkdir()
    with monkeypatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        assert inputs(study, read, FACTS)(ledger) != made_of
    add_look(store, study.slug, Look("another", {"ViT_P AdamW": 1}, {"ViT_P AdamW": 1}))
    assert inputs(study, read, FACTS)(read_ledger(store, study.slug)) != made_of
    assert inputs(study, read, FACTS)(ledger) == made_of


def test_code_counts_and_what_python_compiles_does_not(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\n")
    (tmp_path / "__pycache__").mkdir()
    before = list(code(tmp_path))
    (tmp_path / "__pycache__" / "a.pyc").write_bytes(b"1")
    assert list(code(tmp_path)) == before
    (tmp_path / "a.py").write_text("x = 2\n")
    assert list(code(tmp_path)) != before
    (tmp_path / "a.py").write_text("x = 1\n")
    (tmp_path / "b.csv").write_text("")
    assert list(code(tmp_path)) != before


def test_a_report_of_a_kind_of_ones_own_is_always_drawn(
    drawn: tuple[Store, Study, Read],
) -> None:
    store, study, read = drawn
    assert inputs(replace(study, kind="own"), read, FACTS)(read_ledger(store, study.slug)) == ""
    assert read_kept(store.report(study.slug), "") is None


# ---- processes


def lines(num: int, color: str = "C0") -> Figure:
    figure = Figure(layout="constrained")
    for ax in figure.subplots(1, num, squeeze=False).flat:
        ax.plot([1, 2, 3], [3, 1, 2], color=color)
    return figure


@pytest.mark.skipif(sys.platform != "linux", reason="forks are used on Linux only")
def test_processes_draw_the_same_bytes() -> None:
    figures = {("png", "svg", "pdf"): lines(1), ("svg",): lines(2, "C1"), ("png",): lines(2, "C2")}
    beside = Beside(2)
    begun = [beside.draw(figure, endings) for endings, figure in figures.items()]
    alone = [as_files(figure, endings) for endings, figure in figures.items()]
    assert [files() for files in begun] == alone
    assert begun[0]() == alone[0] and list(alone[0]) == ["png", "svg", "pdf"]  # asked for again


class Failing(Artist):
    """Ends the process that draws it, unless that is this one."""

    def __init__(self, in_parent: Callable[[], None]) -> None:
        super().__init__()
        self.parent, self.in_parent = os.getpid(), in_parent

    def draw(self, renderer: RendererBase) -> None:
        if os.getpid() == self.parent:
            self.in_parent()
        else:
            os.kill(os.getpid(), signal.SIGKILL)


def nothing() -> None:
    pass


def error() -> None:
    raise MemoryError("no room for a figure")


@pytest.mark.skipif(sys.platform != "linux", reason="forks are used on Linux only")
def test_what_a_process_does_not_send_is_drawn_here() -> None:
    figure, other = lines(1), lines(1)
    figure.add_artist(Failing(nothing))
    other.add_artist(Failing(error))
    beside = Beside(2)
    killed, failed = (beside.draw(of, ("png",)) for of in (figure, other))
    assert killed() == as_files(lines(1), ("png",))
    with pytest.raises(MemoryError, match="no room for a figure"):
        failed()


@pytest.mark.skipif(sys.platform != "linux", reason="forks are used on Linux only")
@pytest.mark.parametrize("num", [0, 1])
@pytest.mark.parametrize("ending", ["well", "killed", "failed"])
def test_a_file_is_the_same_whether_a_process_wrote_it(num: int, ending: str) -> None:
    """Here, where there is none, or it has written a half."""
    parent = os.getpid()

    def writing(file: BinaryIO) -> None:
        file.write(b"0123456789")
        file.flush()
        if os.getpid() != parent and ending == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if os.getpid() != parent and ending == "failed":
            raise OSError("no space left on device")
        file.write(b"abc" if os.getpid() == parent or ending == "well" else b"")

    write = Beside(num).write(writing)
    write(file := io.BytesIO())
    assert file.getvalue() == b"0123456789abc"


@pytest.mark.skipif(sys.platform != "linux", reason="forks are used on Linux only")
def test_a_process_beside_a_killed_one_holds_none_of_its_locks(tmp_path: Path) -> None:
    """Neither a driver's nor one that is shared; the same command must resume at once."""
    Store.open(tmp_path / "runs")
    code = """if True:
        import os, signal, sys, time
        from vitscale.analysis.report.beside import Beside
        from vitscale.record.store import Store

        def sleep():
            print(os.getpid(), flush=True)
            time.sleep(60)

        store = Store.open(sys.argv[1])
        with store.drive("s"), store.folder.share("shared.lock"):
            Beside(1).start(sleep)
            input()
            os.kill(os.getpid(), signal.SIGKILL)
    """
    command = [sys.executable, "-c", code, str(tmp_path / "runs")]
    with subprocess.Popen(command, stdin=PIPE, stdout=PIPE, text=True) as driver:
        assert driver.stdin and driver.stdout
        beside = int(driver.stdout.readline())
        try:
            store = Store.open(tmp_path / "runs")
            assert store.driver_is_alive("s")
            with pytest.raises(Held), store.folder.hold("shared.lock", "", 0):
                pass
            driver.stdin.write("\n")
            driver.stdin.flush()
            assert driver.wait(10) == -signal.SIGKILL
            os.kill(beside, 0)  # it lives on
            assert not store.driver_is_alive("s")
            with store.drive("s"), store.folder.hold("shared.lock", "", 0):
                pass
        finally:
            os.kill(beside, signal.SIGKILL)
