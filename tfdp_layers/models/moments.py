"""What a training is like at one moment: what its steps read, and what decisions change. Compared around hooks."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from tfdp_layers.accounting.view import charged_beside
from tfdp_layers.models.deciders import Attributes, Deciders
from tfdp_layers.models.fingerprints import Held, Rate, held_of
from tfdp_layers.proof.reads import copies_held, is_counter

__all__ = ["Moment", "Moments", "Seen"]


class Seen(NamedTuple):
    """What the variables that steps read hold.

    Attributes:
        weights: the model's, and what the optimizer keeps for them.
        others: what else the steps read.
        counts: the optimizer's counts of steps, and single numbers that it keeps.
    """

    weights: Held
    others: Held
    counts: Held


class Moment(NamedTuple):
    """What may be others after a hook.

    Attributes:
        stopping: whether the training is told to end.
        left: how many more releases the optimizer may make.
        rate: changes with the learning rate.
        deciding: what callbacks that are known to decide hold.
        seen: what the steps read.
        charged: what the ledger counts beside this training, and the budgets in force.
    """

    stopping: bool
    left: int
    rate: Any
    deciding: Attributes
    seen: Seen
    charged: Any = None

    def decided_since(self, before: "Moment") -> Iterator[str]:
        """In words, what was decided since that moment, but for what others decide by, the weights, and all beside."""
        if self.stopping and not before.stopping:
            yield "stopped the training"
        if self.left != before.left:
            yield "limited the releases"
        if self.charged != before.charged:
            yield "charged the ledger, or changed its budget"
        if self.rate != before.rate:
            yield "changed the learning rate"
        if self.seen.counts != before.seen.counts:
            yield "changed the optimizer's count of steps, or another single number of its"


class Moments:
    """Looks at a model in `fit`.

    Args:
        model: as its steps are traced now; `look_anew` once they read more.
        deciders: what is known to decide.
    """

    def __init__(self, model: Any, deciders: Deciders) -> None:
        self._model, self._deciders = model, deciders
        self._look: Callable[[], tuple[Held, ...]] | None = None
        self._rate, self._counters = Rate(), set[int]()

    def look_anew(self) -> None:
        """A step, as it is traced, showed that it reads more."""
        self._look = None

    def now(self, seen: Seen | None = None) -> Moment:
        """This moment. Args: seen: what the steps read, where that is known."""
        optimizer = self._model.optimizer
        seen = seen or self.seen()
        stopping, left = bool(self._model.stop_training), optimizer.releases_left()
        state = self._model._privacy
        charged = charged_beside(state.ledger, None if state.run is None else state.run.token)
        return Moment(stopping, left, self._rate(optimizer), self._deciders.held(), seen, charged)

    def compare(self, before: Moment, decided: Callable[[str], None]) -> Seen:
        """Calls `decided` with words for what was decided since that moment. Returns: what the steps read now."""
        now = self.now()
        for what in now.decided_since(before):
            decided(what)
        self._deciders.compare(before.deciding, now.deciding, decided)
        return now.seen

    def seen(self) -> Seen:
        """What the steps read holds now."""
        if self._look is None:  # not before: a model may be built by the first records
            (kept, beside), keys = self._model._read_by_steps(), self._model._privacy.written_by_sums
            self._counters = {id(copy) for one in beside if is_counter(one, keys) for copy in copies_held(one)}
            self._look = held_of(kept, beside, self._model._counted_by_optimizer())
        return Seen(*self._look())

    def call(self) -> Callable[[Seen], Seen] | None:
        """Before a call of the model, in which layers count as they do in its steps.

        All else that changes inside of a call is compared: other code than the model's runs there, too, callbacks of
        `evaluate` and generators of its data, and layers may write something else from what the call gives them.

        Returns: to be called after it, with what was seen before: that, as if these counts had been made then. None
            where the steps count nothing.
        """
        before = self.seen().others
        if not self._counters:
            return None

        def after(then: Seen) -> Seen:
            return then._replace(
                others=then.others.followed(before, self.seen().others, lambda one: id(one) in self._counters)
            )

        return after
