from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
import json
import os
import random
import re
import signal
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import gevent
import packaging
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.errors import Invalid, Unavailable
from app.protocols.pypi import archives
from app.protocols.pypi.inspection import Inspected, inspect, readers
from app.upload.archives.readers import Died, Readers
from tests.protocols.pypi.packages import WHEEL, core_metadata, files_of, sdist, stored, tar_of, wheel, wheel_members, zip_of

FOO = "foo-1.0-py3-none-any.whl"
FOO_SDIST = "foo-1.0.tar.gz"


def look(folder: Path, filename: str, data: bytes) -> Inspected:
    return inspect(stored(folder, filename, data), filename)


def refusal(folder: Path, filename: str, data: bytes) -> str:
    """The sentence with which the file is refused."""
    path = stored(folder, filename, data)
    with pytest.raises(Invalid) as refused:
        inspect(path, filename)
    assert str(path) not in refused.value.message
    assert "\n" not in refused.value.message
    return refused.value.message


def test_a_wheel_gives_its_metadata_as_it_stands(tmp_path: Path) -> None:
    """HO-PYPI-3: what `.metadata` serves are the bytes of the file in the wheel, with their own hash."""
    lines = ("Requires-Python: >=3.8", "Requires-Dist: bar>=1", "Project-URL: Source, https://example.org")
    found = look(tmp_path, "PyQt5_Qt5-5.15.2-py3-none-any.whl", wheel("PyQt5_Qt5", "5.15.2", *lines))
    assert found.metadata == core_metadata("PyQt5_Qt5", "5.15.2", *lines)
    assert found.metadata_sha256 == hashlib.sha256(found.metadata).hexdigest()
    assert (found.name, found.requires_python, found.serves_metadata) == ("PyQt5_Qt5", ">=3.8", True)
    assert found.fields["requires_dist"] == ["bar>=1"]
    assert found.fields["project_urls"] == {"Source": "https://example.org"}


@pytest.mark.parametrize("filename", [FOO_SDIST, "foo-1.0.zip"])
def test_a_source_distribution_is_read_but_its_metadata_not_served(tmp_path: Path, filename: str) -> None:
    data = (
        sdist("foo", "1.0") if filename == FOO_SDIST else zip_of({"foo-1.0/PKG-INFO": core_metadata("foo", "1.0"), "foo-1.0/a/b.py": b""})
    )
    found = look(tmp_path, filename, data)
    assert (found.name, found.requires_python, found.serves_metadata) == ("foo", None, False)


def test_the_real_wheels_of_this_interpreter_are_sound() -> None:
    bundled = sorted((Path(subprocess.__file__).parent / "ensurepip" / "_bundled").glob("*.whl"))
    for path in bundled:
        assert inspect(path, path.name).distribution.filename == path.name


def test_spelling_does_not_matter_but_project_and_version_do(tmp_path: Path) -> None:
    assert (
        look(
            tmp_path,
            "Foo.Bar-1.0.0-py3-none-any.whl",
            zip_of(
                {
                    "foo_bar-1.dist-info/METADATA": core_metadata("foo-BAR", "1.0"),
                    "foo_bar-1.dist-info/WHEEL": WHEEL,
                }
            ),
        ).name
        == "foo-BAR"
    )
    assert (
        look(tmp_path, "foo-bar-1.0.tar.gz", tar_of(files_of({"Foo_Bar-1.0.0/PKG-INFO": core_metadata("foo.bar", "1")}))).name == "foo.bar"
    )


