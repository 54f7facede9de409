"""Follow every link inside a built site: python docs/_ext/check_links.py out/docs

Each must lead to a file that is there, and each fragment to an id in it. Links to other sites are not followed, and
nothing may be loaded from one.
"""

import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

LOADED = {("script", "src"), ("img", "src"), ("link", "href"), ("iframe", "src"), ("source", "src")}
LINKED = {("a", "href")}
NOT_FILES = ("data:", "mailto:", "javascript:")


class Page(HTMLParser):
    """The links of a page, what it loads, and the ids in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[tuple[bool, str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Called by the parser."""
        for name, value in attrs:
            if name in ("id", "name") and value:
                self.ids.add(value)
            if value and ((tag, name) in LOADED or (tag, name) in LINKED):
                self.links.append(((tag, name) in LOADED, value))


@cache
def read(path: Path) -> Page:
    """A page, parsed once."""
    return Page(path.read_text(encoding="utf-8"))


def wrong_links(site: Path) -> list[str]:
    """A sentence for each link that leads nowhere, or that a page would load from elsewhere."""
    wrong = []
    for path in sorted(site.rglob("*.html")):
        if {"gallery-pages", "_static"} & set(path.relative_to(site).parts):
            continue  # reports of diagnoses, which have tests of their own, and templates of the theme
        for loads, link in read(path).links:
            address, fragment = urldefrag(link)
            where = f"{path.relative_to(site)}: {link}"
            if link.startswith(NOT_FILES):
                continue
            if "://" in address or address.startswith("//"):
                if loads:
                    wrong.append(f"{where} would be loaded from elsewhere")
                continue
            target = path if not address else (path.parent / unquote(address.partition("?")[0])).resolve()
            if target.is_dir():
                target /= "index.html"
            if not target.is_file():
                wrong.append(f"{where} is not there")
            elif fragment and target.suffix == ".html" and unquote(fragment) not in read(target).ids:
                wrong.append(f"{where}: no such place in that page")
    return wrong


if __name__ == "__main__":
    found = wrong_links(Path(sys.argv[1]).resolve())
    for sentence in found:
        print(sentence, file=sys.stderr)
    sys.exit(bool(found))
