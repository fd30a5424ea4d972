"""The site: `make docs` builds it to docs/_build/html, without network. See docs/architecture.md for why these packages."""

import os
import sys
from pathlib import Path

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS.parent))  # the pages are of this checkout, not of an installed heddle
os.environ["PYTHONPATH"] = str(DOCS.parent)  # and so are the lessons, which run in processes of their own
os.environ.setdefault("OMP_NUM_THREADS", "1")

import heddle  # noqa: E402
from scripts.reference import front, hooks, notebooks  # noqa: E402
from scripts.reference.pages import write  # noqa: E402

project, author = "heddle", "the authors of heddle"
copyright = "the authors of heddle, Apache-2.0"
version = release = heddle.__version__
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton", "sphinx_design"]
exclude_patterns = ["_build", "images/*.md"]

# A name that leads nowhere is an error: `make docs` builds with -W. hooks.resolve says which names need no page.
nitpicky = True
# It is raised within `read_examples` alone; callers see it as the HeddleError that it is.
nitpick_ignore = [("py:exc", "MalformedError")]

# Docstrings: Google's sections, signatures with shapes, members in the order of the source.
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
maximum_signature_line_length = 88
toc_object_entries_show_parents = "hide"
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_attr_annotations = False  # the signature has them
default_role = "name"
python_display_short_literal_types = True

# Lessons and the front page are MyST notebooks: executed once, then read from a cache until their code changes.
myst_enable_extensions = ["colon_fence", "deflist", "substitution", "attrs_inline"]
myst_heading_anchors = 4
nb_execution_mode = "cache"
nb_execution_cache_path = str(DOCS / "_build" / "cells")
nb_execution_raise_on_error = True
nb_execution_timeout = 120
nb_execution_excludepatterns = ["reference/*"]
nb_merge_streams = True
nb_code_prompt_show, nb_code_prompt_hide = "Solution", "Hide the solution"  # what lessons hide is nothing else

smartquotes = False  # --name stays as one types it
html_theme = "furo"
html_title = "heddle"
html_static_path = ["_static"]
html_css_files, html_js_files = ["site.css"], ["site.js"]
html_copy_source = html_show_sourcelink = False
html_theme_options = {
    # The accent of heddle/page/static/style.css.
    "light_css_variables": {
        "color-brand-primary": "#1a5fb4",
        "color-brand-content": "#1a5fb4",
        "color-highlight-on-target": "#e4ecf6",
    },
    "dark_css_variables": {
        "color-brand-primary": "#8ab8f5",
        "color-brand-content": "#8ab8f5",
        "color-highlight-on-target": "#28323e",
    },
}
pygments_style, pygments_dark_style = "github-light-high-contrast", "github-dark-high-contrast"  # furo brings them
copybutton_prompt_text = "$ "
copybutton_exclude = ".linenos, .gp, .go"


def prepare(app, config):
    """Execute the notebooks with all cores, and write what is counted and generated."""
    cells = Path(nb_execution_cache_path)
    is_off = config.nb_execution_mode == "off"  # -D nb_execution_mode=off, to see only what the pages look like
    seconds = {} if is_off else notebooks.execute(DOCS, cells, nb_execution_timeout)
    config.myst_substitutions = front.numbers(DOCS, seconds)
    write(DOCS / "reference")


def setup(app):
    """Connect what Sphinx calls while it builds."""
    app.connect("config-inited", prepare, priority=100)
    app.add_role(default_role, hooks.Name())
    app.connect("autodoc-process-docstring", hooks.unmarked, priority=400)  # before napoleon
    app.connect("autodoc-process-docstring", hooks.untyped, priority=600)
    app.connect("missing-reference", hooks.resolve)
    app.connect("source-read", hooks.by_words)
    app.connect("env-before-read-docs", hooks.places)
    app.connect("html-page-context", hooks.readable, priority=900)  # after furo
    return {"parallel_read_safe": True}
