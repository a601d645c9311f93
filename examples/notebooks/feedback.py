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
# # Layers that learn without a backward pass
#
# In direct feedback alignment hidden layers learn from the output error through fixed matrices. A record's influence
# then follows from two clips, and no gradient of a single record is ever formed.

# %% tags=["parameters"]
EPOCHS = 40

# %%
import keras

import tfdp_layers as tfdp
from tfdp_layers import datasets

data = datasets.load("digits")
print(data.name, data.x_train.shape)

# %% [markdown]
# `feedback="aligned"` starts from the product of the initial kernels, which depends on no data.

# %%
stack = tfdp.layers.FeedbackStack(
    [128],
    "tanh",
    data.classes,
    activation_clip=[8.0, 8.0],
    delta_clip=[0.3],
    error_clip=1.0,
    feedback="aligned",
)
layers = [
    keras.Input(data.x_train.shape[1:]),
    keras.layers.Flatten(),
    keras.layers.UnitNormalization(),
    keras.layers.Rescaling(8.0),
    stack,
]
model = tfdp.PrivateSequential(layers)
model.compile(
    tfdp.optimizers.NoisyOptimizer(keras.optimizers.Adam(3e-3)),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)

# %% [markdown]
# Each layer states how far one record can move its sum, before anything is trained.

# %%
for group in model.sensitivities():
    print(f"{group.name}: {group.bound:.3g}")

# %%
history = model.fit(
    data.x_train,
    data.y_train,
    batch_size=256,
    epochs=EPOCHS,
    validation_data=(data.x_test, data.y_test),
    callbacks=[tfdp.callbacks.PrivacyBudget(epsilon=3.0, delta=1e-4)],
    verbose=0,
)
print(f"test accuracy {history.history['val_accuracy'][-1]:.3f}")

# %%
statement = model.privacy_statement(delta=1e-4)
print(statement)
figure = tfdp.plots.groups(statement)
figure

# %%
assert statement.epsilon <= 3.0
