"""Every test, in six runs side by side (`make test`): most tests wait more than they work.

    python -m tests.support.shares [options of pytest]

What the first run says is seen as it goes, what the others say when all have ended. Exit code 0 when all are 0.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import IO

from tests.support.memory import folder_in_memory

# Rooms whose tests start servers, clients and databases of their own; and those that need the most tests.
SHARES = {
    "clients": ("tests/clients",),
    "clusters": ("tests/cluster", "tests/faults"),
    "protocols": ("tests/protocols",),
    "edges": ("tests/http", "tests/cli", "tests/sdk", "tests/kills"),
    "core": ("tests/repository", "tests/mirrors", "tests/upload", "tests/upstream"),
}


def main(options: Sequence[str]) -> int:
    pytest = [sys.executable, "-m", "pytest", "--durations=25", "--durations-min=5", *options]
    memory = folder_in_memory()
    if memory is not None:
        os.environ["PYTEST_DEBUG_TEMPROOT"] = str(memory)
    beside: dict[str, tuple[subprocess.Popen[bytes], IO[bytes]]] = {}
    try:
        for name, rooms in SHARES.items():
            told = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the process
            # A cache of its own: all write there at their end.
            command = [*pytest, "-o", f"cache_dir=.pytest_cache/{name}", *rooms]
            beside[name] = subprocess.Popen(command, stdout=told, stderr=subprocess.STDOUT), told
        rest = [f"--ignore={each}" for rooms in SHARES.values() for each in rooms]
        codes = [subprocess.run([*pytest, "tests", *rest], check=False).returncode]
        for name, (process, told) in beside.items():
            codes.append(process.wait())
            _show(name, told)
    finally:
        # Interrupted: each ends its servers as it does at its own end.
        for process, told in beside.values():
            process.terminate()
            process.wait()
            told.close()
    return max(codes, key=abs)


def _show(name: str, told: IO[bytes]) -> None:
    print(f"\nAnd those of {', '.join(SHARES[name])}, which ran beside them:", flush=True)
    told.seek(0)
    sys.stdout.buffer.write(told.read())
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
