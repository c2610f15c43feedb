"""What sdk/README.md shows is run as it stands there, against a real server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from arkvory import ctl
from tests.support.server import ROOT, Server

README = (ROOT / "sdk" / "README.md").read_text()
SHOWN = "http://localhost:8080"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what the examples send."""
    (tmp_path / "build" / "sub").mkdir(parents=True)
    (tmp_path / "build" / "sub" / "a.txt").write_text("a")
    (tmp_path / "report.pdf").write_text("a report")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def test_the_examples_of_the_library_run(server: Server, desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert server.password == "correct-horse-battery", "as the examples have it"
    found = blocks("python")
    assert len(found) >= 4
    names: dict[str, Any] = {}
    for number, block in enumerate(found, 1):
        exec(compile(block.replace(SHOWN, server.url), f"sdk/README.md, python block {number}", "exec"), names)
    assert (desk / "copy.pdf").read_text() == "a report" and (desk / "out" / "sub" / "a.txt").read_text() == "a"
    shown = capsys.readouterr()
    assert "404 not_found" in shown.out and "Uploaded 2026/again.pdf" in shown.err
    server.delete("/api/v1/repositories/files")


def test_the_examples_of_the_command_run(server: Server, desk: Path) -> None:
    (script,) = blocks("sh")
    (desk / "bin").mkdir()
    (desk / "bin" / "arkvoryctl").write_text(f'#!/bin/sh\nexec {sys.executable} -m arkvory "$@"\n')
    (desk / "bin" / "arkvoryctl").chmod(0o755)
    path = f"{desk / 'bin'}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script.replace(SHOWN, server.url)], cwd=desk, capture_output=True, text=True, check=False,
        env={"PATH": path, "HOME": str(desk), "PYTHONPATH": str(ROOT / "sdk"), "P": server.password},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert (desk / "fetched" / "build" / "sub" / "a.txt").read_text() == "a" and (desk / "copy.pdf").read_text() == "a report"
    assert {"1.0/report.pdf", "1.0/build/sub/a.txt"} <= set(done.stdout.split()) and "Repository tools is gone." in done.stdout


def test_the_exit_codes_are_those_of_the_command() -> None:
    listed = [int(code) for code in re.findall(r"^\| (\d+) \|", README, re.MULTILINE)]
    assert listed == [0, ctl.FAILED, ctl.WRONG_USE, ctl.NOT_ALLOWED, ctl.NOT_THERE, ctl.LATER, ctl.INTERRUPTED]


def test_every_public_method_of_the_client_is_named() -> None:
    from arkvory import Client

    public = {name for name in vars(Client) if not name.startswith("_")} - {"close", "url"}
    assert {name for name in public if not re.search(rf"\b{name}\b", README)} == set()
