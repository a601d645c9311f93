# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Images, privately, in three lines
#
# A convolutional network on the 1,797 small digits that scikit-learn ships. What you choose is a budget: how much
# the trained weights may reveal about any one training image.

# %% tags=["parameters"]
EPOCHS = 40

# %%
import keras
import numpy as np

import tfdp_layers as tfdp
from tfdp_layers import datasets

data = datasets.load("digits")
x, y = data.x_train, data.y_train
print(data.name, x.shape, "and", len(data.y_test), "test images, which play public data")

# %% [markdown]
# An ordinary Keras model. Batch normalization is the one common layer to leave out: it mixes records.

# %%
keras_model = keras.Sequential(
    [
        keras.Input(x.shape[1:]),
        keras.layers.Conv2D(16, 3, padding="same", activation="tanh"),
        keras.layers.AveragePooling2D(2),
        keras.layers.Conv2D(32, 3, padding="same", activation="tanh"),
        keras.layers.Flatten(),
        keras.layers.Dense(data.classes),
    ]
)

# %% [markdown]
# The three lines. `fit` finds the noise that the budget needs, and says so.

# %%
model = tfdp.make_private(keras_model)
model.compile(
    tfdp.optimizers.ClippedOptimizer(keras.optimizers.Adam(1e-2)),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
history = model.fit(
    x,
    y,
    batch_size=256,
    epochs=EPOCHS,
    validation_data=(data.x_test, data.y_test),
    callbacks=[tfdp.callbacks.PrivacyBudget(epsilon=3.0, delta=1e-4)],
    verbose=0,
)
print(f"test accuracy {history.history['val_accuracy'][-1]:.3f}")

# %% [markdown]
# What the budget grows with: epsilon is spent fastest at the start, and ends below 3.

# %%
tfdp.plots.epsilon(history, budget=3.0)

# %%
tfdp.plots.accuracy(history)

# %% [markdown]
# What is guaranteed, to whom, and what is not covered: to be published with the weights.

# %%
statement = model.privacy_statement(delta=1e-4)
print(statement)
figure = tfdp.plots.groups(statement)
figure

# %%
assert np.isfinite(statement.epsilon)
assert statement.epsilon <= 3.0
