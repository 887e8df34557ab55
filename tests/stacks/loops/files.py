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

from stacks.loops.common import FOLDER, MEBIBYTE, QUICK, Load, burn, for_a_while, of_two
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


def reader(path: Path, flags: int = 0, size: int = MEBIBYTE) -> Load:
    """Reads so many bytes at a random place."""
    descriptor = os.open(path, os.O_RDONLY | flags)
    buffer = mmap.mmap(-1, size)
    places = os.fstat(descriptor).st_size // size
    draw = random.Random(os.getpid())  # noqa: S311 - no secret
    return lambda: os.preadv(descriptor, [buffer], draw.randrange(places) * size)


def direct(size: int = BATCH) -> Load:
    """Bypassing the page cache."""
    read = reader(data(), os.O_DIRECT)
    return lambda: [read() for _ in range(size // MEBIBYTE)]


def mapped() -> Load:
    """Pages of a mapped file, as they are touched."""
    path = data()
    with open(path, "rb") as file:
        memory = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)

    def batches() -> Iterator[bytes]:
        for start in range(0, SIZE, BATCH):
            yield memory[start : start + BATCH]
        memory.madvise(mmap.MADV_DONTNEED)

    return again(path, batches)


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


def mounted() -> Load:
    """A file on a remote file system, so large that nothing has been read ahead."""
    return of_two(reader(FOLDER / "mount" / "data", size=MEBIBYTE // 8))


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
