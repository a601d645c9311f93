"""What a fit leaves behind in memory: no traced graph, however many fits follow; and no model that nobody holds."""

import gc
import weakref

import pytest

from helpers.clipped_models import compiled, mlp
from tfdp_layers.models.training import PrivateTraining


def graphs():
    """How many traced functions' graphs there are."""
    gc.collect()
    return sum(type(one).__name__ == "FuncGraph" for one in gc.get_objects())


def left_by_fits(model, x, y):
    """Graphs that three further fits leave."""
    fit = lambda: model.fit(x, y, batch_size=4, verbose=0)  # noqa: E731
    fit()
    before = graphs()
    for _ in range(3):
        fit()
    return graphs() - before


@pytest.mark.slow
def test_further_fits_of_a_model_leave_no_graph_behind():
    assert left_by_fits(*compiled(mlp(), noise=1.0)) <= 0


@pytest.mark.slow
def test_a_model_that_nobody_holds_is_gone():
    model, x, y = compiled(mlp(), noise=1.0)
    model.fit(x, y, batch_size=4, verbose=0)
    there = weakref.ref(model)
    del model
    gc.collect()
    assert there() is None


@pytest.mark.slow
def test_graphs_that_are_kept_are_seen(monkeypatch):
    """Planted: every fit traces its sums anew, and somebody keeps them."""
    check, kept = PrivateTraining._check_trace, []

    def afresh(self, run, spec):
        self._privacy.traced = None
        report = check(self, run, spec)
        kept.append(self._privacy.sums)
        return report

    monkeypatch.setattr(PrivateTraining, "_check_trace", afresh)
    assert left_by_fits(*compiled(mlp(), noise=1.0)) >= 3


@pytest.fixture(autouse=True)
def without_garbage():
    gc.collect()
