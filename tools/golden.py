"""Records the golden journals of `tests/replay`, or says which would be recorded differently today.

    python tools/golden.py record           those that are not there yet
    python tools/golden.py record --anew    all of them; only before a release, with a line in the changelog
    python tools/golden.py compare          names those that differ, beyond python, library and stacks

The same code records the same text: time is simulated and all chance is seeded.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests" / "replay"))


def main() -> int:
    """Record or compare; return 1 when something differs."""
    from scenarios import JOURNALS, SCENARIOS, play

    from outlast.testing.golden import Golden

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("what", choices=("record", "compare"))
    parser.add_argument("--anew", action="store_true")
    options = parser.parse_args()
    JOURNALS.mkdir(parents=True, exist_ok=True)
    differing = 0
    for name in SCENARIOS:
        file = JOURNALS / f"{name}.json"
        if options.what == "record" and (options.anew or not file.exists()):
            file.write_text(play(name).to_json(), encoding="utf-8")
            print(f"recorded {name}")
        elif options.what == "compare":
            kept = Golden.from_json(file.read_text(encoding="utf-8"))
            if play(name).steady() != kept.steady():
                print(f"differs: {name}")
                differing += 1
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