def changed(**changes: bytes | None) -> bytes:
    """The wheel of foo 1.0 with members replaced (by the end of their names) or taken away."""
    members = wheel_members("foo", "1.0")
    for end, data in changes.items():
        name = next(name for name in members if name.endswith(end))
        if data is None:
            del members[name]
        else:
            members[name] = data
    return zip_of(members)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (wheel("bar", "1.0"), "its folder 'bar-1.0' names the project 'bar', but foo-1.0-py3-none-any.whl belongs to 'foo'"),
        (wheel("foo", "1.1"), "its folder 'foo-1.1' gives the version '1.1'"),
        (changed(METADATA=core_metadata("bar", "1.0")), "its METADATA names the project 'bar'"),
        (
            changed(METADATA=core_metadata("foo", "2.0")),
            "its METADATA gives the version '2.0', but foo-1.0-py3-none-any.whl is version '1.0'",
        ),
        (changed(METADATA=None), "has no 'foo-1.0.dist-info/METADATA'"),
        (changed(WHEEL=None), "has no 'foo-1.0.dist-info/WHEEL'"),
        (changed(WHEEL=b"Wheel-Version: 2.0\n"), "Wheel-Version '2.0'"),
        (changed(WHEEL=b"nonsense"), "without a proper Wheel-Version"),
        (changed(METADATA=b""), "without exactly one Metadata-Version"),
        (changed(METADATA=b"Metadata-Version: 2.1\nName: foo\nName: foo\nVersion: 1.0\n"), "without exactly one Name"),
        (changed(METADATA=core_metadata("foo", "not a version")), "wrong version"),
        (changed(METADATA=core_metadata("foo", "1.0", "Requires-Python: three")), "wrong requires-python"),
        (changed(METADATA=core_metadata("foo bar", "1.0")), "wrong name"),
        (changed(METADATA=b"Metadata-Version: 3.0\nName: foo\nVersion: 1.0\n"), "unknown Metadata-Version '3.0'"),
        (changed(METADATA=core_metadata("foo", "1.0", "Summary: a\0b")), "characters that no text has"),
        (changed(METADATA=b"\xff\xfe\x00" * 50), "METADATA"),
        (
            zip_of({**wheel_members("foo", "1.0"), "foo-1.1.dist-info/METADATA": b""}),
            "must have one folder `.dist-info`, but has 'foo-1.0.dist-info', 'foo-1.1.dist-info'",
        ),
        (zip_of({"foo/__init__.py": b""}), "but has none"),
        (b"", "is damaged, or no zip file"),
        (b"not a zip file at all", "is damaged, or no zip file"),
        (wheel("foo", "1.0")[:-30], "is damaged, or no zip file"),
        (wheel("foo", "1.0")[200:], "damaged|overlap"),
        (sdist("foo", "1.0"), "is damaged, or no zip file"),
    ],
)
def test_a_wheel_that_is_not_what_its_name_says_is_refused_with_what_differs(tmp_path: Path, data: bytes, words: str) -> None:
    assert any(word in refusal(tmp_path, FOO, data) for word in words.split("|"))


@pytest.mark.parametrize("name", ["/etc/passwd", "../x", "a/../../x", "a\\b", "a//b", "./a", "a\nb", "a\x7f", "..", "a/."])
def test_names_that_lead_elsewhere_are_refused_in_every_archive(tmp_path: Path, name: str) -> None:
    assert "has a member whose name" in refusal(tmp_path, FOO, zip_of({**wheel_members("foo", "1.0"), name: b""}))
    if not name.startswith("./"):
        assert "has a member whose name" in refusal(
            tmp_path, FOO_SDIST, tar_of(files_of({"foo-1.0/PKG-INFO": core_metadata("foo", "1.0"), name: b""}))
        )


