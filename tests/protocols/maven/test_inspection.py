from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import pytest

from app.protocols.maven.inspection import HEAD, look_into

DESCRIPTOR = (
    "<?xml version='1.0'?><plugin><name>Say hello</name><groupId>org.acme</groupId><artifactId>hello-maven-plugin</artifactId>"
    "<version>1.0</version><goalPrefix>hello</goalPrefix>{more}<mojos>{mojos}</mojos></plugin>"
)
KNOWN = {"maven": {"plugin": {"prefix": "hello", "name": "Say hello"}}}


def jar(folder: Path, members: dict[str, str | bytes], *, compression: int = zipfile.ZIP_DEFLATED, before: bytes = b"") -> Path:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    path = folder / "upload"
    path.write_bytes(before + buffer.getvalue())
    return path


def plugin(more: str = "", mojos: str = "") -> dict[str, str | bytes]:
    return {"a/B.class": b"x", "META-INF/maven/plugin.xml": DESCRIPTOR.format(more=more, mojos=mojos), "META-INF/maven/plugin.xml.bak": b""}


def look(path: Path) -> dict[str, Any]:
    return look_into(path, "org.acme", "hello-maven-plugin")


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("before", [b"", b"#!/bin/sh\nexec java -jar $0\n"])
def test_a_plugin_says_its_prefix_and_name(tmp_path: Path, compression: int, before: bytes) -> None:
    assert look(jar(tmp_path, plugin(), compression=compression, before=before)) == KNOWN


def test_of_a_descriptor_with_many_goals_the_head_is_enough(tmp_path: Path) -> None:
    assert look(jar(tmp_path, plugin(mojos="<mojo><goal>x</goal></mojo>" * HEAD))) == KNOWN


def test_a_jar_with_more_members_than_the_old_directory_counts_is_read(tmp_path: Path) -> None:
    assert look(jar(tmp_path, {f"{number}": b"" for number in range(66_000)} | plugin(), compression=zipfile.ZIP_STORED)) == KNOWN


def test_a_descriptor_that_was_shaded_in_from_another_plugin_says_nothing(tmp_path: Path) -> None:
    assert look_into(jar(tmp_path, plugin()), "org.acme", "other") == {}


def test_entities_are_not_expanded(tmp_path: Path) -> None:
    plain = DESCRIPTOR.format(more="", mojos="").partition("?>")[2]
    hostile = "<!DOCTYPE p [<!ENTITY a 'hello'>]>" + plain.replace("<goalPrefix>hello", "<goalPrefix>&a;")
    assert look(jar(tmp_path, {"META-INF/maven/plugin.xml": hostile})) == {}


def test_a_bomb_is_not_unpacked(tmp_path: Path) -> None:
    assert look(jar(tmp_path, {"META-INF/maven/plugin.xml": b" " * 50_000_000})) == {}


def test_a_directory_made_of_the_name_alone_is_not_searched_to_its_end(tmp_path: Path) -> None:
    names = {f"{number}/META-INF/maven/plugin.xml": b"" for number in range(1500)}
    assert look(jar(tmp_path, names)) == {}
    assert look(jar(tmp_path, names | plugin())) == {}
    assert look(jar(tmp_path, dict(list(names.items())[:900]) | plugin())) == KNOWN


def test_an_archetype_is_one_by_its_descriptor(tmp_path: Path) -> None:
    assert look(jar(tmp_path, {"META-INF/maven/archetype-metadata.xml": b"<a/>"})) == {"maven": {"archetype": {}}}


def test_of_what_is_no_archive_nothing_is_known(tmp_path: Path) -> None:
    whole = jar(tmp_path, plugin()).read_bytes()
    for broken in (b"", b"bytes", b"PK\x05\x06", whole[:-30], whole[: len(whole) // 2], b"PK\x05\x06" + b"\xff" * 18):
        (tmp_path / "upload").write_bytes(broken)
        assert look(tmp_path / "upload") == {}


def test_no_damage_to_an_archive_is_more_than_nothing_known(tmp_path: Path) -> None:
    """Whatever four bytes are overwritten: the answer is one about this plugin or none, and nothing is raised."""
    whole = jar(tmp_path, plugin()).read_bytes()
    for at in range(len(whole)):
        for damage in (b"\xff\xff\xff\xff", b"\0\0\0\0"):
            (tmp_path / "upload").write_bytes(whole[:at] + damage + whole[at + 4 :])
            found = look(tmp_path / "upload")
            assert found == {} or list(found) == ["maven"]
