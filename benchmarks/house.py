"""The shape of the source, counted from its syntax trees: `python -m benchmarks house [-o json]`."""

from __future__ import annotations

import argparse
import ast
import io
import json
import tokenize
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = ("scavenger", "cli")
PLACES = frozenset({"aws", "gcp", "kubernetes", "kuberay", "ray", "local"})
"""Names of providers and platforms."""
VALUES = ("dataclass", "Struct", "BaseModel", "NamedTuple", "TypedDict")
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Row:
    """A figure of the source with its aim; `where` names the first that count."""

    what: str
    now: float
    aim: str
    where: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Module:
    """A module of the product."""

    path: str
    text: str
    nodes: tuple[ast.AST, ...]

    @classmethod
    def of(cls, path: str, text: str) -> Self:
        """A module with all nodes of its syntax tree."""
        return cls(path, text, tuple(ast.walk(ast.parse(text))))

    @property
    def lines(self) -> int:
        """Number of its lines."""
        return self.text.count("\n")


def modules(root: Path = ROOT) -> tuple[Module, ...]:
    """The modules of the product, in the order of their paths."""
    paths = [path for part in PRODUCT for path in sorted((root / part).rglob("*.py"))]
    return tuple(Module.of(str(path.relative_to(root)), path.read_text()) for path in paths)