def special(kind: bytes, target: str = "") -> bytes:
    member = tarfile.TarInfo("foo-1.0/special")
    member.type, member.linkname = kind, target
    return tar_of([*files_of({"foo-1.0/PKG-INFO": core_metadata("foo", "1.0")}), (member, b"")])


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (special(tarfile.SYMTYPE, "/etc/passwd"), "has a link that leads out of it"),
        (special(tarfile.SYMTYPE, "../../x"), "has a link that leads out of it"),
        (special(tarfile.LNKTYPE, "../x"), "has a link that leads out of it"),
        (special(tarfile.CHRTYPE), "neither a file nor a folder"),
        (special(tarfile.FIFOTYPE), "neither a file nor a folder"),
        (tar_of(files_of({"foo-1.0/setup.py": b""})), "must have one 'foo-1.0/PKG-INFO', but has 0"),
        (tar_of([*files_of({"foo-1.0/PKG-INFO": core_metadata("foo", "1.0")})] * 2), "but has 2"),
        (tar_of(files_of({"foo-1.0/PKG-INFO": core_metadata("foo", "1.0"), "README": b""})), "must have one folder at its top"),
        (tar_of(files_of({"foo-1.0/PKG-INFO": core_metadata("foo", "1.0"), "bar/x": b""})), "has 'bar', 'foo-1.0'"),
        (tar_of(files_of({"foo-1.1/PKG-INFO": core_metadata("foo", "1.0")})), "its folder 'foo-1.1' gives the version '1.1'"),
        (tar_of(files_of({"foo/PKG-INFO": core_metadata("foo", "1.0")})), "which names no version"),
        (sdist("foo", "1.0")[:-4], "is damaged, or no gzipped tar file"),
        (sdist("foo", "1.0")[:40], "is damaged, or no gzipped tar file"),
        (sdist("foo", "1.0")[:-6] + b"\0" * 6, "is damaged, or no gzipped tar file"),
        (b"", "is damaged, or no gzipped tar file"),
        (wheel("foo", "1.0"), "is damaged, or no gzipped tar file"),
        (tar_of([]), "must have one folder"),
    ],
)
def test_a_source_distribution_that_is_not_what_its_name_says_is_refused(tmp_path: Path, data: bytes, words: str) -> None:
    assert words in refusal(tmp_path, FOO_SDIST, data)


def test_links_that_stay_inside_and_a_leading_dot_are_fine(tmp_path: Path) -> None:
    link = tarfile.TarInfo("./foo-1.0/docs/README")
    link.type, link.linkname = tarfile.SYMTYPE, "../README"
    root = tarfile.TarInfo(".")
    root.type = tarfile.DIRTYPE
    members = files_of({"./foo-1.0/PKG-INFO": core_metadata("foo", "1.0"), "./foo-1.0/README": b""})
    assert look(tmp_path, FOO_SDIST, tar_of([(root, b""), *members, (link, b"")])).name == "foo"


def test_a_flipped_bit_in_a_member_is_found_by_its_checksum(tmp_path: Path) -> None:
    members = {"foo/data.bin": random.Random(1).randbytes(5000), **wheel_members("foo", "1.0")}
    data = bytearray(zip_of(members))
    data[2000] ^= 1
    assert "is damaged" in refusal(tmp_path, FOO, bytes(data))


def test_a_member_twice_is_refused(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="Duplicate name"):
        data = zip_of([*wheel_members("foo", "1.0").items(), ("foo/__init__.py", b"evil")])
    assert "two members of the same name" in refusal(tmp_path, FOO, data)


def test_an_encrypted_wheel_is_refused(tmp_path: Path) -> None:
    data = bytearray(wheel("foo", "1.0"))
    at = data.find(b"PK\x01\x02")
    while at >= 0:
        data[at + 8] |= 1
        at = data.find(b"PK\x01\x02", at + 4)
    assert "is damaged" in refusal(tmp_path, FOO, bytes(data))


def test_members_that_share_their_bytes_are_refused(tmp_path: Path) -> None:
    """A file of kilobytes may inflate to gigabytes by way of them."""
    data = wheel("foo", "1.0")
    directory = data.find(b"PK\x01\x02")
    first = data[directory : data.find(b"PK\x01\x02", directory + 4)]
    extra = first.replace(b"__init__", b"__more__")
    end = bytearray(data[data.find(b"PK\x05\x06") :])
    for at in (8, 10):
        end[at] += 1
    end[12:16] = (int.from_bytes(end[12:16], "little") + len(extra)).to_bytes(4, "little")
    assert "has members that overlap" in refusal(tmp_path, FOO, data[: data.find(b"PK\x05\x06")] + extra + bytes(end))


