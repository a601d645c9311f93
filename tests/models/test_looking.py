"""Whatever way a callback, or a loop, asks a model for numbers of the records that it trains on, is noted."""

import keras
import pytest

from helpers.watched import PUBLIC, X, Y, model_of

WAYS = {
    "metrics": lambda model: model.metrics[0].result(),
    "metrics_variables": lambda model: model.metrics_variables[0],
    "get_metrics_result": lambda model: model.get_metrics_result()["loss"],
}
NOTE = "read 'metrics of the training' and then stopped the training"


class Asking(keras.callbacks.Callback):
    """Stops where a number of the model's is small enough, as it always is."""

    def __init__(self, way, first=lambda model: None):
        super().__init__()
        self._way, self._first = way, first

    def on_epoch_end(self, epoch, logs=None):
        self._first(self.model)
        if float(self._way(self.model)) < 1e9:
            self.model.stop_training = True


def notes_after(callback):
    model = model_of()
    model.fit(X, Y, batch_size=4, epochs=2, verbose=0, callbacks=[callback])
    return str(" ".join(model.privacy_statement(1e-2).notes))


@pytest.mark.few(1)
@pytest.mark.parametrize("way", WAYS)
def test_metrics_of_the_training_are_private_by_whichever_name(way):
    """`metrics_variables` hold the same sums, and were not noted."""
    with pytest.warns(UserWarning, match=NOTE):
        assert NOTE in notes_after(Asking(WAYS[way]))


def test_metrics_of_public_data_are_public():
    evaluating = Asking(WAYS["metrics_variables"], lambda model: model.evaluate(*PUBLIC, verbose=0))
    assert NOTE not in notes_after(evaluating)


def left_early(model):
    with model.private_run(X, Y, batch_size=4, epochs=2, verbose=0) as run:
        for batch in run:
            run.step(batch)
            if float(model.metrics_variables[0]) < 1e9:
                break


def test_a_loop_that_looks_at_the_variables_of_metrics_and_leaves_is_noted():
    with pytest.warns(UserWarning, match="The loop read 'metrics of the training' and then left before its last step"):
        left_early(model_of())
