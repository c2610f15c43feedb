from __future__ import annotations

import itertools
import random
import subprocess
from pathlib import Path

import pytest

from app.protocols.maven.versions import compare, in_order
from tests.support import clients

PARTS = ["1", "0", "00", "2", "10", "a", "alpha", "b", "m", "x", "sp", "ga", "final", "release", "rc", "cr", "snapshot", "foo", "A1",
         "1234567890123", ".", "-", "..", "-", ".", "_", "+"]  # fmt: skip


@pytest.mark.parametrize(
    "versions",
    [
        [
            "1.0-alpha-1",
            "1.0-beta",
            "1.0-milestone-2",
            "1.0-rc1",
            "1.0-SNAPSHOT",
            "1.0",
            "1.0-sp",
            "1.0-xyz",
            "1.0-1",
            "1.0.1",
            "1.1",
            "1.10",
            "2",
        ],
        ["1.0.0.RC1", "1.0.0-RC2", "1.0.0.Final", "1.0.1.Final"],
        ["9", "10", "1234567890123456789012345"],
    ],
)
def test_versions_stand_in_the_order_of_maven(versions: list[str]) -> None:
    assert in_order(reversed(versions)) == versions


def test_equal_versions_are_all_kept() -> None:
    assert in_order(["1.0", "1", "1-ga", "1.0.0"]) == ["1", "1-ga", "1.0", "1.0.0"]


def test_the_deepest_version_that_a_path_can_hold_is_compared() -> None:
    assert compare("1a" * 250, "1a" * 250 + "2") == -compare("1a" * 250 + "2", "1a" * 250) != 0
    assert compare("-".join("1" * 250), "-".join("1" * 249)) > 0


def test_any_two_versions_compare_as_in_maven_itself() -> None:
    """`ComparableVersion` prints how each of its arguments compares with the next."""
    clients.require_packages("mvn")
    jars = ":".join(f"/usr/share/maven/lib/{name}.jar" for name in ("maven-artifact-3.x", "commons-lang3"))
    assert Path("/usr/share/maven/lib/maven-artifact-3.x.jar").exists()
    dice = random.Random(7)
    versions = ["".join(dice.choice(PARTS) for _ in range(dice.randint(1, 7))) for _ in range(3000)]
    command = ["java", "-cp", jars, "org.apache.maven.artifact.versioning.ComparableVersion", *versions]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    lines = [line for line in printed.splitlines() if line.startswith("   ")]
    assert len(lines) == len(versions) - 1
    for (left, right), line in zip(itertools.pairwise(versions), lines, strict=True):
        result = compare(left, right)
        sign = "<" if result < 0 else ">" if result else "=="
        assert line == f"   {left} {sign} {right}"