def test_bombs_are_refused_quickly_and_in_flat_memory(tmp_path: Path) -> None:
    zeros = bytes(1024 * 1024)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        with archive.open("foo/zeros", "w", force_zip64=True) as member:
            for _ in range(100):
                member.write(zeros)
        for name, data in wheel_members("foo", "1.0").items():
            archive.writestr(name, data)
    started = time.monotonic()
    assert "inflates to more than 100 times" in refusal(tmp_path, FOO, buffer.getvalue())
    assert "inflates to more than 100 times" in refusal(
        tmp_path, FOO_SDIST, tar_of(files_of({"foo-1.0/PKG-INFO": core_metadata("foo", "1.0"), "foo-1.0/x": zeros * 100}))
    )
    assert time.monotonic() - started < 20


def test_a_long_name_in_a_tar_file_is_not_read_into_memory(tmp_path: Path) -> None:
    header = tarfile.TarInfo("./@LongLink")
    header.type = tarfile.GNUTYPE_LONGNAME
    assert "has an extended header of 104857600 bytes" in refusal(tmp_path, FOO_SDIST, tar_of([(header, bytes(100 * 1024 * 1024))]))


def test_metadata_beyond_the_limit_is_refused(tmp_path: Path) -> None:
    noise = random.Random(1).randbytes(archives.LIMITS.metadata).hex().encode()
    assert "of 2097" in refusal(tmp_path, FOO, changed(METADATA=core_metadata("foo", "1.0") + noise))
    assert "of 2097" in refusal(tmp_path, FOO_SDIST, tar_of(files_of({"foo-1.0/PKG-INFO": core_metadata("foo", "1.0") + noise})))


@pytest.fixture
def others() -> Iterator[Readers]:
    """Readers of this test alone."""
    with contextlib.closing(Readers(archives.__name__, packaging)) as made:
        yield made


def large(count: int = 1050) -> bytes:
    return zip_of({f"foo/m{n}.py": b"" for n in range(count)} | wheel_members("foo", "1.0", "Requires-Python: >=3.8"))


@pytest.mark.parametrize(
    ("filename", "make"),
    [
        (FOO, large),
        (FOO, lambda: changed(METADATA=core_metadata("foo", "1.0", body="line\n" * 60_000))),
        (
            FOO_SDIST,
            lambda: tar_of(files_of({f"foo-1.0/m{n}": b"" for n in range(1100)} | {"foo-1.0/PKG-INFO": core_metadata("foo", "1.0")})),
        ),
        (FOO_SDIST, lambda: tar_of(files_of({"foo-1.0/big": bytes(9 * 1024 * 1024), "foo-1.0/PKG-INFO": core_metadata("foo", "1.0")}))),
    ],
    ids=["members", "metadata", "tar members", "tar bytes"],
)
def test_what_is_large_is_read_all_the_same(tmp_path: Path, filename: str, make: Callable[[], bytes]) -> None:
    path = stored(tmp_path, filename, make())
    found = inspect(path, filename)
    assert archives.read(path, "wheel" if filename == FOO else "tar", archives.LIMITS).metadata == found.metadata


