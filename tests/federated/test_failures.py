"""What a party's training fails at stays with the party."""

import logging

import numpy as np
import pytest

from helpers.federation import SIZE, private_party, upload
from tfdp_layers.federated.failures import TurnFailedError, kept_here


def mistaken(weights):
    raise ValueError("Received a label value of 12 which is outside the valid range of [0, 10). Label values: 3 12 7")


def test_the_text_of_an_error_does_not_leave_the_party(caplog):
    """Flower sends the server the text of what a client app raises."""
    party = private_party(mistaken)
    with caplog.at_level(logging.ERROR), pytest.raises(TurnFailedError) as failed, kept_here():
        party.turn(upload([0], [1.0]))
    assert "12" not in str(failed.value)
    assert failed.value.__cause__ is None
    assert failed.value.__suppress_context__
    assert "Label values: 3 12 7" in caplog.text, "the party itself is told"
    assert party.ledger.steps == 0


def test_what_does_not_fail_and_an_interruption_pass():
    with kept_here():
        assert len(private_party().turn(upload([], []))) <= SIZE
    with pytest.raises(KeyboardInterrupt), kept_here():
        raise KeyboardInterrupt
    assert np.isfinite(private_party().weights).all()
