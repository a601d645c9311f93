"""Pictures hold the numbers that they are of, on axes with names; what cannot be drawn is refused with a sentence."""

import itertools
import sys

import pytest

from helpers.accounting_tools import ledger_of, release_of
from tfdp_layers.accounting import (
    GroupNoise,
    Ledger,
    MetricRelease,
    PlannedRun,
    Release,
    RunPlan,
    Selection,
    Statement,
    epsilon,
    privacy_profile,
)
from tfdp_layers.accounting import plan as planned
from tfdp_layers.audit.report import Audit
from tfdp_layers.sampling import Cyclic, Partition, Poisson
from tfdp_layers.sampling.correlated import Correlated

plots = pytest.importorskip("tfdp_layers.plots")

GROUPS = (GroupNoise("conv", 1.0, 1.5), GroupNoise("dense" * 10, 2.0, 3.0))
STEP = Release(GROUPS, Poisson(60), 600)
AUDIT = Audit(3.0, 1.2, 1e-5, 0.95, "one run", {})


class History:
    """What Keras' fit returns, as far as it is read."""

    history = {"epsilon": [1.0, 1.5], "val_accuracy": [0.6, 0.7], "loss": [2.0, 1.0]}  # noqa: RUF012


def lines_of(figure):
    (axes,) = figure.axes
    named = [line for line in axes.lines if not line.get_label().startswith("_")]
    return {line.get_label(): [list(map(float, values)) for values in line.get_data()] for line in named}


def axes_of(figure):
    (axes,) = figure.axes
    return axes.get_xlabel(), axes.get_ylabel()


def test_epsilon_of_a_ledger_is_exact_at_every_point_and_jumps_where_a_search_was_paid():
    ledger = ledger_of(STEP, 40)
    ledger.reserve(ledger.begin(Selection((((STEP, 10),),), 3.0)), 1)
    later = release_of(Poisson(60), 4.0, examples=600)
    ledger.reserve(ledger.begin(later), 7)
    figure = plots.epsilon(ledger, delta=1e-4, budget=9.0)
    x, y = lines_of(figure)["run 1"]
    assert x == sorted(set(x))
    assert {0, 40, 41, 48} <= set(x)
    assert (y[0], y[-1]) == (0.0, float(epsilon(ledger, 1e-4)))
    assert y[x.index(40)] == float(epsilon(ledger_of(STEP, 40), 1e-4))
    assert all(a <= b for a, b in itertools.pairwise(y))
    assert axes_of(figure) == ("steps", "epsilon")
    assert f"run 1: {y[-1]:.3g} after 48 steps" in plots.alt_text(figure)
    assert "budget, 9" in plots.alt_text(figure)


def test_epsilon_of_partitions_counts_epochs_that_were_started():
    release = release_of(Partition(200), 3.0, examples=600)
    x, y = lines_of(plots.epsilon(ledger_of(release, 6)))["run 1"]
    assert y[x.index(1)] == y[x.index(3)] < y[x.index(4)] == y[x.index(6)]


def test_histories_and_names():
    figure = plots.epsilon(History(), at_night=History)
    assert lines_of(figure) == {"run 1": [[1, 2], [1, 1.5]], "at night": [[1, 2], [1, 1.5]]}
    assert axes_of(figure)[0] == "epochs"
    with pytest.raises(ValueError, match="draw them apart"):
        plots.epsilon(History(), ledger_of(STEP, 3))
    named = Ledger(dataset="clinic")
    named.reserve(named.begin(STEP), 3)
    assert set(lines_of(plots.epsilon(named, named))) == {"clinic", "clinic (2)"}


class Model(History):
    """A private model after a fit without a budget: its History holds no epsilon, its ledger does."""

    history = History()
    ledger = ledger_of(STEP, 6)


