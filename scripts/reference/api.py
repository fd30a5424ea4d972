"""A page of the reference for each public package: every name of its `__all__`, by autodoc; configs as tables."""

import importlib
import inspect
from collections.abc import Collection
from functools import cached_property
from types import FunctionType, ModuleType
from typing import Any, NamedTuple, get_args

import heddle
from heddle.config.base import Config
from scripts.reference.fields import field_table
from scripts.reference.text import code, escaped, first_sentence, indent, prose, table, title, with_code

TORCH = {"extra_repr", "train"}  # what torch asks of a module


class Public(NamedTuple):
    """A public name.

    Attributes:
        package: the package whose `__all__` has it.
        name: as imported from there.
        value: what it is.
    """

    package: str
    name: str
    value: Any

    @property
    def path(self) -> str:
        """The name with its package."""
        return f"{self.package}.{self.name}"

    @property
    def line(self) -> tuple[str, str]:
        """A link to it, and its summary."""
        return f":py:obj:`{self.name} <{self.path}>`", prose(self.summary)

    @property
    def summary(self) -> str:
        """The first sentence of its docstring, on one line; of other values than classes and functions, their type."""
        if is_documented(self.value):
            return summary_of(self.value)
        if isinstance(self.value, str | int | float):
            return f"`{self.value!r}`."
        if not isinstance(self.value, Collection):
            return f"{' or '.join(f'`{each.__name__}`' for each in get_args(self.value))}."
        keys = ", ".join(f"`{key}`" for key in self.value)
        return (
            f"A {type(self.value).__name__}: {keys}."
            if len(keys) < 400
            else f"A {type(self.value).__name__} of {len(self.value)}."
        )


def packages() -> list[str]:
    """The public packages, in alphabetical order."""
    return [f"heddle.{name}" for name in heddle._PACKAGES if hasattr(_module(f"heddle.{name}"), "__path__")]


def public(package: str) -> list[Public]:
    """The public names of a package, in the order of its `__all__`."""
    module = _module(package)
    return [Public(package, name, getattr(module, name)) for name in module.__all__]


def homes() -> dict[str, str]:
    """Where each public class and function is documented, by the path of its definition."""
    names = [each for package in packages() for each in public(package)]
    return {
        f"{each.value.__module__}.{each.value.__qualname__}": each.path for each in names if is_documented(each.value)
    } | {"heddle.errors.HeddleError": "heddle.HeddleError"}


def is_documented(value: Any) -> bool:
    """Whether a value has a docstring of its own: classes and functions do, constants do not."""
    return inspect.isclass(value) or inspect.isroutine(value)


def summary_of(value: Any) -> str:
    """The first sentence of a docstring, on one line."""
    return first_sentence(inspect.getdoc(value) or "")


def package_page(package: str) -> str:
    """The page of a package."""
    module, names = _module(package), public(package)
    listed = [each.line for each in names]
    parts = [
        title(package),
        f".. py:module:: {package}\n",
        with_code(inspect.cleandoc(module.__doc__ or "")) + "\n",
        table(("name", "what it is"), listed, widths="30 70", name="names"),
    ]
    kinds = (("Classes", inspect.isclass), ("Functions", inspect.isroutine), ("Constants", _is_constant))
    for heading, belongs in kinds:
        if members := [each for each in names if belongs(each.value)]:
            parts += [title(heading, "-"), *(entry(each) for each in members)]
    return "\n".join(parts)


def entry(name: Public) -> str:
    """One name: a directive of autodoc."""
    if not is_documented(name.value):
        return f".. py:data:: {name.path}\n\n   {prose(name.summary)}\n"
    if not inspect.isclass(name.value):
        return f".. autofunction:: {name.path}\n"
    methods = ", ".join(own_methods(name.value))
    members = f"   :members: {methods}\n   :undoc-members:\n" if methods else ""
    if issubclass(name.value, Config):
        return f".. autoclass:: {name.path}(**fields)\n{members}\n{indent(field_table(name.value))}\n"
    return f".. autoclass:: {name.path}\n{members}"


def own_methods(value: type) -> list[str]:
    """The public methods and properties that a class defines itself. Its fields are in its docstring or its table."""
    kinds = (FunctionType, classmethod, staticmethod, property, cached_property)
    return [
        name
        for name, member in vars(value).items()
        if isinstance(member, kinds) and not name.startswith("_") and name not in TORCH
    ]


def top_page() -> str:
    """The names of `heddle` itself, each with a link to its package, and the list of packages."""
    module = _module("heddle")
    elsewhere = homes()
    listed = []
    for each in public("heddle"):
        path = elsewhere[f"{each.value.__module__}.{each.value.__qualname__}"]
        listed.append((f":py:obj:`heddle.{each.name} <{path}>`", prose(each.summary)))
    pages = [(f":py:mod:`{each}`", prose(summary_of(_module(each)))) for each in packages()]
    stems = "\n".join(f"   {each}" for each in packages())
    return "\n".join(
        [
            title("Python API"),
            escaped(module.__doc__ or "") + "\n",
            f"{code('import heddle')} has what most programs need. It is light: torch is loaded on first use.\n",
            table(("name", "what it does"), listed, widths="35 65", name="names"),
            ".. autoexception:: heddle.HeddleError\n",
            title("Packages", "-"),
            table(("package", "what it is about"), pages, widths="30 70", name="names"),
            f".. toctree::\n   :hidden:\n\n{stems}\n",
        ]
    )


def pages() -> dict[str, str]:
    """Every page of the API, by its name."""
    return {"api/index.rst": top_page()} | {f"api/{package}.rst": package_page(package) for package in packages()}


def _module(name: str) -> ModuleType:
    return importlib.import_module(name)


def _is_constant(value: Any) -> bool:
    return not is_documented(value)
