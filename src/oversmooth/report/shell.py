"""What all pages have in common: one file with style, scripts and data in it, and a policy that refuses the network."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from oversmooth.report.headline import TERMS
from oversmooth.report.style import COLOURS_OF_MODELS, css_variables
from oversmooth.safety.files import check_writable, whole_file
from oversmooth.safety.foreign import READABLE
from oversmooth.safety.libraries import import_library

_TEMPLATES = ("shell.html.j2", "page.html.j2", "simulation.html.j2", "film.html.j2")
_EXPLAINED = {r"HFC/LFC": "hfc", r"\bH\b(?= = )": "h", r"\bcases?\b": "case", r"effective rank": "rank"}


def check(path: Path) -> None:
    """Refuse what cannot become a page, before the work is done that it is to show."""
    check_writable(path, (".html", ".htm"))
    for library in ("jinja2", "vl_convert"):
        import_library(library, "writing a page")


def write(text: str, path: Path) -> None:
    """The page as a file, there whole or not at all."""
    with whole_file(path) as temporary:
        temporary.write_bytes(text.encode("utf-8", READABLE))  # names of files may have halves of letters


def rendered(
    template: str, scripts: Sequence[str], coloured: int, *, payload: str, drawn: str, style: str = "", **values: Any
) -> str:
    """A page from its template.

    template: one of this folder's. scripts: files of this folder, in one scope. coloured: how many models there are.
    payload, drawn: data and charts, embedded. style: rules of this page alone.
    """
    import jinja2  # only pages need it
    from markupsafe import Markup

    environment = jinja2.Environment(
        loader=jinja2.DictLoader({name: text_of(name) for name in _TEMPLATES}),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {"indexed": _indexed, "explained": _explained}
    own = "(async () => {\n" + "\n".join(text_of(name) for name in scripts) + "\n})();"
    every = [library(), own]
    return environment.get_template(template).render(
        style=Markup("\n".join([css_variables(), _many_colours(coloured), text_of("page.css"), style])),
        scripts=[Markup(script) for script in every],
        hashes=[policy_hash(script) for script in every],
        terms=TERMS,
        payload=payload,
        drawn=drawn,
        **values,
    )


def _many_colours(models: int) -> str:
    """Of more models than there are colours, whichever are shown have one each: the page gives them out."""
    if models <= COLOURS_OF_MODELS:
        return ""
    names = " ".join(f"--shown-{i}: var(--model-{i % COLOURS_OF_MODELS});" for i in range(models))
    return f":root {{ {names} }}"


def _indexed(text: str) -> Any:
    """With indices as HTML sets them."""
    from markupsafe import Markup, escape

    return Markup(re.sub(r"(?<=\w)_(\w+)", r"<sub>\1</sub>", str(escape(text))))


def _explained(text: Any) -> Any:
    """With a button at the first use of each term, which opens what it means."""
    from markupsafe import Markup, escape

    html = str(escape(text))
    for pattern, key in _EXPLAINED.items():
        html = re.sub(pattern, lambda match, key=key: _term(key, match[0]), html, count=1)  # type: ignore[misc]
    return Markup(html)


def _term(key: str, word: str) -> str:
    return f'<button type="button" class="term" data-term="{key}" aria-expanded="false">{word}</button>'


@cache
def library() -> str:
    """Vega, Vega-Lite and vega-embed in one script, with nothing in it that ends a script element."""
    import vl_convert  # heavy, and only charts need it

    bundle: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return "(()=>{" + bundle.replace("</script", "<\\/script").replace("<!--", "<\\!--") + "})();"


@cache
def text_of(name: str) -> str:
    return files("oversmooth.report").joinpath(name).read_text(encoding="utf-8").strip()


def policy_hash(script: str) -> str:
    """As a content security policy names the scripts it lets run."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
