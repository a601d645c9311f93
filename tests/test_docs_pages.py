"""The code of the guides runs as it stands there, one block after the other."""

import csv
import json
import math
import random
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import tfdp_layers as tfdp
from tfdp_layers.accounting import GroupNoise, Ledger, Release, epsilon
from tfdp_layers.accounting.charging import charge
from tfdp_layers.accounting.wording import never_below
from tfdp_layers.sampling import Partition, Poisson

DOCS = Path(__file__).parents[1] / "docs"


def code_of(page):
    return "".join(
        block.split("```")[0] for block in (DOCS / page).read_text(encoding="utf-8").split("```python\n")[1:]
    )


def cost_of(noise, sampling, examples, steps, **whose):
    ledger = Ledger()
    charge(ledger, Release((GroupNoise("all", 1.0, noise),), sampling, examples, **whose), steps)
    return float(epsilon(ledger, 1e-5))


def of_three_metrics(records, public=False):
    """As docs/guarantee.md releases them."""
    ledger = Ledger()
    for name in ("positive", "found", "false alarms"):
        examples = records if public else None
        tfdp.release_metric(np.zeros(records), ledger, stddev=0.002, examples=examples, name=name)
    return float(epsilon(ledger, 1e-5))


def of_a_quantile():
    """As docs/choosing.md asks for one."""
    ledger, values = Ledger(), np.linspace(-9.0, -1.0, 600)
    tfdp.preprocessing.quantiles(values, ledger, [0.9], lower=-16.0, upper=16.0, levels=7, noise_multiplier=10.0)
    return float(epsilon(ledger, 1e-5))


def of_readme(owned):
    return cost_of(1.9771, Poisson(2048), 60_000, 1200, unit="owner", records_per_owner=owned)


QUOTED = {
    ("../README.md", r"epsilon = ([\d.]+) at delta = 1e-05 \(by PLD"): lambda: cost_of(
        1.9771, Poisson(2048), 60_000, 1200
    ),
    ("data.md", r"cost epsilon ([\d.]+) where Poisson"): lambda: cost_of(1.9, Partition(2048), 60_000, 1200),
    ("data.md", r"where Poisson's draws cost ([\d.]+\d)"): lambda: cost_of(1.9, Poisson(2048), 60_000, 1200),
    ("guarantee.md", r"The three cost epsilon ([\d.]+) at delta 1e-5 where 10,000"): lambda: of_three_metrics(10_000),
    ("guarantee.md", r"and ([\d.]+) where it were 600"): lambda: of_three_metrics(600),
    ("guarantee.md", r"\(epsilon ([\d.]+) for the three"): lambda: of_three_metrics(10_000, True),
    ("guarantee.md", r"for the three, and ([\d.]+)\)"): lambda: of_three_metrics(600, True),
    ("guarantee.md", r"\(README's training\) is ([\d.]+) of two"): lambda: of_readme(2),
    ("guarantee.md", r"of two, ([\d.]+) of four"): lambda: of_readme(4),
    ("guarantee.md", r"of four, ([\d.]+) of eight"): lambda: of_readme(8),
    ("watched.md", r"at noise 3: ([\d.]+) is stated"): lambda: cost_of(3.0, Partition(40), 560, 42),
    ("watched.md", r"such a person has ([\d.]+\d), by"): lambda: cost_of(
        3.0, Partition(40), 560, 42, unit="owner", records_per_owner=4
    ),
    ("choosing.md", r"It costs epsilon ([\d.]+) by itself"): of_a_quantile,
    ("recipe_tabular.md", r"about 9 here: epsilon ([\d.]+) by itself"): lambda: cost_of(9.0, Poisson(300), 300, 1),
    ("migration.md", r"epsilon = ([\d.]+): drawn by Poisson"): lambda: cost_of(1.3, Poisson(250), 60_000, 720),
    ("migration.md", r"three epochs cost epsilon ([\d.]+),"): lambda: cost_of(1.3, Partition(250), 60_000, 720),
    ("choosing.md", r"odds rise to ([\d.]+) to 1 at most"): lambda: math.e,
    ("choosing.md", r"with 3, to ([\d.]+) to 1"): lambda: math.exp(3.0),
}


