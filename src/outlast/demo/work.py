"""The demo's worker: a process of its own, so that it can be killed. Ends when its standard input does.

Run as `python -m outlast.demo.work sqlite:////path/agent.db`.
"""

from __future__ import annotations

import asyncio
import logging
import sys

import outlast
from outlast.demo import agent


async def work(url: str) -> None:
    """Move runs until standard input closes."""
    loop = asyncio.get_running_loop()
    async with outlast.open(url, workflows=[agent.fix]):
        await loop.run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    asyncio.run(work(sys.argv[1]))