def rows(found: Sequence[Module]) -> tuple[Row, ...]:
    """All figures of the product."""
    lines = sum(one.lines for one in found)
    functions = sorted(_functions(found), key=lambda one: -one[1])
    lengths = [length for _, length in functions] or [0]
    places = list(_comparisons(found))
    again = [name for name, count in Counter(one.name for _, one in _classes(found)).items() if count > 1]
    behaving = [
        (f"{path}:{one.name}", _attributes(one)) for path, one in _classes(found) if not _is_value(one)
    ]
    formats = _formats(found)
    values = [
        (f"{path}:{one.name}", len(_fields(one)))
        for path, one in _classes(found)
        if _is_value(one) and one.name not in formats
    ]
    comments = sum(_comments(one) for one in found)
    declared = sum(_declaration(one) for one in found)
    return (
        Row("lines of the product", lines, "<= 116000"),
        Row(
            "comparisons with the name of a provider or platform outside cloud/",
            len(places),
            "<= 5",
            tuple(places),
        ),
        Row("class names with two or more meanings", len(again), "<= 40", tuple(sorted(again))),
        _many("classes with 20 attributes or more", behaving, 20, "0"),
        _many("value classes with 12 fields or more, formats left out", values, 12, "<= 10"),
        _many("functions over 80 lines", functions, 81, "0"),
        Row("longest function, lines", lengths[0], "80", (functions[0][0],) if functions else ()),
        Row("lines of a function, median", lengths[len(lengths) // 2], "-"),
        Row("lines of a function, 95 %", lengths[len(lengths) // 20], "-"),
        _named("places that make a reconciler", _calls(found, lambda name: name == "Reconciler"), "1"),
        _named("meters of money: classes that note dollars in the ledger", _meters(found), "1"),
        _named(
            "engines",
            _made(found, lambda one: one.name.endswith("Engine") and "Protocol" not in _bases(one)),
            "3",
        ),
        _named("modules over 500 lines", (one.path for one in found if one.lines > 500), "0"),
        Row("lines of `__all__`", declared, "of public packages"),
        Row("lines with a `#` comment, percent", round(100 * comments / max(lines, 1), 2), "where asked"),
    )


def _many(what: str, sized: Sequence[tuple[str, int]], least: int, aim: str) -> Row:
    large = sorted((-size, name) for name, size in sized if size >= least)
    return Row(what, len(large), aim, tuple(f"{name} ({-size})" for size, name in large))


def _named(what: str, names: Iterator[str], aim: str) -> Row:
    found = tuple(names)
    return Row(what, len(found), aim, found)


def _functions(found: Sequence[Module]) -> Iterator[tuple[str, int]]:
    for module in found:
        for one in module.nodes:
            if isinstance(one, Function):
                yield f"{module.path}:{one.name}", (one.end_lineno or one.lineno) - one.lineno + 1


def _classes(found: Sequence[Module]) -> Iterator[tuple[str, ast.ClassDef]]:
    for module in found:
        for one in module.nodes:
            if isinstance(one, ast.ClassDef) and not one.name.startswith("_"):
                yield module.path, one


def _formats(found: Sequence[Module]) -> set[str]:
    """Names of the classes whose fields a JSON document decides.

    These are the API's answers with what they inherit and consist of, and the messages between processes (`Struct`).
    """
    known: dict[str, list[ast.ClassDef]] = {}
    for _, one in _classes(found):
        known.setdefault(one.name, []).append(one)
    formats = {name for name, classes in known.items() if any("Struct" in _bases(one) for one in classes)}
    left = [one.name for path, one in _classes(found) if path.startswith("scavenger/api/")]
    answers = set[str]()
    while left:
        if (name := left.pop()) in known and name not in answers:
            answers.add(name)
            parts = [part for one in known[name] for part in (*one.bases, *_annotations(one))]
            left += [each.id for part in parts for each in ast.walk(part) if isinstance(each, ast.Name)]
    return formats | answers


def _annotations(one: ast.ClassDef) -> list[ast.expr]:
    return [each.annotation for each in one.body if isinstance(each, ast.AnnAssign)]


def _made(found: Sequence[Module], wanted: Callable[[ast.ClassDef], bool]) -> Iterator[str]:
    return (f"{path}:{one.name}" for path, one in _classes(found) if wanted(one))


def _meters(found: Sequence[Module]) -> Iterator[str]:
    return (f"{path}:{one.name}" for path, one in _classes(found) if any(map(_notes_money, ast.walk(one))))


def _notes_money(node: ast.AST) -> bool:
    """Whether it calls `note` of a store, by which alone dollars get into the ledger."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "note"):
        return False
    return ast.unparse(node.func.value).rpartition(".")[2] in ("store", "_store")


def _calls(found: Sequence[Module], wanted: Callable[[str], bool]) -> Iterator[str]:
    for module in found:
        for one in module.nodes:
            if isinstance(one, ast.Call) and isinstance(one.func, ast.Name) and wanted(one.func.id):
                yield f"{module.path}:{one.lineno}"


def _comparisons(found: Sequence[Module]) -> Iterator[str]:
    for module in found:
        if module.path.startswith("scavenger/cloud/"):
            continue
        for one in module.nodes:
            compared: Sequence[ast.expr | ast.pattern] = ()
            if isinstance(one, ast.Compare):
                compared = (one.left, *one.comparators)
            elif isinstance(one, ast.match_case):
                compared = (one.pattern,)
            if any(_names_a_place(part) for part in compared):
                yield f"{module.path}:{compared[0].lineno}"


def _names_a_place(node: ast.AST) -> bool:
    """Whether it is the name of a place, or a collection or pattern of such names; not an expression around one."""
    if isinstance(node, ast.Constant):
        return node.value in PLACES if isinstance(node.value, str) else False
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return any(map(_names_a_place, node.elts))
    if isinstance(node, ast.MatchOr):
        return any(map(_names_a_place, node.patterns))
    return isinstance(node, ast.MatchValue) and _names_a_place(node.value)


def _bases(one: ast.ClassDef) -> list[str]:
    return [ast.unparse(base).rpartition(".")[2] for base in one.bases]


def _is_value(one: ast.ClassDef) -> bool:
    decorators = [ast.unparse(each) for each in one.decorator_list]
    return any(word in told for told in (*decorators, *_bases(one)) for word in VALUES)


def _fields(one: ast.ClassDef) -> set[str]:
    annotated = [each.target for each in one.body if isinstance(each, ast.AnnAssign)]
    return {target.id for target in annotated if isinstance(target, ast.Name)}


def _attributes(one: ast.ClassDef) -> int:
    """Attributes that its methods set on themselves."""
    found = {
        each.attr
        for each in ast.walk(one)
        if isinstance(each, ast.Attribute)
        and isinstance(each.ctx, ast.Store)
        and isinstance(each.value, ast.Name)
        and each.value.id == "self"
    }
    return len(found)


def _declaration(module: Module) -> int:
    return sum(
        (one.end_lineno or one.lineno) - one.lineno + 1
        for one in module.nodes
        if isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) == "__all__"
    )


def _comments(module: Module) -> int:
    tokens = tokenize.generate_tokens(io.StringIO(module.text).readline)
    return sum(one.type == tokenize.COMMENT for one in tokens)


def main(arguments: Sequence[str]) -> None:
    """Print the table, or with `-o json` a document that names the places, too."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks house", description=__doc__)
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    parser.add_argument("--where", action="store_true", help="name the places below each figure")
    options = parser.parse_args(arguments)
    found = rows(modules())
    if options.output == "json":
        print(json.dumps({"schema_version": 1, "figures": [asdict(one) for one in found]}, indent=1))
        return
    width = max(len(one.what) for one in found)
    print(
        f"| {'what':<{width}} |     now | aim                |\n|-{'-' * width}-|--------:|--------------------|"
    )
    for one in found:
        print(f"| {one.what:<{width}} | {one.now:>7g} | {one.aim:<18} |")
        if options.where:
            print(*(f"    {place}" for place in one.where), sep="\n")