@pytest.mark.parametrize(("filename", "make"), [(FOO, wheel), (FOO_SDIST, sdist)])
def test_not_even_a_small_archive_is_read_in_the_server_s_own_process(
    tmp_path: Path, filename: str, make: Callable[[str, str], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "_READERS", {})
    assert look(tmp_path, filename, make("foo", "1.0")).name == "foo"


def pax(*records: tuple[bytes, bytes], filler: int = 0) -> bytes:
    """A source distribution whose PKG-INFO has these records in an extended header, as POSIX writes them."""
    data = b""
    for key, value in (*records, *([(b"comment", b"1" * filler)] if filler else [])):
        body = b" " + key + b"=" + value + b"\n"
        length = next(length for length in itertools.count(len(body)) if length == len(str(length)) + len(body))
        data += b"%d" % length + body
    header = tarfile.TarInfo("././@PaxHeader")
    header.type = tarfile.XHDTYPE
    return tar_of([(header, data), *files_of({"foo-1.0/PKG-INFO": core_metadata("foo", "1.0")})])


@pytest.mark.parametrize(
    "data",
    [
        pax((b"GNU.sparse.size", b"5")),
        pax((b"GNU.sparse.map", b"0,1")),
        pax((b"GNU.sparse.major", b"1"), (b"GNU.sparse.minor", b"0")),
        special(tarfile.GNUTYPE_SPARSE),
    ],
    ids=["0.0", "0.1", "1.0", "old"],
)
def test_sparse_members_are_refused_before_their_maps_are_read(tmp_path: Path, data: bytes) -> None:
    assert "has a sparse member" in refusal(tmp_path, FOO_SDIST, data)


def test_an_extended_header_of_digits_is_refused_and_does_not_freeze_the_server(tmp_path: Path) -> None:
    """CVE-2024-6232: a file of a few hundred bytes kept `tarfile` busy for hours, with no other greenlet getting its turn."""
    data = pax((b"GNU.sparse.size", b"5"), filler=200_000)
    assert len(data) < 2000
    turns = gevent.spawn(lambda: [gevent.sleep(0.001) for _ in range(10)])
    assert "has an extended header of 2000" in refusal(tmp_path, FOO_SDIST, data)
    assert len(turns.get(timeout=5)) == 10


def test_ordinary_extended_headers_are_fine(tmp_path: Path) -> None:
    assert look(tmp_path, FOO_SDIST, pax((b"mtime", b"1700000000.25"), filler=4000)).name == "foo"


def test_while_a_child_reads_the_loop_goes_on_and_others_read(tmp_path: Path, others: Readers) -> None:
    """A child that is stopped holds up nobody: neither the loop nor the next archive."""
    path = stored(tmp_path, FOO, wheel("foo", "1.0"))
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    stuck = gevent.spawn(others.read, fifo, "wheel")
    assert b"foo-1.0" in others.read(path, "wheel")
    assert not stuck.ready()
    fifo.write_bytes(b"")
    assert b"unreadable" in stuck.get(timeout=20)


def test_readers_that_are_gone_are_started_again(tmp_path: Path) -> None:
    look(tmp_path, FOO, wheel("foo", "1.0"))
    before = readers.pid
    assert before is not None
    os.kill(before, signal.SIGKILL)
    assert look(tmp_path, FOO, wheel("foo", "1.0")).name == "foo"
    assert readers.pid != before


def test_the_readers_have_no_setting_of_ours_and_a_child_has_its_limits(
    tmp_path: Path, others: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ARKVORY_ADMIN_PASSWORD", "secret")
    others.read(stored(tmp_path, FOO, wheel("foo", "1.0")), "wheel")
    assert b"ARKVORY" not in Path(f"/proc/{others.pid}/environ").read_bytes()
    assert os.readlink(f"/proc/{others.pid}/cwd") == "/"
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    stuck = gevent.spawn(others.read, fifo, "wheel")
    limits = ""
    while "Max cpu time              120 " not in limits:
        gevent.sleep(0.01)
        for child in Path(f"/proc/{others.pid}/task/{others.pid}/children").read_text().split():
            limits = Path(f"/proc/{child}/limits").read_text()
    assert re.search(r"Max address space +1073741824", limits)
    assert re.search(r"Max file size +0", limits)
    fifo.write_bytes(b"")
    stuck.get(timeout=20)


def test_a_child_that_is_killed_is_told_by_its_status(tmp_path: Path, others: Readers) -> None:
    others.read(stored(tmp_path, FOO, wheel("foo", "1.0")), "wheel")
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    stuck = gevent.spawn(others.read, fifo, "wheel")
    children: list[str] = []
    while not children:
        gevent.sleep(0.01)
        children = Path(f"/proc/{others.pid}/task/{others.pid}/children").read_text().split()
    os.kill(int(children[0]), signal.SIGKILL)
    with pytest.raises(Died) as died:
        stuck.get(timeout=20)
    assert died.value.status == -signal.SIGKILL


def test_a_child_that_dies_is_not_the_clients_fault_but_one_out_of_time_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = stored(tmp_path, FOO, large())

    def dying(status: int) -> Callable[..., bytes]:
        def read(*_arguments: object) -> bytes:
            raise Died(status)

        return read

    monkeypatch.setattr(readers, "read", dying(-signal.SIGKILL))
    with pytest.raises(Unavailable):
        inspect(path, FOO)
    monkeypatch.setattr(readers, "read", dying(-signal.SIGXCPU))
    with pytest.raises(Invalid, match="120 seconds"):
        inspect(path, FOO)


def headers(*lines: str) -> bytes:
    return changed(METADATA=core_metadata("foo", "1.0", *lines))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (headers(*(f"X-{n}: x" for n in range(300))), "more than 200 different headers"),
        (headers(*["Requires-Dist: a"] * 10_000), "more than 10000 lines of headers"),
        (headers("Requires-Python: >=" + "9" * 5000), "wrong requires-python"),
        (headers("Requires-Python: " + "!=3.1," * 200 + ">3"), "more than 1000"),
        (changed(METADATA=core_metadata("foo", "9" * 5000)), "wrong version"),
        (changed(METADATA=core_metadata("foo", "1.0", body="\x01" * 400_000)), "bytes of fields"),
        (changed(METADATA=b"Metadata-Version: " + b"2" * 5000 + b"\nName: foo\nVersion: 1.0\n"), "unknown Metadata-Version"),
        (changed(WHEEL=b"Wheel-Version: " + b"1" * 5000 + b"\n"), "without a proper Wheel-Version"),
    ],
)
def test_metadata_that_is_slow_to_read_or_to_use_is_refused(tmp_path: Path, data: bytes, words: str) -> None:
    assert words in refusal(tmp_path, FOO, data)


