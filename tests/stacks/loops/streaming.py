"""Streaming datasets: `python -m stacks.loops.streaming HOW [WORKERS]`."""

# ruff: noqa: PLC0415 - each case imports its own library and no other
# mypy: disable-error-code="import-not-found,import-untyped,misc,no-untyped-call,attr-defined"

from __future__ import annotations

import json
import os
import sys
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
Collate = Callable[[list[object]], torch.Tensor]
_torchvision = torch.library.Library("torchvision", "DEF")
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


def hub(paths: list[str], *, streaming: bool = True, kind: str = "json") -> Any:  # noqa: ANN401
    """A data set of the Hugging Face library."""
    import datasets

    files = {"train": paths}
    return datasets.load_dataset(kind, data_files=files, split="train", streaming=streaming)


def rows(count: int = 400) -> Path:
    """JSON lines."""
    path = FOLDER / f"rows{count}.jsonl"
    lines = (json.dumps({"number": number, "text": "x" * 200}) for number in range(count))
    path.write_text("\n".join(lines))
    return path


def prepared_row(row: dict[str, object]) -> dict[str, object]:
    """A sample that takes Python's time."""
    burning()
    return row


def prepared_rows(batch: dict[str, list[object]]) -> dict[str, list[object]]:
    """The same for a batch of them."""
    for _ in batch["number"]:
        burning()
    return batch


def hub_table() -> Batches:
    """Rows of a local table, transformed on access."""
    data = hub([f"{rows()}"], streaming=False).with_transform(prepared_rows)
    return partial(loaded, data)


def hub_stream() -> Batches:
    """Streamed from a local file, mapped on the way."""
    data = hub([f"{rows(count)}" for count in (400, 401)]).map(prepared_row)
    return partial(loaded, data)


def hub_quick() -> Batches:
    """Streamed from a local Parquet file, with nothing to do."""
    import pyarrow as pa
    from pyarrow import parquet

    path = FOLDER / "rows.parquet"
    parquet.write_table(pa.table({"number": list(range(40000))}), path)
    return partial(loaded, hub([f"{path}"], kind="parquet"))


def hub_remote() -> Batches:
    """Streamed from a server that answers late: small files one after the other."""
    names = [rows(SAMPLES + number).name for number in range(4)]
    return partial(loaded, hub([url(f"file/150/{name}") for name in names]))


def loaded(data: Any, workers: int, collate: Collate | None = None) -> Batch:  # noqa: ANN401
    """A data set of any library through PyTorch's loader."""
    loader: Batch = DataLoader(
        data, BATCH, num_workers=workers, persistent_workers=workers > 0, collate_fn=collate
    )
    return loader


def collated(prepare: Callable[[], object], samples: list[object]) -> torch.Tensor:
    """A batch of `samples`, each prepared first."""
    for _ in samples:
        prepare()
    return torch.zeros(len(samples), 64)


def mosaic(remote: str | None = None, prepare: Callable[[], object] = burning) -> Batches:
    """MosaicML's streaming, with local shards or remote ones that are soon evicted."""
    _define_torchvision()
    import streaming

    local = f"{FOLDER / 'mosaic'}"
    with streaming.MDSWriter(
        out=remote or local, columns={"content": "bytes"}, size_limit=64 * 1024
    ) as writer:
        for _ in range(480 if remote else 4800):
            writer.write({"content": bytes(5000)})
    data = streaming.StreamingDataset(
        local=f"{FOLDER / 'cache'}" if remote else local,
        remote=remote,
        batch_size=BATCH,
        shuffle=False,
        predownload=1,
        cache_limit="512kb" if remote else None,
    )
    return partial(loaded, data, collate=partial(collated, prepare))


def _define_torchvision() -> None:
    """Make torchvision importable, which Mosaic imports: the registry's build needs CUDA."""
    for name in ("nms", "qnms"):
        _torchvision.define(f"{name}(Tensor boxes, Tensor scores, float threshold) -> Tensor")


def mosaic_remote() -> Batches:
    """From S3."""
    bucket()
    os.environ["S3_ENDPOINT_URL"] = url("", "s3")
    return mosaic("s3://shards/mosaic", quick)


def lit(prepare: Callable[[], object] = burning, *, remote: bool = False) -> Batches:
    """Lightning's litdata."""
    import litdata

    source = FOLDER / "lit"
    litdata.optimize(
        fn=_lit_sample,
        inputs=list(range(480 if remote else 4800)),
        output_dir=f"{source}",
        chunk_bytes=(16 if remote else 1024) * 1024,
        num_workers=1,
    )
    options: dict[str, object] = {"input_dir": f"{source}"}
    if remote:
        client = bucket()
        for file in source.iterdir():
            client.upload_file(f"{file}", "shards", f"lit/{file.name}")
        options = {
            "input_dir": "s3://shards/lit",
            "storage_options": {"endpoint_url": url("", "s3")},
            "max_cache_size": "200KB",
            "max_pre_download": 1,
        }
    data = litdata.StreamingDataset(**options)
    return lambda workers: litdata.StreamingDataLoader(
        data,
        batch_size=BATCH,
        num_workers=workers,
        persistent_workers=workers > 0,
        collate_fn=partial(collated, prepare),
    )


def _lit_sample(number: int) -> dict[str, object]:
    return {"number": number, "content": bytes(4000)}


def bucket() -> Any:  # noqa: ANN401 - boto3 makes its classes as it runs
    """An empty one; the client for it."""
    import boto3

    secrets = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x"}
    os.environ.update(AWS_DEFAULT_REGION="us-east-1", **secrets)
    client = boto3.client("s3", endpoint_url=url("", "s3"))
    client.create_bucket(Bucket="shards")
    return client


web_quick = partial(web_local, quick)
mosaic_quick = partial(mosaic, None, quick)
lit_quick = partial(lit, quick)
lit_remote = partial(lit, quick, remote=True)


def _allow_plain_http() -> None:
    """litdata's client insists on TLS; its workers are spawned and import this again."""
    from litdata.streaming import downloader

    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True


if "lit_remote" in sys.argv:
    _allow_plain_http()


def main(how: str, workers: str) -> None:
    """Train forever."""
    torch.set_num_threads(1)
    train(epochs(globals()[how]()(int(workers))))
