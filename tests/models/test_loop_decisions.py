"""A loop of the caller's own that decides by private numbers: the statement says so."""

import warnings

import pytest

from helpers.loops import DELTA, X, Y, model_of, settings
from helpers.variants import slow_but

READS = {"logs": lambda logs, batch: logs["loss"] > 0, "records": lambda logs, batch: len(batch.records()[0])}


def _slower(run):
    run._model.optimizer.learning_rate = 1e-4


DECIDES = {
    "left before its last step": lambda run: True,
    "changed the learning rate": _slower,
    "took the weights": lambda run: run._model.get_weights() and None,
    "stopped the training": lambda run: setattr(run._model, "stop_training", True),
}


@pytest.mark.slow
@pytest.mark.parametrize("read", [*READS, None])
@pytest.mark.parametrize("decision", slow_but(["left before its last step", "changed the learning rate"], DECIDES))
def test_a_loop_that_decides_by_private_numbers_is_reported_in_the_statement(read, decision):
    model = model_of()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with model.private_run(X, Y, **settings()) as run:
            for batch in run:
                logs = run.step(batch)
                if read and READS[read](logs, batch) is not None and DECIDES[decision](run):
                    break
                if read is None and DECIDES[decision](run):
                    break
    found = [str(w.message) for w in caught if "The loop read" in str(w.message)]
    assert len(found) == (read is not None)
    assert all(f"and then {decision}" in one for one in found)
    assert ("The loop read" in str(model.privacy_statement(DELTA))) == bool(found)
