"""`outlast worker --log json`: one object a line, with the run's fields and nothing else that a record carries."""

import json
import logging
import signal
import sys
from pathlib import Path

from outlast.cli.log import JsonFormatter
from outlast.store.change import RunKey
from outlast.workflows.log import RunFields

from .conftest import World, write_code


def line_of(**fields):
    """Return what is written of a record, read again."""
    record = logging.makeLogRecord(
        {"name": "outlast.worker", "levelname": "INFO", "created": 0.25, **fields}
    )
    RunFields().filter(record)
    text = JsonFormatter().format(record)
    assert text.isascii()
    assert "\n" not in text
    return json.loads(text)


def test_a_line():
    """Time, level, logger, message and fields."""
    line = line_of(msg="run %s: parked", args=(RunKey("acme", "r1"),), step="plan", attempt=2)
    assert line == {
        "time": "1970-01-01T00:00:00.250+00:00",
        "level": "INFO",
        "logger": "outlast.worker",
        "message": "run acme/r1: parked",
        "tenant": "acme",
        "run": "r1",
        "step": "plan",
        "attempt": 2,
    }


def test_what_others_carry_is_not_written():
    """An `extra` of any other name may be an argument; line breaks and what directs a terminal are escaped."""
    line = line_of(msg="a\n\x1b[31m\u202e", arguments={"secret": 1}, run="r\nx")
    assert line["message"] == "a\n\x1b[31m\u202e"
    assert line["run"] == "r\nx"
    assert "secret" not in json.dumps(line)


def test_an_error_has_its_traceback():
    """As one text."""
    try:
        raise ValueError("no")
    except ValueError:
        line = line_of(msg="broke", exc_info=sys.exc_info())
    assert line["error"].endswith("ValueError: no")


def test_a_worker_writes_nothing_else(tmp_path: Path) -> None:
    """From its start to its stop each line is an object; those of a run name it, also those that its code says."""
    write_code(tmp_path)
    world = World(tmp_path)
    world.start("plain")
    worker = world.worker("--log", "json", "--health", "0")
    try:
        world.until(lambda: world.status("plain").status == "completed")
        worker.send_signal(signal.SIGTERM)
        out, error = worker.communicate(timeout=30)
    finally:
        worker.kill()
    lines = [json.loads(one) for one in error.splitlines()]
    (ended,) = [one for one in lines if one["message"] == "run plain: completed"]
    assert (ended["run"], ended["tenant"], ended["workflow"]) == ("plain", "default", "flow")
    assert f"worker     {ended['worker']}\n" in out
    assert "health     http://127.0.0.1:" in out
    assert lines[-1]["message"] == "stopped"
