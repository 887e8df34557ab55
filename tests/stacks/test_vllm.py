"""The real vLLM with a tiny model on a virtual GPU, scraped by a real Prometheus."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from stacks.serving import SERVING, Engine, Scraped, Shares, asked, scraped
from support.judging import settled
from support.rows import beside, rows
from support.tools import require

_OF_ITS_TIME = 0.9
_LIMITS = ("--max-num-seqs=6", "--num-gpu-blocks-override=24")


@pytest.fixture(scope="module")
def vllm() -> Iterator[Scraped]:
    """Started once, as that takes minutes on a busy machine."""
    require("prometheus", "prometheus")
    require("cc", "gcc libc6-dev")
    with scraped([Engine(("vllm_serve", *_LIMITS), venv="vllm")]) as engine:
        yield engine
        (stage,) = engine.stages.values()
        stage.stop_last()


@pytest.mark.alone
@pytest.mark.timeout(1200)
@rows("row", beside(__file__, "vllm.yml"))
def test_vllm_is_told_what_holds_it_up(row: Mapping[str, Any], vllm: Scraped) -> None:
    (stage,) = vllm.stages.values()
    clients = tuple(row["clients"].split())
    if clients:
        prompt, tokens = "x" * row["letters"], row["tokens"]
        body = {"model": "tiny", "prompt": prompt, "max_tokens": tokens, "ignore_eos": True}
        clients += ("/v1/completions", json.dumps(body))
    with asked(stage, clients):
        settled(vllm.shares, lambda found: _wrong(found[0], row.get("told", "")))


def _wrong(found: Shares, told: str) -> str | None:
    """What is not as it must be: a cause, if one must be told, or none of an engine."""
    print(found)  # noqa: T201 - for `pytest -s`
    right = found.get(told, 0.0) >= _OF_ITS_TIME if told else not SERVING & found.keys()
    return None if right else f"{found}"
