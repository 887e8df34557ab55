"""Streaming datasets: `python -m stacks.loops.streaming HOW [WORKERS]`."""

# ruff: noqa: PLC0415 - each case imports its own library and no other
# mypy: disable-error-code="import-not-found,import-untyped,misc,no-untyped-call,attr-defined"

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Callable, Iterable
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from stacks.loops.common import FOLDER, MEBIBYTE, epochs, url
from stacks.loops.files import cool
from stacks.loops.gpu import train
from stacks.loops.samples import BATCH, burning, quick

Batch = Iterable[object]
Batches = Callable[[int], Batch]
"""With this many workers, for one epoch or forever."""
SAMPLES = 12
"""In a shard: three batches."""


def shards(count: int, size: int = 4096) -> list[Path]:
    """Tar files of samples."""
    paths = [FOLDER / f"shard{number}.tar" for number in range(count)]
    for path in paths:
        with tarfile.open(path, "w") as tar:
            for number in range(SAMPLES):
                member = tarfile.TarInfo(f"{path.stem}-{number}.bin")
                member.size = size
                tar.addfile(member, BytesIO(os.urandom(size)))
    return paths


def web(urls: list[str], prepare: Callable[[], object]) -> Batches:
    """WebDataset."""
    import webdataset

    def prepared(sample: dict[str, bytes]) -> bytes:
        prepare()
        return sample["bin"][:64]

    def batches(workers: int) -> Batch:
        data = webdataset.WebDataset(
            urls, shardshuffle=False, empty_check=False, workersplitter=None
        )
        prepared_data = data.map(prepared).repeat()
        loader: Batch = webdataset.WebLoader(prepared_data, batch_size=BATCH, num_workers=workers)
        return loader

    return batches


def web_local(prepare: Callable[[], object] = burning) -> Batches:
    """Local shards."""
    return web([f"{path}" for path in shards(8)], prepare)


def web_curl() -> Batches:
    """Shards fetched by curl: another process, whose output is read through a pipe."""
    paths = shards(8)
    return web([f"pipe:curl --silent {url(f'file/400/{path.name}')}" for path in paths], quick)


def web_dd() -> Batches:
    """Cold shards read by dd, bypassing the page cache."""
    paths = shards(8, MEBIBYTE // 2)
    for path in paths:
        cool(path)
    return web([f"pipe:dd if={path} iflag=direct bs=512k status=none" for path in paths], quick)


def hub(paths: list[str], kind: str = "json") -> Any:  # noqa: ANN401
    """A streamed data set of the Hugging Face library."""
    import datasets

    files = {"train": paths}
    return datasets.load_dataset(kind, data_files=files, split="train", streaming=True)


def rows(count: int) -> Path:
    """JSON lines."""
    path = FOLDER / f"rows{count}.jsonl"
    lines = (json.dumps({"number": number, "text": "x" * 200}) for number in range(count))
    path.write_text("\n".join(lines))
    return path


def prepared(row: dict[str, object]) -> dict[str, object]:
    """A sample that takes Python's time."""
    burning()
    return row


def hub_stream() -> Batches:
    """Streamed from a local file, mapped on the way."""
    return partial(loaded, hub([f"{rows(count)}" for count in (400, 401)]).map(prepared))


def hub_quick() -> Batches:
    """Streamed from a local Parquet file, with nothing to do."""
    import pyarrow as pa
    from pyarrow import parquet

    path = FOLDER / "rows.parquet"
    parquet.write_table(pa.table({"number": list(range(40000))}), path)
    return partial(loaded, hub([f"{path}"], "parquet"))


def hub_remote() -> Batches:
    """Streamed from a server that answers late: small files one after the other."""
    names = [rows(SAMPLES + number).name for number in range(4)]
    return partial(loaded, hub([url(f"file/150/{name}") for name in names]))


def loaded(data: Any, workers: int) -> Batch:  # noqa: ANN401
    """A data set of Hugging Face's through PyTorch's loader."""
    loader: Batch = DataLoader(data, BATCH, num_workers=workers, persistent_workers=workers > 0)
    return loader


def lit(prepare: Callable[[], object] = burning) -> Batches:
    """Lightning's litdata."""
    import litdata

    source = f"{FOLDER / 'lit'}"
    litdata.optimize(
        fn=_lit_sample,
        inputs=list(range(4800)),
        output_dir=source,
        chunk_bytes=MEBIBYTE,
        num_workers=1,
    )
    data = litdata.StreamingDataset(source)
    return lambda workers: litdata.StreamingDataLoader(
        data,
        batch_size=BATCH,
        num_workers=workers,
        persistent_workers=workers > 0,
        collate_fn=partial(_collated, prepare),
    )


def _collated(prepare: Callable[[], object], samples: list[object]) -> torch.Tensor:
    for _ in samples:
        prepare()
    return torch.zeros(len(samples), 64)


def _lit_sample(number: int) -> dict[str, object]:
    return {"number": number, "content": bytes(4000)}


web_quick = partial(web_local, quick)
lit_quick = partial(lit, quick)


def main(how: str, workers: str) -> None:
    """Train forever."""
    torch.set_num_threads(1)
    train(epochs(globals()[how]()(int(workers))))
