"""How Sphinx builds the site: `make docs`. What is made at build time lies in docs/generated, which git ignores."""

import re
import sys
from pathlib import Path

DOCS = Path(__file__).parent
ROOT = DOCS.parent
sys.path[:0] = [str(DOCS / "_ext"), str(ROOT / "src")]

import made_pages  # noqa: E402  (found on the path that was just set)
import mathjax_file  # noqa: E402

import oversmooth  # noqa: E402

project = "oversmooth"
author = "the oversmooth authors"
version = release = oversmooth.__version__
REPOSITORY = made_pages.repository(ROOT)
OPTIONAL = ("watching", "first-paper")
"""Pages that a toctree names and that are left out where they are not there."""

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.mathjax",
    "sphinx_copybutton",
    "sphinx_design",
]
exclude_patterns = ["_build", "_ext", "generated", "**/.ipynb_checkpoints"]
nitpicky = False  # annotations name private aliases, which have no page

myst_enable_extensions = ["amsmath", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 4
nb_execution_mode = "off"  # tests/test_docs.py runs the notebooks; the site shows the outputs that are kept

autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "show-inheritance": False}
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
default_role = "any_code"

html_theme = "pydata_sphinx_theme"
html_title = f"oversmooth {release}"
html_static_path = ["_static", "generated/static"]
html_extra_path = ["generated/extra"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "logo": {"text": "oversmooth"},
    "header_links_before_dropdown": 9,
    "navbar_align": "left",
    "show_prev_next": True,
    "secondary_sidebar_items": ["page-toc"],
    "article_footer_items": [],
    "footer_start": ["copyright"],
    "footer_end": [],
    "navbar_end": ["theme-switcher"],
    "show_toc_level": 2,
}
html_sidebars = {page: [] for page in ("index", "start", "theory", "gallery", "limitations", "changelog")}
copyright = "the oversmooth authors, Apache-2.0"
copybutton_prompt_text = r"^\$ |>>> "
copybutton_prompt_is_regexp = True

# One file from npm that draws formulas as SVG: no font and no address is asked for.
mathjax_path = mathjax_file.NAME
mathjax3_config = {
    "options": {"enableMenu": False},
    "svg": {"fontCache": "global"},
}


def links_to_repository(_app, docname, source):
    """Links that leave docs/ are to files of the repository, at its address; each must exist."""
    page = DOCS / f"{docname}.md"
    if not page.exists():
        return

    def address(match):
        target = (page.parent / match[1].partition("#")[0]).resolve()
        if target.is_relative_to(DOCS):
            return match[0]
        if not target.exists():
            raise ValueError(f"{docname}.md links to {match[1]}, which does not exist")
        return f"]({REPOSITORY}/blob/main/{target.relative_to(ROOT)})"

    for name in OPTIONAL:
        if not (DOCS / f"{name}.md").exists():
            source[0] = source[0].replace(f"\n{name}\n", "\n")
    source[0] = source[0].replace(made_pages.GALLERY, made_pages.gallery_note(ROOT))
    source[0] = re.sub(r"\]\((\.\./[^)\s]+)\)", address, source[0])


def docstrings_as_rst(_app, _what, _name, _object, _options, lines):
    """Bars and stars outside of code are meant as they stand: |λ| is no substitution."""
    for index, line in enumerate(lines):
        if line.lstrip().startswith((">>>", "...", "..", ":")):
            continue
        pieces = re.split(r"(`+[^`]*`+)", line)
        pieces[::2] = [re.sub(r"([|*])", r"\\\1", piece) for piece in pieces[::2]]
        lines[index] = "".join(pieces)


def any_code(_name, rawtext, text, _lineno, _inliner, _options=None, _content=None):
    """Single backticks in docstrings are code."""
    from docutils import nodes

    return [nodes.literal(rawtext, text)], []


def setup(app):
    from docutils.parsers.rst import roles

    roles.register_local_role("any_code", any_code)
    mathjax_file.fetch(DOCS / "generated" / "static")
    made_pages.write(ROOT, DOCS / "generated")
    app.connect("source-read", links_to_repository)
    app.connect("autodoc-process-docstring", docstrings_as_rst, priority=10)  # before napoleon
    return {"parallel_read_safe": True}