def test_of_a_model_the_ledger_is_drawn():
    x, y = lines_of(plots.epsilon(Model()))["run 1"]
    assert x[-1] == 6
    assert y[-1] == float(epsilon(Model.ledger, 1e-5))
    assert lines_of(plots.accuracy(Model()))["training 1"] == [[1, 1.5], [0.6, 0.7]]
    assert lines_of(plots.profile(Model()))
    assert plots.groups(Model())


def test_accuracy_against_epsilon():
    figure = plots.accuracy(History(), pairs=([8, 1, 2], [0.9, [0.5, 0.7], 0.8]), baseline=0.95)
    lines = lines_of(figure)
    assert lines["training 1"] == [[1, 1.5], [0.6, 0.7]]
    assert lines["pairs"] == [[1, 2, 8], pytest.approx([0.6, 0.8, 0.9])]
    assert axes_of(figure) == ("epsilon", "accuracy")
    assert "pairs: 0.9 at epsilon 8" in plots.alt_text(figure)
    assert "without noise" not in plots.alt_text(figure)
    private = plots.accuracy({"epsilon": [1.0, 2.0], "accuracy": [0.5, 0.6]}, metric="accuracy")
    assert "of the training data: without noise, not to be published" in plots.alt_text(private)
    assert "without noise" in private.get_suptitle()
    wide = plots.accuracy(([0.1, 1, 10], [0.1, 0.2, 0.3]))
    assert [t.get_text() for t in wide.axes[0].get_xticklabels()] == ["0.1", "1", "10"]
    many = plots.accuracy(([0.1 * 1.6**n for n in range(10)], [0.1] * 10))
    assert [t.get_text() for t in many.axes[0].get_xticklabels()] == ["0.1", "0.2", "0.5", "1", "2", "5"]


@pytest.mark.slow
def test_noise_against_epsilon():
    figure = plots.noise([Poisson(64), Poisson(256)], 2_000, 10, epsilons=(4, 1))
    lines = lines_of(figure)
    assert set(lines) == {"poisson, batches of 64", "poisson, batches of 256"}
    for x, y in lines.values():
        assert x == [1, 4]
        assert y[0] > y[1]
    spent = epsilon(ledger_of(release_of(Poisson(64), lines["poisson, batches of 64"][1][0], 2_000), 320), 1e-5)
    assert spent == pytest.approx(1.0, rel=0.03)


@pytest.mark.slow
def test_a_plan_is_drawn_as_it_compares():
    found = planned(600, 2.0, 1e-4, batch_sizes=[50, 100], epochs=[5, 10])
    lines = lines_of(plots.plan(found))
    assert lines["batch size 50"] == [[5, 10], [run.share for run in found.runs if run.batch_size == 50]]
    assert f"Start from batches of {found.recommended.batch_size}" in plots.alt_text(plots.plan(found))


def test_the_profile_is_that_of_the_ledger():
    ledger = ledger_of(STEP, 40)
    figure = plots.profile(ledger, delta=1e-5)
    x, y = lines_of(figure)["ledger 1"]
    epsilons, deltas = privacy_profile(ledger)
    assert x == list(epsilons[deltas > 1e-12])
    assert y == list(deltas[deltas > 1e-12])
    assert figure.axes[0].get_yscale() == "log"


def words_of(figure):
    texts = [text.get_text() for axes in figure.axes for text in (*axes.texts, *axes.get_xticklabels())]
    return " ".join([figure.get_suptitle(), *texts, plots.alt_text(figure)])


def test_a_stream_of_correlated_noise_is_drawn_alone_and_beside_other_steps():
    """It is billions of charges of next to nothing: composed one after the other they took 41 GiB."""
    ledger, groups = Ledger(), (GroupNoise("all", 1.0, 9.0),)
    ledger.reserve(ledger.begin(Release(groups, Cyclic(100), 400, noise=Correlated(0.7))), 12)
    release = MetricRelease(groups, Partition(400), 400)
    for _ in range(2):
        x, y = lines_of(plots.profile(ledger))["ledger 1"]
        assert len(x) > 50
        assert min(y) < 1e-6
        ledger.reserve(ledger.begin(release), 2)


