"""`python -m bench`: downloads, uploads, admission, small requests; prints the page, and writes docs/benchmarks.md after a full run.

    downloads   1 GiB out: CPU seconds
    uploads     1 GiB in: speed, other requests' waits, memory
    admission   creating uploads, chunks and sums beside ten million rows
    small       10 KiB out and in, pip's page, memory after 10,000 requests
    kinds       10 KiB out through a proxy and groups
    peers       the same beside nginx, docker-registry, verdaccio, devpi-server and pypiserver, installed where they can be had
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from bench import admission, downloads, kinds, small, uploads
from bench.peers import comparing
from bench.report import Machine, Section, render

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "benchmarks.md"
NEEDED_BYTES = {True: 4 * 1024**3, False: 20 * 1024**3}
MOST_SECONDS = {True: 300, False: 1500}

PARTS: dict[str, Callable[[Path, bool], Section | list[Section]]] = {
    "downloads": downloads.run,
    "uploads": uploads.run,
    "admission": admission.run,
    "small": small.run,
    "kinds": kinds.run,
    "peers": comparing.run,
}


def main(arguments: Sequence[str]) -> int:
    """The exit code: 1 when a promise was missed in a full run."""
    options = _options(arguments)
    machine, began = Machine.here(), time.monotonic()
    signal.signal(signal.SIGALRM, _too_long)
    signal.signal(signal.SIGTERM, _ended)
    signal.alarm(MOST_SECONDS[options.quick])
    sections = _run(options.only or list(PARTS), options.folder, options.quick)
    signal.alarm(0)
    page = render(sections, machine, time.monotonic() - began, options.quick)
    print(page)
    if not options.quick and not options.only:
        PAGE.write_text(page)
    missed = any(not bar.met for section in sections for bar in section.bars)
    return 1 if missed and not options.quick else 0


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Ratios to floors of the same run.")
    parser.add_argument("--quick", action="store_true", help="smaller sizes, at most 5 minutes; prints only")
    parser.add_argument("--only", action="append", choices=list(PARTS), help="a part (may be repeated); prints only")
    parser.add_argument("--folder", type=Path, default=ROOT / "var", help="where the data goes meanwhile: the file system to be measured")
    return parser.parse_args(arguments)


def _run(names: Sequence[str], parent: Path, quick: bool) -> list[Section]:
    parent.mkdir(parents=True, exist_ok=True)
    free, needed = shutil.disk_usage(parent).free, NEEDED_BYTES[quick]
    if free < needed:
        raise SystemExit(f"bench: {parent} has {free >> 30} GiB free, the run needs {needed >> 30}; choose another place with --folder")
    sections: list[Section] = []
    with tempfile.TemporaryDirectory(prefix="bench-", dir=parent) as name:
        # PostgreSQL of another account has to pass through
        Path(name).chmod(0o711)
        for part in names:
            print(f"bench: {part} ...", file=sys.stderr, flush=True)
            found = PARTS[part](Path(name), quick)
            sections += found if isinstance(found, list) else [found]
    return sections


def _too_long(*_: object) -> None:
    # No error that a part might take for one of its own.
    raise SystemExit("bench: the run takes longer than it may")


def _ended(*_: object) -> None:
    """Nothing that was started may be left behind."""
    raise SystemExit("bench: ended")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
