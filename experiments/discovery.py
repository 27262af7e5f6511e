"""Finds the experiments there are by reading their source, without importing any."""

import ast
import pkgutil
from pathlib import Path

import experiments


def find_experiments() -> dict[str, str]:
    """The experiments' names, in order, each with its one-line summary.

    An experiment is a module or package of ``experiments`` that has ``SCALES`` and
    ``run`` at its top level; the first line of its docstring is its summary.
    """
    found = {}
    for info in pkgutil.iter_modules(experiments.__path__):
        folder = Path(info.module_finder.path)  # pyright: ignore[reportAttributeAccessIssue]
        file = Path(info.name, "__init__.py") if info.ispkg else f"{info.name}.py"
        tree = ast.parse((folder / file).read_bytes(), filename=str(folder / file))
        if {"SCALES", "run"} <= _top_level_names(tree):
            found[info.name] = (ast.get_docstring(tree) or "").partition("\n")[0]
    return dict(sorted(found.items()))


def _top_level_names(tree: ast.Module) -> set[str]:
    """What a module defines or imports at its top level."""
    names = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {t.id for t in targets if isinstance(t, ast.Name)}
    return names
