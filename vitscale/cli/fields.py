"""`vitscale fields`: what a config and a study may say, read from the source, where each field has
its comment, type, bounds and default; and which figures and tables of the papers are planned.

Pages of docs/ name such tables by markers, between which the site has the tables (docs/_site).
"""

from __future__ import annotations

import ast
import difflib
import functools
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from vitscale.catalog.tables import table_rows
from vitscale.cli.terminal import columns, one_line
from vitscale.plan.config import TrainConfig
from vitscale.plan.fields import FieldType, field_types
from vitscale.plan.profile import ProfileConfig
from vitscale.plan.questions import QUESTIONS, functions
from vitscale.plan.spelling import ALIASES, field_meant, shown

PACKAGE = Path(__file__).parents[1]
CLASSES = {
    "TrainConfig": "plan/fields.py",  # whose class Fields has them
    "ProfileConfig": "plan/profile.py",
    "Study": "plan/study.py",
    "Arm": "plan/trial.py",
    "Trial": "plan/trial.py",
    "Search": "plan/search.py",
}
CONFIGS = {"TrainConfig": TrainConfig, "ProfileConfig": ProfileConfig}
KINDS, METRICS, PAPERS = "kinds", "metrics", "papers"  # tables of other facts
TEXTS = {  # of the papers' figures and tables, as catalog/published/items.csv has them
    "xiao2021": "Xiao et al. 2021",
    "touvron2022": "Touvron et al. 2022",
    "thesis": "H. Touvron's thesis, 2022",
    "dosovitskiy2021": "Dosovitskiy et al. 2021",
}
BLOCK = re.compile(
    r"<!-- vitscale fields --markdown (\w+) -->\n.*?<!-- end of the table -->", re.DOTALL
)


class Field(NamedTuple):
    """A field of a class as its source describes it."""

    name: str
    section: str  # its title in the class, "" if it has none
    meaning: str
    values: str  # its type with the bounds, or its choices
    default: str  # as in Python; "" if it has to be given
    aliases: tuple[str, ...]  # what other libraries call it


def fields_of(name: str) -> list[Field]:
    """The fields of a class of CLASSES, in the order of their definition; inherited ones are not
    repeated.
    """
    text = (PACKAGE / CLASSES[name]).read_text()
    classes = (node for node in ast.parse(text).body if isinstance(node, ast.ClassDef))
    where = "Fields" if name == "TrainConfig" else name
    (body,) = (node.body for node in classes if node.name == where)
    lines, start, section = text.splitlines(), body[0].end_lineno or 0, ""
    types = field_types(CONFIGS[name]) if name in CONFIGS else {}
    fields: list[Field] = []
    for node in body:
        if not isinstance(node, ast.AnnAssign):
            continue
        comments = [line.strip()[2:] for line in lines[start : node.lineno - 1] if "#" in line]
        start = node.end_lineno or 0
        section = _title(comments) or section
        comments = [comment for comment in comments if not comment.startswith("----")]
        comments.append(
            re.sub(r"^type: ignore\S*( *# )?", "", lines[start - 1].partition("  # ")[2])
        )
        field = ast.unparse(node.target)
        fields.append(
            Field(
                field,
                section,
                " ".join(comments).strip(),
                _values(types[field]) if types else ast.unparse(node.annotation),
                _default(node.value),
                tuple(ALIASES.get(field, "").split()) if types else (),
            )
        )
    return fields


def _title(comments: Sequence[str]) -> str:
    titles = [comment.strip("- ") for comment in comments if comment.startswith("----")]
    return titles[0][0].upper() + titles[0][1:] if titles else ""


def _default(value: ast.expr | None) -> str:
    """Of `field(default_factory=dict, ...)`: "{}"."""
    if isinstance(value, ast.Call) and ast.unparse(value.func) == "field":
        return "{}"
    return ast.unparse(value) if value else ""


def _values(entry: FieldType) -> str:
    if entry.choices:
        return " | ".join((*entry.choices, *(("file.py:Name",) * entry.is_open)))
    bounds = [bound.law.replace("{}", "x") for bound in entry.bounds]
    return ", ".join(
        [
            entry.kind.__name__,
            *bounds,
            *([f"x <= {entry.upper:,}"] if entry.upper is not None else []),
        ]
    )


# Markdown


def table(name: str) -> str:
    """The fields of a class, or what `kinds` or `metrics` holds, as Markdown.

    Raises ValueError for another name.
    """
    if name in TABLES:
        return TABLES[name]()
    if name not in CLASSES:
        raise ValueError(
            f"a table must be among ({', '.join([*CLASSES, *TABLES])}), but got ({shown(name)})"
        )
    return "\n".join(_sections(name))


def _sections(name: str) -> Iterator[str]:
    fields, section = fields_of(name), None
    aliases = any(field.aliases for field in fields)
    for field in fields:
        if field.section != section:
            yield from ["", f"### {field.section}", ""] if field.section else []
            yield "| field | meaning | values | default |" + " elsewhere called |" * aliases
            yield "|---|---|---|---|" + "---|" * aliases
            section = field.section
        cells = [
            f"`{field.name}`",
            field.meaning,
            _code(field.values),
            _code(field.default) if field.default else "required",
            *([", ".join(f"`{alias}`" for alias in field.aliases)] if aliases else []),
        ]
        yield f"| {' | '.join(cell.replace(' | ', ' &#124; ') for cell in cells)} |"


