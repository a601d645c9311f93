"""What of a private model only its releases may move, and what its records may write."""

from typing import Any

from tfdp_layers.proof.steering import Crossings, written_by_records


def crossings_of(model: Any) -> Crossings:
    """Watches the parts of a step of a private model that is in `fit`."""

    def kept() -> list[Any]:
        return [*model.weights, *model.optimizer.variables, *model._privacy.read_after_noise]

    def own() -> list[Any]:
        seeds = [v for v in model.non_trainable_variables if "seed_generator" in v.path]
        return [*written_by_records(model), *seeds]

    replicas = model._privacy.require_run().replicas
    return Crossings(model.name, kept, None if replicas is None else own, model._privacy.written_by_sums)
