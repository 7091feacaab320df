"""What `outlast worker` writes to standard error: lines for people, or one JSON object a line for what collects them."""

from __future__ import annotations

import json
import logging
import sys
import time
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from outlast.cli.output import note
from outlast.cli.text import safe
from outlast.workflows.log import FIELDS, RunFields


class LogFormat(StrEnum):
    """How the log is written."""

    TEXT = "text"
    JSON = "json"


class SafeFormatter(logging.Formatter):
    """Escapes what a terminal would obey: messages quote what remote systems and models wrote."""

    def format(self, record: logging.LogRecord) -> str:
        """Return lines of text."""
        return safe(super().format(record), lines=True)


class JsonFormatter(logging.Formatter):
    """One JSON object in ASCII on one line: time, level, logger, message, the run's fields, and the traceback of an error.

    Nothing else that a record carries is written: it may be an argument, or part of one.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name in FIELDS:
            value = getattr(record, name, None)
            if value is not None:
                line[name] = value if isinstance(value, int) else str(value)
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line)


class Start(logging.Filter):
    """Keeps out of the log what is printed to standard output when the worker starts."""

    is_over = False
    form = LogFormat.TEXT

    def note(self, text: str) -> None:
        """Tell something that is no result: as a line for people, or as one of the log where a program reads that."""
        if self.form is LogFormat.JSON:
            logging.getLogger("outlast").info(text)
        else:
            note(text)

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the record is written."""
        told = str(record.msg).startswith(("outlast ", "worker %s: ready"))
        return self.is_over or record.levelno != logging.INFO or not told


def log_to_stderr(level: int, form: LogFormat = LogFormat.TEXT) -> Start:
    """Log what Outlast says from `level` on, and what others say from INFO on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form is LogFormat.JSON else _text())
    handler.addFilter(RunFields())
    start = Start()
    start.form = form
    handler.addFilter(start)
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger("outlast").setLevel(level)
    return start


def _text() -> logging.Formatter:
    formatter = SafeFormatter(
        "%(asctime)s %(levelname)s %(name)s: %(message)s", datefmt="%Y-%m-%d %H:%M:%S UTC"
    )
    formatter.converter = time.gmtime
    return formatter
