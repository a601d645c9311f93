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
# # A table: what does privacy cost in accuracy?
#
# Is a tumour benign? 569 patients, 30 numbers each, which scikit-learn ships. With so few records every guarantee is
# dear, and delta must lie well below 1/569. We train at several budgets and compare.

# %% tags=["parameters"]
EPSILONS = (0.3, 1.0, 3.0, 10.0)
SEEDS = (1, 2, 3)
EPOCHS = 40

# %%
import keras
import numpy as np
from sklearn.datasets import load_breast_cancer

import tfdp_layers as tfdp

# %% [markdown]
# Features are scaled by what instruments can report, not by statistics of these patients: a mean and a deviation
# computed from private records would have to be paid for, too.

# %%
LARGEST = np.array([30, 40, 200, 2500, 0.2, 0.4, 0.5, 0.25, 0.4, 0.1])
SCALES = np.concatenate([LARGEST, LARGEST / 10, 1.5 * LARGEST])
features, labels = load_breast_cancer(return_X_y=True)
features = (features / SCALES).astype("float32")


def split(seed):
    """Training and test records: which are which is drawn anew for each run."""
    order = np.random.default_rng(seed).permutation(len(labels))
    train, test = order[:455], order[455:]
    return (features[train], labels[train, None]), (features[test], labels[test, None])


def plain_model():
    return keras.Sequential([keras.Input((30,)), keras.layers.Dense(1)])


def compiled(model, optimizer):
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=[keras.metrics.BinaryAccuracy(name="accuracy", threshold=0.0)])
    return model


# %% [markdown]
# Each run is a training of its own. (On one private data set all of these runs would add up: the ledger of the data set
# does that. This is a public benchmark.)

# %%


def private_run(epsilon, seed):
    train, test = split(seed)
    optimizer = tfdp.optimizers.ClippedOptimizer(keras.optimizers.Adam(0.1))
    model = compiled(tfdp.make_private(plain_model()), optimizer)
    budget = tfdp.callbacks.PrivacyBudget(epsilon=epsilon, delta=1e-4)
    model.fit(*train, batch_size=128, epochs=EPOCHS, callbacks=[budget], verbose=0)
    return model, model.evaluate(*test, verbose=0, return_dict=True)["accuracy"]


def ordinary_run(seed):
    train, test = split(seed)
    model = compiled(plain_model(), keras.optimizers.Adam(0.1))
    model.fit(*train, batch_size=128, epochs=EPOCHS, verbose=0)
    return model.evaluate(*test, verbose=0, return_dict=True)["accuracy"]


accuracies = []
for epsilon in EPSILONS:
    runs = [private_run(epsilon, seed) for seed in SEEDS]
    accuracies.append([accuracy for _, accuracy in runs])
    print(f"epsilon {epsilon:4g}: test accuracy {np.mean(accuracies[-1]):.3f}")
ordinary = float(np.mean([ordinary_run(seed) for seed in SEEDS]))
print(f"without privacy: {ordinary:.3f}")

# %% [markdown]
# The line is the mean, bars reach from the worst run to the best.

# %%
figure = tfdp.plots.accuracy((EPSILONS, accuracies), metric="test_accuracy", baseline=ordinary)
figure

# %% [markdown]
# The statement of the last run, at the largest budget.

# %%
model, _ = runs[-1]
statement = model.privacy_statement(delta=1e-4)
print(statement)
tfdp.plots.profile(model, delta=1e-4)

# %%
assert statement.epsilon <= max(EPSILONS)
