"""What a `fit` can hope for: whether its gradients stand out of its noise at all, weights count, and views differ."""

import math
from collections.abc import Sequence
from typing import Any

from tfdp_layers.accounting import Release
from tfdp_layers.accounting.signal import signal_to_noise
from tfdp_layers.batches.base import Batches
from tfdp_layers.caller import warn
from tfdp_layers.clipping.norm_clips import AutomaticClipping
from tfdp_layers.layers.gradient_clip import AUTOMATIC
from tfdp_layers.sensitivity import SensitivityGroup
from tfdp_layers.structure import SEEDS

HOPELESS = 1.0
"""Signal to noise of a whole training below which next to nothing is learned.

On Fashion-MNIST (a CNN of 26,010 weights, 5 epochs of 2,048 records, Adam, one run each, 2026-11-22) a ratio of 1.5
gave 28% of the test images, and 0.54 gave 12%: chance is 10%.
"""


def warn_of_hopeless(release: Release, groups: Sequence[SensitivityGroup], steps: int) -> None:
    """Warns where not even gradients that all point one way could stand out of the noise of so many steps."""
    # Of tables whose rows are selected nobody knows beforehand how many rows get noise: the others alone are counted.
    selected = {id(group.counts) for group in groups}
    weights = sum(math.prod(v.shape) for group in groups for v in group.variables if id(v) not in selected)
    noise, batch_size = release.noise_multiplier, release.sampling.batch_size
    ratio = signal_to_noise(noise, batch_size, steps, max(1, weights), release.noise)
    if ratio < HOPELESS:
        warn(
            f"This fit can learn next to nothing: if all {batch_size:,} {release.counted}s of a batch pulled one way"
            f" in all {steps:,} steps, their clipped gradients would add up to {ratio:.2g} of the noise on {weights:,}"
            f" weights (noise multiplier {noise:.4g}). What helps: a larger epsilon, more {release.counted}s, or fewer"
            " weights to train (freeze layers, train a head on features, LoRA). Larger batches or more epochs change"
            " little at a given epsilon.",
        )


def warn_of_lost_weights(model: Any, batches: Batches) -> None:
    """Warns where records weigh differently and every gradient is brought to one length, after its weight came in.

    (w g) / (||w g|| + stability) is g / ||g|| but for the stability: a record of weight 10 pulls as one of weight 1.
    The optimizer's clip multiplies by the weight once more where the largest is public; layers don't.
    """
    bounding = model.optimizer.bounding
    normalised = isinstance(getattr(bounding, "of_gradients", bounding), AutomaticClipping)
    normalised &= batches.largest_weight() is None
    normalised |= any(getattr(layer, "gradient_clip", None) == AUTOMATIC for layer in model._flatten_layers())
    if batches.weighted and normalised:
        warn(
            "Class and sample weights have next to no effect in this fit: automatic clipping brings every record's"
            " gradient to one length, whatever its weight. Three ways out: class_weight counts with ClippedOptimizer"
            " where x and y are arrays; a threshold that weighted gradients seldom reach, l2_norm_clip=10.0 for weights"
            " up to 10 say (layers: gradient_clip=10.0); or no weights, and a decision for the rare class by the"
            " highest scores (docs/choosing.md)."
        )


def warn_of_equal_views(model: Any, batches: Batches) -> None:
    """Warns where each record enters several times and nothing changes it: equal gradients have their mean."""
    random = any(SEEDS in variable.path for variable in model.non_trainable_variables)
    if batches.views > 1 and not random and not batches.redrawn:
        warn(
            f"views={batches.views} computes each record {batches.views} times, and nothing that Keras knows of makes"
            " the views differ: a step costs that much more and gains nothing. Begin the model with random layers"
            " (keras.layers.RandomFlip, RandomTranslation), give tfdp.records a random transform, or leave views out."
            " Random numbers of a layer of your own are not seen here."
        )
