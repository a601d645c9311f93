"""What came before what: entries that this process opened, and those of elsewhere, of which that is not known."""

from helpers.accounting_tools import release_of
from tfdp_layers.accounting import Ledger
from tfdp_layers.accounting.begun import has_begun, moment, was_begun_since
from tfdp_layers.sampling import Poisson

RELEASE = release_of(Poisson(600), 1.0)


def charged(ledger):
    ledger.reserve(ledger.begin(RELEASE), 1)
    return ledger.entries[-1].uid


def test_an_entry_began_when_its_ledger_first_counted_in_it():
    ledger, first = Ledger(), moment()
    entry = charged(ledger)
    then = moment()
    assert has_begun()
    assert was_begun_since(entry, first)
    assert charged(ledger) == entry  # equal releases go on in it
    assert not was_begun_since(entry, then)
    assert was_begun_since(charged(Ledger()), then)


def test_of_an_entry_of_elsewhere_nothing_is_known():
    assert not was_begun_since("of a file", 0)
