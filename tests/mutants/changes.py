"""The mutable places of the packages: each a change of one node of the syntax tree, in the text of its file."""

from __future__ import annotations

import ast
import textwrap
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.Gt: ast.GtE,
    ast.Eq: ast.NotEq,
    ast.In: ast.NotIn,
    ast.Is: ast.IsNot,
    ast.And: ast.Or,
    ast.Add: ast.Sub,
    ast.Mult: ast.FloorDiv,
}
SWAPPED |= {other: one for one, other in SWAPPED.items()}
CALLS = {"min": "max", "max": "min", "any": "all", "all": "any"}
NOT_RUN = frozenset({"annotation", "returns", "decorator_list"})
Function = ast.FunctionDef | ast.AsyncFunctionDef
Key = tuple[str, int, int, str]


def changes(node: ast.AST) -> Iterator[tuple[str, ast.AST, str]]:
    """Yield what can be changed at a node: operator, the node to replace, and the new text."""
    match node:
        case ast.Compare(left, operators, others):
            for place, operator in enumerate(operators):
                swapped = [*operators[:place], SWAPPED[type(operator)](), *operators[place + 1 :]]
                yield "comparison", node, f"({ast.unparse(ast.Compare(left, swapped, others))})"
        case ast.BoolOp(operator, values):
            yield "and/or", node, f"({ast.unparse(ast.BoolOp(SWAPPED[type(operator)](), values))})"
        case ast.UnaryOp(ast.Not(), operand):
            yield "not", node, f"({ast.unparse(operand)})"
        case ast.BinOp(left, operator, right) if type(operator) in SWAPPED and not (is_text(left) or is_text(right)):
            yield "arithmetic", node, f"({ast.unparse(ast.BinOp(left, SWAPPED[type(operator)](), right))})"
        case ast.Constant(bool() as value):
            yield "boolean", node, str(not value)
        case ast.Constant(int() | float() as value) if value + 1 != value:
            yield "number", node, repr(value + 1)
        case ast.Expr(ast.Call() | ast.Await(ast.Call())) | ast.AugAssign() | ast.Raise() | ast.Delete():
            yield "statement", node, "pass"
        case ast.Return(value) if value is not None and ast.unparse(value) != "None":
            yield "return", node, "return None"
        case ast.Break():
            yield "loop", node, "continue"
        case ast.Continue():
            yield "loop", node, "break"
        case ast.Call(func=ast.Name(name) as function) if name in CALLS:
            yield "call", function, CALLS[name]
    for condition in conditions(node):
        yield from (("condition", condition, text) for text in ("True", "False") if ast.unparse(condition) != text)


def conditions(node: ast.AST) -> Sequence[ast.expr]:
    """List the conditions of a node."""
    match node:
        case ast.If(test) | ast.While(test) | ast.IfExp(test) | ast.match_case(guard=ast.expr() as test):
            return [test]
        case ast.comprehension(ifs=tests):
            return tests
    return []


def is_text(node: ast.expr) -> bool:
    """Say whether an operand is a text, which no other operator takes."""
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes))


def is_left_alone(node: ast.AST) -> bool:
    """Say whether nothing within a node is changed: texts, log lines, and what only a type checker reads."""
    match node:
        case ast.JoinedStr() | ast.Assign(targets=[ast.Name("__all__")]) | ast.Subscript(value=ast.Name("Literal")):
            return True
        case ast.If(test=ast.Name("TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING")):
            return True
        case ast.Call(func=ast.Name("assert_never")):
            return True
        case ast.Call(func=ast.Attribute(value=ast.Name("log" | "logger" | "logging"))):
            return True
        case ast.Expr(value):
            return is_left_alone(value)
    return False


@dataclass(frozen=True)
class Mutant:
    """One change of one file."""

    file: str
    line: int
    column: int
    operator: str
    before: str
    after: str
    span: tuple[int, int]
    replacement: bytes
    lines: tuple[int, int]  # marks the node's lines, and those of its statement
    names: frozenset[str] | None  # what the statement binds, if it runs at import

    @property
    def key(self) -> Key:
        """Tell the mutant from all others, in every run over the same sources."""
        return self.file, self.line, self.column, self.after

    def apply(self, source: bytes) -> bytes:
        """Change the file's text."""
        return source[: self.span[0]] + self.replacement + source[self.span[1] :]


