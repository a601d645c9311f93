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
# # Text: from which library is a docstring?
#
# Real sentences that are on every machine with these packages: the first lines of docstrings. Words become numbers by a
# hash, since a vocabulary counted from private text would have to be paid for.

# %% tags=["parameters"]
EPOCHS = 20
MOST_FILES = 400

# %%
import ast
import importlib.util
import re
import zlib
from pathlib import Path

import keras
import numpy as np

import tfdp_layers as tfdp

LIBRARIES = ("numpy", "scipy", "sklearn", "keras")
WORDS, LENGTH = 2048, 24

# %%


def sentences(library):
    """The first paragraph of each docstring, without the library's name."""
    folder = Path(importlib.util.find_spec(library).origin).parent
    for file in sorted(folder.rglob("*.py"))[:MOST_FILES]:
        try:
            tree = ast.parse(file.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and (text := ast.get_docstring(node)):
                first = re.sub(library, "", text.split("\n\n")[0].lower())
                words = re.findall(r"[a-z]+", first)
                if len(words) >= 4:
                    yield words


found = {library: list(sentences(library)) for library in LIBRARIES}
rows = [(words, number) for number, library in enumerate(LIBRARIES) for words in found[library]]
x = np.zeros((len(rows), LENGTH), np.int32)
for row, (words, _) in zip(x, rows, strict=True):
    row[: len(words)] = [1 + zlib.crc32(word.encode()) % (WORDS - 1) for word in words[:LENGTH]]
y = np.array([number for _, number in rows])
# Public data. Split private records by ids, tfdp.preprocessing.held_out: a seeded shuffle moves with each record.
order = np.random.default_rng(0).permutation(len(y))
x, y = x[order], y[order]
cut = len(y) * 4 // 5
test = x[cut:], y[cut:]
largest = np.bincount(y).max() / len(y)
print(f"{len(y):,} sentences; guessing the largest library gets {largest:.2f} right")

# %% [markdown]
# An embedding, a mean over words and a dense layer. One record is one sentence.

# %%
keras_model = keras.Sequential(
    [
        keras.Input((LENGTH,), dtype="int32"),
        keras.layers.Embedding(WORDS, 32, mask_zero=True),
        keras.layers.GlobalAveragePooling1D(),
        keras.layers.Dense(len(LIBRARIES)),
    ]
)
model = tfdp.make_private(keras_model)
model.compile(
    tfdp.optimizers.ClippedOptimizer(keras.optimizers.Adam(2e-2)),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
history = model.fit(
    x[:cut],
    y[:cut],
    batch_size=min(512, cut // 4),
    epochs=EPOCHS,
    validation_data=test,
    callbacks=[tfdp.callbacks.PrivacyBudget(epsilon=3.0, delta=1e-5)],
    verbose=0,
)
print(f"test accuracy {history.history['val_accuracy'][-1]:.3f}")

# %%
statement = model.privacy_statement(delta=1e-5)
print(statement)
figure = tfdp.plots.accuracy(history)
figure

# %%
assert statement.epsilon <= 3.0
