"""docs/map.md says in which room each line lives; no import runs upward against it, and no circle appears."""

import ast
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MAP = ROOT / "docs" / "map.md"
FOLDERS = {"accounting": ROOT / "accounting", "callbacks": ROOT / "callbacks", "": ROOT / "tfdp_layers"}
# They hand out public names, import what they name on first use, and belong to no floor.
DOORS = {"__init__", "_version", "source_folder", "stand_ins"}
MOST_MODULES, MOST_LINES, MOST_STATEMENTS = 12, 350, 40


def rooms() -> list[str]:
    """The rooms of the map, from the ground up."""
    return re.findall(r"^\| `(?:tfdp_layers/)?([a-z_]+)(?:\.py|/)` \|", MAP.read_text(encoding="utf-8"), re.MULTILINE)


def sources() -> dict[str, Path]:
    """The file of each module, by its dotted name below tfdp_layers."""
    found = {}
    for prefix, folder in FOLDERS.items():
        for file in folder.rglob("*.py"):
            parts = [*([prefix] if prefix else []), *file.relative_to(folder).with_suffix("").parts]
            found[".".join(parts)] = file
    return found


def imported(source: str, known: set[str]) -> set[str]:
    """The modules of ours that a source imports, wherever in the file; those for type checkers alone are left out."""
    found = set()
    tree = ast.parse(source)
    checked = [n for n in ast.walk(tree) if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING"]
    skipped = {id(inner) for node in checked for part in node.body for inner in ast.walk(part)}
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name.removeprefix("tfdp_layers.") for alias in node.names}
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "tfdp_layers":
            base = (node.module or "").removeprefix("tfdp_layers").lstrip(".")
            for alias in node.names:
                inner = f"{base}.{alias.name}".lstrip(".")
                found.add(inner if inner in known or f"{inner}.__init__" in known else base)
    return {name if name in known else f"{name}.__init__" for name in found} & known


@functools.cache
def read() -> dict[str, set[str]]:
    files = sources()
    return {name: imported(file.read_text(encoding="utf-8"), set(files)) for name, file in files.items()}


def imports() -> dict[str, set[str]]:
    """What each module imports; a copy, in which a test may plant what it likes."""
    return dict(read())


def room(module: str) -> str:
    return module.split(".")[0]


def upward(graph: dict[str, set[str]], floors: list[str]) -> list[str]:
    """The imports that run from a room to one above it."""
    height = {name: number for number, name in enumerate(floors)}
    return sorted(
        f"{module} imports {target}"
        for module, targets in graph.items()
        for target in targets
        if room(module) not in DOORS and room(target) not in DOORS and height[room(module)] < height[room(target)]
    )


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Modules that import each other, directly or by others: one list for each circle that a walk comes back to."""
    found, state = [], {}

    def walk(module: str, path: list[str]) -> None:
        state[module] = "open"
        for target in sorted(graph[module]):
            if state.get(target) == "open":
                found.append([*path[path.index(target) :], target])
            elif target not in state:
                walk(target, [*path, target])
        state[module] = "done"

    for module in sorted(graph):
        if module not in state:
            walk(module, [module])
    return found


def test_every_module_stands_in_a_room_of_the_map():
    assert {room(module) for module in sources()} - DOORS == set(rooms())


def test_no_import_runs_upward():
    assert upward(imports(), rooms()) == []


def test_no_circle_appears():
    assert circles(imports()) == []


@pytest.mark.parametrize(
    ("module", "source", "expected"),
    [
        ("rules.rows", "from tfdp_layers.models.model import PrivateModel", "rules.rows imports models.model"),
        ("sampling.base", "def late():\n    from tfdp_layers import zoo", "sampling.base imports zoo.__init__"),
        ("accounting.ledger", "import tfdp_layers.optimizers.base", "accounting.ledger imports optimizers.base"),
    ],
)
def test_the_check_sees_a_planted_import(module, source, expected):
    graph = imports()
    graph[module] = graph[module] | imported(source, set(graph))
    assert expected in upward(graph, rooms())


def test_the_check_sees_a_planted_circle():
    graph = imports()
    assert "rules.rows" in graph["rules.entries"]
    graph["rules.rows"] = graph["rules.rows"] | imported("from tfdp_layers.rules import entries", set(graph))
    assert any({"rules.rows", "rules.entries"} <= set(circle) for circle in circles(graph))


def test_files_and_functions_are_short():
    top = [file.name for file in FOLDERS[""].glob("*.py")]
    assert len(top) <= MOST_MODULES, top
    for name, file in sources().items():
        source = file.read_text(encoding="utf-8")
        assert source.count("\n") <= MOST_LINES, f"{name} has {source.count(chr(10))} lines: split it by noun"
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef):
                doc = node.body[0].end_lineno - node.body[0].lineno + 1 if ast.get_docstring(node) else 0
                lines = node.end_lineno - node.lineno + 1 - doc
                assert lines <= MOST_STATEMENTS, f"{name}.{node.name} has {lines} lines: name its steps"


def test_tests_stand_in_the_same_rooms_and_find_their_helpers_by_one_path():
    tests = ROOT / "tests"
    folders = {path.name for path in tests.iterdir() if path.is_dir() and any(path.glob("test_*.py"))}
    assert folders - {"reliability"} <= set(rooms())
    for file in tests.rglob("*.py"):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        assert "sys.path" not in {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}, file
