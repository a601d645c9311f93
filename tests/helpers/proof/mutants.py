"""The prover with one of its checks taken out, or one of its rules made too lenient."""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import sys
import types
from collections.abc import Iterator
from typing import Any

from tfdp_layers.proof import arithmetic, rules, texts

PACKAGE = "tfdp_layers.proof"
MODULES = rules.types(
    "characters constants control convolutions crosses decoding elementwise gathering inner interpreter intervals joins"
    " lists places narrowing products reals randomness record_loops reductions reshaping samplers settling shapes"
    " shortcuts singles slicing state texts walks"
)
_SHARED = {"OPERATIONS": arithmetic.OPERATIONS, "OF_PIECES": texts.OF_PIECES}
_REGISTRIES: list[Any] = [rules.RULES, rules.ANY_INPUT, rules.OWN, rules.MAKERS, *_SHARED.values()]


def module_of(name: str) -> types.ModuleType:
    return importlib.import_module(f"{PACKAGE}.{name}")


def refusal_of(node: ast.stmt) -> str:
    """What a statement refuses with, "" if it is no refusal."""
    if not isinstance(node, ast.Raise) or not isinstance(node.exc, ast.Call) or not isinstance(node.exc.func, ast.Name):
        return ""
    if node.exc.func.id not in ("MixedError", "UnknownError") or not node.exc.args:
        return ""
    argument = node.exc.args[0]
    return argument.value if isinstance(argument, ast.Constant) else ast.unparse(argument)


def guards(name: str) -> dict[str, int]:
    """The checks of a module that refuse: names of the form "function: reason", and the lines they are at."""
    found: dict[str, int] = {}
    for function in ast.walk(ast.parse(inspect.getsource(module_of(name)))):
        if not isinstance(function, ast.FunctionDef):
            continue
        for node in ast.walk(function):
            if isinstance(node, ast.If) and refusal_of(node.body[-1]):
                key = f"{name}.{function.name}: {refusal_of(node.body[-1])}"
                while key in found:
                    key += "'"
                found[key] = node.lineno
    return found


def without_guard(name: str, guard: str) -> str:
    """The source of a module in which a check never refuses."""
    line = guards(name)[guard]
    tree = ast.parse(inspect.getsource(module_of(name)))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and node.lineno == line and refusal_of(node.body[-1]):
            node.test = ast.Constant(False)
    return ast.unparse(ast.fix_missing_locations(tree))


def edited(name: str, old: str, new: str) -> str:
    """The source of a module with a text replaced, which must be in it once."""
    source = inspect.getsource(module_of(name))
    assert source.count(old) == 1, f"{old!r} is {source.count(old)} times in {name}"
    return source.replace(old, new)


@contextlib.contextmanager
def mutant(name: str, source: str) -> Iterator[None]:
    """Inside the block, the prover works with another source of one of its modules."""
    original = module_of(name)
    saved = [dict(one) if isinstance(one, dict) else set(one) for one in _REGISTRIES]
    for kind, function in list(rules.RULES.items()):
        if function.__module__ == original.__name__:
            del rules.RULES[kind]
    changed = types.ModuleType(original.__name__)
    changed.__file__ = original.__file__
    exec(compile(source, f"<mutant of {name}>", "exec"), changed.__dict__)
    for registry, functions in _SHARED.items():  # those of another module are registered there alone
        for kind, function in functions.items():
            vars(changed).get(registry, {}).setdefault(kind, function)
    twins = {id(value): vars(changed)[key] for key, value in vars(original).items() if is_own(value, original)}
    patched = []
    for module in [m for key, m in sys.modules.items() if key.startswith(PACKAGE) and m is not None]:
        for key, value in list(vars(module).items()):
            if id(value) in twins:
                patched.append((module, key, value))
                setattr(module, key, twins[id(value)])
    try:
        yield
    finally:
        for module, key, value in patched:
            setattr(module, key, value)
        for one, before in zip(_REGISTRIES, saved, strict=True):
            one.clear()
            one.update(before)


def is_own(value: Any, module: types.ModuleType) -> bool:
    return (inspect.isfunction(value) or inspect.isclass(value)) and value.__module__ == module.__name__
