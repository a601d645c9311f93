"""What computes: how many processor cores a kernel that XLA compiles is shared among, and whether it is a GPU."""

import os

import tensorflow as tf


def cores() -> int:
    """The cores that this process may use, or the threads that TensorFlow was told to use where those are fewer."""
    mine = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    told = tf.config.threading.get_intra_op_parallelism_threads()
    return min(mine, told) if told else mine


def on_gpus() -> bool:
    """Whether TensorFlow computes on a GPU: there an operation takes long to start, and little for each number."""
    return bool(tf.config.get_visible_devices("GPU"))
