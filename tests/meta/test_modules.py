"""Modules and functions that fit a head, names that are searched for, and docstrings where they say something."""

from __future__ import annotations

import ast
from collections import Counter
from typing import Any

MODULE_LINES_MAX = 600
FUNCTION_LINES_MAX = 70

DOCUMENTED = ("losses", "models")
"""Packages whose public functions and classes are read by people who do not read the code."""

SHARED_CLASS_NAMES = frozenset(
    """
    Augmentation Console Count Data DataError Desk Discovery Door Examiner Exchange Interrupted Item
    Line Method Pace Place Pool Progress Reading Request Row Rule Run Sample Site Split Stage Table Task
    Trainer
    """.split()  # noqa: SIM905
)
"""Names of several public classes. This list only shrinks: rename one of the classes, and take its name out."""

EMPTY_NAMES = frozenset({"found", "made", "told"})
"""A variable is named after its content."""
EMPTY_NAMES_IN = frozenset(
    """
    models.moe models.resnet peer.api peer.audit.evidence_files peer.audit.folder_check peer.audit.verification
    peer.cli.check peer.cli.data peer.cli.demo peer.cli.egress peer.cli.models peer.cli.rendering
    peer.cli.report peer.cli.scalars peer.cli.simulate peer.config.toml peer.core.global_test
    peer.core.global_test_memory peer.core.plan peer.core.site_memory peer.core.state peer.daemon.dispatch
    peer.daemon.metrics peer.daemon.service peer.data.adapters.dermoscopy peer.data.adapters.digits
    peer.data.adapters.eeg peer.data.adapters.isic peer.data.adapters.ixi peer.data.adapters.lidc
    peer.data.adapters.picture_files peer.data.adapters.polyp peer.data.adapters.prepared_folder
    peer.data.adapters.tissue peer.data.datalist peer.data.survey peer.demo.run
    peer.inference.export.equivalence peer.inference.export.graph peer.inference.export.load
    peer.inference.export.model_card peer.inference.export.monai_bundle peer.inference.export.process
    peer.inference.model_state peer.inference.notebook peer.inference.output_files peer.inference.predict
    peer.methods.dflmoe peer.methods.feddal peer.methods.mh_pflid peer.preflight.local peer.preflight.peers
    peer.records.journal peer.records.ledger peer.records.reports peer.research.collect peer.research.diagnosis
    peer.research.experiment peer.research.partition.divide peer.research.partition.folds
    peer.research.partition.groups peer.research.partition.kinds peer.research.partition.leakage
    peer.research.pool peer.research.report.bars peer.research.report.comparison peer.research.report.confidence
    peer.research.report.contents peer.research.report.costs peer.research.report.curves
    peer.research.report.heatmaps peer.research.report.html_page peer.research.report.lost_links
    peer.research.report.panels peer.research.report.plotting peer.research.report.published
    peer.research.report.results peer.research.report.subgroups peer.research.report.table
    peer.research.report.tsne peer.research.report.write peer.research.runs peer.research.simulated_network
    peer.research.simulation peer.tracking.scalars peer.tracking.trackers peer.training.artifact
    peer.training.artifact_exchange peer.training.checkpoint peer.training.data peer.training.images
    peer.training.loop peer.training.site_networks peer.training.tensors peer.training.trainer
    peer.transport.discovery
    """.split()  # noqa: SIM905
)
"""Modules that still have such names. This list only shrinks."""

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
    assert not shared - SHARED_CLASS_NAMES, "several public classes have these names: search for one, and find both"


def test_variables_and_parameters_are_named_after_their_content(modules: list[Any]) -> None:
    empty = [
        f"{module.where}: {name}"
        for module in modules
        if module.name not in EMPTY_NAMES_IN
        for name in sorted(EMPTY_NAMES & {bound(node) for node in ast.walk(module.tree)} - {None})
    ]
    assert not empty, "name the content:\n" + "\n".join(empty)


def bound(node: ast.AST) -> str | None:
    """The name of the variable or parameter that the node binds."""
    if isinstance(node, ast.arg):
        return node.arg
    return node.id if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) else None
