"""What the guide shows is what happens."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

APPROVE = """

async def refunds() -> None:
    async with outlast.open("sqlite:///shop.db") as app:
        handle = await app.start(refund_with_care("4711", 5), id="refund-4711")
        while not (asked := await app.approvals.list()):
            await asyncio.sleep(0.01)
        await app.approvals.approve("refund-4711", asked[0].approval_id, seen_sha256=asked[0].subject_sha256)
        print(await handle.result())
        handle = await app.start(count_stock(["a", "b"]), id="stock")
        print(await handle.result(), await handle.published("progress"), await handle.query(MISSING, 1))
        handle = await app.start(follow(Order("4713", 12)), id="follow")
        while (generation := (await handle.status()).generation) == 1:
            await asyncio.sleep(0.01)
        await app.handle("follow/r:1").send(PAID, 12)
        print(generation, await handle.result())


asyncio.run(refunds())
"""


def test_the_guide_s_program_runs(tmp_path: Path) -> None:
    """All Python of the guide, in its order, is one program that sells an order and makes an approved refund."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/guide.md").read_text(), re.DOTALL)
    (start,) = (block for block in blocks if "__main__" in block)
    others = [block for block in blocks if block != start]
    (tmp_path / "shop.py").write_text("\n\n".join([*others, start]) + APPROVE)
    done = subprocess.run(
        [sys.executable, "shop.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    sold, status, refunded, counted, followed = done.stdout.splitlines()
    assert sold == "booked 30, paid 30"
    assert status == "completed"
    assert re.fullmatch(r"\S+@\S+: [0-9a-f]{32}", refunded)
    assert followed == "2 booked 12, paid 12"
    assert counted == "2 {'done': 2, 'of': 2} ['a']"
