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
# # Parties that share no records
#
# Six parties with a part of the digits each. A party trains on its own records, tests with noise which of its changes
# are large, and uploads one in a hundred of them, with noise. A party's whole data set is protected, so epsilons are
# large. The first run shares changes without privacy, to compare; at this size the private one learns next to nothing:
# the noise hides one party of six as well as one of thousands.

# %% tags=["parameters"]
ROUNDS = 8

# %%
import tempfile
from dataclasses import replace
from pathlib import Path

import tfdp_layers as tfdp
from tfdp_layers import datasets
from tfdp_layers.accounting import Ledger, Statement
from tfdp_layers.federated import Budget
from tfdp_layers.federated.simulation import Federation, simulate

data = datasets.load("digits")
folder = Path(tempfile.mkdtemp())
shared = Federation(model="mlp", parties=6, records=200, rounds=ROUNDS, upload=0.1)

# %%
outcome = simulate(shared, data)
print(f"without privacy: test accuracy {outcome.test_accuracy:.3f} after {outcome.rounds} rounds")

# %%
private = replace(
    shared,
    upload=0.01,
    selection="random",
    bound=1e-3,
    epsilon_per_epoch=10.0,
    budget=Budget(25.0, 1e-5),
    folder=folder,
)
outcome = simulate(private, data)
print(f"test accuracy {outcome.test_accuracy:.3f}; epsilon of a party {outcome.epsilon_per_party:.3g}")

# %% [markdown]
# Every party keeps a ledger of its own, and can state what it released.

# %%
ledger = Ledger.read(next(iter(sorted(folder.glob("party-*.json")))))
statement = Statement.from_ledger(ledger, delta=1e-5)
print(statement)
figure = tfdp.plots.epsilon(ledger, delta=1e-5, budget=25.0)
figure

# %%
assert statement.epsilon <= 25.0
