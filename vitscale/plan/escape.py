"""Names and texts of a study inside other languages: they are data there and never markup."""

from __future__ import annotations

import re

# what begins an element, an entity, code, emphasis, a cell, or ends the text of a link
_IN_MARKDOWN = re.compile(r"[\\`*|]|<(?=[A-Za-z/!?])|&(?=[#A-Za-z])|\](?=[(\[:])|!(?=\[)")
_IN_LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "–": "--",
    "×": r"$\times$",
    "·": r"$\cdot$",
    "±": r"$\pm$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    **{character: f"\\{character}" for character in "&%$#_"},
}


def in_markdown(text: str) -> str:
    """A text that Markdown shows as it is, on one line: no HTML, link or table cell is in it."""
    return _IN_MARKDOWN.sub(lambda match: "\\" + match[0], " ".join(text.split()))


def in_latex(text: str) -> str:
    """A text that LaTeX prints as it is: no command is in it."""
    return "".join(_IN_LATEX.get(character, character) for character in text)
