"""Every warning of the library points at the user's line, by one function."""

import ast
import sysconfig
import warnings
from pathlib import Path

import pytest

from tfdp_layers.caller import warn

ROOT = Path(__file__).resolve().parent.parent
SOURCES = [
    file
    for folder in ("tfdp_layers", "accounting", "callbacks")
    for file in (ROOT / folder).rglob("*.py")
    if file.name != "caller.py"
]


def warns_by_itself(source: str) -> bool:
    """Whether a source calls `warnings.warn`, by whatever import, and so counts the calls above it."""
    tree = ast.parse(source)
    attributes = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    imports = [n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.module == "warnings"]
    return "warnings.warn" in attributes or any(name.name == "warn" for node in imports for name in node.names)


@pytest.mark.slow
def test_no_module_counts_the_calls_above_its_warning():
    assert [str(file) for file in SOURCES if warns_by_itself(file.read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize("planted", ["import warnings\nwarnings.warn('a')", "from warnings import warn\nwarn('a')"])
def test_the_check_sees_a_planted_warning(planted):
    assert warns_by_itself(planted)


def module(name: str, code: str, **names: object) -> dict:
    """The names of a module of this name that runs this code."""
    exec(compile(code, f"/{name}.py", "exec"), found := {"__name__": name, **names})
    return found


def test_a_warning_skips_what_others_wrote_and_does_without_a_user_where_there_is_none():
    def said(outermost):
        installed = f"{sysconfig.get_paths()['purelib']}/sklearn/model_selection.py"
        exec(compile("def score(): warn('twice')", installed, "exec"), names := {"__name__": "sklearn", "warn": warn})
        run = module("notebook", "def train(): score()", score=names["score"])["train"] if outermost else names["score"]
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            run()
        return caught[0].filename

    assert said(outermost=True) == "/notebook.py"
    assert said(outermost=False) == __file__


def test_a_warning_skips_the_library_and_keras_however_they_call_each_other():
    ours = module("tfdp_layers.callbacks.budget", "def end(): warn('the budget')", warn=warn)
    keras = module("keras.src.callbacks", "def call(): end()", end=ours["end"])
    fit = module("tfdp_layers.models.training", "def fit(): call()", call=keras["call"])
    user = module("notebook", "\n\ndef train(): fit()", fit=fit["fit"])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        user["train"]()
    assert [(one.filename, one.lineno, str(one.message)) for one in caught] == [("/notebook.py", 3, "the budget")]