def test_no_delta_and_no_budget_is_written_smaller_than_it_is():
    """1 / 30000 to six digits is 3.33333e-05, which is less."""
    epsilon_, delta = 1.2345612, 1 / 30_000
    run = PlannedRun(10, 1, 10, 1.0, 1.0, 1.0, 1.0, None)
    pictures = {
        plots.epsilon(ledger_of(STEP, 3), delta=delta, budget=epsilon_): 2,
        plots.noise(Poisson(20), 100, 1, delta=delta, epsilons=(epsilon_, 2.3456712)): 2,
        plots.profile(ledger_of(STEP, 3), delta=delta): 1,
        plots.plan(RunPlan(100, epsilon_, delta, None, (run,), run)): 2,
    }
    for figure, numbers in pictures.items():
        words = words_of(figure)
        assert "3.33334e-05" in words
        assert ("1.23457" in words) == (numbers == 2), words
        assert not any(less in words for less in ("3.33333e", "1.23456", "2.34567,", "2.34567.", "2.34567 ")), words


@pytest.mark.parametrize(
    "source", [ledger_of(STEP, 3), Statement.from_ledger(ledger_of(STEP, 3), 1e-5)], ids=["ledger", "statement"]
)
def test_bounds_and_noise_of_each_group(source):
    figure = plots.groups(source)
    (axes,) = figure.axes
    widths = [[bar.get_width() for bar in bars] for bars in axes.containers]
    assert widths == [[1.5, 3.0], [1.0, 2.0]]
    labels = [text.get_text() for text in axes.get_yticklabels()]
    assert labels[0] == "conv"
    assert len(labels[1]) < 40
    assert "dense" * 10 in plots.alt_text(figure), "the text has the whole name"
    many = Release(tuple(GroupNoise(str(n), 1.0, 1.0) for n in range(50)), Poisson(60), 600)
    assert "first 30 of 50" in plots.groups(ledger_of(many, 1))._suptitle.get_text()


def test_audits_show_claims_refuted_or_not():
    figure = plots.audit(AUDIT, bug=Audit(1.0, 2.7, 1e-5, 0.95, "one run", {}))
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert texts == ["refutes 1.2", "claims 3", "refutes 2.7", "claims 1, which is false"]
    assert "bug: claims 1, the attack refutes 2.7, so the claim is false" in plots.alt_text(figure)


WRONG = [
    (lambda: plots.epsilon(), "at least one run"),
    (lambda: plots.epsilon(7), "a History, a Ledger"),
    (lambda: plots.epsilon({"loss": [1.0]}), "PrivacyBudget"),
    (lambda: plots.epsilon(Ledger()), "nothing was released yet"),
    (lambda: plots.epsilon(ledger_of(STEP, 1), delta=2), "delta must lie"),
    (lambda: plots.accuracy({"epsilon": [1.0]}), r"'val_accuracy'.*holds \['epsilon'\]"),
    (lambda: plots.accuracy(([1, 2], [0.5])), "as many of the one"),
    (lambda: plots.accuracy(ledger_of(STEP, 1)), "needs epsilon"),
    (lambda: plots.noise(256, 1000, 3), "such as Poisson"),
    (lambda: plots.noise(Poisson(2), 1000, 0), "epochs must be"),
    (lambda: plots.plan(History()), "what tfdp.plan returns"),
    (lambda: plots.profile(History()), "a Ledger or a private model"),
    (lambda: plots.profile(ledger_of(release_of(Poisson(60), 0.0), 1)), "without noise"),
    (lambda: plots.groups(AUDIT), "a Statement, a Ledger"),
    (lambda: plots.groups(ledger_of(Selection((((STEP, 1),),), 2.0), 1)), "no step was released"),
    (lambda: plots.audit(History()), "what tfdp.audit returns"),
    (lambda: plots.alt_text(object()), "figures of tfdp.plots"),
]


