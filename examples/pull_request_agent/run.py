"""Run the agent once, without the drama: no worker is killed. The demo's options work here too.

python examples/pull_request_agent/run.py --yes
"""

import sys

from outlast.demo.show import main

if __name__ == "__main__":
    sys.exit(main(["--undisturbed", *sys.argv[1:]]))
