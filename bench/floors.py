"""What nothing can beat: the disk, one core's SHA-256, and the kernel's own way of sending a file."""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from bench.client import MIB, PATIENCE, pieces

SETTLE_SECONDS = 5.0
ROOT = Path(__file__).parents[1]


def write_seconds(path: Path, size: int) -> float:
    """Write `size` bytes in pieces of 1 MiB to a new file and fsync it. The file stays: removing it would disturb what comes next."""
    source = list(pieces(size))
    began = time.perf_counter()
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o640)
    for piece in source:
        view = piece
        while view:
            view = view[os.write(fd, view) :]
    os.fsync(fd)
    taken = time.perf_counter() - began
    os.close(fd)
    return taken


def forget(folder: Path, size: int) -> None:
    """Let the kernel drop what it holds of the files of at least `size` bytes below `folder`.

    Memory that was just given back is cheap to write to; where a hypervisor takes free memory away (a balloon with free page reporting,
    some 2 s later) it costs a second for each GiB more. So this waits: whatever is measured next pays the same.
    """
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            if path.is_file() and path.stat().st_size >= size:
                _forget(path)
    time.sleep(SETTLE_SECONDS)


def _forget(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def sha256_seconds(size: int) -> float:
    """SHA-256 of `size` bytes in pieces of 1 MiB, by one thread."""
    source = list(pieces(size))
    began = time.perf_counter()
    digest = hashlib.sha256()
    for piece in source:
        digest.update(piece)
    digest.hexdigest()
    return time.perf_counter() - began


def small_files_seconds(folder: Path, count: int, size: int) -> float:
    """`count` times: write a file, fsync it, rename it to its place and fsync the folder. What any honest store of small files pays."""
    folder.mkdir(parents=True, exist_ok=True)
    body = os.urandom(size)
    folder_fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    began = time.perf_counter()
    for number in range(count):
        _store_one(folder, f"{time.time_ns()}-{number}", body, folder_fd)
    taken = time.perf_counter() - began
    os.close(folder_fd)
    return taken


def _store_one(folder: Path, name: str, body: bytes, folder_fd: int) -> None:
    fd = os.open(folder / f"{name}.new", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o640)
    os.write(fd, body)
    os.fsync(fd)
    os.close(fd)
    os.rename(folder / f"{name}.new", folder / name)
    os.fsync(folder_fd)


@contextlib.contextmanager
def sendfile_server(file: Path) -> Iterator[tuple[int, int]]:
    """A process that answers every connection with the file, by blocking `sendfile`, and does nothing else: (port, process id)."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        process = subprocess.Popen(
            [sys.executable, "-m", "bench.floors", str(listener.fileno()), str(file)],
            cwd=ROOT, pass_fds=[listener.fileno()], stdin=subprocess.DEVNULL,
        )  # fmt: skip
    try:
        with socket.create_connection(("127.0.0.1", port), PATIENCE) as probe:
            probe.sendall(b"HEAD / HTTP/1.1\r\n\r\n")
            probe.recv(1024)
        yield port, process.pid
    finally:
        process.terminate()
        process.wait(PATIENCE)


def _serve(listener: socket.socket, file: str) -> None:
    while True:
        connection, _ = listener.accept()
        with connection, contextlib.suppress(ConnectionError), open(file, "rb") as source:
            asked = connection.recv(65536)
            size = os.fstat(source.fileno()).st_size
            connection.sendall(f"HTTP/1.1 200 OK\r\nContent-Length: {size}\r\nConnection: close\r\n\r\n".encode())
            offset = 0 if asked.startswith(b"GET") else size
            while offset < size:
                offset += os.sendfile(connection.fileno(), source.fileno(), offset, min(MIB, size - offset))


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2])
