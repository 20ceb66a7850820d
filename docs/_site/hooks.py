"""What the site needs beyond the files of docs/, which must also read well on GitHub.

Files of the repository's root are pages of it. Tables of fields, of figures and tables, and of the
papers' items are written into it by `vitscale fields`. Links that lead out of the site become text,
or links to the repository where mkdocs.yml names one. A notebook becomes a page as it was executed.
"""

from __future__ import annotations

import json
import posixpath
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))
from vitscale.cli.fields import filled  # noqa: E402

FROM_ROOT = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
LINK = re.compile(r"(!?)\[((?:!\[[^\]]*\]\([^)]*\))|[^\]]*)\]\((?!https?:|mailto:|#)([^)\s]+)\)")
FENCE = re.compile(r"(^```.*?^```)", re.MULTILINE | re.DOTALL)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Leaves pages out whose file is not there (yet)."""
    config.nav = [entry for entry in map(_existing, config.nav or []) if entry]
    return config


def _existing(entry: Any) -> Any:
    if isinstance(entry, str):
        file = ROOT / "docs" / entry
        is_there = file.exists() or file.with_suffix(".ipynb").exists() or entry in FROM_ROOT
        return entry if is_there else None
    ((title, value),) = entry.items()
    if isinstance(value, list):
        found = [one for one in map(_existing, value) if one]
    else:
        found = _existing(value)
    return {title: found} if found else None


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds pages of the repository's root, and leaves the log out."""
    for name in [name for name in files.src_uris if name.startswith("log/")]:
        files.remove(files.src_uris[name])
    for name in FROM_ROOT:
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    for name in [name for name in files.src_uris if name.endswith(".ipynb")]:
        page = _page_of(json.loads((ROOT / "docs" / name).read_text()))
        files.append(File.generated(config, name.replace(".ipynb", ".md"), content=page))
    return files


def _page_of(notebook: dict[str, Any]) -> str:
    """A notebook as Markdown, with its outputs."""
    parts: list[str] = []
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(text)
            continue
        parts.append(f"```python\n{text}\n```")
        outputs = cell["outputs"]
        if said := "".join("".join(output.get("text", ())) for output in outputs):
            parts.append(f"```text\n{said.replace(chr(13), '').strip()}\n```")
        for data in (output.get("data", {}) for output in outputs):
            if png := data.get("image/png"):
                parts.append(f'<img alt="" src="data:image/png;base64,{"".join(png).strip()}">')
            elif page := "".join(data.get("text/html", ())):
                page = re.sub("<style.*?</style>", "", page, flags=re.DOTALL)
                parts.append(page.replace(' border="1" class="dataframe"', ""))
    return "\n\n".join(parts)


def on_page_markdown(markdown: str, page: Any, config: MkDocsConfig, files: Files) -> str:
    """Tables in place of their markers, and links as they must be in the site."""
    name = page.file.src_uri
    source = name if name in FROM_ROOT else f"docs/{name}"
    parts = FENCE.split(filled(markdown))
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
    inside = found if found in FROM_ROOT else posixpath.relpath(found, "docs")
    as_page = inside.replace(".ipynb", ".md")
    if as_page in files.src_uris and as_page != page:  # its own page links the notebook itself
        inside = as_page
    if inside in files.src_uris:
        place = posixpath.relpath(inside, posixpath.dirname(page) or ".")
        return f"{image}[{text}]({place}{'#' * bool(anchor)}{anchor})"
    if not (ROOT / found).exists():
        return link[0]  # strict mode says so
    if config.repo_url:
        return f"{image}[{text}]({config.repo_url.rstrip('/')}/blob/main/{found})"
    return text