@pytest.mark.parametrize("number", range(len(WRONG)), ids=[match for _, match in WRONG])
def test_what_cannot_be_drawn_is_refused(number):
    call, match = WRONG[number]
    with pytest.raises(ValueError, match=match):
        call()


def test_files_hold_the_alternative_text(tmp_path):
    figure = plots.audit(AUDIT)
    for kind in ("png", "svg", "pdf"):
        text = plots.save(figure, tmp_path / f"audit.{kind}")
        assert (tmp_path / f"audit.{kind}").stat().st_size > 1000
    assert text.encode() in (tmp_path / "audit.png").read_bytes()
    assert text in (tmp_path / "audit.svg").read_text()
    with pytest.raises(ValueError, match="format"):
        plots.save(figure, tmp_path / "audit.nothing")


def lightness(colour):
    red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_lines_differ_in_grey_and_stand_out_of_the_page():
    from tfdp_layers.plots import figures

    found = [style for style, _ in zip(figures.styles(), range(12), strict=False)]
    assert len({(s["linestyle"], s["marker"]) for s in found[:6]}) == 6
    assert len({(s["color"], s["linestyle"]) for s in found}) == 12
    for style in found:
        assert (1.0 + 0.05) / (lightness(style["color"]) ** 2.2 + 0.05) > 3, "contrast on white"
    assert figures.framed()[0].get_facecolor() == (1.0, 1.0, 1.0, 1.0), "a white card, also on a dark page"


def test_folders_of_logs(tmp_path):
    tensorboard = pytest.importorskip("tensorboard")
    assert tensorboard
    tf = pytest.importorskip("tensorflow")
    with tf.summary.create_file_writer(str(tmp_path / "logs")).as_default():
        for step, spent, right in ((10, 1.0, 0.5), (20, 1.4, 0.75)):
            tf.summary.scalar("privacy/epsilon", spent, step=step)
            tf.summary.scalar("validation/accuracy", right, step=step)
    assert lines_of(plots.epsilon(tmp_path / "logs"))["logs"] == [[10, 20], pytest.approx([1.0, 1.4])]
    assert lines_of(plots.accuracy(tmp_path / "logs"))["logs"] == [pytest.approx([1.0, 1.4]), [0.5, 0.75]]
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "ledger.json").write_text(ledger_of(STEP, 5).to_json())
    assert lines_of(plots.epsilon(tmp_path / "other"))["other"][0][-1] == 5
    with pytest.raises(ValueError, match="folder of logs"):
        plots.epsilon(tmp_path)


def test_without_matplotlib_it_says_what_to_install(monkeypatch):
    for name in [n for n in sys.modules if n.startswith("tfdp_layers.plots")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install '.\[plots\]'"):
        import tfdp_layers.plots  # noqa: F401


@pytest.mark.parametrize("name", ["val", "value"])
def test_a_training_metric_that_is_called_like_one_of_validation_data_is_drawn_as_what_it_is(name):
    import keras
    import numpy as np

    import tfdp_layers as tfdp

    inputs = keras.Input((3,))
    outputs = {one: keras.layers.Dense(1, name=one)(inputs) for one in (name, "other")}
    model = tfdp.make_private(keras.Model(inputs, outputs))
    optimizer = tfdp.optimizers.ClippedOptimizer("adam")
    model.compile(optimizer, loss=dict.fromkeys(outputs, "mse"), metrics={one: ["mae"] for one in outputs})
    x = np.random.default_rng(0).normal(size=(64, 3)).astype("float32")
    given = {"validation_data": (x + 1.0, {one: x[:, :1] for one in outputs})} if name == "value" else {}
    budget = tfdp.callbacks.PrivacyBudget(5.0, 1e-3)
    y = {one: x[:, :1] for one in outputs}
    history = model.fit(x, y, batch_size=32, epochs=2, verbose=0, callbacks=[budget], **given)
    for source in (history, model):
        text = plots.alt_text(plots.accuracy(source, metric="val_mae" if name == "val" else "val_value_mae"))
        assert ("of the training data: without noise" in text) == (name == "val")
