"""One thread for each process; every test starts from the same initial weights, and alone."""

import gc
import os
import sys
import zlib

import pytest

for kind in ("INTRAOP", "INTEROP"):  # the tests are small, and several processes run them
    os.environ.setdefault(f"TF_NUM_{kind}_THREADS", "1")
# The same kernels on all processors: without it some have none for convolutions with the channels first.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

gc.set_threshold(50_000, 20, 20)  # TensorFlow's own million objects, looked through too often, were a tenth of the time


def pytest_addoption(parser):
    parser.addoption("--part", metavar="K/N", help="of the tests chosen the K-th of N parts, by their names")


@pytest.hookimpl(tryfirst=True)  # before pytest leaves the slow ones out
def pytest_collection_modifyitems(config, items):
    """Marks variants beyond `few(n)`, or MOST, slow. `--part`: parts together are all tests, in any order, anywhere."""
    if addresses := [item.nodeid for item in items if " at 0x" in item.nodeid]:
        raise pytest.UsageError(f"Of another name in each process, which `-n 2` refuses: {addresses[0]}. Give ids=.")
    mark_slow(items)
    if config.getoption("--part"):
        number, parts = map(int, config.getoption("--part").split("/"))
        mine = [zlib.crc32(item.nodeid.encode()) % parts == number % parts for item in items]
        config.hook.pytest_deselected(items=[item for item, own in zip(items, mine, strict=True) if not own])
        items[:] = [item for item, own in zip(items, mine, strict=True) if own]


MOST = 4
"""Variants of a test that are quick where it does not say how many."""


def mark_slow(items):
    """Of the variants of a test `few(n)`, or MOST, are quick, which lie evenly among them, the others slow."""
    variants = {}
    for item in items:
        if not item.get_closest_marker("slow"):
            variants.setdefault((item.path, item.function), []).append(item)
    for found in variants.values():
        few = found[0].get_closest_marker("few")
        quick = min(few.args[0] if few else MOST, len(found))
        for place, item in enumerate(found):
            if place and place * quick // len(found) == (place - 1) * quick // len(found):
                item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True)
def same_weights():
    """With the seeds of noise and sampling, the result of a test is one and the same."""
    if "keras" in sys.modules:  # tests of the accounting load none
        sys.modules["keras"].utils.set_random_seed(0)


@pytest.fixture(autouse=True)
def nothing_released():
    """As in a process of its own: equal weights, or records, of other tests are not those of this one."""
    if "tfdp_layers.accounting.released" in sys.modules:
        released, owing = (sys.modules[f"tfdp_layers.accounting.{name}"] for name in ("released", "owing"))
        for known in (released._released, released._public, released._seen, released._changed, owing._owing):
            known.clear()
        released._passing = type(released._passing)()
    if "tfdp_layers.accounting.left" in sys.modules:
        sys.modules["tfdp_layers.accounting.left"]._left.clear()
    if "tfdp_layers.accounting.begun" in sys.modules:
        sys.modules["tfdp_layers.accounting.begun"]._begun.clear()
    if "tfdp_layers.accounting.sightings" in sys.modules:
        sightings = sys.modules["tfdp_layers.accounting.sightings"]
        sightings._sightings.clear()
        sightings._told.clear()


@pytest.fixture(autouse=True, scope="module")
def nothing_looked_through_again():
    """What was there before a file's tests, TensorFlow's million objects first, no collection or search looks at."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def no_device_left_over():
    """`tf.map_fn` leaves one behind where what it maps raises, and then no later test can enter a strategy's scope."""
    yield
    if "tensorflow.python.ops.variable_scope" in sys.modules:
        sys.modules["tensorflow.python.ops.variable_scope"].get_variable_scope()._caching_device = None
