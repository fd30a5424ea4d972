"""What Sphinx calls while it builds: names of docstrings as links, and which names need none."""

import builtins
import importlib
import re
from functools import cache
from pathlib import Path
from typing import Any

import torch
from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.docutils import SphinxRole

from scripts.reference.api import homes
from scripts.reference.text import NAME, escaped

PARAMETERS = re.compile(r"<dl>\s*((?:<dd>(?:(?!</?d[dl]>).)*</dd>\s*)+)</dl>", re.DOTALL)
ROW_CODES = re.compile(r"(<[^>]*>)|\b((?:L\d|D)-\d{2,3})\b")
# Other packages whose names signatures show without their module.
FOREIGN = ("torch", "torch.nn", "numpy", "types", "rich.console")


class Name(SphinxRole):
    """Code in backticks: a link if it is a public name, else code."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        """A reference that may lead nowhere, or literal text if it cannot be a name."""
        code = nodes.literal(self.rawtext, self.text, classes=["code"])
        if not NAME.fullmatch(self.text):
            return [code], []
        scope = {key: self.env.ref_context.get(key) for key in ("py:module", "py:class")}
        about = {
            "refdomain": "py",
            "reftype": "obj",
            "reftarget": self.text.removesuffix("()"),
            "refdoc": self.env.docname,
        }
        return [pending_xref(self.rawtext, code, refexplicit=False, refwarn=False, **about, **scope)], []


def unmarked(app: Sphinx, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """Docstrings have no markup but backticks and lists. The one that torch gives every `forward` says nothing about it."""
    if name.endswith(".forward") and lines and lines[0] in (torch.nn.Module.forward.__doc__ or ""):
        lines.clear()
    lines[:] = escaped("\n".join(lines)).split("\n")
    app.env.temp_data[name] = list(lines)


def untyped(app: Sphinx, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """After napoleon, which reads the words before a colon in a property's docstring as its type."""
    if what in ("attribute", "property"):
        lines[:] = app.env.temp_data[name]


def resolve(app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.Element) -> nodes.Element | None:
    """A link to a name's public home; other names that exist are shown as text, and those that do not exist are warned of."""
    target = node["reftarget"]
    if node.get("refdomain") != "py" or (node["reftype"] == "class" and hasattr(builtins, target)):
        return None
    if home := homes().get(target):
        return env.get_domain("py").resolve_xref(env, node["refdoc"], app.builder, "obj", home, node, content)
    known = node["reftype"] == "obj" or target[:1] in "'\"" or any(exists(f"{home}.{target}") for home in FOREIGN)
    return content if known or exists(target) else None


def places(app: Sphinx, env: BuildEnvironment, names: list[str]) -> None:
    """Lessons lie in the package, and the changelog beside it: links lead to where the files really are."""
    beside = {app.srcdir.parent / "CHANGELOG.md": "changelog", app.srcdir.parent / "README.md": "index"}
    lessons = {
        Path(app.srcdir, env.doc2path(name)).resolve(): name for name in env.found_docs if name.startswith("lessons/")
    }
    app.project._path_to_docname |= beside | lessons


def by_words(app: Sphinx, name: str, source: list[str]) -> None:
    """Links of lessons go up from docs/lessons, not from the folder that this is a link to."""
    if name.startswith("lessons/"):
        source[0] = source[0].replace("](../", "](/")


def readable(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """What a screen reader needs: captions are headings with a level, and the lines of a signature are no list."""
    context["body"] = PARAMETERS.sub(
        lambda lines: f'<div class="parameters">{lines[1].replace("dd>", "div>")}</div>', context.get("body", "")
    )
    # A row's code, such as L0-32, takes one line.
    context["body"] = ROW_CODES.sub(lambda part: part[1] or f'<span class="whole">{part[2]}</span>', context["body"])
    # A folded cell is named by what it shows: "Solution".
    context["body"] = context["body"].replace(' aria-label="Toggle hidden content"', "")
    if "furo_navigation_tree" in context:
        tree = str(context["furo_navigation_tree"])
        context["furo_navigation_tree"] = tree.replace('role="heading"', 'role="heading" aria-level="2"')


@cache
def exists(path: str) -> bool:
    """Whether a dotted path names something that can be imported."""
    module, _, name = path.rpartition(".")
    while module:
        try:
            value = importlib.import_module(module)
        except ImportError:
            module, _, more = module.rpartition(".")
            name = f"{more}.{name}"
            continue
        for part in name.split("."):
            if not hasattr(value, part):
                return False
            value = getattr(value, part)
        return True
    return False
