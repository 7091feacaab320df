"""What the README shows is what happens."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def example() -> str:
    """Return the README's program."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    return next(block for block in blocks if "asyncio.run(main())" in block)


def run(directory: Path) -> subprocess.CompletedProcess[str]:
    """Run the README's program as a user would: in a file, in an empty directory."""
    (directory / "notify.py").write_text(example())
    return subprocess.run(
        [sys.executable, "notify.py"], cwd=directory, capture_output=True, text=True, timeout=60
    )


def test_the_example_runs_and_a_second_run_sends_nothing(tmp_path: Path) -> None:
    """The example sends one mail, and says where its database is; run again, it returns the first result."""
    first, second = run(tmp_path), run(tmp_path)
    assert first.returncode == 0, first.stderr
    assert re.fullmatch(r"sent to Ada with key [0-9a-f]{32}\naccepted\n", first.stdout)
    assert str(tmp_path / "notify.db") in first.stderr
    assert second.stdout == "accepted\n", second.stderr


def test_the_example_is_as_short_as_it_says() -> None:
    """Twenty lines of code, blank lines and imports apart."""
    lines = [line for line in example().splitlines() if line.strip() and "import" not in line]
    assert len(lines) <= 20