def test_a_project_of_many_extras_is_no_attack(tmp_path: Path) -> None:
    lines = [f'Requires-Dist: bar{n}; extra == "e{n}"' for n in range(2000)]
    assert len(look(tmp_path, FOO, headers(*lines)).fields["requires_dist"]) == 2000


SPOIL = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@given(st.data())
@SPOIL
def test_no_damage_to_an_archive_is_more_than_invalid(tmp_path: Path, data: st.DataObject) -> None:
    filename, sound = data.draw(st.sampled_from([(FOO, wheel("foo", "1.0")), (FOO_SDIST, sdist("foo", "1.0"))]))
    spoilt = bytearray(sound)
    for _ in range(data.draw(st.integers(1, 4))):
        spoilt[data.draw(st.integers(0, len(sound) - 1))] = data.draw(st.integers(0, 255))
    try:
        look(tmp_path, filename, bytes(spoilt))
    except Invalid as refused:
        message = refused.message
    else:
        message = ""
    assert "\n" not in message


@given(
    st.lists(
        st.sampled_from(
            [
                b"Name: foo\n",
                b"Version: 1.0\n",
                b"Metadata-Version: 2.1\n",
                b"Summary: =?utf-8?q?=00?=\n",
                b"\xff\n",
                b"\n",
                b"Keywords: \xe9,b\n",
                b"Project-URL: a\n",
                b"Project-URL: a, b\n",
                b"Project-URL: a, c\n",
                b"Description: x\n",
                b" continued\n",
                b":\n",
                b"Requires-Python: >=3\n",
            ]
        ),
        max_size=12,
    )
)
@SPOIL
def test_no_metadata_file_is_more_than_invalid_and_what_is_kept_fits_into_the_database(tmp_path: Path, lines: list[bytes]) -> None:
    try:
        found = look(tmp_path, FOO, changed(METADATA=b"".join(lines)))
    except Invalid:
        return
    kept = json.dumps(dict(found.fields), ensure_ascii=False)
    assert "\0" not in found.description
    assert "\\u0000" not in kept
    kept.encode()


def test_it_works_in_a_patched_server_process(tmp_path: Path) -> None:
    """As in a worker, where `subprocess` and `os` are gevent's too."""
    stored_small, stored_large = stored(tmp_path, "small", wheel("foo", "1.0")), stored(tmp_path, "large", large())
    code = f"""
from gevent import monkey; monkey.patch_all()
import gevent
from pathlib import Path
from app.protocols.pypi.inspection import inspect
jobs = [gevent.spawn(inspect, Path(path), {FOO!r}) for path in ({str(stored_small)!r}, {str(stored_large)!r})]
gevent.joinall(jobs, timeout=50, raise_error=True)
print([job.value.name for job in jobs])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.strip() == "['foo', 'foo']", done.stderr
