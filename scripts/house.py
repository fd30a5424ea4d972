"""How the code is kept: imports go down, no circles, small files and packages, the field's own names, plain prose.

    python scripts/house.py

Prints every fault and exits with 1 if there is one.
"""

import ast
import gc
import io
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]

# Every package on its floor: it imports from lower floors only, and never from a neighbour.
TOWER = [
    ("errors",),
    ("checks", "display", "progress"),
    ("config", "text"),
    ("native", "nn"),
    ("model",),
    ("data", "weights", "account"),
    ("convert", "generate"),
    ("tasks", "vectors"),
    ("parallel",),
    ("train",),
    ("runs", "predict"),
    ("look", "prove", "lessons", "bench", "scale"),
    ("serve",),
    ("page",),
    ("cli",),
]
FLOORS = {name: floor for floor, names in enumerate(TOWER) for name in names}
MOST_LINES, MOST_FILES, MOST_LINES_OF_PACKAGE = 400, 30, 4500

# Names that say nothing about what they hold.
EMPTY_NAMES = {"found", "said", "told", "kept", "given", "asked", "wanted", "theirs", "mine", "heard"}

# Names that the package once had, with those that say more.
OLD_NAMES = {
    "announced": "describe",
    "apart": "separate",
    "ApartTemplate": "SandboxedTemplate",
    "Best": "BestSoFar",
    "check_apart": "check_isolation",
    "Decoding": "DecodingRules",
    "Draft": "DraftModel",
    "drawn": "sampled",
    "Examples": "ExampleIndices",
    "ExamplesTally": "RecordStats",
    "find_tokens": "lookup",
    "GrowingText": "Sequence",
    "HeldOut": "EvalSet",
    "lasting": "resume_identity",
    "Lookup": "PromptLookup",
    "Material": "RawDataset",
    "NoneLeft": "NoValidToken",
    "Opening": "PrefillBatch, ResumeReport",
    "ours": "what it is",
    "Prefixes": "PrefixCache",
    "Proposer": "DraftSource",
    "Published": "SelectedWeights",
    "Reading": "DataSpec",
    "says": "message",
    "Served": "ServedModel",
    "shown": "what it is",
    "Spread": "SeedStatistics",
    "Tally": "TextStats",
    "Texts": "RawText",
}
OLD_MODULES = {
    "apart": "isolation, template_process",
    "bound": "max_piece_length",
    "inside": "look",
    "listening": "network",
    "material": "raw",
    "moving": "ema",
    "opening": "prefill",
    "origin": "provenance",
    "outcome": "model_selection",
    "propose": "speculative",
    "reuse": "token_cache",
    "say": "output",
    "scored": "evaluation_data",
    "spelling": "decoder_table",
    "spread": "seed_statistics",
    "suited": "factories",
    "tally": "record_stats",
}

MACHINE_PATH = re.compile(r"(?<![\w.])/(?:opt|work|root|tmp/w)(?![\w-])")
# Phrases that a reader stumbles over, with what to say instead. A space matches any whitespace, so also the end of a line.
PHRASES = {
    r"(?<!\bthere\s)\b(?:is|are|was|were) no (?!(?:longer|more|less|such|matter|better|worse)\b|\w+er than\b)[\w-]+": "is not",
    r"\b(?:is|are|was|were|be) none of\b": "is not one of, is out of range",
    r"\bleaves? none\b": "leaves no ...",
    r"\btold apart\b": "distinguished",
    r"\b(?:kept|lie|lies|lay) apart\b": "separate; how much they differ",
    r"\bstates are kept\b": "the KV cache",
    r"\basked for\b": "requested",
    r"\bthose that were (?:asked|wanted|given)\b": "the requested ones",
    r"\bof which those\b": "a second sentence",
    r"\bthe one of\b": "the noun again, or 's",
    r"\bcompletely or not at all\b": "atomically",
    r"\brecogni[sz]ed by (?:its|their|the) hash(?:es)?\b": "caught by checksum",
    r"\b(?:files?|tokenizers?|weights|texts?)(?:'s|s'|') hash(?:es)?\b": "checksum",
    r"\bhash(?:es)? of (?:a|an|the|each|every|all) (?:files?|weights|tokenizer)\b": "checksum",
    r"\b(?:a|an|the|no|than|with|without|two) blanks?\b(?! (?:lines?|records?|rows?|texts?)\b)": "space, whitespace",
    r"(?:^|(?<=[.:;]\s))(?-i:Beside)\b": "Next to, In addition to",
    r"\bin silence\b|\bwithout a word\b": "silently",
    r"\bgo(?:es)? on to (?:its|their) ends?\b": "finish",
    r"\b(?:have|has) begun\b": "in flight, started",
    r"\bclients? that leaves?\b": "a disconnect",
    r"\bgo(?:es)? on with\b": "continues with, keeps",
    r"\bholds? for all\b": "applies to all",
    r"\b(?:is|are|was|were) said\b(?! to have\b)": "is stated, is set",
    r"\bits user sa(?:id|ys)\b": "its user set",
    r"\b(?:ids?|tokens?)\b[^.:]{0,40} never drawn\b": "never sampled",
    r"\bstands? for what is missing\b": "marks the missing span",
    r"\bno score is of\b|\b(?:it is|they are) not of\b": "what the score does not cover",
    r"\bthan any machine can\b": "too large for any machine",
    r"\breads? records of\b": "needs records with",
    r"\bits log says more\b": "see the server log",
    r"(?-i:\bOf (?:an?|the|several|many) [\w-]+(?: [\w-]+){0,3},)": "begin with the subject",
    r"\bissues? #?\d": "say what it is, or give its address",
    r"\b(?:this|previous|last|earlier|another|next|coding) session\b": "nothing about how the code was written",
    r"\bhelpers?\b": "what it does",
    MACHINE_PATH.pattern: "no path of one machine",
}
PATTERNS = [(re.compile(phrase.replace(" ", r"\s+"), re.IGNORECASE), instead) for phrase, instead in PHRASES.items()]
PAGES = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "docs/**/*.md", "recipes/*.md"]


