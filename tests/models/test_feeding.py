"""What `run.feeds` says of generators: one that two critics train, and what its statements say of its weights."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from tfdp_layers.accounting.left import CHANGED_ELSEWHERE, FED_ELSEWHERE, change_of, leave, leave_fed

WIDTH = 6
FIRST, SECOND = np.random.default_rng(0).random((2, 64, WIDTH)).astype("float32")
kl = keras.layers
optimizer_of = keras.optimizers.Adam


def critic_of():
    critic = tfdp.make_private(keras.Sequential([keras.Input((WIDTH,)), kl.Dense(4, "relu"), kl.Dense(1)]))
    critic.compile(tfdp.optimizers.ClippedOptimizer("sgd", noise_multiplier=4.0), "mse")
    return critic


def translating():
    return keras.Sequential([keras.Input((WIDTH,)), kl.Dense(WIDTH)])


def run_of(critic, records, epochs=1):
    return critic.private_run(records, np.ones((64, 1)), batch_size=32, epochs=epochs, verbose=0)


def trained(critic, generator, adam, made):
    """A step of a generator through a critic, on what it makes of public numbers."""
    with tf.GradientTape() as tape:
        cost = -tf.reduce_mean(critic(generator(made)))
    adam.apply(tape.gradient(cost, generator.trainable_variables), generator.trainable_variables)


def cycle(critics, generators, adam):
    """Both critics feed both generators, as in a cycle of two domains."""
    codes, nothing = tf.random.normal((16, WIDTH)), np.zeros((16, 1), "float32")
    with run_of(critics[0], FIRST) as run, run_of(critics[1], SECOND) as other:
        for one in (run, other):
            for generator in generators:
                one.feeds(generator)
        for ours, theirs in zip(run, other, strict=True):
            run.step(ours, public=(generators[0](codes), nothing))
            other.step(theirs, public=(generators[1](codes), nothing))
            for critic, generator in zip(critics, generators, strict=True):
                trained(critic, generator, adam, codes)


def notes_of(model):
    said = model.privacy_statement(1e-2).notes
    return [note for note in (CHANGED_ELSEWHERE, FED_ELSEWHERE) if note in said]


def test_two_critics_on_one_ledger_feed_two_generators_again_and_again():
    """They were refused, as two models that share weights, whose runs would be counted twice."""
    critics, generators, adam = [critic_of(), critic_of()], [translating(), translating()], optimizer_of()
    adam.build([one for generator in generators for one in generator.trainable_variables])
    critics[1].ledger = critics[0].ledger
    for trainings in (1, 2):
        cycle(critics, generators, adam)
        assert critics[0].ledger is critics[1].ledger
        assert critics[0].ledger.steps == 4 * trainings
    for generator in map(tfdp.make_private, generators):
        assert generator.ledger is critics[0].ledger
        assert notes_of(generator) == [FED_ELSEWHERE]
    assert [notes_of(critic) for critic in critics] == [[], []]


def test_two_critics_with_ledgers_of_their_own_are_told_what_to_do():
    generator, critics = translating(), [critic_of(), critic_of()]
    with run_of(critics[0], FIRST) as run, run_of(critics[1], SECOND) as other:
        run.feeds(generator)
        with pytest.raises(RuntimeError, match=r"second\.ledger = first\.ledger"):
            other.feeds(generator)
        run.step(next(run))
        other.step(next(other))
    assert [critic.ledger.steps for critic in critics] == [1, 1]
    for one in critics[1:]:  # one after the other, as before
        with run_of(one, SECOND) as run:
            run.feeds(generator)
            for batch in run:
                run.step(batch)
    assert critics[0].ledger.steps == critics[1].ledger.steps == 4


def test_models_that_share_weights_still_run_one_at_a_time():
    shared = kl.Dense(4, "relu")
    models = [
        tfdp.make_private(keras.Sequential([keras.Input((WIDTH,)), shared, kl.Dense(1, name=name)])) for name in "ab"
    ]
    for model in models:
        model.compile(tfdp.optimizers.ClippedOptimizer("sgd", noise_multiplier=4.0), "mse")
    assert models[0].ledger is models[1].ledger
    with run_of(models[0], FIRST) as run:
        run.step(next(run))
        with pytest.raises(RuntimeError, match="fit is running already"), run_of(models[1], SECOND):
            pass


@pytest.mark.parametrize("loops", [1, 2, 3])
def test_what_several_loops_feed_is_theirs_until_the_last_one_has_ended(loops):
    """As the first ended, what the other's loop went on to train was said to be something else's change."""
    weight = tf.Variable([1.0, 2.0])
    leave([weight])
    for _ in range(loops):
        leave_fed([weight], ends=False)
    for _ in range(loops):
        weight.assign_add([0.5, 0.25])
        assert change_of([weight]) == FED_ELSEWHERE
        leave_fed([weight], ends=True)
    assert change_of([weight]) == FED_ELSEWHERE
    weight.assign_add([0.5, 0.25])
    assert change_of([weight]) == CHANGED_ELSEWHERE


def test_a_generator_that_something_else_trained_afterwards_is_noted_as_such():
    """The note of a change came for every generator, so that it told nobody anything."""
    critic, generator, adam = critic_of(), translating(), optimizer_of()
    codes = tf.random.normal((16, WIDTH))
    for within in ([], [FED_ELSEWHERE]):
        with run_of(critic, FIRST) as run:
            run.feeds(generator)
            for batch in run:
                run.step(batch)
                trained(critic, generator, adam, codes)
                assert notes_of(tfdp.make_private(generator)) == within  # at first nobody knows what it held before
        private = tfdp.make_private(generator)
        assert notes_of(private) == [FED_ELSEWHERE]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        generator.compile("sgd", "mse")
        generator.fit(FIRST, FIRST, verbose=0)
    assert notes_of(private) == [CHANGED_ELSEWHERE]


NOTE = "took steps of an ordinary optimizer, without noise"


def pretrained(declared=False, loop=False):
    """A generator that an ordinary optimizer trained: of its own, or of a loop without a model."""
    generator, adam = translating(), optimizer_of()
    if loop:
        adam.apply([tf.ones_like(one) for one in generator.trainable_variables], generator.trainable_variables)
    else:
        generator.compile(adam, "mse")
        generator.fit(FIRST, FIRST, batch_size=32, verbose=0)
    return (tfdp.public(generator) if declared else generator), adam


def fed(critic, generator, adam=None):
    """What a run's `feeds` warns of; its loop trains the generator, if it has an optimizer."""
    codes = tf.random.normal((16, WIDTH))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with run_of(critic, FIRST) as run:
            run.feeds(generator)
            for batch in run:
                run.step(batch, public=(generator(codes), np.zeros((16, 1), "float32")))
                if adam is not None:
                    trained(critic, generator, adam, codes)
                run.feeds(generator)  # again, as in a loop over epochs: nothing new
    return [str(one.message) for one in caught if "of an ordinary optimizer" in str(one.message)]


