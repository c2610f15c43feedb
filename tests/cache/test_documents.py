"""C9: derived documents and their validators: equal ETags mean equal bytes, and a publish elsewhere leaves them valid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import gevent
import pytest
from sqlalchemy import Connection, Row, text

from app.cache.snapshots import Snapshot
from app.errors import NotFound
from app.repository.publishing import NewFile, Package, Target
from app.repository.reading import Ask, Document, Draft, Shelf
from tests.conftest import MakePause
from tests.support.house import ADMIN, NOBODY, House, eventually
from tests.support.pauses import Pause


@dataclass
class Index:
    """A document of one package: its files; `rendered` counts how often it was made."""

    package: str
    representation: str = "html"
    content_type: str = "text/html"
    rendered: list[str] = field(default_factory=list)
    long: bool = False

    @property
    def key(self) -> str:
        return f"index {self.package}"

    def revision(self, connection: Connection, snapshot: Snapshot) -> int | None:
        statement = text("select revision from arkvory_packages where repository_id = :id and name = :name and artifacts > 0")
        found = connection.execute(statement, {"id": snapshot.id, "name": self.package}).scalar()
        return None if found is None else int(found)

    def read(self, connection: Connection, snapshot: Snapshot, shelf: Shelf) -> Draft:
        self.rendered.append(self.package)
        rows = connection.execute(
            text(
                "select a.path, b.digest from arkvory_artifacts a join arkvory_blobs b on b.id = a.blob_id "
                "join arkvory_packages p on p.id = a.package_id where p.repository_id = :id and p.name = :name order by a.path"
            ),
            {"id": snapshot.id, "name": self.package},
        ).all()
        return Draft(lambda: self.write(snapshot.name, rows), self.long)

    def write(self, name: str, rows: Sequence[Row[Any]]) -> bytes:
        return repr((name, self.representation, [tuple(row) for row in rows])).encode()


@pytest.fixture
def house(house: House) -> House:
    house.repository(public=True)
    put(house, "one", "one/a", b"1")
    put(house, "two", "two/a", b"1")
    return house


def put(house: House, package: str, path: str, body: bytes) -> None:
    with house.parts.publisher.begin(Target("raw", "files", ADMIN), path) as session:
        session.publish([NewFile(path, session.store(body), "text/plain")], package=Package(package, package))


def get(house: House, source: Index, repository: str = "files", known: frozenset[str] = frozenset(), caller: Any = NOBODY) -> Document:
    return house.parts.reader.document(Ask("raw", repository, f"{source.package}/", caller), source, known).document


def test_c9_equal_etags_mean_equal_bytes_and_other_bytes_another_etag(house: House) -> None:
    bytes_of: dict[str, bytes] = {}
    etags: list[str] = []

    def note() -> None:
        for name in ("one", "two"):
            for representation in ("html", "json"):
                try:
                    document = get(house, Index(name, representation), caller=ADMIN)
                except NotFound:
                    continue
                assert bytes_of.setdefault(document.etag, document.body) == document.body
                etags.append(document.etag)

    changes = [
        lambda: None, lambda: put(house, "one", "one/a", b"2"), lambda: put(house, "one", "one/b", b"2"), lambda: house.delete("one/b"),
        lambda: house.delete("one/a"), lambda: put(house, "one", "one/a", b"1"), lambda: house.change("files", public=False),
        lambda: house.change("files", public=True), lambda: put(house, "two", "two/a", b"1"),
    ]  # fmt: skip
    for change in changes:
        change()
        note()
        house.parts.cache.documents.clear()
        note()
    assert len(set(bytes_of)) > 8


def test_c9_a_publish_elsewhere_leaves_the_validator_as_it_is_and_one_here_moves_it(house: House) -> None:
    before = get(house, Index("one"))
    put(house, "two", "two/b", b"new")
    house.publish("no/package", b"x")
    assert get(house, Index("one")) == before
    put(house, "one", "one/b", b"new")
    assert get(house, Index("one")).etag != before.etag


def test_c9_a_validator_does_not_outlive_the_repository_s_name_nor_the_installation_s_incarnation(house: House) -> None:
    before = get(house, Index("one")).etag
    house.change("files", name="other")
    renamed = get(house, Index("one"), "other").etag
    house.rows("update arkvory_installation set incarnation = 'restored'")
    house.parts.cache.documents.clear()
    restored = get(house, Index("one"), "other").etag
    assert len({before, renamed, restored}) == 3


def test_c9_a_kept_document_and_a_known_validator_cost_no_rendering(house: House) -> None:
    source = Index("one")
    made = get(house, source)
    before = house.parts.database.statements()
    assert get(house, source) == made
    assert (house.parts.database.statements(), source.rendered) == (before, ["one"])
    house.parts.cache.documents.clear()
    assert get(house, source, known=frozenset({made.etag})).etag == made.etag
    assert source.rendered == ["one"]
    # What was not made is not kept as if it were empty.
    assert get(house, source) == made


def test_what_a_change_makes_unreachable_leaves_memory_and_a_change_of_rules_leaves_documents_alone(house: House) -> None:
    made = get(house, Index("one"))
    documents = house.parts.cache.documents
    house.rule("files", "signed-in", "read")
    assert (get(house, Index("one")), len(documents)) == (made, 1)
    house.publish("another", b"body")
    assert (len(documents), documents.bytes) == (0, 0)


def test_c9_a_document_made_before_a_publish_and_kept_after_it_is_never_found(house: House, pause: MakePause) -> None:
    source = Index("one")
    stopped = pause(source, "read")
    reader = gevent.spawn(get, house, source)
    stopped.reached()
    put(house, "one", "one/b", b"new")
    stopped.go()
    old = reader.get(timeout=10)
    new = get(house, Index("one"))
    assert b"one/b" in new.body
    assert b"one/b" not in old.body
    assert old.etag != new.etag


def test_c9_rows_and_numbers_come_from_one_state(house: House, pause: MakePause) -> None:
    """The revision was read; then something is published; the body is still that of the revision."""
    source = Index("one")
    stopped = pause(source, "revision")
    reader = gevent.spawn(get, house, source)
    stopped.reached()
    put(house, "one", "one/b", b"new")
    stopped.go()
    assert b"one/b" not in reader.get(timeout=10).body


@pytest.mark.parametrize("warm", [True, False])
def test_c8_an_old_permission_makes_no_new_document(house: House, pause: MakePause, warm: bool) -> None:
    stopped = pause(house.parts.snapshots, "_read")
    house.parts.cache.snapshots.clear()
    reader = gevent.spawn(get, house, Index("one"))
    stopped.reached()
    house.change("files", public=False)
    put(house, "one", "one/secret", b"new")
    if warm:
        get(house, Index("one"), caller=ADMIN)
    stopped.go()
    with pytest.raises(Exception, match="needs a login"):
        reader.get(timeout=10)


def stopped_in_write(source: Index, pause: MakePause) -> Pause:
    return pause(source, "write", before=True)


def held_connections(house: House) -> int:
    return int(house.parts.database.request.engine.pool.checkedout())  # type: ignore[attr-defined]  # QueuePool's own


def test_c9_a_crowd_shares_one_making_and_no_connection_is_held_while_the_bytes_are_made(house: House, pause: MakePause) -> None:
    source = Index("one")
    stopped = stopped_in_write(source, pause)
    first = gevent.spawn(get, house, source)
    stopped.reached()
    crowd = [gevent.spawn(get, house, source) for _ in range(30)]
    gevent.sleep(0.3)
    # Each of them looks for itself first.
    eventually(lambda: held_connections(house) == 0)
    assert not any(each.ready() for each in crowd)
    stopped.go()
    documents = [each.get(timeout=10) for each in (first, *crowd)]
    assert documents == [documents[0]] * 31
    assert source.rendered == ["one"]


def test_c9_each_representation_is_made_for_itself_and_long_ones_in_a_thread(house: House) -> None:
    short, long = Index("one"), Index("one", long=True, representation="json")
    assert get(house, short).body != get(house, long).body
    assert get(house, long).body == get(house, Index("one", representation="json")).body


def test_c9_who_waits_for_a_making_that_is_killed_makes_it(house: House, pause: MakePause) -> None:
    source = Index("one")
    stopped = stopped_in_write(source, pause)
    first = gevent.spawn(get, house, source)
    stopped.reached()
    second = gevent.spawn(get, house, source)
    gevent.sleep(0.2)
    first.kill()
    assert b"one/a" in second.get(timeout=10).body
    assert source.rendered == ["one", "one"]


def test_c9_a_making_that_fails_fails_for_those_who_wait_and_leaves_nothing_behind(house: House, pause: MakePause) -> None:
    class Broken(Index):
        def write(self, name: str, rows: Sequence[Row[Any]]) -> bytes:
            raise ZeroDivisionError

    source = Broken("one")
    stopped = stopped_in_write(source, pause)
    both = [gevent.spawn(get, house, source) for _ in range(2)]
    stopped.reached()
    gevent.sleep(0.2)
    stopped.go()
    for each in both:
        with pytest.raises(ZeroDivisionError):
            each.get(timeout=10)
    assert b"one/a" in get(house, Index("one")).body


def test_c8_who_may_not_read_any_more_gets_nothing_of_a_making_that_began_before(house: House, pause: MakePause) -> None:
    source = Index("one")
    stopped = stopped_in_write(source, pause)
    first = gevent.spawn(get, house, source, caller=ADMIN)
    stopped.reached()
    house.change("files", public=False)
    late = gevent.spawn(get, house, source)
    with pytest.raises(Exception, match="needs a login"):
        late.get(timeout=10)
    stopped.go()
    assert b"one/a" in first.get(timeout=10).body


def test_c9_who_asks_after_a_publish_gets_no_making_of_before_it(house: House, pause: MakePause) -> None:
    source = Index("one")
    stopped = stopped_in_write(source, pause)
    first = gevent.spawn(get, house, source)
    stopped.reached()
    put(house, "one", "one/b", b"new")
    assert b"one/b" in get(house, source).body
    stopped.go()
    old = first.get(timeout=10)
    assert b"one/b" not in old.body
    assert old.etag != get(house, source).etag