@pytest.mark.parametrize("quoted", QUOTED, ids=lambda quoted: f"{quoted[0]}: {quoted[1][:30]}")
def test_no_number_of_a_page_is_below_the_truth(quoted):
    """Rounded up, and by less than one in twenty."""
    page, pattern = quoted
    (shown,) = re.findall(pattern, " ".join((DOCS / page).read_text(encoding="utf-8").split()))
    true = QUOTED[quoted]()
    assert true <= float(shown) < 1.05 * true


@pytest.mark.parametrize("page", ["accuracy", "lipschitz"])
def test_no_epsilon_of_a_table_is_below_what_its_runs_spent(page):
    """Each row has what some run spent, rounded up."""
    runs = json.loads((DOCS / f"{page}.json").read_text(encoding="utf-8"))["runs"]
    table = (DOCS / f"{page}.md").read_text(encoding="utf-8").split("<!-- accuracy -->")[1].split("<!-- end -->")[0]
    rows = {float(one) for one in re.findall(r"\| (\d+\.\d{3}) \|", table)}
    spent = {float(never_below(run["spent"], ".3f")) for run in runs}
    assert rows
    assert rows <= spent


RECIPES = ["tabular", "text", "images"]
ELSEWHERE = {"growing.md": "helpers/replicas/checking.py"}
"""Pages whose programs another test runs, and the file that has their names."""


def test_every_program_of_a_page_is_run():
    """A block that begins with ```python is a program; a part of one, that leaves names open, begins with ```py."""
    pages = {page.name for page in DOCS.glob("*.md") if "```python\n" in page.read_text(encoding="utf-8")}
    run = set(re.findall(r"""code_of\("(\w+\.md)"\)""", Path(__file__).read_text(encoding="utf-8")))
    run |= {f"recipe_{name}.md" for name in RECIPES}
    run |= {p for p, file in ELSEWHERE.items() if f'"{p}"' in (Path(__file__).parent / file).read_text("utf-8")}
    assert pages == run


def write_patients(path):
    draw = random.Random(0)
    with open(path, "w", newline="", encoding="utf-8-sig") as file:
        table = csv.writer(file)
        table.writerow(["patient", "age", "pressure", "ward", "returned"])
        for number in range(2000):  # some people twice
            age, pressure = draw.randrange(20, 95), draw.randrange(90, 190)
            ward = draw.choice(["surgery", "medicine", "emergency", "eyes"])
            returned = age + (30 if ward == "emergency" else 0) + draw.gauss(0, 10) > 65
            cell = draw.choice(["", "-", "n/a", "nan"]) if draw.random() < 0.1 else f"{pressure},5"
            table.writerow([f"p{number % 1900}", age, cell, ward, draw.choice(["yes", "Yes "]) if returned else "no"])


