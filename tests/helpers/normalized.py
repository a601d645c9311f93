"""Small models with BatchNormalization in every place, for what replaces it."""

import keras

kl = keras.layers


def convolved(x, units, **options):
    x = kl.Conv2D(units, 3, padding="same", use_bias=False, **options)(x)
    return kl.ReLU()(kl.BatchNormalization()(x))


def mobile():
    """Depthwise, pointwise, an addition, then a head: a small MobileNet."""
    inputs = keras.Input((8, 8, 3))
    x = convolved(inputs, 8, strides=2)
    y = kl.BatchNormalization(scale=False, epsilon=1e-4)(kl.DepthwiseConv2D(3, padding="same")(x))
    y = kl.BatchNormalization(center=False, name="linear")(kl.Conv2D(8, 1)(kl.ReLU(6.0)(y)))
    return keras.Model(inputs, kl.Dense(3)(kl.GlobalAveragePooling2D()(x + y)))


def sequential():
    return keras.Sequential([keras.Input((6,)), kl.Dense(4), kl.BatchNormalization(), kl.Dropout(0.5), kl.Dense(3)])


def nested():
    """Models inside of models, one used twice, and a layer used inside and outside."""
    shared = kl.Dense(8)
    inner_inputs = keras.Input((8,))
    inner = keras.Model(inner_inputs, kl.BatchNormalization(name="deep")(shared(inner_inputs)), name="inner")
    tower = keras.Sequential([keras.Input((8,)), inner, kl.BatchNormalization(name="of_tower")], name="tower")
    inputs = keras.Input((8,))
    return keras.Model(inputs, tower(inner(shared(tower(inputs)))))


def many():
    """Several inputs and outputs by name, one normalization for both."""
    left, right = keras.Input((4, 4, 2), name="left"), keras.Input((4, 4, 2), name="right")
    norm = kl.BatchNormalization()
    return keras.Model({"left": left, "right": right}, {"sum": norm(left) + norm(right), "left": norm(left)})


def channels_first():
    inputs = keras.Input((6, 5, 4))
    x = kl.BatchNormalization(axis=1)(inputs)
    return keras.Model(inputs, kl.BatchNormalization(axis=-3)(x))


MODELS = {m.__name__: m for m in (mobile, sequential, nested, many, channels_first)}
