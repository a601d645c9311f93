"""The notebooks run from their first cell to their last, at short settings, and end with a statement and a picture."""

from pathlib import Path

import pytest

from tfdp_layers.accounting import Statement

jupytext = pytest.importorskip("jupytext")
pytest.importorskip("matplotlib")

FOLDER = Path(__file__).parents[1] / "examples" / "notebooks"
SHORT = {
    "images": {"EPOCHS": 2},
    "text": {"EPOCHS": 2, "MOST_FILES": 25},
    "tabular": {"EPOCHS": 2, "EPSILONS": (1.0, 8.0), "SEEDS": (1, 2)},
    "feedback": {"EPOCHS": 2},
    "federated": {"ROUNDS": 1},
}


def cells(name: str) -> list:
    return jupytext.read(FOLDER / f"{name}.py").cells


def test_every_notebook_is_here_and_pairs_with_an_ipynb():
    assert {path.stem for path in FOLDER.glob("*.py")} == set(SHORT)
    for name, short in SHORT.items():
        notebook = jupytext.read(FOLDER / f"{name}.py")
        assert notebook.metadata["jupytext"]["formats"] == "ipynb,py:percent"
        assert f"[{name}.py]({name}.py)" in (FOLDER / "README.md").read_text(encoding="utf-8")
        (parameters,) = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])]
        exec(parameters.source, found := {})
        assert set(short) == set(found) - {"__builtins__"}


@pytest.mark.slow
@pytest.mark.parametrize("name", SHORT)
def test_a_notebook_runs_and_ends_with_a_statement_and_a_picture(name, capsys):
    pytest.importorskip("keras")
    from tfdp_layers import plots

    found: dict = {"__name__": name}
    for cell in cells(name):
        if cell.cell_type == "code":
            exec(compile(cell.source, f"{name}.py", "exec"), found)
        if "parameters" in cell.metadata.get("tags", []):
            found |= SHORT[name]
    assert isinstance(found["statement"], Statement)
    assert str(found["statement"]) in capsys.readouterr().out
    assert not found["statement"].void
    assert plots.alt_text(found["figure"])
