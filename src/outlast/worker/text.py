"""Text for people that any store keeps, whatever is in it: what an author's code said goes into columns and lists."""

from __future__ import annotations

_MOST = 16 * 1024
"""Characters that are kept: what an author's code said may be of any length."""


def plain(text: object) -> str:
    """Return the text with what UTF-8 or a text column cannot hold (a lone surrogate, NUL) shown as its escape."""
    try:
        shown = "".join(str(text))
    except Exception as error:  # noqa: BLE001  (an author's __str__ may raise anything)
        shown = f"a text that cannot be read: its __str__ raised {type(error).__name__}"
    shown = shown if len(shown) <= _MOST else f"{shown[:_MOST]}…"
    return shown.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")