def sources(*folders: str) -> list[Path]:
    """The Python files in folders under the root."""
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def name_of(path: Path) -> str:
    """The dotted module name of a file under the root."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def nodes(source: str) -> tuple[ast.AST, ...]:
    """Every node of a source's tree."""
    return tuple(ast.walk(ast.parse(source)))


def package_of(module: str) -> str:
    """The dotted name of the package that a module or name is in."""
    return module.rpartition(".")[0]


def imported(parts: Iterable[ast.AST], package: str) -> Iterator[tuple[int, str]]:
    """Yield ``(line, "module.name")`` for every import among nodes; relative ones are resolved against `package`."""
    for node in parts:
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
    for line, name in imported(nodes(source), module if is_package else package_of(module)):
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
        parts = nodes(path.read_text())
        guards = [part for part in parts if isinstance(part, ast.If) and "TYPE_CHECKING" in ast.unparse(part.test)]
        guarded = {id(part) for guard in guards for part in ast.walk(guard)}
        goals = {goal for _, goal in imported((part for part in parts if id(part) not in guarded), package_of(name))}
        known = {module for goal in goals for module in (goal, package_of(goal)) if module in modules}
        result[name] = known - {name}
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
            faults.append(
                f"{package}: {len(files)} files, at most {MOST_FILES}: move what is one idea into a subpackage"
            )
        if sum(files.values()) > MOST_LINES_OF_PACKAGE:
            faults.append(f"{package}: {sum(files.values())} lines, at most {MOST_LINES_OF_PACKAGE}")
    return faults


@cache
def names_bound(source: str) -> tuple[tuple[int, str], ...]:
    """``(line, name)`` for everything that a source gives a name."""
    bound = []
    for node in nodes(source):
        names: list[str] = []
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names = [node.id]
        elif isinstance(node, ast.arg):
            names = [node.arg]
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names = [node.name]
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names = [node.attr]
        elif isinstance(node, ast.alias):
            names = [node.asname] if node.asname else []
        bound += [(getattr(node, "lineno", 0), name) for name in names]
    return tuple(bound)


def name_faults(source: str) -> list[str]:
    """Where a source gives something a name that says nothing about it."""
    return [
        f"{line}: {name}: name what it holds"
        for line, name in names_bound(source)
        if name.strip("_").lower() in EMPTY_NAMES
    ]


def old_name_faults(source: str) -> list[str]:
    """Where a source brings back a name that the package once had."""
    return [
        f"{line}: {name}: say {OLD_NAMES[name.strip('_')]}"
        for line, name in names_bound(source)
        if name.strip("_") in OLD_NAMES
    ]


def module_faults(module: str) -> list[str]:
    """Whether a module of the package has an old name, or one that says nothing about it."""
    name = module.rpartition(".")[2]
    if name in EMPTY_NAMES:
        return [f"{module}: name what it holds"]
    return [f"{module}: say {OLD_MODULES[name]}"] if name in OLD_MODULES else []


def python_prose(source: str) -> Iterator[tuple[int, str]]:
    """Yield ``(line, text)`` for every string and block of comments; what an f-string inserts is ``{}``."""
    inserted = {id(part) for node in nodes(source) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in nodes(source):
        if isinstance(node, ast.JoinedStr):
            yield (
                node.lineno,
                "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values),
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inserted:
            yield node.lineno, node.value
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = {token.start: token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT}
    for line, column in comments:
        if (line - 1, column) not in comments:
            block = [comments[line, column]]
            while (line + len(block), column) in comments:
                block.append(comments[line + len(block), column])
            yield line, "\n".join(block)


def prose_faults(text: str, first: int = 1) -> list[str]:
    """Which phrases of a text could be said plainly; `first` is the line that it starts in."""
    return [
        f"{first + text[: match.start()].count(chr(10))}: '{' '.join(match.group().split())}': say {instead}"
        for pattern, instead in PATTERNS
        for match in pattern.finditer(text)
    ]


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
        yield from module_faults(name_of(path))
        prose = (fault for line, part in python_prose(text) for fault in prose_faults(part, line))
        yield from (f"{name}:{fault}" for fault in [*name_faults(text), *old_name_faults(text), *prose])
    for path in sources("tests", "benchmarks", "recipes", "scripts"):
        yield from (f"{path.relative_to(ROOT)}:{fault}" for fault in name_faults(path.read_text()))
    for page in sorted(page for pattern in PAGES for page in ROOT.glob(pattern)):
        yield from (f"{page.relative_to(ROOT)}:{fault}" for fault in prose_faults(page.read_text()))
    yield from (f"a circle: {' -> '.join([*circle, circle[0]])}" for circle in circles(module_imports(paths)))
    yield from size_faults(sizes)


if __name__ == "__main__":
    gc.disable()  # the trees stay until the end
    lines = list(faults())
    print("\n".join(lines), file=sys.stderr)
    sys.exit(1 if lines else 0)
