"""tf.data, whose threads belong to the process: `python -m stacks.loops.tensors HOW`."""

# mypy: disable-error-code="import-not-found,import-untyped"

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from stacks.loops.common import QUICK, WAIT, burn, fetch
from stacks.loops.gpu import train


def python(seconds: float = WAIT) -> Any:  # noqa: ANN401 - a tf.data.Dataset
    """A function in Python, which TensorFlow calls from its own thread."""

    def prepare(number: Any) -> Any:  # noqa: ANN401 - a tensor
        burn(seconds)
        return number

    return tf.data.Dataset.range(10**9).map(
        lambda number: tf.py_function(prepare, [number], tf.int64)
    )


def native() -> Any:  # noqa: ANN401 - a tf.data.Dataset
    """Pictures, decoded by TensorFlow's own code."""
    noise = tf.random.uniform((512, 512, 3), 0, 255, tf.int32)
    picture = tf.io.encode_png(tf.cast(noise, tf.uint8)).numpy()

    pictures = tf.data.Dataset.from_tensors(picture).repeat()
    return pictures.map(_mean, num_parallel_calls=1).batch(16)


def _mean(picture: Any) -> Any:  # noqa: ANN401 - tensors
    return tf.reduce_mean(tf.io.decode_png(picture))


def generator() -> Any:  # noqa: ANN401 - a tf.data.Dataset
    """A generator in Python that fetches from a server that answers late."""

    def generate() -> Iterator[int]:
        while True:
            yield len(fetch())

    return tf.data.Dataset.from_generator(generate, output_types=tf.int64)


def healthy() -> Any:  # noqa: ANN401 - a tf.data.Dataset
    """A quick function in Python, prefetched."""
    return python(QUICK).prefetch(8)


def main(how: str) -> None:
    """Train forever."""
    train(iter(globals()[how]()).__next__)
