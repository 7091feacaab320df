"""Text for people that any store keeps, whatever is in it: what an author's code said goes into columns and lists."""

from __future__ import annotations


def plain(text: object) -> str:
    """Return the text with what UTF-8 or a text column cannot hold (a lone surrogate, NUL) shown as its escape."""
    shown = str(text).encode("utf-8", "backslashreplace").decode()
    return shown.replace("\0", "\\x00")
