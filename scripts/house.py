"""How the code is kept: imports go down, there are no circles, packages and files stay small, names are the field's own.

    python scripts/house.py

Prints every fault and exits with 1 if there is one.
"""

import ast
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]

# Every package on its floor: it imports from lower floors only, and never from a neighbour.
TOWER = [
    ("errors",),
    ("checks", "display", "progress"),
    ("config", "text"),
    ("nn",),
    ("model",),
    ("data", "weights", "account"),
    ("convert", "generate"),
    ("tasks", "vectors"),
    ("train", "parallel"),
    ("runs", "predict"),
    ("look", "prove"),
    ("serve",),
    ("page",),
    ("cli",),
]
FLOORS = {name: floor for floor, names in enumerate(TOWER) for name in names}
MOST_LINES, MOST_FILES, MOST_LINES_OF_PACKAGE = 400, 30, 4500

# Names that say nothing about what they hold.
EMPTY_NAMES = {"found", "said", "told", "kept", "given", "asked", "wanted", "theirs", "mine", "heard"}


def sources(*folders: str) -> list[Path]:
    """The Python files in folders under the root."""
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def name_of(path: Path) -> str:
    """The dotted module name of a file under the root."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(tree: ast.Module, package: str) -> Iterator[tuple[int, str]]:
    """Yield ``(line, "module.name")`` for every import, at any depth; relative ones are resolved against `package`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base += [node.module] if node.module else []
            yield from ((node.lineno, ".".join([*base, alias.name])) for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in {"import_module", "__import__"}:
                yield node.lineno, str(node.args[0].value)


def floor_faults(source: str, module: str, *, is_package: bool = False) -> list[str]:
    """Which imports of heddle module `module` do not go down."""
    home = module.split(".")[1]
    if home not in FLOORS:
        return [f"{module}: '{home}' has no floor"]
    faults = []
    for line, name in imported(ast.parse(source), module if is_package else module.rpartition(".")[0]):
        top, *rest = name.split(".")
        if top != "heddle" or rest[:1] in ([home], ["__version__"]):
            continue
        goal = rest[0] if rest else ""
        if goal not in FLOORS:
            faults.append(f"{module}:{line} imports {name}, which is no package with a floor")
        elif FLOORS[goal] > FLOORS[home]:
            faults.append(f"{module}:{line} imports upwards: {name}")
        elif FLOORS[goal] == FLOORS[home]:
            faults.append(f"{module}:{line} imports sideways: {name}")
    return faults


def circles(imports: Mapping[str, set[str]]) -> list[list[str]]:
    """The circles among modules that import each other, each once, as a path from its first module."""
    done: set[str] = set()
    unique: dict[frozenset[str], list[str]] = {}

    def visit(module: str, path: list[str]) -> None:
        if module in path:
            circle = path[path.index(module) :]
            unique.setdefault(frozenset(circle), circle)
        elif module not in done:
            for other in sorted(imports.get(module, ())):
                visit(other, [*path, module])
            done.add(module)

    for module in sorted(imports):
        visit(module, [])
    return list(unique.values())


def module_imports(paths: Iterable[Path]) -> dict[str, set[str]]:
    """Which of these modules each of them imports, late imports included; imports for type checkers alone do not run."""
    modules = {name_of(path): path for path in paths if path.name != "__init__.py"}
    result = {}
    for name, path in modules.items():
        tree = ast.parse(path.read_text())
        tree.body = [
            node for node in tree.body if not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))
        ]
        goals = {goal for _, goal in imported(tree, name.rpartition(".")[0])}
        result[name] = {known for goal in goals for known in (goal, goal.rpartition(".")[0]) if known in modules} - {
            name
        }
    return result


def size_faults(sizes: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Which files and packages are too large.

    Args:
        sizes: lines of each file of each package.
    """
    faults = [
        f"{package}/{name}: {lines} lines, at most {MOST_LINES}: is it one idea?"
        for package, files in sizes.items()
        for name, lines in files.items()
        if lines > MOST_LINES
    ]
    for package, files in sizes.items():
        if len(files) > MOST_FILES:
            faults.append(f"{package}: {len(files)} files, at most {MOST_FILES}")
        if sum(files.values()) > MOST_LINES_OF_PACKAGE:
            faults.append(f"{package}: {sum(files.values())} lines, at most {MOST_LINES_OF_PACKAGE}")
    return faults


def name_faults(source: str) -> list[str]:
    """Where a source gives something a name that says nothing about it."""
    faults = []
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names = [node.id]
        elif isinstance(node, ast.arg):
            names = [node.arg]
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names = [node.name]
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names = [node.attr]
        elif isinstance(node, ast.alias):
            names = [node.asname or node.name.rpartition(".")[2]]
        line = getattr(node, "lineno", 0)
        faults += [f"{line}: {name}" for name in names if name.strip("_").lower() in EMPTY_NAMES]
    return faults


def faults() -> Iterator[str]:
    """Everything that is wrong."""
    paths = sources("heddle")
    roots = {ROOT / "heddle" / "__init__.py", ROOT / "heddle" / "__main__.py"}
    sizes: dict[str, dict[str, int]] = {}
    for path in paths:
        text, name = path.read_text(), str(path.relative_to(ROOT))
        sizes.setdefault(str(path.parent.relative_to(ROOT)), {})[path.name] = len(text.splitlines())
        if path not in roots:
            yield from floor_faults(text, name_of(path), is_package=path.name == "__init__.py")
        yield from (f"{name}:{fault}: name what it holds" for fault in name_faults(text))
    yield from (f"a circle: {' -> '.join([*circle, circle[0]])}" for circle in circles(module_imports(paths)))
    yield from size_faults(sizes)


if __name__ == "__main__":
    lines = list(faults())
    print("\n".join(lines), file=sys.stderr)
    sys.exit(1 if lines else 0)
