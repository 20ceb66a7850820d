"""Settings of a study that reports everything, and its report as a parser reads it."""

from __future__ import annotations

from html.parser import HTMLParser

EVERYTHING = {
    "figures": ("edf_panels", "edf_panels_vs_best", "lr_wd_scatter", "learning_curves"),
    "tables": ("edf_summary", "arm_comparison", "good_range"),
    "pairs": (("a", "b"),),
    "design": "How <points> were drawn.\n\nAnd seeds.",
    "notes": "First <note>.\n\nSecond note.",
}


class Page(HTMLParser):
    """Collects what a page would load, its text, and whether its tags close."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.ids: list[str] = []
        self.text: list[str] = []
        self.open: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loads += [
            value or "" for name, value in attrs if name in ("src", "href", "xlink:href")
        ]
        self.ids += [value or "" for name, value in attrs if name == "id"]
        if tag not in ("meta", "img", "link"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in ("meta", "img", "link"):
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)