def write_visits(path):
    draw = random.Random(0)
    with open(path, "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["patient", "visited", "age", "pressure", "ward", "returned"])
        for patient in range(1500):
            age = draw.randrange(20, 95)
            for _ in range(draw.choice([1, 1, 2, 4])):
                ward = draw.choice(["surgery", "medicine", "emergency", "eyes"])
                returned = age + (30 if ward == "emergency" else 0) + draw.gauss(0, 10) > 65
                date = f"2025-{draw.randrange(1, 13):02}-{draw.randrange(1, 29):02}"
                pressure = "" if draw.random() < 0.1 else draw.randrange(90, 190)
                table.writerow([f"p{patient}", date, age, pressure, ward, "yes" if returned else "no"])
        table.writerow(["", "2025-01-01", 50, 120, "eyes", "no"])
        table.writerow(["p0", "", 50, 120, "eyes", "no"])


def write_messages(path, words):
    draw = random.Random(0)
    about = {"delivery": "parcel late courier lost", "payment": "invoice card refund", "praise": "great thank you"}
    filler = ["the", "my", "a", "was", "is", "and", "it", "to", "for", "with", "again", "today", "order"]
    with open(path, "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["sender", "text", "topic"])
        for number in range(3000):
            topic = draw.choice(list(about))
            own = about[topic].split()
            text = [draw.choice(own if draw.random() < 0.3 else filler) for _ in range(draw.randrange(5, 20))]
            row = [f"s{draw.randrange(2000)}", " ".join([*text, f"ref{number}"]).capitalize() + ".", topic]
            table.writerow(row)
    Path(words).write_text("\n".join([*filler, *" ".join(about.values()).split()]), encoding="utf-8")


def write_photos(folder, most):
    import keras
    from sklearn.datasets import load_digits

    digits = load_digits()
    for number, (image, label) in enumerate(zip(digits.images[:most], digits.target, strict=False)):
        Path(folder, f"digit{label}").mkdir(parents=True, exist_ok=True)
        large = np.kron(image, np.ones((4, 4)))[..., None] * 15.9
        keras.utils.save_img(Path(folder, f"digit{label}", f"{number}.png"), large, scale=False)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_goes_from_files_to_a_served_model(recipe, monkeypatch, tmp_path, capsys):
    pytest.importorskip("keras")
    monkeypatch.chdir(tmp_path)
    write_visits("visits.csv")
    write_messages("messages.csv", "words.txt")
    if recipe == "images":
        write_photos("photos", 400)
    code = code_of(f"recipe_{recipe}.md")
    for page, short in (("epochs=40", "epochs=15"), ("epochs=20", "epochs=8")):
        code = code.replace(page, short)
    exec(code, found := {"__name__": "page"})
    assert float(found["tfdp"].accounting.epsilon(found["model"].ledger, 1e-5)) <= 3.0
    said = " ".join(capsys.readouterr().out.split())
    unit, labels, least = {
        "tabular": ("patient", "y", 0.7),
        "text": ("sender", "y", 0.6),
        "images": ("record", "labels", 0.5),
    }[recipe]
    assert f"add or remove one {unit}" in said
    assert found["model"].evaluate(found["x"], found[labels], verbose=0)[1] > least
    served = found["keras"].models.load_model("served.keras")
    assert ("tfdp_layers" in str(served.get_config())) == (recipe == "images")
    if recipe == "tabular":
        drawn_from = int(re.search(r"of (\d+) patients\)", said)[1])
        assert abs(drawn_from - 1200) < 80  # a fifth of 1,500 is held out, each by its own id
        assert Path("PRIVACY.txt").read_text(encoding="utf-8").startswith("Privacy:     epsilon = ")


@pytest.mark.slow
def test_the_loops_run_as_they_stand(monkeypatch, tmp_path):
    pytest.importorskip("keras")
    monkeypatch.chdir(tmp_path)
    exec(code_of("loops.md"), found := {"__name__": "page"})
    first, second = found["first"], found["second"]
    assert first.ledger is second.ledger is found["model"].ledger
    assert not any("gave public rows" in note for note in first.privacy_statement(1e-5).notes)
    assert 3.0 < float(found["tfdp"].accounting.epsilon(first.ledger, 1e-5)) <= 8.0


@pytest.mark.slow
def test_a_twin_is_audited_as_the_page_has_it(capsys):
    pytest.importorskip("keras")
    code = code_of("audit.md")
    exec(code.replace("canaries=500", "canaries=40").replace("epochs=10", "epochs=2"), found := {"__name__": "page"})
    assert found["audit"].canaries == 40
    assert capsys.readouterr().out.startswith("Claimed: epsilon <= ")


@pytest.mark.slow
def test_parties_take_turns_as_the_page_has_it(monkeypatch, tmp_path, capsys):
    pytest.importorskip("keras")
    monkeypatch.chdir(tmp_path)
    exec(code_of("federated.md"), found := {"__name__": "page"})
    assert found["server"].round == 3
    assert all(0 < float(party.spent()) <= 25 for party in found["parties"])
    assert "one party's whole data set" in capsys.readouterr().out


@pytest.mark.slow
def test_the_training_for_those_who_come_from_other_libraries_runs(monkeypatch, capsys):
    pytest.importorskip("keras")
    from tfdp_layers.zoo import datasets

    x, y = np.zeros((750, 28, 28, 1), "float32"), np.arange(750) % 10
    monkeypatch.setattr(datasets, "load", lambda name: SimpleNamespace(x_train=x, y_train=y))
    exec(code_of("migration.md"), found := {"__name__": "page"})
    assert 0 < found["model"].ledger.steps < 9  # of 3 epochs of 3 steps: the budget ends them
    assert "noise multiplier 1.3" in " ".join(capsys.readouterr().out.split())


@pytest.mark.slow
def test_records_from_anywhere_train_and_constants_are_paid_for():
    pytest.importorskip("keras")
    exec(code_of("data.md"), found := {"__name__": "page"})
    assert "paid" in found["words"]
    assert "late" in found["words"]
    assert len(found["words"]) == 2
    assert all(abs(found["median"] - 8.0) < 0.5)
    ledger = found["model"].ledger
    assert ledger.steps == ledger.updates + 3
    assert f"Kept {found['report'].records_kept} of" in (DOCS / "data.md").read_text(encoding="utf-8")
    assert found["mail"].ledger.releases[0].records_per_owner == 2
    assert 1.9 < float(found["tfdp"].accounting.epsilon(ledger, 1e-5)) <= 2.0


@pytest.mark.slow
def test_the_page_on_tuning_searches_and_states(monkeypatch, capsys):
    pytest.importorskip("keras")
    from tfdp_layers.tuning import NumberOfTrials

    monkeypatch.setattr(NumberOfTrials, "draw", lambda self, randomness: 2)
    code = code_of("tuning.md").replace("epochs=20", "epochs=2")
    exec(code, found := {"__name__": "page"})
    assert float(found["tfdp"].accounting.epsilon(found["best"].model.ledger, 1e-5)) <= 3.0
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


@pytest.mark.slow
def test_the_page_of_epochs_trains(capsys):
    pytest.importorskip("keras")
    exec(code_of("epochs.md"), found := {"__name__": "page"})
    (entry,) = found["model"].ledger.entries
    assert entry.release.noise is not None
    assert float(found["tfdp"].accounting.epsilon(found["model"].ledger, 1e-5)) <= 2.0
    assert found["model"].evaluate(found["x"], found["y"], verbose=0)[1] > 0.8
    assert "zero out one record" in " ".join(capsys.readouterr().out.split())


@pytest.mark.slow
def test_a_budget_outlives_its_model_and_what_is_served_is_plain_keras(monkeypatch, tmp_path, capsys):
    pytest.importorskip("keras")
    monkeypatch.chdir(tmp_path)
    exec(code_of("running.md"), found := {"__name__": "page"})
    assert 3.9 < float(found["tfdp"].accounting.epsilon(found["ledger"], 1e-5)) <= 4.0
    assert capsys.readouterr().out.count("True\n") == 2
    assert "epsilon = " in Path("PRIVACY.txt").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_layer_of_ones_own_is_bounded_and_tested(capsys):
    pytest.importorskip("keras")
    code = code_of("extending.md")
    exec(code, {"__name__": "page"})
    assert capsys.readouterr().out.endswith("True\n")
    planted = code.replace(
        "record.offset(layer.bias, record.product(layer.b, inputs))", "record.product(layer.b, inputs) + layer.bias"
    )
    with pytest.raises(ValueError, match="is also used outside its layer"):
        exec(planted.replace("Gated", "Planted"), {"__name__": "page"})
