"""Which files of heddle a test comes to: by its names, through helpers, tables and fixtures. Files are read, not run."""

import ast
from functools import cache
from pathlib import Path

from tests.lectures.rows import ROOT

Defined = ast.FunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign


def file_of(module: str) -> Path | None:
    """The file of `heddle.nn.mask` or, of a package, its `__init__.py`."""
    path = ROOT.joinpath(*module.split("."))
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


def names_of(node: Defined) -> list[str]:
    """What a statement defines."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return [target.id for target in targets if isinstance(target, ast.Name)]


@cache
def read(path: Path) -> tuple[dict[str, ast.AST], dict[str, tuple[str, str]]]:
    """What a file defines, methods included, and what it imports from here: name -> (module, name there)."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    methods = [inner for node in tree.body if isinstance(node, ast.ClassDef) for inner in node.body]
    statements = [node for node in (*methods, *tree.body) if isinstance(node, Defined)]
    defined: dict[str, ast.AST] = {name: node for node in statements for name in names_of(node)}
    home = ".".join(path.relative_to(ROOT).with_suffix("").parts[:-1])
    imported: dict[str, tuple[str, str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            module = f"{home}.{node.module}" if node.level else str(node.module)
            imported |= {each.asname or each.name: (module, each.name) for each in node.names}
        elif isinstance(node, ast.Import):
            imported |= {each.asname or each.name: (each.name, "") for each in node.names}
    return defined, {name: at for name, at in imported.items() if at[0].split(".")[0] in ("heddle", "tests")}


def found_in(module: str, name: str) -> tuple[Path, str] | None:
    """The file that defines a name, also where a package only hands it on; the name is empty for a whole module."""
    whole = file_of(f"{module}.{name}" if name else module)
    if whole is not None:
        return whole, ""
    path = file_of(module)
    if path is None:
        return None
    defined, imported = read(path)
    return found_in(*imported[name]) if name in imported and name not in defined else (path, name)


def used(path: Path, name: str) -> set[tuple[Path, str]]:
    """What the definition of a name in a file uses, each where it is defined."""
    defined, imported = read(path)
    if name not in defined:
        return set()
    result: set[tuple[Path, str] | None] = set()
    for node in ast.walk(defined[name]):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in imported:
            module = found_in(*imported[node.value.id])
            if module is not None and module[1] == "":
                inside = ".".join(module[0].relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
                result.add(found_in(inside, node.attr))
        elif isinstance(node, ast.Name) and node.id in imported:
            result.add(found_in(*imported[node.id]))
        elif isinstance(node, ast.Name) and node.id in defined:
            result.add((path, node.id))
        elif isinstance(node, ast.arg):  # a fixture, of this file or of its folder
            places = (path, path.parent / "conftest.py")
            result |= {(place, node.arg) for place in places if place.is_file() and node.arg in read(place)[0]}
    return {each for each in result if each is not None}


@cache
def reached(path: Path, name: str) -> frozenset[Path]:
    """The files of heddle whose names a test uses."""
    waiting, seen, files = [(path, name)], {(path, name)}, set()
    while waiting:
        for file, inside in used(*waiting.pop()):
            if ROOT / "heddle" in file.parents:
                files.add(file)
            elif (file, inside) not in seen:
                seen.add((file, inside))
                waiting.append((file, inside))
    return frozenset(file for file in files if file.name not in ("__init__.py", "errors.py"))
