"""Batches from S3: `python -m stacks.loops.s3 CLIENT [WHERE]`."""

# ruff: noqa: PLC0415 - each case imports its own library and no other
# mypy: disable-error-code="import-not-found,import-untyped"

from __future__ import annotations

import os
from typing import Any

from stacks.loops.common import HOST, Load, port, url
from stacks.loops.gpu import run

BUCKET, KEY = "shards", "small"
_SECRETS = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x"}
_DEFAULTS = {"AWS_DEFAULT_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true", **_SECRETS}


def boto3_get() -> Load:
    """One object per batch."""
    client = _client()
    return lambda: client.get_object(Bucket=BUCKET, Key=KEY)["Body"].read()  # noqa: PLW0108


def arrow() -> Load:
    """Arrow's own client, which is C++."""
    from pyarrow import fs

    files = fs.S3FileSystem(endpoint_override=f"{HOST}:{port('s3')}", scheme="http")

    def load() -> object:
        with files.open_input_stream(f"{BUCKET}/{KEY}") as stream:
            return stream.read()

    return load


def _client() -> Any:  # noqa: ANN401 - boto3 makes its classes as it runs
    import boto3

    return boto3.client("s3", endpoint_url=url("", "s3"))


def fill() -> None:
    """Put the object there."""
    client = _client()
    client.create_bucket(Bucket=BUCKET)
    client.put_object(Bucket=BUCKET, Key=KEY, Body=bytes(65536))


def main(*words: str) -> None:
    """Train forever."""
    os.environ.update(_DEFAULTS)
    fill()
    run(globals(), *words)