def noted(model):
    return any(NOTE in note for note in model.privacy_statement(1e-2).notes)


@pytest.mark.parametrize("loop", [False, True])
def test_a_generator_that_was_trained_without_privacy_is_named(loop):
    """The critic stated its epsilon without a word, and its steps took what the generator made of these records."""
    critic, (generator, adam) = critic_of(), pretrained(loop=loop)
    (message,) = fed(critic, generator)
    assert "run.feeds named it" in message
    assert f"took {1 if loop else 2} step" in message
    assert noted(critic)
    second = critic_of()
    second.ledger = critic.ledger
    del adam
    generator.optimizer = None
    assert fed(second, generator) == []  # said once
    assert noted(second)


def test_generators_of_public_data_or_of_loops_alone_are_left_in_peace():
    critic, adam = critic_of(), optimizer_of()
    for generator in (translating(), pretrained(declared=True)[0], translating()):
        assert fed(critic, generator) == []
    assert fed(critic, generator, adam) == []
    assert fed(critic, generator, adam) == []  # the loop's own steps, in a second run
    second = critic_of()
    second.ledger = critic.ledger
    assert fed(second, generator, adam) == []
    assert not noted(critic)
    assert not noted(second)
    assert notes_of(tfdp.make_private(generator)) == [FED_ELSEWHERE]