class Program:
    """The packages' sources, their mutants, and where their names are used."""

    def __init__(self, root: Path, packages: Sequence[str]) -> None:
        self.mutants: dict[Key, Mutant] = {}
        self.functions: dict[str, int] = defaultdict(int)
        self._uses: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        self._bound: dict[tuple[str, int], frozenset[str]] = {}
        paths = [path for package in packages for path in (root / package).rglob("*.py")]
        self.sources = {path.relative_to(root).as_posix(): path.read_bytes() for path in sorted(paths)}
        for file, source in self.sources.items():
            tree = ast.parse(source)
            self._starts = [0, 0]
            for line in source.splitlines(keepends=True):
                self._starts.append(self._starts[-1] + len(line))
            self._walk(file, tree, 0, frozenset())

    def wanted(self, mutant: Mutant) -> Iterator[dict[str, int]]:
        """Yield the lines whose tests may notice the mutant; the next ones count if no test runs these.

        What runs at import is noticed where the names that it binds are used, or the names bound there.
        """
        if mutant.names is None:
            yield from ({mutant.file: mask} for mask in mutant.lines)
            return
        waiting, names, users = set(mutant.names), set(), defaultdict[str, int](int)
        while waiting:
            names.add(name := waiting.pop())
            for file, mask in self._uses[name].items():
                users[file] |= mask
                waiting |= {other for line in bits(mask) for other in self._bound.get((file, line), ())} - names
        yield users
        yield {mutant.file: self.functions[mutant.file]}

    def _walk(self, file: str, node: ast.AST, statement: int, names: frozenset[str] | None) -> None:
        """Note what is in a node; ``names`` are those of its class and of its statement, None within functions."""
        if isinstance(node, ast.stmt):
            first = min([part.lineno for part in getattr(node, "body", [])], default=node.end_lineno + 1)
            statement = mark(node.lineno, max(first - 1, node.lineno))
            if names is not None:
                names |= binds(node)
                self._bound |= {(file, line): names for line in bits(statement)}
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
            self._uses[node.id if isinstance(node, ast.Name) else node.attr][file] |= 1 << node.end_lineno
        if isinstance(node, Function):
            self.functions[file] |= mark(node.body[0].lineno, node.end_lineno)
        for change in changes(node):
            self._add(file, change, statement, names)
        for name, value in ast.iter_fields(node):
            for part in value if isinstance(value, list) else [value]:
                if isinstance(part, ast.AST) and name not in NOT_RUN and not is_left_alone(part):
                    within = None if isinstance(node, Function) and name == "body" else names
                    self._walk(file, part, statement, within)

    def _add(self, file: str, change: tuple[str, ast.AST, str], statement: int, names: frozenset[str] | None) -> None:
        """Note a mutant, unless another operator has the same."""
        operator, node, text = change
        source, starts = self.sources[file], self._starts
        start, end = starts[node.lineno] + node.col_offset, starts[node.end_lineno] + node.end_col_offset
        first, last = starts[node.lineno], starts[node.end_lineno + 1]
        changed = source[first:start] + text.encode() + source[end:last]
        before, after = (textwrap.dedent(lines.decode()).rstrip() for lines in (source[first:last], changed))
        where, reach = (file, node.lineno, node.col_offset), (mark(node.lineno, node.end_lineno), statement)
        mutant = Mutant(*where, operator, before, after, (start, end), text.encode(), reach, names)
        self.mutants.setdefault(mutant.key, mutant)


def binds(node: ast.stmt) -> frozenset[str]:
    """List the names that a statement outside functions binds itself."""
    match node:
        case ast.FunctionDef(name) | ast.AsyncFunctionDef(name) | ast.ClassDef(name):
            return frozenset({name})
        case ast.Assign() | ast.AnnAssign() | ast.AugAssign():
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            return frozenset(part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name))
    return frozenset()


def mark(first: int, last: int) -> int:
    """Set bit n for each line n."""
    return (1 << last + 1) - (1 << first)


def bits(mask: int) -> Iterator[int]:
    """Yield the lines of a mask."""
    while mask:
        yield (mask & -mask).bit_length() - 1
        mask &= mask - 1
