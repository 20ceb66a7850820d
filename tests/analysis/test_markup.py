"""Names and texts of a study are data in every output: HTML, SVG, Markdown, LaTeX, MLflow."""

from __future__ import annotations

import dataclasses
import re
import shutil
import subprocess
import warnings
from pathlib import Path
from xml.etree import ElementTree

import pytest
from golden.capture import load
from markdown_it import MarkdownIt
from support.outcomes import make_outcomes, make_rows, make_study, random_errors
from support.pages import EVERYTHING, Page

from vitscale.analysis.kinds import kind_of
from vitscale.analysis.report.report import headline, write_report
from vitscale.analysis.report.save import as_files
from vitscale.analysis.results import Results
from vitscale.plan.escape import in_latex, in_markdown
from vitscale.plan.study import Study
from vitscale.plan.trial import Arm, Trial
from vitscale.record.mlflow.pages import description, links
from vitscale.record.table import outcomes, tidy
from vitscale.record.workdir import Workdir

SCRIPT, IMAGE = "<script>alert(1)</script>", '"><img src=x onerror=alert(1)>'
LINK = "[x](javascript:alert(1)) ![y](http://evil.example/z)"
COMMAND = r"\input{/etc/passwd} & 100% _ # ~ ^ } -->"
BLOCKS = frozenset({"p", "table", "thead", "tbody", "tr", "th", "td", "strong", "ul", "li"})
COMMANDS = frozenset(
    re.findall(
        r"\w+",
        "begin end centering caption label resizebox ifdim width linewidth else fi toprule midrule "
        "bottomrule texttt textbackslash textasciitilde textasciicircum textless textgreater "
        "textbar textquotedbl times cdot pm leq geq",
    )
)
TEXTS = {
    "question": f"{SCRIPT} {LINK} {COMMAND}?",
    "source": f"{IMAGE} {SCRIPT}",
    "design": f"{SCRIPT}\n\n{IMAGE}",
    "notes": f"{IMAGE}\n\n{SCRIPT}",
}


