"""What type checkers say of a user's program: classes are classes, and names that do not exist are errors."""

import ast
import configparser
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tfdp_layers

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = """\
import tfdp_layers as tfdp
from tfdp_layers import *

reveal_type(tfdp.PrivateModel)  # PrivateModel
reveal_type(tfdp.make_private(tfdp.PrivateModel([], [])))  # PrivateModel
reveal_type(tfdp.load_model("model.keras").ledger)  # Ledger
reveal_type(tfdp.PrivateModel([], []).privacy_statement(1e-5))  # Statement
reveal_type(tfdp.layers.ClippedDense(2, input_clip=1.0, upstream_clip=0.1))  # ClippedDense
reveal_type(tfdp.audit.make_canaries)  # Canaries
reveal_type(PrivateSequential)  # PrivateSequential
reveal_type(tfdp.__version__)  # str
tfdp.no_such_name  # error
tfdp.layers.NoSuchLayer  # error
tfdp.audit.no_such_attack  # error
from tfdp_layers import no_such_import  # error
tfdp.PrivateModel([], []).fit([], examples="many")  # error
tfdp.PrivateModel([], []).privacy_statement("delta")  # error
tfdp.PrivateModel([], []).predict([])
"""
CHECKED = {number: line.split("  # ")[1] for number, line in enumerate(PROGRAM.splitlines(), 1) if "  # " in line}


@pytest.fixture(scope="module")
def user(tmp_path_factory) -> Path:
    """A folder with the program, beside the package as an installation lays it out: mypy knows no folder map."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    folder = tmp_path_factory.mktemp("user")
    for line in sorted(setup["options"]["package_dir"].strip().splitlines()):
        package, source = (part.strip() for part in line.split("="))
        target = folder / "installed" / package.replace(".", "/")
        shutil.copytree(ROOT / source, target, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "program.py").write_text(PROGRAM)
    settings = {"extraPaths": ["installed"], "reportWildcardImportFromLibrary": False}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    return folder


def assert_as_the_comments_say(said: dict[int, list[tuple[str, str]]]) -> None:
    """`said` has what a checker said of each line: (severity, message)."""
    for number, expected in CHECKED.items():
        ((severity, message),) = said.pop(number)
        if expected == "error":
            assert severity == "error", (number, message)
        else:
            assert severity != "error", (number, message)
            assert re.search(rf"\b{expected}\b", message), (number, message)
    assert not said


@pytest.mark.slow
def test_mypy_sees_classes_and_reports_names_that_do_not_exist(user):
    # Strict, since it is then that a name that is not exported explicitly is an error.
    options = ["--strict", "--ignore-missing-imports", "--follow-imports=silent", "--config-file=", "--no-pretty"]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, "--cache-dir", str(user / "cache"), "program.py"],
        cwd=user,
        env={"MYPYPATH": str(user / "installed"), "PATH": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    said: dict[int, list[tuple[str, str]]] = {}
    for number, severity, message in re.findall(r"^program\.py:(\d+): (\w+): (.*)$", done.stdout, flags=re.M):
        said.setdefault(int(number), []).append((severity, message))
    assert_as_the_comments_say(said)


@pytest.mark.skipif(shutil.which("pyright") is None, reason="pyright is not installed")
def test_pyright_says_the_same(user):
    command = ["pyright", "--outputjson", "--pythonpath", sys.executable, "program.py"]
    done = subprocess.run(command, cwd=user, capture_output=True, text=True)
    said: dict[int, list[tuple[str, str]]] = {}
    for found in json.loads(done.stdout)["generalDiagnostics"]:
        if found["severity"] in ("error", "information"):
            line = found["range"]["start"]["line"] + 1
            said.setdefault(line, []).append((found["severity"], found["message"]))
    assert_as_the_comments_say(said)


@pytest.mark.parametrize("package", [tfdp_layers, tfdp_layers.audit], ids=lambda package: package.__name__)
def test_type_checkers_are_told_what_runs(package):
    tree = ast.parse(Path(package.__file__).read_text(encoding="utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    told = {}
    for statement in block.body:
        assert isinstance(statement, ast.ImportFrom)
        for alias in statement.names:
            assert alias.asname == alias.name, f"write {alias.name} as {alias.name}: it is exported only then"
            told[alias.name] = statement.module
    runs = {name: f"{package.__name__}.{module}" for name, module in package._NAMES.items()}
    for name, module in getattr(package, "_MODULES", {}).items():
        runs[name] = f"{package.__name__}.{module}".rpartition(".")[0]
    assert told == runs | getattr(package, "_ELSEWHERE", {})
    assert set(package.__all__) - {"__version__"} == set(told)
