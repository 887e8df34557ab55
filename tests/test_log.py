from __future__ import annotations

import ast
import json
import logging
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import gpu_bottleneck_exporter
from gpu_bottleneck_exporter.log import LOG_FORMATS, LOG_LEVELS, configure

TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
Said = Callable[[], str]


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Iterator[Said]:
    """Lines logged to stderr since the last call; logging is put back afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level

    def read() -> str:
        captured = capsys.readouterr()
        assert captured.out == ""
        return captured.err

    yield read
    root.handlers[:] = handlers
    root.setLevel(level)


def value(line: str) -> str:
    """Text written after `value=`."""
    result = re.fullmatch(rf"time={TIME} level=\w+ source=\w+ msg=text value=(.*)\n", line)
    assert result is not None, line
    return result[1]


def test_a_logfmt_line_has_time_level_source_message_and_values(said: Said) -> None:
    configure("info", "logfmt")
    log = logging.getLogger("gpu_bottleneck_exporter.sampling.sampler")
    log.warning("error event", {"gpu": 3, "err": None, "event": "XID", "cause": OSError("a b")})
    line = 'msg="error event" gpu=3 event=XID cause="a b"'
    assert re.fullmatch(rf"time={TIME} level=warning source=sampler {line}\n", said())


PLAIN = ("ready", "größer", "a,b;c:d", "{}", "it's", "a\\b")
QUOTED = (
    "\x7f",
    *("", "two words", 'say "yes"', "a=b", "one\ntwo", 'level=error msg="forged"', "größer als"),
    *("end\\ ", "tab\there", "return\rhere", "escape\x1b[31m", "null\0", "line\u2028separator"),
)


@pytest.mark.parametrize("text", [*PLAIN, *QUOTED])
def test_any_text_is_one_printable_line_quoted_if_it_must_be(said: Said, text: str) -> None:
    configure("info", "logfmt")
    logging.getLogger("x").info("text", {"value": text})
    line = said()
    assert len(line.splitlines()) == 1
    written = value(line)
    assert written.isprintable()
    assert (written if text in PLAIN else json.loads(written)) == text


class Odd:
    def __str__(self) -> str:
        raise ValueError


@pytest.mark.parametrize("layout", LOG_FORMATS)
def test_values_that_have_no_text_or_our_names_cost_no_line(said: Said, layout: str) -> None:
    configure("info", layout)
    values = {"msg": "forged", "level": "error", "odd": Odd(), "n": 10**5000, "inf": math.inf}
    logging.getLogger("another").info("text of %(msg)s", values)
    line = said()
    assert len(line.splitlines()) == 1
    assert not {"nan", "infinity"} & {*re.split(r"\W+", line.lower())}
    texts = ("text of forged", "info", "Odd (ValueError)", "int (ValueError)", "inf")
    assert all(text in line for text in texts)
    assert "error" not in line


def test_json_lines_hold_the_same(said: Said) -> None:
    configure("info", "json")
    logging.getLogger("gpu_bottleneck_exporter.sampling.worker").error(
        "it failed", {"gpu": 3, "none": None, "err": OSError('a "b"\ngrößer')}
    )
    line = said()
    entries = json.loads(line)
    assert line.count("\n") == 1
    assert re.fullmatch(TIME, entries.pop("time"))
    values = {"gpu": 3, "err": 'a "b"\ngrößer'}
    assert entries == {"level": "error", "source": "worker", "msg": "it failed", **values}


def test_a_traceback_stays_within_its_line(said: Said) -> None:
    configure("info", "logfmt")
    try:
        _ = 1 / 0
    except ZeroDivisionError:
        logging.getLogger("x").exception("it failed")
    line = said()
    assert line.count("\n") == 1
    written = line.partition(' msg="it failed" traceback=')[2]
    text = json.loads(written)
    assert text.startswith("Traceback (most recent call last):\n")
    assert text.endswith("ZeroDivisionError: division by zero")


@pytest.mark.parametrize("lowest", LOG_LEVELS)
def test_only_the_level_and_those_above_are_written(said: Said, lowest: str) -> None:
    configure(lowest, "json")
    for level in LOG_LEVELS:
        logging.getLogger("x").log(getattr(logging, level.upper()), "said")
    written = [json.loads(line)["level"] for line in said().splitlines()]
    assert written == list(LOG_LEVELS[LOG_LEVELS.index(lowest) :])


def test_a_message_is_a_constant_text_and_its_values_are_pairs() -> None:
    """Else what a job or a driver says could look like a message."""
    root = Path(gpu_bottleneck_exporter.__file__).parent
    trees = [ast.walk(ast.parse(path.read_text())) for path in root.rglob("*.py")]
    calls = [
        node
        for tree in trees
        for node in tree
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and ast.unparse(node.func.value) == "log"
        and node.func.attr in (*LOG_LEVELS, "exception")
    ]
    assert len(calls) > 20
    for call in calls:
        text, *values = call.args
        assert not isinstance(text, ast.JoinedStr | ast.BinOp), ast.unparse(call)
        assert "%" not in ast.unparse(text), ast.unparse(call)
        assert len(values) <= 1, ast.unparse(call)
