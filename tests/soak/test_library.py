"""A large file up and down by `arkvoryctl`, killed at random moments together with its server: the same command again ends it whole."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.conftest import MakeServer
from tests.support.server import ROOT, Server

pytestmark = pytest.mark.soak
SECONDS = float(os.environ.get("ARKVORY_SOAK_SECONDS", "60")) * 0.2
MIB = 2**20
# 5 GiB where there is time for it.
SIZE = min(5 * 1024, int(SECONDS * 25)) * MIB + 12345
PATIENCE = 1800.0


@dataclass
class Desk:
    """Where the command runs, and what it met."""

    server: Server
    home: Path
    token: str
    chance: random.Random = field(default_factory=lambda: random.Random(11))
    commands: int = 0
    restarts: int = 0

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        self.commands += 1
        environment = {"HOME": str(self.home), "PYTHONPATH": str(ROOT / "sdk"), "ARKVORY_URL": self.server.url, "ARKVORY_TOKEN": self.token}
        return subprocess.Popen([sys.executable, "-m", "arkvory", *arguments], cwd=self.home, env=environment)

    def until_done(self, *arguments: str) -> float:
        """The same command until it ends with 0; kills end with the time that is given. Seconds."""
        began = time.monotonic()
        while True:
            assert time.monotonic() - began < PATIENCE, "it does not end"
            process = self.start(*arguments)
            while process.poll() is None and time.monotonic() - began < SECONDS:
                self.harm(process)
            if process.wait(PATIENCE) == 0:
                return time.monotonic() - began

    def harm(self, process: subprocess.Popen[bytes]) -> None:
        time.sleep(self.chance.uniform(1, 4))
        if self.chance.random() < 0.3:
            self.server.kill9()
            self.server.start()
            self.restarts += 1
        elif self.chance.random() < 0.5:
            process.kill()


def test_a_large_file_goes_up_and_comes_down_whole_however_often_command_and_server_are_killed(
    make_server: MakeServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = make_server()
    server.repository("files")
    wanted = {"name": "soak", "permissions": ["read", "write"]}
    desk = Desk(server, tmp_path, server.post("/api/v1/tokens", json=wanted).json()["token"])
    digest = written(tmp_path / "large.bin")
    up = desk.until_done("upload", "large.bin", "files/")
    uploads, restarts = desk.commands, desk.restarts
    assert server.get("/api/v1/repositories/files/artifacts/large.bin").json()["sha256"] == digest
    down = desk.until_done("download", "files/large.bin", "copy.bin")
    with capsys.disabled():
        print(f"\n{SIZE >> 20} MiB up in {up:.0f} s by {uploads} commands, the server killed {restarts} times")
        print(f"and down in {down:.0f} s by {desk.commands - uploads}, killed {desk.restarts - restarts} times")
    with (tmp_path / "copy.bin").open("rb") as copy:
        assert hashlib.file_digest(copy, "sha256").hexdigest() == digest
    left = {each.name for each in tmp_path.iterdir()} - {".cache", ".config"}
    assert left == {"large.bin", "copy.bin"} and list((tmp_path / ".cache/arkvory/uploads").iterdir()) == []
    usage = server.get("/api/v1/repositories/files/usage").json()
    assert (usage["artifacts"], usage["bytes"]["open"], usage["bytes"]["published"]) == (1, 0, SIZE)


def written(file: Path) -> str:
    """Its SHA-256."""
    source, digest, left = random.Random(3), hashlib.sha256(), SIZE
    with file.open("wb") as made:
        while left:
            piece = source.randbytes(min(MIB, left))
            made.write(piece)
            digest.update(piece)
            left -= len(piece)
    return digest.hexdigest()
