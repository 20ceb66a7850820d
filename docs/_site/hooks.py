"""What the site needs beyond the files of docs/, which must also read well on GitHub.

Its home is start.md, for index.md, which is linked from everywhere, is about the papers; files of
the repository's root are pages of it; links that lead out of the site become text, or links to the
repository where mkdocs.yml names one; and the fields of a config are a table made from its source.
"""

from __future__ import annotations

import ast
import html
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
FROM_ROOT = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
MOVED = {"docs/index.md": "papers.md", "docs/start.md": "index.md"}  # source -> page
LINK = re.compile(r"(!?)\[((?:!\[[^\]]*\]\([^)]*\))|[^\]]*)\]\((?!https?:|mailto:|#)([^)\s]+)\)")
FENCE = re.compile(r"(^```.*?^```)", re.MULTILINE | re.DOTALL)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Leaves pages out whose file is not there (yet)."""
    config.nav = [entry for entry in map(_existing, config.nav or []) if entry]
    return config


def _existing(entry: Any) -> Any:
    if isinstance(entry, str):
        name = {page: source for source, page in MOVED.items()}.get(entry, f"docs/{entry}")
        there = (ROOT / name).exists() or entry in (*FROM_ROOT, "fields.md")
        return MOVED.get(f"docs/{entry}", entry) if there else None
    ((title, value),) = entry.items()
    if isinstance(value, list):
        found = [one for one in map(_existing, value) if one]
    else:
        found = _existing(value)
    return {title: found} if found else None


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Moves pages, adds those of the repository's root and the table of fields."""
    for source in MOVED:
        files.remove(files.src_uris[posixpath.relpath(source, "docs")])
    for source, page in {**MOVED, **{name: name for name in FROM_ROOT}}.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    files.append(File.generated(config, "fields.md", content=_fields()))
    return files


def on_page_markdown(markdown: str, page: Any, config: MkDocsConfig, files: Files) -> str:
    """Links as they must be in the site."""
    source = next((s for s, p in MOVED.items() if p == page.file.src_uri), None)
    if source is None:
        name = page.file.src_uri
        source = name if name in FROM_ROOT else f"docs/{name}"
    parts = FENCE.split(markdown)
    parts[::2] = [
        LINK.sub(lambda link: _link(link, source, page.file.src_uri, config, files), part)
        for part in parts[::2]
    ]
    return "".join(parts)


def _link(link: re.Match[str], source: str, page: str, config: MkDocsConfig, files: Files) -> str:
    image, text, target = link.groups()
    if text.startswith("!["):  # a picture that is a link
        text = LINK.sub(lambda inner: _link(inner, source, page, config, files), text)
    path, _, anchor = target.partition("#")
    found = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
    inside = MOVED.get(found, found if found in FROM_ROOT else posixpath.relpath(found, "docs"))
    if inside in files.src_uris:
        place = posixpath.relpath(inside, posixpath.dirname(page) or ".")
        return f"{image}[{text}]({place}{'#' * bool(anchor)}{anchor})"
    if not (ROOT / found).exists():
        return link[0]  # strict mode says so
    if config.repo_url:
        return f"{image}[{text}]({config.repo_url.rstrip('/')}/blob/main/{found})"
    return text


CLASSES = {
    "TrainConfig": "plan/config.py",
    "Study": "plan/study.py",
    "Trial": "plan/study.py",
    "Search": "plan/search.py",
    "ProfileConfig": "plan/profile.py",
}
HEAD = ["", "| field | meaning | type | default |", "|---|---|---|---|"]
BOUND = re.compile(r"Annotated\[(\w+), Max\((.+)\)\]")


def _fields() -> str:
    """A page with the fields of the classes that a study is made of, each with its comment."""
    page = [
        "# Fields",
        "From the source. A field of `TrainConfig` is an axis of a search space, a column of the "
        "tables and an MLflow param under one name. `Count` is an integer of at least 1, "
        "`Natural` of at least 0.",
    ]
    for name, module in CLASSES.items():
        page += ["", f"## {name}", *_table((ROOT / "vitscale" / module).read_text(), name)]
    return "\n".join(page) + "\n"


def _table(text: str, name: str) -> list[str]:
    """One row per field of a class; comments of the form `# ---- title` begin a section."""
    classes = (node for node in ast.parse(text).body if isinstance(node, ast.ClassDef))
    (body,) = (node.body for node in classes if node.name == name)
    lines, start, page = text.splitlines(), body[0].end_lineno or 0, list[str]()
    for field in (node for node in body if isinstance(node, ast.AnnAssign)):
        comments = [line.strip()[2:] for line in lines[start : field.lineno - 1] if "#" in line]
        start = field.end_lineno or 0
        titles = [comment.strip("- ") for comment in comments if comment.startswith("----")]
        if titles:
            page += ["", f"### {titles[0][0].upper()}{titles[0][1:]}"]
        if titles or not page:
            page += HEAD
        comments = [comment for comment in comments if not comment.startswith("----")]
        comments.append(lines[start - 1].partition("  # ")[2].partition("type: ignore")[0])
        kind = BOUND.sub(r"\1 <= \2", ast.unparse(field.annotation)).replace(" ** ", "**")
        default = _code(ast.unparse(field.value)) if field.value else "required"
        name = ast.unparse(field.target)
        page.append(f"| `{name}` | {_cell(' '.join(comments))} | {_code(kind)} | {default} |")
    return page


def _code(text: str) -> str:
    return f"<code>{_cell(html.escape(text))}</code>"


def _cell(text: str) -> str:
    return text.strip().replace("|", "\\|")
