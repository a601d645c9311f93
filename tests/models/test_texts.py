"""Strings inside of a private model: they train as the numbers do that they are looked up as, proved, saved, served."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from tfdp_layers.batches.texts import bytes_of, is_text

kl = keras.layers
N, WORDS, WARDS = 48, ["late", "paid", "refund"], ["surgery", "medicine"]
RNG = np.random.default_rng(0)
NOTES = np.array([" ".join(RNG.choice(["late", "Paid!", "unknown", ""], 4)) for _ in range(N)])
WARD, AGE = RNG.choice([*WARDS, "other"], (N, 1)), RNG.normal(size=(N, 1)).astype("float32")
X, Y = {"note": NOTES, "ward": WARD, "age": AGE}, RNG.integers(0, 2, (N, 1)).astype("float32")


def words():
    return kl.TextVectorization(vocabulary=WORDS, output_sequence_length=5, name="words")


def wards():
    return kl.StringLookup(vocabulary=WARDS, output_mode="one_hot", name="wards")


def private(model, noise=1.0, **options):
    model = tfdp.make_private(model)
    model.compile(tfdp.optimizers.ClippedOptimizer(keras.optimizers.SGD(0.5), noise), "mse", **options)
    return model


def of_strings(noise=1.0):
    keras.utils.set_random_seed(1)
    inputs = {name: keras.Input((), dtype="string", name=name) if name == "note" else None for name in X}
    inputs |= {"ward": keras.Input((1,), dtype="string", name="ward"), "age": keras.Input((1,), name="age")}
    note = kl.GlobalAveragePooling1D()(kl.Embedding(5, 4)(words()(inputs["note"])))
    hashed = kl.Hashing(7, output_mode="one_hot")(inputs["ward"])
    joined = kl.Concatenate()([note, wards()(inputs["ward"]), hashed, inputs["age"]])
    return private(keras.Model(inputs, kl.Dense(1)(joined)), noise)


def of_numbers(noise=1.0):
    """The same model, behind the lookups; and its records."""
    keras.utils.set_random_seed(1)
    x = {"note": words()(NOTES), "ward": wards()(WARD), "hash": kl.Hashing(7, output_mode="one_hot")(WARD), "age": AGE}
    x = {name: np.asarray(value) for name, value in x.items()}
    inputs = {name: keras.Input(value.shape[1:], dtype=value.dtype, name=name) for name, value in x.items()}
    note = kl.GlobalAveragePooling1D()(kl.Embedding(5, 4)(inputs["note"]))
    rest = [keras.ops.cast(inputs[name], "float32") for name in ("ward", "hash", "age")]
    return private(keras.Model(inputs, kl.Dense(1)(kl.Concatenate()([note, *rest]))), noise), x


def fitted(model, x=None, **options):
    settings = {"batch_size": 12, "epochs": 2, "verbose": 0, "sampling_seed": 3} | options
    model.fit(X if x is None else x, Y, **settings)
    return model


@pytest.mark.slow
def test_they_train_as_the_numbers_do_and_it_is_proved_that_records_do_not_mix():
    strings, (numbers, x) = of_strings(0.0), of_numbers(0.0)
    for variable, other in zip(strings.trainable_variables, numbers.trainable_variables, strict=True):
        other.assign(variable)
    steps = fitted(strings).ledger.steps, fitted(numbers, x).ledger.steps
    for variable, other in zip(strings.trainable_variables, numbers.trainable_variables, strict=True):
        np.testing.assert_allclose(variable, other, rtol=1e-5, atol=1e-6)
    release, *_ = strings.ledger.releases  # without noise they ended with equal numbers, and pay for both
    assert release.independence == "proved"
    assert (steps[0], strings.sensitivities()[0].bound) == (8, numbers.sensitivities()[0].bound)


def test_no_text_moves_a_sum_by_more_than_the_bound():
    model = of_strings()
    hostile = ["", " ", "late " * 10_000, "\x00", "\ud7ff\U0010ffff", "late", b"\xff\xfe", "x" * 1_000_000]
    bound = model.sensitivities()[0].bound
    for text in hostile:
        x = {"note": tf.constant([text]), "ward": tf.constant([[text]]), "age": np.full((1, 1), 1e30, "float32")}
        sums = model.bounded_gradient_sums(x, np.ones((1, 1), "float32"))
        norm = np.sqrt(sum(float(tf.reduce_sum(tf.cast(one, tf.float64) ** 2)) for one in sums))
        assert norm <= bound * (1 + 1e-5)


LETTERS = {
    "ids": lambda **of: kl.TextVectorization(output_sequence_length=6, **of),
    "counts": lambda **of: kl.TextVectorization(output_mode="count", pad_to_max_tokens=True, max_tokens=20, **of),
    "runs of two": lambda **of: kl.TextVectorization(output_mode="multi_hot", ngrams=2, max_tokens=20, **of),
}


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("shape", [(), (1,)], ids=["texts", "columns"])
@pytest.mark.parametrize("kind", LETTERS)
def test_texts_cut_into_characters_train_as_their_numbers_do_proved(kind, shape):
    cut = LETTERS[kind](vocabulary=[*"adeiltpé", "la", "at"], split="character")
    texts = np.array(["late", "é pd\ud7ff", "", "d", *NOTES[4:]]).reshape(-1, *shape)
    ids = np.asarray(cut(tf.constant(texts)))

    def model(layers, weights=None):
        found = private(keras.Sequential([*layers, *layers_behind]), 0.0)
        return found if weights is None else (found, found.set_weights(weights))[0]

    layers_behind = [kl.Rescaling(0.1), kl.Dense(1)]
    strings = model([keras.Input(shape, dtype="string"), cut])
    numbers = model([keras.Input(ids.shape[1:], dtype=ids.dtype)], strings.get_weights())
    assert len(np.unique(ids, axis=0)) > 3
    fitted(strings, texts), fitted(numbers, ids)
    np.testing.assert_allclose(strings.get_weights()[0], numbers.get_weights()[0], rtol=1e-5, atol=1e-7)
    assert strings.ledger.releases[0].independence == "proved"


@pytest.mark.slow
def test_it_is_saved_loaded_trained_on_and_served(tmp_path):
    model = fitted(of_strings(), validation_data=({name: value[:5].copy() for name, value in X.items()}, Y[:5]))
    model.save(tmp_path / "model.keras")
    loaded = tfdp.load_model(tmp_path / "model.keras")
    predicted = model.predict(X, verbose=0)  # NumPy's strings, which Keras does not take
    np.testing.assert_allclose(loaded.predict(X, verbose=0), predicted, rtol=1e-6)
    assert loaded.evaluate(X, Y, verbose=0) == pytest.approx(model.evaluate(X, Y, verbose=0))
    served = {name: tf.constant(value) for name, value in X.items()}
    np.testing.assert_allclose(model.to_keras().predict(served, verbose=0), predicted, rtol=1e-6)
    assert fitted(loaded).ledger.steps == 16


class Source:
    """Notes one by one, of any length."""

    def __len__(self):
        return N

    def __getitem__(self, index):
        return NOTES[index], Y[index]


def of_notes(**options):
    return private(keras.Sequential([keras.Input((), dtype="string"), words(), kl.Embedding(5, 2), kl.Flatten()]))


PIPELINE = tf.data.Dataset.from_tensor_slices((NOTES, Y[:, :0])).map(lambda x, y: (x, tf.zeros([10])))
MANY = np.zeros((N, 10), "float32")
GIVEN = {
    "objects": lambda: {"x": NOTES.astype(object), "y": MANY},
    "bytes": lambda: {"x": NOTES.astype("S"), "y": MANY},
    "a tensor": lambda: {"x": tf.constant(NOTES), "y": MANY},
    "batches": lambda: {"x": tfdp.PrivateBatches(NOTES, MANY, tfdp.sampling.Poisson(12))},
    "a pipeline": lambda: {"x": tfdp.records(PIPELINE)},
    "a source": lambda: {"x": tfdp.records(Source(), lambda item: (item[0], np.zeros(10, np.float32)))},
    "declared": lambda: {"x": tfdp.declare_sampling(PIPELINE.batch(12), tfdp.sampling.Cyclic(12), examples=N)},
    "pieces": lambda: {"x": NOTES, "y": MANY, "physical_batch_size": 5},
    "units": lambda: {"x": NOTES, "y": MANY, "unit_ids": np.arange(N) // 2, "records_per_unit": 2},
}


@pytest.mark.few(1)
@pytest.mark.parametrize("given", GIVEN)
def test_they_come_from_wherever_records_come_from(given):
    model, options = of_notes(), GIVEN[given]()
    drawn = isinstance(options["x"], tfdp.PrivateBatches) or given == "declared"
    model.fit(**options, **({} if drawn else {"batch_size": 12}), verbose=0)
    assert model.ledger.releases[0].independence == "proved"


@pytest.mark.slow
def test_a_loop_of_ones_own_takes_them():
    model = of_notes()
    with model.private_run(NOTES, MANY, batch_size=12, verbose=0) as run:
        for batch in run:
            run.step(batch)
    assert model.ledger.steps == 4


def test_a_step_without_records_and_padding_are_empty_strings():
    batches = tfdp.PrivateBatches(NOTES.astype(object), MANY, tfdp.sampling.Poisson(1), seed=4)
    drawn = [next(iter(batches.stream(pad=True))) for _ in range(20)]
    texts = [text for x, _, weights in drawn for text in x[np.asarray(weights) == 0]]
    assert texts
    assert set(texts) == {b""}


def test_digests_are_of_what_strings_say_and_not_of_where_they_lie():
    a, b = np.array(["one", "two"], object), np.array(["".join(["o", "ne"]), b"two"], object)
    assert bytes_of(a) == bytes_of(b) != bytes_of(np.array(["onet", "wo"], object))
    assert is_text(a)
    assert not is_text(np.array(["one", None], object))


def behind(layer, shape=(1,)):
    return keras.Sequential([keras.Input(shape, dtype="string"), layer, kl.Dense(1)])


def behind_a_table(layer):
    layers = [layer, kl.Embedding(5, 2), kl.GlobalAveragePooling1D(), kl.Dense(1)]
    return keras.Sequential([keras.Input((1,), dtype="string"), *layers])


def adapted():
    layer = kl.StringLookup(output_mode="one_hot")
    layer.adapt(tf.constant(WARD))
    return layer


def lambda_of_lengths():
    return kl.Lambda(lambda x: tf.cast(tf.strings.length(x), tf.float32), output_shape=(1,))


REFUSED = {
    "adapted": (lambda: private(behind(adapted())), {}, "learned by adapt.*tfdp.preprocessing.vocabulary"),
    "without words": (
        lambda: private(behind_a_table(kl.TextVectorization(output_sequence_length=3))),
        {},
        "has no vocabulary yet",
    ),
    "ragged": (
        lambda: private(behind_a_table(kl.TextVectorization(vocabulary=WORDS))),
        {},
        "longest of the batch.*output_sequence_length",
    ),
    "numbers": (lambda: private(behind(wards())), {"x": AGE}, r"takes strings there.*x\.astype\(str\)"),
    "words to numbers": (
        lambda: private(keras.Sequential([keras.Input((1,)), kl.Dense(1)])),
        {},
        r"x holds strings.*takes float32 there.*Turn words into numbers before fit",
    ),
    "one of several": (
        lambda: of_numbers()[0],
        {"x": {**of_numbers()[1], "age": WARD}},
        r"x\['age'\] holds strings",
    ),
    "XLA": (lambda: private(behind(lambda_of_lengths()), jit_compile=True), {}, "XLA, which knows none"),
    "missing": (lambda: private(behind(wards())), {"x": np.array([["a"], [None]] * 24, object)}, "strings are missing"),
    "labels": (lambda: private(behind(wards())), {"y": WARD[:, 0]}, "Number the classes"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_looked_up_is_refused_and_costs_nothing(case):
    make, given, message = REFUSED[case]
    model = make()
    with pytest.raises(ValueError, match=message):
        model.fit(**({"x": WARD, "y": Y, "batch_size": 12, "verbose": 0} | given))
    assert model.ledger.steps == 0


def test_records_of_strings_are_kept_in_memory_alone(tmp_path):
    with pytest.raises(ValueError, match="cache keeps numbers"):
        tfdp.records(PIPELINE, cache=tmp_path)


def test_a_public_vocabulary_and_features_of_strings():
    layer = tfdp.public(adapted())
    assert fitted(private(behind(layer)), WARD).ledger.steps == 8
    np.testing.assert_array_equal(tfdp.features(wards(), WARD), np.asarray(wards()(WARD)))


@pytest.mark.parametrize("mask", [None, "", "[MASK]"])
def test_a_lookup_that_takes_no_other_word_trains_beside_randomness(mask):
    """Made-up words that are in no record ended `fit` in Keras' error, where random layers make it look at them."""
    words = keras.Input((), dtype="string")
    lookup = keras.layers.StringLookup(vocabulary=["left", "right", "both"], num_oov_indices=0, mask_token=mask)
    hidden = keras.layers.Dropout(0.2)(keras.layers.Embedding(5, 4)(lookup(words)))
    model = tfdp.make_private(keras.Model(words, keras.layers.Dense(1)(hidden)))
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0, 1.0), "mse")
    model.fit(tf.constant(["left", "right"] * 8), np.ones((16, 1), "float32"), batch_size=8, verbose=0)
    assert model.ledger.steps == 2


def test_one_of_which_nothing_is_proved_is_refused_in_plain_words():
    words = keras.Input((), dtype="string")
    lookup = keras.layers.StringLookup(vocabulary=["left", "right"], num_oov_indices=0, mask_token=None)
    hidden = keras.layers.Lambda(tf.math.bessel_i0)(keras.layers.Embedding(2, 4)(lookup(words)))
    model = tfdp.make_private(keras.Model(words, keras.layers.Dense(1)(keras.layers.Dropout(0.2)(hidden))))
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0, 1.0), "mse")
    with pytest.raises(ValueError, match=r"not proved.*the model takes none of these"):
        model.fit(tf.constant(["left", "right"] * 8), np.ones((16, 1), "float32"), batch_size=8, verbose=0)
    assert model.ledger.steps == 0
