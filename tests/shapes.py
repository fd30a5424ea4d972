"""Checks of every jaxtyping signature as the code runs, by beartype."""

import typing
from collections.abc import Callable, Sequence
from functools import partial, wraps
from importlib.machinery import SourceFileLoader
from importlib.util import cache_from_source
from inspect import isclass, isfunction
from types import CodeType
from typing import Any
from unittest.mock import patch

import jaxtyping
from jaxtyping import _import_hook as hook

BYTECODE = partial(
    cache_from_source, optimization="checked"
)  # its own files: checked code is not the code that users run


def check_shapes(packages: Sequence[str]) -> None:
    """From now on, functions of these packages check their arguments and results, once each.

    jaxtyping's own decorator looks at the arguments twice, and keeps a record of sizes for every call. Here beartype looks at each
    value once, in the call itself, and only functions with shapes in their signatures keep a record.
    """
    whole = jaxtyping.jaxtyped

    def jaxtyped(function: Any = None, *, typechecker: Callable[[Any], Any]) -> Any:
        if function is None:
            return lambda wrapped: jaxtyped(wrapped, typechecker=typechecker)
        if not isfunction(function):  # a class, a property
            return whole(function, typechecker=typechecker)
        checked = typechecker(function)
        checked = whole(checked, typechecker=None) if has_shapes(function) else checked

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            return (function if jaxtyping.config.jaxtyping_disable else checked)(*args, **kwargs)

        return call

    def get_code(self: SourceFileLoader, name: str) -> CodeType:
        with patch("importlib._bootstrap_external.cache_from_source", BYTECODE):
            return SourceFileLoader.get_code(self, name)

    # jaxtyping's loader names bytecode files otherwise while a module runs, and so those of all that it imports, too: packages that
    # are not to be checked would be, if another run had checked them.
    hook._JaxtypingLoader.get_code = get_code  # type: ignore[assignment]
    hook._JaxtypingLoader.exec_module = SourceFileLoader.exec_module
    jaxtyping.jaxtyped = jaxtyped  # type: ignore[assignment]  # by this name the hook decorates functions
    jaxtyping.install_import_hook(list(packages), "beartype.beartype")


def has_shapes(function: Callable[..., Any]) -> bool:
    """Whether a signature has shapes, or may have: a class that it names may still be to come."""
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except Exception:
        return True
    return any(map(_shaped, hints.values()))


def _shaped(hint: Any) -> bool:
    if isclass(hint) and issubclass(hint, jaxtyping.AbstractArray):
        return True
    if isinstance(hint, str | typing.ForwardRef | typing.TypeVar):
        return True
    return any(map(_shaped, hint if isinstance(hint, list) else typing.get_args(hint)))
