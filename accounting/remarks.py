"""What statements say of a training beside its numbers: in full where its model is stated, in short of its ledger."""

from collections.abc import Collection, Iterable

from tfdp_layers.accounting.wording import BEGINNING, BROKEN_OFF

__all__ = ["AFRESH", "KEPT", "KINDS", "ON_WORD", "RESTORED", "SEARCHED", "kinds_of", "told"]

KEPT = "kept"
"""A ledger that counts as much of that training by itself, or more, takes this over from none."""

RESTORED = "restored"
"""A ledger whose file was opened with `restored=True`, and lacked then what its mark said, or had no mark."""

SEARCHED = "searched"
"""A ledger of a search whose oracle may have chosen by scores what later trials released."""

SIMULATED = "simulated"
"""Parties of a federation, this ledger's among them, that share a process."""

ON_WORD = "is on the word of whoever registered it (tfdp.sensitivity_of)"
"""Of the bound of a layer that this library does not hold."""

AFRESH = (
    "Records of a source differed from one read to the next, as random changes make them: that each index held one"
    " person's record for as long as it was trained on is assumed, and was not compared."
)
"""Of records whose changes while a training runs nothing notices."""

_SAID = {
    RESTORED: (
        "was restored from an earlier copy",
        "The file of this ledger, or of one that it took over, was restored from an earlier copy (restored=True): it"
        " lacked what its mark said was counted, or the mark was missing. What was released after that copy, and was"
        " not merged since, is not in this statement: then its epsilon is too small.",
    ),
    "broken_off": (BEGINNING, BROKEN_OFF),
    "ran_out": (
        "The data of a training ran out",
        "The data of a training that this ledger counts ran out before its planned steps were made. Where the number of"
        " batches depends on what records hold (take_while, a filter of batches), that is not covered; where it is"
        " public, nothing is lost.",
    ),
    "stopped": (
        "what covers when it ended, too",
        "A training that this ledger counts was ended before its planned steps, by a callback, its own loop or an"
        " error. Where released weights decided that (by public validation data, say), epsilon is that of the steps"
        " made, taken by themselves: what covers when it ended, too, is the epsilon of all planned steps, or of as many"
        " of them as its budget affords, at the same delta. Where counts or the clock decided, nothing is lost.",
    ),
    "steered": (
        "chosen by numbers of the private data without noise",
        "In a training that this ledger counts, code of the caller read private numbers (the loss, say) and then"
        " decided (when to end, say). If that depended on what it read, the released weights, and how many steps there"
        " were, are chosen by numbers of the private data without noise, and the guarantee does not cover it.",
    ),
    "changed": (
        "it took from records",
        "Something else than their steps changed weights of trainings that this ledger counts. Averages and copies of"
        " what was released cost nothing more; what else it took from records is not in this statement.",
    ),
    "called": (
        "called another function than the step",
        "The loop of a training that this ledger counts called another function than its counted step: what that took"
        " of the data is in no ledger, and without noise.",
    ),
    "ordinary": (
        "steps of an ordinary optimizer",
        "Weights from which a training began that this ledger counts had taken steps of an ordinary optimizer, without"
        " noise. What these tell of the records that they saw is not in this statement; if those were public, nothing"
        " is lost.",
    ),
    "on_word": (
        ON_WORD,
        "In a training that this ledger counts, the bound of a layer on what one record adds was on the word of whoever"
        " registered it (tfdp.sensitivity_of): it was tried on made-up records, and is not proved.",
    ),
    "afresh": ("differed from one read to the next", AFRESH),
    SEARCHED: (
        "over all that the search might have chosen",
        "In a search that this ledger counts (PrivateTuner), trials differed in batch size, number of steps or noise,"
        " while the oracle that chose these was told the released scores of earlier trials. Epsilon adds up what was"
        " made, as though it had been settled beforehand: over all that the search might have chosen, delta can be"
        " larger. One batch size, number of epochs and noise for all trials avoids that, as does an oracle that chooses"
        " by no score (RandomSearchOracle, GridSearchOracle).",
    ),
    SIMULATED: (
        "parties took turns in one process",
        "A simulation: several parties took turns in one process (or one under several names or ledgers). That nothing"
        " but the server's weights passed between them there was looked at, and not proved (models, steps and data, as"
        " docs/federated.md lists): memory, files and random states are common to all. For real records run each party"
        " in a process of its own (make_client_app).",
    ),
    KEPT: (
        "while a training ran, after",
        "Of a training that this ledger counts, it holds what was counted when weights were kept in the middle. If how"
        " the training went on decided which were kept, the choice costs what the whole training did: see the ledger of"
        " the model that it ended with.",
    ),
}
"""By its name in a ledger's file: what a sentence of a model says of it, and what a ledger does."""

KINDS = tuple(_SAID)
"""Their names, in the order of statements."""


def kinds_of(sentences: Iterable[str]) -> frozenset[str]:
    """Of which kinds the sentences are that a model's statements say: the ledger of its trainings says these, too."""
    whole = list(sentences)
    return frozenset(kind for kind, (said, _) in _SAID.items() if any(said in one for one in whole))


def told(kinds: Collection[str], sentences: Iterable[str] = ()) -> tuple[str, ...]:
    """The notes of a statement, each once.

    Args:
        kinds: that its ledger knows of.
        sentences: that its model says itself, in the place of its ledger's on the same, and beside these.
    """
    own = list(dict.fromkeys(sentences))
    return (*(_SAID[kind][1] for kind in KINDS if kind in set(kinds) - kinds_of(own)), *own)
