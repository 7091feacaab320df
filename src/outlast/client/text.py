"""The words for people that requests are shown with, under the client's own name: it tells of runs with the same ones."""

from __future__ import annotations

from outlast.approvals.text import (
    ago,
    at,
    command,
    counted,
    hidden_count,
    json_text,
    length,
    safe,
    typed,
)

__all__ = [
    "ago",
    "at",
    "command",
    "counted",
    "hidden_count",
    "json_text",
    "length",
    "safe",
    "typed",
]