def _code(text: str) -> str:
    """In HTML, since Markdown shows no entities within backticks."""
    for sign, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("|", "&#124;")):
        text = text.replace(sign, entity)
    return f"<code>{text}</code>"


def _kinds() -> str:
    """Tables and figures of each kind of study, without pandas, which the site lacks."""
    lines: list[str] = []
    for kind in dict.fromkeys(name for question in QUESTIONS for name in question.kinds):
        lines += ["", f"### Kind `{kind}`", "", "| name | is a | shows |", "|---|---|---|"]
        for what, name, module, function in functions(kind):
            caption = " ".join(_docstrings(module)[function].partition("\n\n")[0].split())
            lines.append(f"| `{name}` | {what} | {caption} |")
    return "\n".join(lines)


@functools.cache
def _docstrings(module: str) -> dict[str, str]:
    """The docstring of each function of a module of vitscale.analysis."""
    path = PACKAGE / "analysis" / f"{module.replace('.', '/')}.py"
    nodes = ast.parse(path.read_text()).body
    return {n.name: ast.get_docstring(n) or "" for n in nodes if isinstance(n, ast.FunctionDef)}


def _metrics() -> str:
    """What a study may be about."""
    from vitscale.plan.metrics import METRICS

    lines = [
        "| column ends in | is the | unit | worst | `near` | `beyond` |",
        "|---|---|---|---|---|---|",
    ]
    for metric in METRICS.values():
        numbers = " | ".join(f"{x:g}" for x in (metric.worst, metric.near, metric.beyond))
        lines.append(f"| `{metric.name}` | {metric.label} | {metric.unit} | {numbers} |")
    return "\n".join(lines)


def _papers() -> str:
    """How many figures and tables of each text are planned."""
    columns = ("full", "part", "no", "other task", "settings")
    lines = [f"| text | items | {' | '.join(columns)} |", "|---|---|---|---|---|---|---|"]
    for text, title in {**TEXTS, "": "all"}.items():
        statuses = [row["status"] for row in _items(text)]
        numbers = (str(number) for number in (len(statuses), *map(statuses.count, columns)))
        lines.append(f"| {title} | {' | '.join(numbers)} |")
    full, part, no = map(statuses.count, columns[:3])  # of all
    asked = f"Trainings and measurements of image classifiers can answer {full + part + no}"
    return "\n".join([*lines, "", f"{asked}: {full} are planned in full, {part} in part."])


def _items(text: str) -> list[dict[str, str]]:
    """The figures and tables of a text; of all for ""."""
    return [row for row in table_rows("items") if text in ("", row["text"])]


def _items_of(text: str) -> str:
    """The figures and tables of a text, and what plans them."""
    lines = [
        "| item | section | about | planned | by | how ours differs |",
        "|---|---|---|---|---|---|",
    ]
    for row in _items(text):
        scripts = [Path(command).stem for command in re.findall(r"\S+\.py", row["command"])]
        by = ", ".join(f"[{name}](studies/{name}.md)" for name in scripts)
        if row["command"] and not scripts:
            by = f"`{row['command']}`"
        if row["shows"]:
            by += ": " + ", ".join(f"`{name}`" for name in row["shows"].split())
        stand_in = f"Stands in: {row['stand_in']}. " if row["stand_in"] else ""
        cells = (*(row[name] for name in ("item", "section", "title", "status")), by)
        lines.append(f"| {' | '.join((*cells, stand_in + row['note']))} |")
    return "\n".join(lines)


TABLES: dict[str, Callable[[], str]] = {
    KINDS: _kinds,
    METRICS: _metrics,
    PAPERS: _papers,
    **{text: functools.partial(_items_of, text) for text in TEXTS},
}


def filled(page: str) -> str:
    """A page with the tables between its markers."""
    return BLOCK.sub(lambda block: table(block[1]).strip(), page)


# A terminal


def listing() -> str:
    """All fields of a config with values and defaults, by section; long lists of values are cut."""
    fields, lines = fields_of("TrainConfig"), []
    rows = columns([[f.name, f.default, one_line(f.values, 75)] for f in fields], left=3)
    section = ""
    for field, row in zip(fields, rows.splitlines(), strict=True):
        if field.section != section:
            lines += ["", field.section]
            section = field.section
        lines.append(f"  {row}")
    return "\n".join([*lines[1:], "", "vitscale fields NAME: what one of them means"])


def entry(name: str) -> str:
    """One field, by its name or by what other libraries call it.

    Raises ValueError for a name that means none.
    """
    entries = {f.name: (c, f) for c in ("ProfileConfig", "TrainConfig") for f in fields_of(c)}
    meant = name if name in entries else field_meant(name, field_types(ProfileConfig))
    if meant is None:
        near = difflib.get_close_matches(name, entries, n=3, cutoff=0.4)
        hint = f"; near it are {', '.join(near)}" if near else ""
        raise ValueError(f"a field of a config must be known, but got ({shown(name)}){hint}")
    owner, field = entries[meant]
    rows = [
        ["values", field.values],
        ["default", field.default or "none: it has to be given"],
        *([["elsewhere", ", ".join(field.aliases)]] if field.aliases else []),
        [
            "part of",
            f"{owner}, {field.section[0].lower()}{field.section[1:]}" if field.section else owner,
        ],
    ]
    return f"{field.name}: {field.meaning}\n{columns(rows, left=2)}"
