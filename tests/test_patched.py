"""What tests patch is there: a slow test whose bug can no longer be planted is found on every run, not months later."""

import ast
import contextlib
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from helpers.proof.mutants import module_of
from helpers.proof.mutation_table import EDITS

TESTS = Path(__file__).parent
ABSENT = object()
PATCHING = ("monkeypatch.setattr", "mock.patch.object", "patch.object")


class Patch(NamedTuple):
    """A name that a test patches, and what it patches it on, as far as imports tell: else `ABSENT`."""

    where: str
    target: Any
    name: str


def imported(tree: ast.Module) -> dict[str, tuple[str, str | None]]:
    """By the name in the file: the module, and which name of it."""
    found: dict[str, tuple[str, str | None]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {one.asname or one.name: (node.module, one.name) for one in node.names}
        elif isinstance(node, ast.Import):
            for one in node.names:
                top = one.name.partition(".")[0]
                found[one.asname or top] = (one.name if one.asname else top, None)
    return found


def meant(target: ast.expr, names: dict[str, tuple[str, str | None]]) -> Any:
    """What an expression such as `module.Class` stands for; ABSENT where no import tells."""
    path = []
    while isinstance(target, ast.Attribute):
        path.append(target.attr)
        target = target.value
    if not isinstance(target, ast.Name) or target.id not in names:
        return ABSENT
    module, name = names[target.id]
    if not module.startswith("tfdp_layers"):
        return ABSENT
    try:
        thing = importlib.import_module(module if name is None else f"{module}.{name}")
    except ImportError:
        thing = getattr(importlib.import_module(module), name or "", ABSENT)
    for one in reversed(path):
        thing = getattr(thing, one, ABSENT)
    return thing


def named(path: str) -> Any:
    """What a text such as "tfdp_layers.module.Class" stands for; None of nothing."""
    for parts in range(path.count(".") + 1, 0, -1):
        with contextlib.suppress(ImportError):
            thing: Any = importlib.import_module(".".join(path.split(".")[:parts]))
            for one in path.split(".")[parts:]:
                thing = getattr(thing, one, None)
            return thing
    return None


def patches(source: str, where: str) -> Iterator[Patch]:
    """Each `setattr` of monkeypatch, of a name on a target or of a text that holds both, and `patch.object`, on this
    library's.
    """
    tree = ast.parse(source)
    names = imported(tree)
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and len(node.args) > 1):
            continue
        name, free = node.args[1], any(one.arg in ("raising", "create") for one in node.keywords)
        if free or ast.unparse(node.func) not in PATCHING:
            continue
        if isinstance(node.args[0], ast.Constant) and str(node.args[0].value).startswith("tfdp_layers."):
            path, _, last = str(node.args[0].value).rpartition(".")
            yield Patch(f"{where}:{node.lineno}", named(path), last)
            continue
        if not isinstance(name, ast.Constant):
            continue
        if (target := meant(node.args[0], names)) is not ABSENT:
            yield Patch(f"{where}:{node.lineno}", target, name.value)


def lost(found: list[Patch]) -> list[str]:
    return [f"{one.where} {one.name}" for one in found if not hasattr(one.target, one.name)]


def test_every_name_that_is_patched_is_there():
    found = [
        one
        for path in sorted(TESTS.rglob("test_*.py"))
        for one in patches(path.read_text(encoding="utf-8"), str(path.relative_to(TESTS)))
    ]
    assert len(found) > 100
    assert lost(found) == []


def test_a_name_that_has_moved_is_seen():
    source = "from tfdp_layers.federated import keras_training\nmonkeypatch.setattr(keras_training, 'moved', None)\n"
    assert lost(list(patches(source, "here"))) == ["here:2 moved"]
    assert lost(list(patches(source.replace("moved", "KerasTraining"), "here"))) == []
    text = "monkeypatch.setattr('tfdp_layers.federated.keras_training.moved', None)\n"
    assert lost(list(patches(text, "here"))) == ["here:1 moved"]
    assert lost(list(patches(text.replace("moved", "KerasTraining"), "here"))) == []


def test_every_text_that_is_edited_in_the_prover_is_there_once():
    counts = {(name, old): inspect.getsource(module_of(name)).count(old) for name, old, *_ in EDITS}
    assert [one for one, count in counts.items() if count != 1] == []