class Strict(Page):
    """A page that also keeps its tags and attributes."""

    def __init__(self, html: str) -> None:
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        super().__init__(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        super().handle_starttag(tag, attrs)


def hostile_distribution() -> tuple[Study, Results]:
    arms = (SCRIPT, IMAGE, LINK, COMMAND)
    panels = {f"{SCRIPT} {IMAGE}": arms[:2], f"{COMMAND} {LINK}": arms[2:]}
    study = make_study(8, arms, **{**EVERYTHING, **TEXTS, "panels": panels, "pairs": (arms[:2],)})
    ended = make_outcomes(study, random_errors(study), {(SCRIPT, 3): "diverged"})
    return study, Results(study, ended, make_rows(study, ended))


def hostile_repeats() -> tuple[Study, Results]:
    """A demo whose models have such names as factors, and its arms, too."""
    study, read, _ = load("training_length-demo")
    names = {"ViT_P": f"{SCRIPT} {COMMAND}", "ViT_C": f"{IMAGE} {LINK}"}

    def renamed(arm: Arm) -> Arm:
        model = names[str(arm.factors["model"])]
        return Arm(f"{model} {arm.name}", {**arm.factors, "model": model})

    trials = tuple(Trial(renamed(trial.arm), trial.config, trial.point) for trial in study.trials)
    study = dataclasses.replace(study, trials=trials, panels={}, pairs=(), **TEXTS)
    return study, Results(study, outcomes(study, read), tidy(study, read))


@pytest.fixture(scope="module", params=[hostile_distribution, hostile_repeats])
def report(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Study, Results]:
    study, results = request.param()
    folder = tmp_path_factory.mktemp("hostile")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        write_report(results, Workdir(folder), {"command": f"python {SCRIPT}", "store": IMAGE})
    return folder, study, results


Report = tuple[Path, Study, Results]


def test_the_page_shows_them_and_runs_none(report: Report) -> None:
    folder, study, _ = report
    page = Strict((folder / "report.html").read_text())
    assert page.tags.isdisjoint({"script", "iframe", "object", "foreignobject", "img"})
    assert not [name for name in page.attributes if name.startswith("on")]
    assert all(source.startswith(("#", "data:image/png")) for source in page.loads)
    text = " ".join(" ".join(page.text).split())
    for shown in (*TEXTS.values(), *study.arms, *study.panels):
        assert " ".join(shown.split()) in text
    assert page.open == []
    assert "`" not in text and "code" in page.tags  # of captions


def test_drawings_are_well_formed_and_have_text_only(report: Report) -> None:
    folder = report[0]
    texts = ""
    for path in folder.glob("*.svg"):
        tree = ElementTree.fromstring(path.read_text())
        tags = {node.tag.rpartition("}")[2] for node in tree.iter()}
        assert tags.isdisjoint({"script", "img", "a", "foreignObject"}), path
        texts += "".join(tree.itertext())
    assert SCRIPT in texts and IMAGE in texts


def titles(path: Path) -> list[str]:
    tree = ElementTree.fromstring(path.read_text())
    return [node.text or "" for node in tree.iter("{http://www.w3.org/2000/svg}title")]


# which marks of a figure are one trial, or one arm; with how many of them a hostile study has
HOVERED = {
    "edf_panels": "arms",
    "edf_panels_vs_best": "arms",
    "lr_wd_scatter": "draws",
    "learning_curves": "references",
    "optimizer_stability": "arms",
}


def test_marks_say_which_trial_or_arm_they_are(report: Report) -> None:
    folder, study, results = report
    shown = [path for path in folder.glob("*.svg") if path.stem in HOVERED]
    assert shown or "training_length" in study.figures  # whose marks are of two arms
    ids = {
        "draws": {t.config.id for t in study.trials if t.point is not None},
        "references": {t.config.id for t in study.trials if t.point is None},
    }
    for path in shown:
        said = titles(path)
        assert all(any(text.startswith(arm) for arm in study.arms) for text in said), path
        if HOVERED[path.stem] == "arms":
            drawn = {arm for arm in study.arms if any(text.startswith(f"{arm}: ") for text in said)}
            assert drawn == set(study.arms) and "planned" in said[0]
        else:
            missing = set(results.trials.query("status == 'missing'")["trial_id"])
            expected = ids[HOVERED[path.stem]] - missing
            assert {text.rpartition("trial ")[2] for text in said} >= expected, path


@pytest.mark.parametrize(
    ("name", "num_trials", "num_arms"),
    [("seed_histogram", 0, 2), ("seed_curves", 0, 2), ("seed_intermediate", 300, 1)],
)
def test_seeds_say_which_they_are(name: str, num_trials: int, num_arms: int) -> None:
    """Of an arm of 100 seeds: two panels, or three epochs against the last."""
    study, read, _ = load("seed_distribution-demo")
    results = Results(study, outcomes(study, read), tidy(study, read))
    figure = kind_of(study).figures[name](results)
    svg = ElementTree.fromstring(as_files(figure, ["svg"])["svg"])
    said = [node.text or "" for node in svg.iter("{http://www.w3.org/2000/svg}title")]
    (arm,) = study.arms
    ids = {trial.config.id for trial in study.trials if trial.point is not None}
    of_trials = [text.rpartition("trial ")[2] for text in said if f"{arm}, draw " in text]
    assert len(of_trials) == num_trials and set(of_trials) == (ids if num_trials else set())
    assert sum(text.startswith(f"{arm}: 100 planned") for text in said) == num_arms


def test_markdown_shows_them_and_has_no_html_and_no_link(report: Report) -> None:
    folder, study, results = report
    tables = {path.name: path.read_text() for path in folder.glob("*.md")}
    arms = {arm: {"n": 8.0, "area": 0.5, "area_low": 0.4, "area_high": 0.6} for arm in study.arms}
    note = description(study, arms, headline(results)).replace("`report.html`", "report.html")
    shown = ""
    for name, text in {**tables, "MLflow": note}.items():
        html = MarkdownIt("commonmark", {"html": True}).enable("table").render(text)
        page = Strict(html)
        assert page.tags <= set(
            ["p", "table", "thead", "tbody", "tr", "th", "td", "strong", "ul", "li"]
        ), name
        shown += " ".join(" ".join(page.text).split())
    for arm in study.arms:
        assert " ".join(arm.split()) in shown
    assert " ".join(study.question.split()) in shown


def without_escaped(text: str) -> str:
    return re.sub(r"\\[\\&%$#_{}]", "", text)


def test_latex_has_the_commands_of_a_table_alone(report: Report) -> None:
    folder = report[0]
    files = list(folder.glob("*.tex"))
    assert files
    for path in files:
        lines = [line for line in path.read_text().splitlines() if not line.startswith("%")]
        text = without_escaped("\n".join(lines))
        assert set(re.findall(r"\\([A-Za-z]+)", text)) <= COMMANDS, path
        assert text.count("{") == text.count("}"), path
        rows = [line for line in lines if line.endswith(r"\\")]
        columns = re.search(r"begin\{tabular\}\{([lr]+)\}", text)
        assert columns and {len(re.findall(r"(?<!\\)&", row)) for row in rows} == {
            len(columns[1]) - 1
        }


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs a LaTeX")
def test_latex_compiles(report: Report, tmp_path: Path) -> None:
    inputs = "".join(rf"\input{{{path}}}\clearpage" for path in sorted(report[0].glob("*.tex")))
    packages = r"\usepackage[T1]{fontenc}\usepackage{booktabs,graphicx}"
    page = rf"\documentclass{{article}}{packages}\begin{{document}}{inputs}\end{{document}}"
    (tmp_path / "page.tex").write_text(page)
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "page.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout[-2000:]


def test_the_description_links_views_and_report_before_the_answer() -> None:
    note = description(make_study(2), {}, ["The answer."], links("7", "abc"))
    html = MarkdownIt().render(note)
    targets = re.findall(r'href="([^"]+)"', html)
    assert [re.sub(r"^.*ShareKey=", "", target) for target in targets[:3]] == [
        "vitscale-trials",
        "vitscale-curves",
        "vitscale-arms",
    ]
    assert targets[3:] == ["./#/experiments/7/runs/abc/artifacts/report.html"]
    assert html.index("Arms with their intervals") < html.index("The answer.")


@pytest.mark.parametrize(
    ("text", "markdown", "latex"),
    [
        ("ViT_P AdamW", "ViT_P AdamW", r"ViT\_P AdamW"),
        ("6.9 [4.5, 9.3]", "6.9 [4.5, 9.3]", "6.9 [4.5, 9.3]"),
        ("< 0.001", "< 0.001", r"\textless{} 0.001"),
        ("a|b", r"a\|b", r"a\textbar{}b"),
        ("50%", "50%", r"50\%"),
        ("<b>", r"\<b>", r"\textless{}b\textgreater{}"),
    ],
)
def test_plain_texts_stay_readable(text: str, markdown: str, latex: str) -> None:
    assert (in_markdown(text), in_latex(text)) == (markdown, latex)
