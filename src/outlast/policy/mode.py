"""What becomes of a call that no rule decides."""

from __future__ import annotations

from typing import Literal, get_args

Mode = Literal["default", "plan", "accept_edits", "dont_ask", "bypass"]
"""`default`: the author's own effects pass, and so do foreign tools known to only read; other foreign tools are asked about.
`plan`: nothing that writes, or is not known to only read, passes.
`accept_edits`: as `default`, and what only edits files or drafts passes.
`dont_ask`: nobody is asked: what would be asked is denied.
`bypass`: what is undecided passes; it needs a permission of its own, and is `default` without it."""

MODES: tuple[Mode, ...] = get_args(Mode)
