"""Records from anywhere are drawn as those in arrays are; what cannot be drawn is refused with the fix."""

import collections
import os
import stat
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp

IMAGES = np.random.default_rng(0).normal(size=(20, 2, 3)).astype(np.float32)
LABELS = np.arange(20)


class Source:
    """Records by index, which counts how often each is read."""

    def __init__(self, item=lambda i: (IMAGES[i], LABELS[i]), length=20):
        self._item, self.length, self.read = item, length, collections.Counter()

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        if index >= self.length:
            raise IndexError(index)
        self.read[index] += 1
        return self._item(index)


class InGroups:
    def __len__(self):
        return 20

    def __getitems__(self, indices):
        assert len(indices) == 1  # never a drawn batch at once
        return [(IMAGES[i], LABELS[i]) for i in indices]


class Batched(keras.utils.PyDataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        return IMAGES[10 * index :][:10], LABELS[10 * index :][:10]


def pipeline():
    return tf.data.Dataset.from_tensor_slices((IMAGES, LABELS))


def same_draws(made, **options):
    """Batches of a store beside those of arrays, by one seed."""
    sampling = tfdp.sampling.Poisson(5)
    drawn = (tfdp.PrivateBatches(made, None, sampling, seed=1), tfdp.PrivateBatches(IMAGES, LABELS, sampling, seed=1))
    return zip(*[batches.dataset(**options).take(6).as_numpy_iterator() for batches in drawn], strict=True)


@pytest.mark.few(4)
@pytest.mark.parametrize(
    "made",
    [
        Source,
        InGroups,
        lambda: tfdp.records(Source(lambda i: {"image": IMAGES[i].tolist(), "label": int(i)}), picked, workers=0),
        lambda: tfdp.records(list(zip(IMAGES, LABELS, strict=True)), workers=3),
        lambda: tfdp.records(pipeline()),
    ],
    ids=["by index", "by groups of one", "picked by a transform", "list", "tf.data"],
)
def test_records_from_anywhere_are_drawn_as_those_in_arrays(made):
    for pad in (False, True):
        for one, other in same_draws(made(), pad=pad):
            for a, b in zip(one, other, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-6)
                assert a.dtype == b.dtype or a.dtype.kind == b.dtype.kind


def picked(item):
    return np.array(item["image"], np.float32), item["label"]


def model_of(inputs, outputs):
    model = tfdp.PrivateModel(inputs, outputs)
    model.compile(tfdp.optimizers.NoisyOptimizer("sgd", 1.0), "sparse_categorical_crossentropy")
    return model


def classifier():
    inputs = keras.Input((2, 3))
    hidden = keras.layers.Flatten()(inputs)
    return model_of(inputs, tfdp.layers.ClippedDense(20, activation="softmax")(hidden))


def test_fit_draws_from_a_source_and_counts():
    model, source = classifier(), Source()
    model.fit(source, batch_size=5, epochs=2, verbose=0)
    assert model.ledger.steps == 8
    assert model.ledger.entries[0].release.examples == 20
    assert 0 < sum(source.read.values()) < 20 * 5 * 16


def test_records_of_dicts_with_weights_and_units_train():
    def item(i):
        return {"a": IMAGES[i, 0], "b": IMAGES[i]}, LABELS[i], 0.5 * (i % 3)

    inputs = {"a": keras.Input((3,), name="a"), "b": keras.Input((2, 3), name="b")}
    joined = keras.layers.Concatenate()([inputs["a"], keras.layers.Flatten()(inputs["b"])])
    model = model_of(inputs, tfdp.layers.ClippedDense(20, activation="softmax")(joined))
    model.fit(tfdp.records(Source(item)), batch_size=4, unit_ids=np.arange(20) // 2, verbose=0)
    assert model.ledger.entries[0].release.examples == 10
    x, y, weights = next(tfdp.PrivateBatches(Source(item), sampling=tfdp.sampling.FixedSize(20)).stream())
    np.testing.assert_allclose(weights, 0.5 * (y % 3))
    np.testing.assert_allclose(x["a"], IMAGES[y, 0])


def test_a_cache_is_written_once_for_this_user_alone_and_begun_anew_after_an_interruption(tmp_path):
    read = []

    def elements():
        for i in range(20):
            read.append(i)
            yield IMAGES[i], LABELS[i]

    signature = (tf.TensorSpec((2, 3), tf.float32), tf.TensorSpec((), tf.int64))
    dataset = tf.data.Dataset.from_generator(elements, output_signature=signature)
    folder = tmp_path / "records"
    folder.mkdir(mode=0o700)
    (folder / "0.raw").write_bytes(b"left by an interrupted reading of an earlier version")
    for _ in range(2):
        for one, other in same_draws(tfdp.records(dataset, cache=folder)):
            np.testing.assert_array_equal(one[0], other[0])
    assert len(read) == 20
    written = [folder / "records.json", *sorted(folder.glob("records.*/*.raw"))]
    assert [one.name for one in written] == ["records.json", "0.raw", "1.raw"]
    assert all(stat.S_IMODE(os.stat(one).st_mode) == 0o600 for one in written)
    with open(written[1], "r+b") as file:
        file.truncate(100)
    with pytest.raises(ValueError, match=r"0\.raw has 100 bytes.*have 480.*Remove the folder"):
        tfdp.records(dataset, cache=folder)
    with pytest.raises(ValueError, match="records of another pipeline"):
        tfdp.records(dataset.map(lambda x, y: x), cache=folder)


def test_records_of_bfloat16_are_kept_in_files(tmp_path):
    dataset = pipeline().map(lambda x, y: (tf.cast(x, tf.bfloat16), y))
    for one, other in same_draws(tfdp.records(dataset, cache=tmp_path / "records")):
        np.testing.assert_allclose(one[0].astype("float32"), other[0].astype("float32"), rtol=1e-2)


@pytest.mark.parametrize(
    ("source", "match"),
    [
        (lambda: Source(length=0), "empty"),
        (lambda: Source(lambda i: (f"text {i}", i)), "x holds strings, and the model takes float32"),
        (lambda: Source(lambda i: (IMAGES[i], f"class {i}")), "holds <U7 values"),
        (lambda: Source(lambda i: (IMAGES[i], i, 1.0, 2.0)), "tuple of 4"),
        (
            lambda: tfdp.records(Batched()),
            r"is a keras\.utils\.PyDataset, whose \[index\] gives a batch.*a class without",
        ),
        (lambda: tfdp.records(iter([])), "no source of single records"),
        (lambda: tfdp.records(Source(), workers=-1), "number of threads"),
        (lambda: tfdp.records(Source(), cache="folder"), "cache is for tf.data"),
        (lambda: tfdp.records(pipeline(), picked), "dataset.map"),
        (lambda: tfdp.records(pipeline().repeat()), "endless"),
        (lambda: tfdp.records(pipeline().batch(4)), "gives batches"),
        (lambda: tfdp.records(pipeline().take(0)), "no records"),
        (lambda: tfdp.records(pipeline().map(lambda x, y: (x, tf.as_string(y)))), "dense numbers"),
        (lambda: tfdp.records(pipeline().map(lambda x, y: (x, x, x, y))), "tuple of 4"),
        (lambda: tfdp.records(ragged()), "differ in shape.*that you know beforehand"),
        (lambda: tfdp.records(pipeline().map(lambda x, y: (x / 0.0, y))), "NaN"),
    ],
)
def test_what_cannot_be_drawn_is_refused_with_the_fix(source, match):
    model = classifier()
    with pytest.raises(ValueError, match=match):
        model.fit(source(), batch_size=4, verbose=0)
    assert model.ledger.steps == 0


def ragged():
    spec = (tf.TensorSpec((None,)), tf.TensorSpec((), tf.int32))
    return tf.data.Dataset.from_generator(lambda: ((np.zeros(i), i) for i in range(4)), output_signature=spec)


@pytest.mark.parametrize(
    ("item", "match"),
    [
        (lambda i: (IMAGES[i, : 1 + (i == 0)], i), r"shape \(1, 3\)"),
        (lambda i: (IMAGES[i] * (np.nan if i else 1), i), "NaN or infinite"),
        (lambda i: (IMAGES[i], i, 1.0) if i else (IMAGES[i], i), "in having a sample weight"),
        (lambda i: (IMAGES[i], i, -float(i)), "sample weight -"),
        (lambda i: (IMAGES[i], 0.5 if i else 1), "type float64"),
        (lambda i: ({"a": IMAGES[i]} if i else {"a": IMAGES[i], "b": IMAGES[i]}, i), "is made of"),
        (lambda i: ({"a": IMAGES[i], "b" if i else "c": IMAGES[i]}, i), "is made of"),
        (lambda i: (IMAGES[i], np.int64(300) if i else np.int8(1)), "type int64"),
        (lambda i: (IMAGES[i].astype(np.float64) * (1e300 if i else 1), i), "NaN or infinite"),
    ],
)
def test_a_record_unlike_the_first_ends_the_training_with_its_number(item, match):
    batches = tfdp.PrivateBatches(Source(item), sampling=tfdp.sampling.FixedSize(20))
    with pytest.raises(ValueError, match=match):
        next(batches.stream())
    with pytest.raises(tf.errors.OpError, match=match):
        next(iter(batches.dataset()))


def test_a_source_that_shrinks_is_noticed():
    source = Source()
    batches = tfdp.PrivateBatches(source, sampling=tfdp.sampling.FixedSize(20))
    source.length = 7
    with pytest.raises(ValueError, match="had 20 records when training began"):
        next(batches.stream())


def test_labels_beside_a_source_are_refused():
    with pytest.raises(ValueError, match=r"\['y'\] cannot be matched"):
        classifier().fit(Source(), LABELS, batch_size=4)


@pytest.mark.parametrize("validation", [Source(), tfdp.records(pipeline())], ids=["source", "records"])
def test_records_are_no_validation_data_of_keras(validation):
    model = classifier()
    with pytest.raises(ValueError, match="which Keras cannot evaluate on"):
        model.fit(IMAGES, LABELS, batch_size=5, validation_data=validation, verbose=0)
    assert model.ledger.steps == 0


def test_a_pipeline_in_fit_is_told_of_records():
    with pytest.raises(ValueError, match=r"tfdp\.records\(dataset\)"):
        classifier().fit(pipeline(), verbose=0)


def test_the_documented_example_trains(capsys):
    page = (Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8")
    exec(page.split("```python\n")[1].split("```")[0], {"__name__": "documented"})
    assert "epsilon" in capsys.readouterr().out
