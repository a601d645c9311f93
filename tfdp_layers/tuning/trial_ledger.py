"""The ledger of one trial: it counts what the trial releases, and refuses what the search did not pay for."""

from collections.abc import Sequence
from dataclasses import replace

from tfdp_layers.accounting import Ledger, Release
from tfdp_layers.accounting.charging import counts_alike
from tfdp_layers.accounting.releases import AnyRelease
from tfdp_layers.accounting.selection import Part
from tfdp_layers.certificates.independence import PROVED

__all__ = ["TrialLedger", "covers", "refuse_paid"]


@counts_alike
class TrialLedger(Ledger):
    """A ledger in memory for one trial, whose releases are covered by one entry of another ledger.

    Guarantee: what is counted here is at most the parts, each begun once: so at every order the Renyi divergence of
    the trial is at most that of the parts.

    Args:
        parts: what the trial may release at most; see `Selection`.
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        super().__init__()
        self._state.lasting = False  # the search's ledger counts it
        self._parts = list(parts)
        self._most: dict[str, int] = {}

    def begin(self, release: AnyRelease) -> str:
        """As `Ledger.begin`. Raises ValueError for a release that no part covers, or that began before."""
        found = next((n for n, (paid, _) in enumerate(self._parts) if covers(paid, release)), None)
        if found is None and isinstance(release, Release) and release.noise is not None:
            raise ValueError(
                "build returned an optimizer with noise=tfdp.noise.Correlated(...); a search pays for the independent"
                " noise of each step of its trials. Leave noise= out of build; train with correlated noise afterwards,"
                " with the settings that were found, and count it in the ledger of the search."
            )
        if found is None:
            raise ValueError(
                f"A trial was about to release what the search did not pay for: {release!r}. A trial makes one fit,"
                " with the sampling, the epochs and the noise that the search gives it, and releases nothing besides."
            )
        token = super().begin(release)
        self._most[token] = self._parts.pop(found)[1]
        return token

    def reserve(self, token: str, steps: int, ahead: int = 0, *, least: int | None = None) -> int:
        """As `Ledger.reserve`. Raises ValueError for more releases than the part pays for."""
        entry = self.entry_of(token)
        held = 0 if entry is None else entry.steps
        if held + steps > self._most[token]:
            raise ValueError(
                f"A trial was about to make {held + steps} releases, and the search paid for {self._most[token]}."
            )
        return super().reserve(token, steps, ahead, least=least)

    def _take(self, other: Ledger, spent: bool = True) -> None:
        """Also of a merge. Raises ValueError for one that counts what is not here: the search did not pay for it."""
        if not self.counts(other):
            raise ValueError(
                "A trial took over what another ledger counts (of weights that it loaded, or of a layer that was"
                " adapted in it), and the search did not pay for that. A trial makes one fit, and releases nothing"
                " besides."
            )
        super()._take(other, spent)

    def copy(self) -> Ledger:
        """Returns an ordinary ledger in memory of what was counted."""
        return Ledger.from_json(self.to_json())


def covers(paid: Release, made: AnyRelease) -> bool:
    """Whether a release costs at most what was paid for: the same draw of records, and as much noise or more.

    What is stated of the one holds of the other, too: where the noise came from, and that records do not mix.
    """
    if not isinstance(made, Release) or made.nominal_noise_multiplier is not None:
        return False
    if paid.independence == PROVED and made.independence != PROVED:
        return False
    same = replace(paid, groups=made.groups, independence=made.independence, seeded=made.seeded)
    # Its grouping has the key of another ledger; the records are those of the search.
    same = replace(same, grouping=made.grouping)
    return same == made and made.seeded <= paid.seeded and made.noise_multiplier >= paid.noise_multiplier


def refuse_paid(ledger: Ledger, pays: Ledger | None = None) -> None:
    """Raises ValueError where a model that build returned brought what its weights cost.

    Args:
        ledger: of that model.
        pays: of a search whose trials may share what this one counts already.
    """
    if not (ledger.steps or ledger.dataset is not None) or (pays is not None and pays.counts(ledger)):
        return
    mend = (
        "Trials must share nothing: make new layers in build, from public weights if from any."
        if pays is None
        else "Each call of build would charge that again, past the budget: make new layers in build; and what they get"
        " of private records (layer.adapt, weights of another training), make once, before the search, and count it"
        " in the ledger of the search: ledger.merge(layer.ledger)."
    )
    raise ValueError(
        "build returned a model whose weights another training paid for, or adapt of a layer, or that an earlier call"
        f" of build returned. {mend}"
    )
