"""Damage and malice for files: hypothesis strategies over bytes and over JSON trees."""

import copy
import os
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

NAMES = (
    ("os", "system"),
    ("builtins", "eval"),
    ("subprocess", "Popen"),
    ("keras.layers", "Lambda"),
    ("keras.layers", "TorchModuleWrapper"),
    ("keras.layers", "TFSMLayer"),
    ("keras.utils", "get_file"),
    ("keras.src.saving.saving_lib", "load_model"),
    ("antigravity", "fly"),
)
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    # Small: a layer of any size may be asked for, and nothing refuses to make it.
    st.integers(-3, 70),
    st.sampled_from([0.5, -1.0, 1e-300, 1e300, float("nan"), float("inf"), -0.0, 10**400, -(2**63)]),
    st.text(max_size=6),
    st.sampled_from([name for pair in NAMES for name in pair] + ["__lambda__", "function", "tfdp_layers>ClippedDense"]),
)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
)
NAMED = st.sampled_from(NAMES).map(
    lambda pair: {"module": pair[0], "class_name": pair[1], "config": {}, "registered_name": pair[1]}
)


def examples(short: int) -> Any:
    """Settings of a fuzz test: `short` inputs, or as many as the environment variable FUZZ says."""
    return settings(
        max_examples=int(os.environ.get("FUZZ", short)),
        deadline=None,
        database=None,
        derandomize="FUZZ" not in os.environ,
        suppress_health_check=list(HealthCheck),
    )


def places(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path to every node below the root."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [found for key, item in items for found in [(*path, key), *places(item, (*path, key))]]


@st.composite
def damaged_trees(draw: Any, tree: Any) -> Any:
    """The tree with one to three nodes replaced, removed, doubled or renamed."""
    tree = copy.deepcopy(tree)
    for _ in range(draw(st.integers(1, 3))):
        found = places(tree)
        if not found:
            return draw(VALUES)
        *way, key = draw(st.sampled_from(found))
        parent = tree
        for step in way:
            parent = parent[step]
        action = draw(st.sampled_from(["replace", "replace", "name", "remove", "double"]))
        if action in ("replace", "name"):
            parent[key] = draw(VALUES if action == "replace" else NAMED)
        elif action == "remove":
            del parent[key]
        elif isinstance(parent, list):
            parent.append(copy.deepcopy(parent[key]))
        else:
            parent[draw(st.text(max_size=6))] = copy.deepcopy(parent[key])
    return tree


@st.composite
def damaged_bytes(draw: Any, whole: bytes) -> bytes:
    """The bytes cut short, or with one to four stretches overwritten, removed or inserted."""
    if draw(st.booleans()):
        return whole[: draw(st.integers(0, len(whole)))]
    data = bytearray(whole)
    for _ in range(draw(st.integers(1, 4))):
        start, length = draw(st.integers(0, len(data))), draw(st.integers(0, 9))
        data[start : start + length] = draw(st.binary(max_size=9))
    return bytes(data)