def test_steps_between_two_loops_are_named():
    critic, generator, adam = critic_of(), translating(), optimizer_of()
    assert fed(critic, generator, adam) == []
    generator.compile("sgd", "mse")
    generator.fit(SECOND, SECOND, batch_size=32, verbose=0)
    assert len(fed(critic, generator, adam)) == 1
    assert noted(critic)


def clipped(generator, adam):
    for one in generator.weights:
        one.assign(tf.clip_by_value(one, -0.1, 0.1))


def averaged(generator, adam):
    for one in generator.weights:
        one.assign(one * 0.9 + 0.01)


@pytest.mark.parametrize("change", [clipped, averaged])
def test_weights_that_are_changed_by_hand_between_two_loops_bring_no_word(change):
    """The loop's own optimizer was named, as if it had trained the generator without privacy before."""
    critic, generator, adam = critic_of(), translating(), optimizer_of()
    for _ in range(3):
        assert fed(critic, generator, adam) == []
        change(generator, adam)
    assert not noted(critic)


@pytest.mark.parametrize("at_end", [True, False])
def test_a_generator_that_is_restored_between_two_loops_brings_no_word(at_end, tmp_path):
    """To the end of an earlier loop, or to where it was while one went on."""
    critic, generator, adam = critic_of(), translating(), optimizer_of()
    kept = tf.train.Checkpoint(generator=generator, adam=adam)
    codes = tf.random.normal((16, WIDTH))
    with run_of(critic, FIRST) as run:
        run.feeds(generator)
        for batch in run:
            run.step(batch)
            trained(critic, generator, adam, codes)
            path = kept.save(tmp_path / "within")
    path = kept.save(tmp_path / "end") if at_end else path
    assert fed(critic, generator, adam) == []
    kept.restore(path)
    assert fed(critic, generator, adam) == []
    assert not noted(critic)


@pytest.mark.parametrize("change", [None, clipped])
def test_the_loop_s_own_optimizer_is_named_where_it_took_steps_between(change):
    critic, generator, adam = critic_of(), translating(), optimizer_of()
    assert fed(critic, generator, adam) == []
    adam.apply([tf.ones_like(one) for one in generator.trainable_variables], generator.trainable_variables)
    if change is not None:
        change(generator, adam)
    assert len(fed(critic, generator, adam)) == 1
    assert noted(critic)


def test_an_optimizer_of_another_model_s_loop_is_named():
    """What it took as a loop fed the one model says nothing of another one, which it trained beside."""
    critic, one, other, adam = critic_of(), translating(), translating(), optimizer_of()
    adam.build([*one.trainable_variables, *other.trainable_variables])
    codes = tf.random.normal((16, WIDTH))
    with run_of(critic, FIRST) as run:
        run.feeds(one)
        for batch in run:
            run.step(batch)
            with tf.GradientTape() as tape:
                cost = tf.reduce_mean((one(codes) + other(FIRST[:16])) ** 2)
            weights = [*one.trainable_variables, *other.trainable_variables]
            adam.apply(tape.gradient(cost, weights))
    assert fed(critic, one) == []
    assert len(fed(critic, other)) == 1


def test_feeds_at_each_step_is_counted_once():
    critic, generator = critic_of(), translating()
    with run_of(critic, FIRST) as run:
        for batch in run:
            run.feeds(generator)
            run.feeds(generator)
            run.step(batch)
        assert run._run.fed == [generator]
        assert {one.value._tfdp_fed for one in generator.weights} == {1}
    assert {one.value._tfdp_fed for one in generator.weights} == {0}
