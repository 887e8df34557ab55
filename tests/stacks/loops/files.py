"""Batches from files, read as libraries read them: `python -m stacks.loops.files HOW`.

A cold file is not in the page cache; a limit on the disk's rate makes sure that the loop waits for
the disk.
"""

# ruff: noqa: PLC0415 - each case imports its own library and no other
# mypy: disable-error-code="import-not-found,import-untyped"

from __future__ import annotations

import mmap
import os
import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NoReturn

from stacks.loops.aio import Aio, Uring
from stacks.loops.common import FOLDER, MEBIBYTE, QUICK, Load, burn, for_a_while
from stacks.loops.gpu import hold

BATCH = 2 * MEBIBYTE
"""Takes about WAIT to read at the limited rate."""
SIZE = 96 * MEBIBYTE
_PAGE = 4096
_GROUPS = 24
_DRAW = random.Random(0)  # noqa: S311 - no secret


def data(size: int = SIZE) -> Path:
    """A file of noise."""
    path = FOLDER / f"data{os.getpid()}"
    with open(path, "wb") as file:
        file.writelines(os.urandom(MEBIBYTE) for _ in range(size // MEBIBYTE))
    return path


def cool(path: Path) -> None:
    """Drop it from the page cache."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def again(path: Path, batches: Callable[[], Iterator[object]]) -> Load:
    """The batches of `path` in order, then again with the file cold."""

    def forever() -> Iterator[object]:
        while True:
            cool(path)
            yield from batches()

    return forever().__next__


def buffered() -> Load:
    """open and read."""
    path = data()

    def batches() -> Iterator[bytes]:
        with open(path, "rb") as file:
            while batch := file.read(BATCH):
                yield batch

    return again(path, batches)


def small() -> Load:
    """One file per sample."""
    folder = FOLDER / "samples"
    folder.mkdir()
    for number in range(400):
        (folder / f"{number}").write_bytes(os.urandom(MEBIBYTE // 4))
    samples = sorted(folder.iterdir())
    for sample in samples:
        cool(sample)

    def load() -> None:
        for sample in _DRAW.sample(samples, 8):
            sample.read_bytes()
            cool(sample)

    return load


def direct() -> Load:
    """Bypassing the page cache."""
    descriptor = os.open(data(), os.O_RDONLY | os.O_DIRECT)

    def load() -> None:
        buffer = mmap.mmap(-1, MEBIBYTE)
        for _ in range(BATCH // MEBIBYTE):
            os.preadv(descriptor, [buffer], _DRAW.randrange(SIZE // MEBIBYTE) * MEBIBYTE)

    return load


def mapping(path: Path) -> mmap.mmap:
    """The file as memory."""
    with open(path, "rb") as file:
        return mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)


def mapped() -> Load:
    """Pages of a mapped file, as they are touched."""
    path = data()
    memory = mapping(path)

    def batches() -> Iterator[bytes]:
        for start in range(0, SIZE, BATCH):
            yield memory[start : start + BATCH]
        memory.madvise(mmap.MADV_DONTNEED)

    return again(path, batches)


def at_random(pages: int = 20) -> Load:
    """Random pages of more than fits into memory."""
    memory = mapping(data(size=3 * SIZE))
    last = len(memory) // _PAGE
    sum(memory[page * _PAGE] for page in range(last))  # all of it has been in memory

    def load() -> int:
        return sum(memory[_DRAW.randrange(last) * _PAGE] for _ in range(pages))

    return load


def parquet(*, compressed: bool = False, threads: bool = True) -> Load:
    """Row groups: cold and raw, or warm and compressed, so that decoding is the work."""
    import numpy as np
    import pyarrow as pa
    from pyarrow import parquet as pq

    path = FOLDER / f"data{os.getpid()}.parquet"
    noise = np.random.default_rng(0)
    columns, rows = 8, 2**17 if compressed else 2**15
    with pq.ParquetWriter(
        path,
        pa.schema([(f"{column}", pa.int64()) for column in range(columns)]),
        compression="zstd" if compressed else "none",
        compression_level=1 if compressed else None,
        use_dictionary=False,
        column_encoding="DELTA_BINARY_PACKED" if compressed else "PLAIN",
    ) as writer:
        for _ in range(_GROUPS):
            table = {f"{c}": noise.integers(0, 2**40, rows) for c in range(columns)}
            writer.write_table(pa.table(table))

    def batches() -> Iterator[object]:
        file = pq.ParquetFile(path)
        for group in range(file.num_row_groups):
            yield file.read_row_group(group, use_threads=threads)

    if not compressed:
        return again(path, batches)
    file = pq.ParquetFile(path)
    return for_a_while(lambda: file.read_row_group(_DRAW.randrange(_GROUPS), use_threads=threads))


parquet_decode = partial(parquet, compressed=True, threads=False)
parquet_threads = partial(parquet, compressed=True)


def hdf5(*, compressed: bool = False) -> Load:
    """Chunks of a data set: cold and raw, or warm and compressed."""
    import h5py
    import numpy as np

    path = FOLDER / f"data{os.getpid()}.h5"
    rows, width = (4, 16 * MEBIBYTE) if compressed else (64, BATCH)
    options = {"compression": "gzip", "compression_opts": 1} if compressed else {}
    with h5py.File(path, "w") as file:
        values = file.create_dataset("values", (rows, width), "u1", chunks=(1, MEBIBYTE), **options)
        noise = np.random.default_rng(0)
        for row in range(rows):
            values[row] = noise.integers(0, 16, width, "u1")

    def batches() -> Iterator[object]:
        with h5py.File(path, "r") as file:
            for row in range(rows):
                yield file["values"][row]

    if not compressed:
        return again(path, batches)
    stored = h5py.File(path, "r")["values"]
    return for_a_while(lambda: stored[_DRAW.randrange(rows)])


hdf5_decode = partial(hdf5, compressed=True)


def memmap() -> Load:
    """numpy's mapped arrays."""
    import numpy as np

    path = data()

    def batches() -> Iterator[object]:
        array = np.memmap(path, mode="r")
        for start in range(0, SIZE, BATCH):
            yield array[start : start + BATCH].sum()

    return again(path, batches)


def lmdb() -> Load:
    """A database that is a mapped file."""
    import lmdb

    path = FOLDER / "lmdb"
    count = 160
    with lmdb.open(f"{path}", map_size=2**30) as database, database.begin(write=True) as write:
        for number in range(count):
            write.put(f"{number}".encode(), os.urandom(MEBIBYTE // 2))

    def batches() -> Iterator[object]:
        with lmdb.open(f"{path}", readonly=True, lock=False, readahead=False) as database:
            for first in range(0, count, 4):
                with database.begin() as read:
                    yield [read.get(f"{number}".encode()) for number in range(first, first + 4)]

    return again(path / "data.mdb", batches)


def mounted() -> Load:
    """A file on a remote file system."""
    descriptor = os.open(FOLDER / "mount" / "data", os.O_RDONLY)
    size = os.fstat(descriptor).st_size // MEBIBYTE

    def load() -> bytes:
        # Each read is at a different place, so that nothing has been read ahead.
        return os.pread(descriptor, MEBIBYTE // 8, _DRAW.randrange(size) * MEBIBYTE)

    return lambda: [load(), load()]


def aio() -> Load:
    """Linux's own asynchronous reads: the thread waits for them in io_getevents."""
    reader = Aio(data())
    return lambda: reader.read(_places())


def uring() -> Load:
    """The same through io_uring."""
    reader = Uring(data())
    return lambda: reader.read(_places())


def _places() -> list[int]:
    count = BATCH // MEBIBYTE
    return [place * MEBIBYTE for place in _DRAW.sample(range(SIZE // MEBIBYTE), count)]


def checkpoint() -> NoReturn:
    """Every few steps, the main thread writes the model and forces it to disk."""
    gpu = hold()
    model = os.urandom(64 * MEBIBYTE)
    while True:
        for _ in range(5):
            gpu.run(0.02)
        with open(FOLDER / "checkpoint", "wb", buffering=0) as file:
            for _ in range(4):
                file.write(model)
            os.fsync(file.fileno())


def journal() -> NoReturn:
    """A journal, forced to disk after each of many small writes."""
    gpu = hold()
    with open(FOLDER / "journal", "wb", buffering=0) as file:
        while True:
            for _ in range(200):
                file.write(bytes(_PAGE))
                os.fdatasync(file.fileno())
            gpu.run(0.02)


def quick() -> Load:
    """Hardly anything."""
    return partial(burn, QUICK)
