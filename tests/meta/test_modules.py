"""Modules and functions that fit a head, names that are searched for, and docstrings where they say something."""

import ast
from collections import Counter
from typing import Any

MODULE_LINES_MAX = 600
FUNCTION_LINES_MAX = 70

DOCUMENTED = ("losses", "models")
"""Packages whose public functions and classes are read by people who do not read the code."""

EMPTY_NAMES = frozenset({"found", "made", "told"})
"""A variable is named after its content."""
DOCUMENTS = frozenset({"peer.documents.commands", "peer.audit.evidence_files"})
"""Modules whose fields are keys of ``--json`` documents and of files that sites hand over."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


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


def test_every_module_says_what_it_is(modules: list[Any]) -> None:
    silent = [module.where for module in modules if module.tree.body and not ast.get_docstring(module.tree)]
    assert not silent, "without a docstring:\n" + "\n".join(silent)


def test_public_losses_and_models_say_what_they_are(modules: list[Any]) -> None:
    silent = [
        f"{module.where}:{node.lineno}: {node.name}"
        for module in modules
        if module.name.partition(".")[0] in DOCUMENTED
        for node in module.tree.body
        if isinstance(node, Function | ast.ClassDef) and not node.name.startswith("_") and not ast.get_docstring(node)
    ]
    assert not silent, "without a docstring:\n" + "\n".join(silent)


def test_the_name_of_a_public_class_is_unique(modules: list[Any]) -> None:
    names = Counter(
        node.name
        for module in modules
        for node in module.tree.body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    shared = {name for name, count in names.items() if count > 1}
    assert not shared, "several public classes have these names: search for one, and find both"


def test_variables_and_parameters_are_named_after_their_content(modules: list[Any]) -> None:
    empty = [
        f"{module.where}: {name}"
        for module in modules
        if module.name not in DOCUMENTS
        for name in sorted(EMPTY_NAMES & {bound(node) for node in ast.walk(module.tree)} - {None})
    ]
    assert not empty, "name the content:\n" + "\n".join(empty)


def bound(node: ast.AST) -> str | None:
    """The name of the variable or parameter that the node binds."""
    if isinstance(node, ast.arg):
        return node.arg
    return node.id if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) else None
