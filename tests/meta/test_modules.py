"""Modules and functions that fit a head, and a docstring on everything public."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

MODULE_LINES_MAX = 600
FUNCTION_LINES_MAX = 70

Function = ast.FunctionDef | ast.AsyncFunctionDef


def public(tree: ast.Module | ast.ClassDef, prefix: str = "") -> Iterator[tuple[str, Function | ast.ClassDef]]:
    """The public functions, classes and methods of a module, by dotted name; nothing inside a function."""
    for node in tree.body:
        if isinstance(node, Function | ast.ClassDef) and not node.name.startswith("_"):
            yield prefix + node.name, node
            if isinstance(node, ast.ClassDef) and not is_autograd_function(node):
                yield from public(node, f"{prefix}{node.name}.")


def is_autograd_function(node: ast.ClassDef) -> bool:
    """Whether torch gives the methods of this class their meaning."""
    return any(ast.unparse(base).endswith("autograd.Function") for base in node.bases)


def test_no_module_is_too_long(modules: list[Any]) -> None:
    lengths = {module.where: len(module.path.read_text("utf-8").splitlines()) for module in modules}
    long = {where: lines for where, lines in lengths.items() if lines > MODULE_LINES_MAX}
    assert not long, f"over {MODULE_LINES_MAX} lines: {long}"


def test_no_function_is_too_long(modules: list[Any]) -> None:
    long = [
        f"{module.where}:{node.lineno}: {node.name} has {lines} lines"
        for module in modules
        for node in ast.walk(module.tree)
        if isinstance(node, Function)
        and node.end_lineno is not None
        and (lines := node.end_lineno - node.lineno + 1) > FUNCTION_LINES_MAX
    ]
    assert not long, "\n".join(long)


def test_everything_public_says_what_it_is(modules: list[Any]) -> None:
    silent = [f"{module.where}: the module" for module in modules if module.tree.body and not doc(module.tree)]
    silent += [
        f"{module.where}:{node.lineno}: {name}"
        for module in modules
        for name, node in public(module.tree)
        if not doc(node)
    ]
    assert not silent, "without a docstring:\n" + "\n".join(silent)


def doc(node: ast.Module | ast.ClassDef | Function) -> str | None:
    """The docstring."""
    return ast.get_docstring(node)
