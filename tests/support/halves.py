"""Every test, in two runs side by side (`make test`): most of those with whole servers wait more than they work.

    python -m tests.support.halves [options of pytest]

What the first run says is seen as it goes, the second one's when both have ended. Exit code 0 when both are 0.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence

# Rooms whose tests start servers, clients and databases of their own.
SERVERS = ("tests/clients", "tests/cluster", "tests/faults", "tests/kills")


def main(options: Sequence[str]) -> int:
    pytest = [sys.executable, "-m", "pytest", "--durations=25", "--durations-min=5", *options]
    with tempfile.TemporaryFile() as told:
        # A cache of its own: both write there at their end.
        second = subprocess.Popen([*pytest, "-o", "cache_dir=.pytest_cache/servers", *SERVERS], stdout=told, stderr=subprocess.STDOUT)
        try:
            first = subprocess.run([*pytest, "tests", *(f"--ignore={each}" for each in SERVERS)], check=False).returncode
            print(f"\nAnd those of {', '.join(SERVERS)}, which ran beside them:", flush=True)
            second.wait()
        finally:
            # Interrupted: it ends its servers as it does at its own end.
            second.terminate()
            second.wait()
        told.seek(0)
        sys.stdout.buffer.write(told.read())
        sys.stdout.flush()
    return first or second.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
