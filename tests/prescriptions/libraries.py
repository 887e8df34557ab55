"""Loaders of real libraries, and real decoding; each imports its own library and no other."""

# ruff: noqa: PLC0415 - a library is imported where it is wanted
# mypy: disable-error-code="import-not-found,import-untyped,misc,no-untyped-call"

from __future__ import annotations

import io
import os
import random
import sys
import tarfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Any

from gpu_bottleneck_exporter.demo.orphans import die_with_parent
from prescriptions.settings import Batch, Loop
from stacks.loops.common import FOLDER, Load

ENDLESS = 10**9
_SIZE, _CROP = (640, 480), (224, 224)
_SHARDS = 16
"""As many workers at most."""
_SAMPLES = 64
"""In a shard, or in a table."""

Making = Callable[[Batch], Load]
"""What makes a loader's batches; called in the process that does."""


@cache
def photograph() -> bytes:
    """A JPEG with as much detail as one from a camera has."""
    from PIL import Image

    noise = Image.effect_noise(_SIZE, 32).convert("RGB")
    content = io.BytesIO()
    noise.save(content, "JPEG", quality=90)
    return content.getvalue()


def with_pil(images: int) -> Callable[[float], object]:
    """Decodes and scales down so many images with Pillow."""
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


class Maker:
    """Makes batches, in whatever process it is used first; a worker ends with the main."""

    def __init__(self, making: Making, batch: Batch) -> None:
        self._making, self._batch, self._main = making, batch, os.getpid()
        self._make: Load | None = None

    def __call__(self, _: object = None) -> float:
        """Make one."""
        if self._make is None:
            if os.getpid() != self._main:
                die_with_parent(self._main)
            self._make = self._making(self._batch)
        self._make()
        return 0.0


def torch_loader(loop: Loop, making: Making) -> Load:
    """PyTorch's DataLoader: batches arrive in the order in which they were begun."""
    import torch
    from torch.utils.data import Dataset

    make = Maker(making, loop.batch)

    class Batches(Dataset[torch.Tensor]):
        def __len__(self) -> int:
            return ENDLESS

        def __getitem__(self, index: int) -> torch.Tensor:
            make()
            return torch.full((64,), float(index))

    return _through_torch(Batches(), loop)


def _through_torch(data: Any, loop: Loop) -> Load:  # noqa: ANN401
    import torch
    from torch.utils.data import DataLoader

    torch.set_num_threads(1)
    batches: Iterator[object] = iter(DataLoader(data, batch_size=None, num_workers=loop.workers))
    return partial(next, batches)


def webdataset(loop: Loop, making: Making) -> Load:
    """WebDataset: tar files with a photograph each sample, decoded on the way."""
    import webdataset as wds

    paths = [_shard(number) for number in range(_SHARDS)]
    make = Maker(making, loop.batch)
    data = wds.WebDataset([f"{path}" for path in paths], shardshuffle=False, empty_check=False)
    return _through_torch(data.map(make).repeat(), loop)


def _shard(number: int) -> Path:
    path = FOLDER / f"shard{os.getpid()}-{number}.tar"
    content = photograph()
    with tarfile.open(path, "w") as tar:
        for sample in range(_SAMPLES):
            member = tarfile.TarInfo(f"{number}-{sample}.jpg")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


def hugging_face(loop: Loop, making: Making) -> Load:
    """A table of Hugging Face's datasets, transformed on access."""
    import datasets
    from torch.utils.data import IterableDataset

    make = Maker(making, loop.batch)
    rows = {"image": [photograph()] * _SAMPLES}

    def transformed(found: dict[str, list[object]]) -> dict[str, list[float]]:
        return {"image": [make() for _ in found["image"]]}

    table = datasets.Dataset.from_dict(rows).with_transform(transformed)

    class Rows(IterableDataset[object]):
        def __iter__(self) -> Iterator[object]:
            draw = random.Random(os.getpid())  # noqa: S311 - no secret
            while True:
                yield table[draw.randrange(_SAMPLES)]

    return _through_torch(Rows(), loop)


def tensorflow(loop: Loop, making: Making) -> Load:  # noqa: ARG001 - it decodes by itself
    """tf.data: photographs decoded by threads of TensorFlow, as many as workers are asked for."""
    import tensorflow as tf

    noise = tf.random.uniform((*reversed(_SIZE), 3), maxval=255, dtype=tf.int32)
    content = tf.io.encode_jpeg(tf.cast(noise, tf.uint8), quality=90)

    def decode(_: Any) -> Any:  # noqa: ANN401
        images = [tf.image.resize(tf.io.decode_jpeg(content), _CROP) for _ in range(loop.batch.pil)]
        return tf.stack(images)

    data = tf.data.Dataset.range(ENDLESS).map(decode, num_parallel_calls=max(loop.workers, 1))
    options = tf.data.Options()
    options.threading.private_threadpool_size = max(loop.workers, 1)
    return partial(next, iter(data.with_options(options).prefetch(1)))


def grain(loop: Loop, making: Making) -> Load:
    """grain: batches mapped by worker processes, or by the main if there are none."""
    import grain as library
    from absl import flags

    flags.FLAGS(sys.argv[:1])  # its worker processes ask for parsed flags
    data = library.MapDataset.range(ENDLESS).map(Maker(making, loop.batch))
    inside = library.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    batches = data.to_iter_dataset(inside)
    if loop.workers:
        how = library.MultiprocessingOptions(num_workers=loop.workers, per_worker_buffer_size=2)
        batches = batches.mp_prefetch(how)
    return partial(next, iter(batches))


def threads(loop: Loop, making: Making) -> Load:
    """Threads of the main process, two batches ahead each."""
    pool = ThreadPoolExecutor(max(loop.workers, 1))
    makers = [making(loop.batch) for _ in range(2 * max(loop.workers, 1))]
    coming = [pool.submit(make) for make in makers]

    def load() -> object:
        batch = coming.pop(0).result()
        makers.append(makers.pop(0))
        coming.append(pool.submit(makers[-1]))
        return batch

    return load
