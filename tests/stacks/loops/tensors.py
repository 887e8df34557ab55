"""tf.data, whose threads belong to the process: `python -m stacks.loops.tensors HOW`."""

# mypy: disable-error-code="import-not-found,import-untyped"

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import tensorflow as tf

from stacks.loops.common import FOLDER, MEBIBYTE, QUICK, WAIT, burn, fetch
from stacks.loops.files import cool
from stacks.loops.gpu import train

_RECORD = MEBIBYTE // 4
_RECORDS_A_BATCH = 8


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


def records(count: int = 4) -> list[Path]:
    """TFRecord files, cold."""
    paths = [FOLDER / f"{number}.tfrecord" for number in range(count)]
    for path in paths:
        with tf.io.TFRecordWriter(f"{path}") as writer:
            for _ in range(96):
                writer.write(os.urandom(_RECORD))
        cool(path)
    return paths


def interleaved() -> Any:  # noqa: ANN401 - a tf.data.Dataset
    """Records of several cold files at a time."""
    paths = records()

    def opened(path: Any) -> Any:  # noqa: ANN401 - a tensor
        return tf.data.TFRecordDataset(path, buffer_size=MEBIBYTE)

    def cooled() -> Iterator[str]:
        while True:
            for path in paths:
                cool(path)
                yield f"{path}"

    names = tf.data.Dataset.from_generator(cooled, output_types=tf.string)
    reading = names.interleave(opened, cycle_length=4, num_parallel_calls=4)
    return reading.batch(_RECORDS_A_BATCH)


def mounted() -> Any:  # noqa: ANN401 - a tf.data.Dataset
    """Records of fixed length, from a file on a remote file system."""
    path = f"{FOLDER / 'mount' / 'data'}"
    reading = tf.data.FixedLengthRecordDataset(path, _RECORD, buffer_size=_RECORD)
    return reading.batch(2)


def native_ahead() -> Any:  # noqa: ANN401 - a tf.data.Dataset
    """The pictures, prefetched."""
    return native().prefetch(2)


def ahead(seconds: float = WAIT) -> Any:  # noqa: ANN401 - a tf.data.Dataset
    """The function in Python, prefetched."""
    return python(seconds).prefetch(8)


healthy = partial(ahead, QUICK)


def main(how: str) -> None:
    """Train forever."""
    train(iter(globals()[how]()).__next__)
