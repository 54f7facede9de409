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

from oversmooth.report.style import COLOURS_OF_MODELS, css_variables
from oversmooth.safety.files import check_writable, whole_file

_EXPLAINED = {r"HFC/LFC": "hfc", r"mean cosine": "cos", r"\bH\b(?= = )": "h", r"effective rank": "rank"}


def check(path: Path) -> None:
    """Raise InputError if the path cannot become a page, before the work that it shows."""
    check_writable(path, (".html", ".htm"))


def write(text: str, path: Path) -> None:
    """The page as a file, there whole or not at all."""
    with whole_file(path) as temporary:
        temporary.write_bytes(text.encode("utf-8", "backslashreplace"))  # names of files may have halves of letters


@cache
def template(name: str) -> Any:
    """One of this folder's templates, which escape what they are given."""
    import jinja2  # only pages need it

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {"indexed": _indexed, "explained": _explained}
    return environment.get_template(name)


def rendered(
    name: str, scripts: Sequence[str], coloured: int, *, payload: str, drawn: str, style: str = "", **values: Any
) -> str:
    """A page from its template.

    name: of the template. scripts: files of this folder, in one scope. coloured: how many models there are.
    payload, drawn: data and charts, embedded. style: rules of this page alone.
    """
    from markupsafe import Markup

    every = [library(), "(async () => {\n" + "\n".join(text_of(script) for script in scripts) + "\n})();"]
    text: str = template(name).render(
        style=Markup("\n".join([css_variables(), _many_colours(coloured), text_of("page.css"), style])),
        scripts=[Markup(script) for script in every],
        hashes=[policy_hash(script) for script in every],
        payload=payload,
        drawn=drawn,
        **values,
    )
    return text


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
        button = rf'<button type="button" class="term" data-term="{key}" aria-expanded="false">\g<0></button>'
        html = re.sub(pattern, button, html, count=1)
    return Markup(html)


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
