"""docs/migration.md: its tutorial with a ledger runs, and it names all that tensorflow-privacy has."""

import inspect
import re
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tfdp_layers.accounting import epsilon

tfp = pytest.importorskip("tensorflow_privacy")

PAGE = (Path(__file__).parents[2] / "docs" / "migration.md").read_text(encoding="utf-8")
THEIRS = PAGE.split("## tensorflow-privacy")[1].split("## Opacus")[0]
NAMED = set(re.findall(r"`([\w.]+)`", THEIRS))
NOT_HERE = {name for row in THEIRS.splitlines() if "| not here" in row for name in re.findall(r"`(\w+)`", row)}


def public():
    for module in (tfp, tfp.v1):
        for name, value in vars(module).items():
            if not name.startswith("_") and name not in ("sys", "privacy", "version"):
                yield name, value


def arguments(value):
    found = inspect.signature(value.__init__ if inspect.isclass(value) else value).parameters if callable(value) else ()
    return set(found) - {"self", "args", "kwargs"}


def test_the_page_names_every_public_name_and_argument():
    names = dict(public())
    assert len(names) > 60
    assert set(names) - NAMED == set()
    given = set().union(*(arguments(value) for name, value in names.items() if name not in NOT_HERE))
    assert given - NAMED == set()


@pytest.mark.slow
@pytest.mark.parametrize("drawn", [False, True], ids=["epochs", "poisson"])
def test_the_tutorial_with_a_ledger_runs_and_ends_as_the_page_says(drawn, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    data = tuple((rng.integers(0, 255, (n, 28, 28), "uint8"), rng.integers(0, 10, n)) for n in (20, 4))
    monkeypatch.setattr(tf.keras.datasets.mnist, "load_data", lambda: data)
    first, then = (part.split("```")[0] for part in THEIRS.split("```py\n")[1:])
    code = first.replace("250", "10")
    if drawn:
        code = code.split("model.fit(")[0].replace("num_microbatches=10, ", "") + then.replace("250", "10")
    with pytest.warns(UserWarning, match="ends training"):
        exec(code, found := {"__name__": "page"})
    model = found["model"]
    spent = float(epsilon(model.ledger, 1e-5))
    if drawn:
        assert 0 < model.ledger.steps < 6
        assert spent <= 5
    else:
        assert model.ledger.steps == 4  # of 6
        assert f"{spent:.3f}" == "4.827"
        assert "noise multiplier 1.3" in " ".join(capsys.readouterr().out.split())
