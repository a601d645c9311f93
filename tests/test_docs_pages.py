"""The code of the guides runs as it stands there, one block after the other."""

import csv
import random
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"


def code_of(page):
    return "".join(
        block.split("```")[0] for block in (DOCS / page).read_text(encoding="utf-8").split("```python\n")[1:]
    )


def write_patients(path):
    draw = random.Random(0)
    with open(path, "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["age", "pressure", "ward", "returned"])
        for _ in range(2000):
            age, pressure = draw.randrange(20, 95), draw.randrange(90, 190)
            ward = draw.choice(["surgery", "medicine", "emergency", "eyes"])
            returned = age + (30 if ward == "emergency" else 0) + draw.gauss(0, 10) > 65
            table.writerow([age, "" if draw.random() < 0.1 else pressure, ward, "yes" if returned else "no"])


@pytest.mark.slow
def test_the_page_on_tuning_searches_and_states(monkeypatch, capsys):
    pytest.importorskip("keras")
    from tfdp_layers.tuning import NumberOfTrials

    monkeypatch.setattr(NumberOfTrials, "draw", lambda self, randomness: 2)
    code = code_of("tuning.md").replace("epochs=20", "epochs=2")
    exec(code, found := {"__name__": "page"})
    assert float(found["tfdp"].accounting.epsilon(found["best"].model.ledger, 1e-4)) <= 3.0
    said = capsys.readouterr().out
    assert "for a whole search of 3 trials on average" in said
    assert "Released:    once the best of a random number of trials" in said


def test_the_first_private_model_trains_on_a_table_of_ones_own(tmp_path, monkeypatch, capsys):
    pytest.importorskip("keras")
    monkeypatch.chdir(tmp_path)
    write_patients("patients.csv")
    exec(code_of("first_model.md"), found := {"__name__": "page"})
    assert float(found["tfdp"].accounting.epsilon(found["model"].ledger, 1e-5)) <= 3.0
    assert found["model"].evaluate(found["x"], found["y"], verbose=0)[1] > 0.8
    assert "Noise multiplier" in capsys.readouterr().out
    assert Path("model.keras").exists()
