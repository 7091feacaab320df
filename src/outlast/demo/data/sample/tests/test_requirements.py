"""The manifest pins each dependency to one version."""

import re
import unittest
from pathlib import Path

MANIFEST = Path(__file__).parent.parent / "requirements.txt"
PIN = re.compile(r"[A-Za-z0-9._-]+==[0-9]+(\.[0-9]+)*(\s+#.*)?")


class ManifestTest(unittest.TestCase):
    """Deployments install exactly what was tested."""

    def test_each_line_is_a_pin(self):
        """No range, no missing version, no dependency twice."""
        lines = [line for line in MANIFEST.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
        for line in lines:
            self.assertRegex(line, re.compile(f"^{PIN.pattern}$"))
        names = [line.partition("==")[0].lower() for line in lines]
        self.assertEqual(len(names), len(set(names)))


if __name__ == "__main__":
    unittest.main()
