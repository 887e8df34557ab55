"""Loaders of real libraries, and real decoding; each imports its own library and no other."""

# ruff: noqa: PLC0415 - a library is imported where it is wanted
# mypy: disable-error-code="import-not-found,import-untyped,misc,no-untyped-call"

from __future__ import annotations

import io
import itertools
import sys
from collections.abc import Callable, Iterator
from typing import Any

from prescriptions.settings import Setting

ENDLESS = 10**9
_SIZE, _CROP = (640, 480), (224, 224)
_SHARDS = 16
"""Number of shards, and so the limit of workers."""
_ROWS = 64

Make = Callable[..., float]
"""Makes a batch, in whatever process, and has it begun by any argument."""


def photograph() -> bytes:
    """A JPEG with as much detail as one from a camera has."""
    from PIL import Image

    content = io.BytesIO()
    Image.effect_noise(_SIZE, 32).convert("RGB").save(content, "JPEG", quality=90)
    return content.getvalue()


def with_pil(images: int) -> Callable[[float], object]:
    """Decodes and scales down this number of images with Pillow."""
    from PIL import Image

    content = photograph()

    def decode(factor: float) -> None:
        for _ in range(round(images * factor)):
            Image.open(io.BytesIO(content)).convert("RGB").resize(_CROP)

    return decode


def with_opencv(images: int) -> Callable[[float], object]:
    """The same with OpenCV, on one thread, as loader workers have it."""
    import cv2
    import numpy as np

    cv2.setNumThreads(0)
    content = np.frombuffer(photograph(), np.uint8)

    def decode(factor: float) -> None:
        for _ in range(round(images * factor)):
            cv2.resize(cv2.imdecode(content, cv2.IMREAD_COLOR), _CROP)

    return decode


def torch_loader(setting: Setting, make: Make) -> Iterator[object]:
    """PyTorch's DataLoader: batches arrive in the order in which they were begun."""
    import torch

    class Batches:
        def __getitem__(self, index: int) -> torch.Tensor:
            make()
            return torch.full((64,), float(index))

    return _through_torch(setting, Batches(), sampler=itertools.count())


def _through_torch(setting: Setting, data: Any, **how: Any) -> Iterator[object]:  # noqa: ANN401
    import torch
    from torch.utils.data import DataLoader

    torch.set_num_threads(1)
    return iter(DataLoader(data, batch_size=None, num_workers=setting.workers, **how))


def webdataset(setting: Setting, make: Make) -> Iterator[object]:
    """WebDataset: tar files of samples, each a batch."""
    import webdataset as wds

    from stacks.loops.streaming import shards

    paths = [f"{path}" for path in shards(_SHARDS)]
    data = wds.WebDataset(paths, shardshuffle=False, empty_check=False)
    return _through_torch(setting, data.map(make).repeat())


def hugging_face(setting: Setting, make: Make) -> Iterator[object]:
    """A table of Hugging Face's datasets, transformed on access."""
    import datasets

    def transformed(found: dict[str, list[int]]) -> dict[str, list[float]]:
        return {"batch": [make() for _ in found["number"]]}

    table = datasets.Dataset.from_dict({"number": [*range(_ROWS)]}).with_transform(transformed)
    return _through_torch(setting, table, sampler=itertools.cycle(range(_ROWS)))


def tensorflow(setting: Setting, _: Make) -> Iterator[object]:
    """tf.data: photographs decoded by threads of TensorFlow, as many as workers are asked for."""
    import tensorflow as tf

    noise = tf.random.uniform((*reversed(_SIZE), 3), maxval=255, dtype=tf.int32)
    content = tf.io.encode_jpeg(tf.cast(noise, tf.uint8), quality=90)
    threads = max(setting.workers, 1)

    def decode(_: Any) -> Any:  # noqa: ANN401
        images = [tf.image.resize(tf.io.decode_jpeg(content), _CROP) for _ in range(setting.pil)]
        return tf.stack(images)

    data = tf.data.Dataset.range(ENDLESS).map(decode, num_parallel_calls=threads)
    options = tf.data.Options()
    options.threading.private_threadpool_size = threads
    return iter(data.with_options(options).prefetch(1))


def grain(setting: Setting, make: Make) -> Iterator[object]:
    """grain: batches mapped by worker processes, or by the main if there are none."""
    import grain as library
    from absl import flags

    flags.FLAGS(sys.argv[:1])  # its worker processes ask for parsed flags
    inside = library.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    batches = library.MapDataset.range(ENDLESS).map(make).to_iter_dataset(inside)
    if setting.workers:
        how = {"num_workers": setting.workers, "per_worker_buffer_size": 2}
        batches = batches.mp_prefetch(library.MultiprocessingOptions(**how))
    return iter(batches)
