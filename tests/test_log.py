from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator

import pytest

from gpu_bottleneck_exporter.log import LEVELS, configure

TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
Said = Callable[[], str]


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Iterator[Said]:
    """What was logged to stderr since the last call; logging is put back afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level

    def read() -> str:
        captured = capsys.readouterr()
        assert captured.out == ""
        return captured.err

    yield read
    root.handlers[:] = handlers
    root.setLevel(level)


def message(line: str) -> str:
    """What stands behind msg= as it is written."""
    found = re.fullmatch(rf"time={TIME} level=\w+ source=\w+ msg=(.*)\n", line)
    assert found is not None, line
    return found[1]


def test_a_logfmt_line_has_time_level_source_and_message(said: Said) -> None:
    configure("info", "logfmt")
    logging.getLogger("gpu_bottleneck_exporter.sampling.sampler").warning("gpu %d: XID %d", 3, 79)
    assert re.fullmatch(rf'time={TIME} level=warning source=sampler msg="gpu 3: XID 79"\n', said())


PLAIN = ("ready", "größer", "a,b;c:d", "{}", "it's", "a\\b")
QUOTED = (
    *("", "two words", 'say "yes"', "a=b", "one\ntwo", 'level=error msg="forged"', "größer als"),
    *("end\\ ", "tab\there", "return\rhere", "escape\x1b[31m", "null\0", "line\u2028separator"),
)


@pytest.mark.parametrize("text", [*PLAIN, *QUOTED])
def test_any_text_is_one_printable_line_quoted_if_it_must_be(said: Said, text: str) -> None:
    configure("info", "logfmt")
    logging.getLogger("x").info("%s", text)
    line = said()
    assert len(line.splitlines()) == 1
    written = message(line)
    assert written.isprintable()
    assert (written if text in PLAIN else json.loads(written)) == text


def test_json_lines_hold_the_same(said: Said) -> None:
    configure("info", "json")
    logging.getLogger("gpu_bottleneck_exporter.sampling.worker").error('a "b"\n%s', "größer")
    line = said()
    entries = json.loads(line)
    assert line.count("\n") == 1
    assert re.fullmatch(TIME, entries.pop("time"))
    assert entries == {"level": "error", "source": "worker", "msg": 'a "b"\ngrößer'}


def test_a_traceback_stays_within_its_line(said: Said) -> None:
    configure("info", "logfmt")
    try:
        _ = 1 / 0
    except ZeroDivisionError:
        logging.getLogger("x").exception("it failed")
    line = said()
    assert line.count("\n") == 1
    text = json.loads(message(line))
    assert text.startswith("it failed\nTraceback (most recent call last):\n")
    assert text.endswith("ZeroDivisionError: division by zero")


@pytest.mark.parametrize("lowest", LEVELS)
def test_only_the_level_and_those_above_are_written(said: Said, lowest: str) -> None:
    configure(lowest, "json")
    for level in LEVELS:
        logging.getLogger("x").log(getattr(logging, level.upper()), "said")
    written = [json.loads(line)["level"] for line in said().splitlines()]
    assert written == list(LEVELS[LEVELS.index(lowest) :])
