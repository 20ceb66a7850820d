"""The report of a study of a store: read, drawn, and recorded as a look."""

from __future__ import annotations

import shlex
import warnings
from collections.abc import Collection
from pathlib import Path

from vitscale.analysis.kind import Summary
from vitscale.analysis.kinds import kind_of
from vitscale.analysis.report.report import FORMATS, headline, summary, write_report
from vitscale.analysis.report_look import look_of, place, with_claims
from vitscale.analysis.results import Results
from vitscale.plan.study import Study
from vitscale.record.look_ledger import Look, add_look, read_ledger
from vitscale.record.misclassified import Misclassified
from vitscale.record.mlflow.place import given_uri, without_user
from vitscale.record.outcome import Outcome
from vitscale.record.provenance import provenance
from vitscale.record.store import Store
from vitscale.record.table import outcomes, take_tidy
from vitscale.record.trial_links import FOLDER
from vitscale.record.workdir import Damaged, Workdir

DOCS = Path(__file__).parents[3] / "docs/method.md"  # how it is counted; in a clone


def draw(
    study: Study,
    store: Store,
    read: dict[str, Outcome],
    formats: Collection[str] = FORMATS,
) -> tuple[Workdir, list[str], Summary]:
    """Writes the tables, figures and page of a study: (their folder, headline, summary by arm).

    Takes the rows out of `read`: two million rows there and in a table would take 400 MB more.
    """
    folder = store.report(study.slug)
    done, rows = outcomes(study, read), take_tidy(study, read)
    look = look_of(study, done)

    def misclassified(trial_id: str) -> Misclassified | None:
        return _misclassified(trial_id, store, read)

    looks = place(read_ledger(store, study.slug), look)
    results = Results(study, done, rows, misclassified=misclassified, looks=looks)
    for name, content in kind_of(study).files(results).items():
        folder.write(name, content)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        write_report(results, folder, _facts(study, store), formats)
    seen = any(look.seen.values())
    note = _record_look(store, study.slug, with_claims(look, results)) if seen else ""
    return folder, [*headline(results), *filter(None, [note])], summary(results)


def _facts(study: Study, store: Store) -> dict[str, str]:
    """What the page says about how to run the study again: by the command that started it."""
    command = store.plan(study.slug).get("command", "")
    is_served, root = given_uri().startswith("http"), str(store.root)
    view = f"vitscale ui --store {shlex.quote(root)}"
    # absent in a bucket, and where the trials were copied into the store
    has_links = bool(store.study(study.slug).within(FOLDER).links())
    from_wheel = provenance()["commit"].startswith("vitscale ")  # and its version
    return {
        "install": "pip install 'vitscale[train]'" if from_wheel else "make .venv/installed",
        "command": command,
        "store": root,
        "trials": f"../{FOLDER}/" if has_links else f"{root}/trials",
        "MLflow": without_user(given_uri()) if is_served else view,
        **({"documentation": DOCS.as_uri()} if DOCS.is_file() else {}),
    }


def _record_look(store: Store, slug: str, look: Look) -> str:
    """Appends a look to the ledger; a sentence if that is impossible, which loses no report."""
    try:
        add_look(store, slug, look)
    except OSError as error:
        return f"This look was not recorded, so later ones will not count it ({error})."
    return ""


def _misclassified(trial_id: str, store: Store, read: dict[str, Outcome]) -> Misclassified | None:
    """Which images a trial got wrong; a damaged file counts as none, with a warning."""
    try:
        return store.misclassified(trial_id, read[trial_id])
    except Damaged as damaged:
        warnings.warn(str(damaged), stacklevel=2)
        return None
