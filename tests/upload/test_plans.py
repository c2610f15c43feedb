"""One upload of many is found by its key, whatever the planner believes of the others; what is due is found by its own index.

DESIGN 1: limits cost milliseconds at millions of rows.
"""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, TextClause, event, text

from app.access.identity import NOBODYS
from app.database import backup, uploads
from app.errors import ArkvoryError, DigestMismatch, Unavailable, UploadIncomplete
from app.http.doctor import database as doctor
from app.repository.completing import reference_of
from app.upload import multipart
from app.upload.sessions import Address
from tests.conftest import NewDatabase
from tests.support.house import ADMIN, House
from tests.support.multipart import SMALL_PARTS, Client

ROOT = Path(__file__).parents[2]
BODY = bytes(range(100))
MANY, FEW = 150_000, 2_000
INDEXES = {
    uploads.OPEN_BY_LEASE: "ix_arkvory_uploads_open_by_lease",
    uploads.OPEN_BY_OWNER: "ix_arkvory_uploads_open_by_owner",
    uploads.GARBAGE_BY_AGE: "ix_arkvory_uploads_garbage_by_age",
    uploads.RELEASED_BY_AGE: "ix_arkvory_uploads_released_by_age",
}
# Statements as they were executed, each with values that it had.
Said = Mapping[str, dict[str, Any]]


# -- all that the server ever says about uploads


@contextlib.contextmanager
def listening() -> Iterator[Said]:
    said: dict[str, dict[str, Any]] = {}

    def note(_connection: Connection, statement: Any, _many: Any, values: Any, _options: Any) -> None:
        if isinstance(statement, TextClause) and re.search(r"\barkvory_uploads\b", statement.text):
            known = said.setdefault(statement.text, dict(values))
            # A null tells the planner that nothing will be found.
            said[statement.text] = max(known, dict(values), key=lambda each: sum(value is not None for value in each.values()))

    event.listen(Engine, "before_execute", note)
    yield said
    event.remove(Engine, "before_execute", note)


def in_one_request(house: House, repository: int) -> None:
    house.publish("a", b"x" * 3_000_000, told=False, pieces=3)
    house.publish("a", b"another")
    admission = house.parts.admission
    opened = admission.open(repository, 10, "key")
    admission.renew_leases()
    admission.release([opened.id])


def in_several_requests(house: House) -> None:
    repository = house.repository("images", format="oci")
    sessions = house.parts.sessions
    for owner in ("user:1", NOBODYS):
        address = Address(repository, "image", owner, sessions.begin(repository, "image", owner, "key"))
    assert sessions.received(address) == 0
    held = sessions.hold(address)
    sessions.note(held.reservation, 0)
    held.incoming.close()
    sessions.pause(held.reservation, held.progress)
    sessions.cancel(address)
    sessions.free_all()


def in_parts(house: House) -> None:
    client = Client(house)
    upload = client.create(size=len(BODY), part_size=30, key="k")
    assert client.create(size=len(BODY), part_size=30, key="k") == upload
    client.send_all(upload, BODY)
    with house.parts.part_holds.hold(upload, 2, 30) as (_, range):
        house.parts.part_holds.renew()
        range.discard()
    client.send_all(upload, BODY)
    damage(house, upload)
    with pytest.raises(UploadIncomplete):
        client.complete(upload)
    client.send_all(upload, BODY)
    with pytest.raises(DigestMismatch):
        client.complete(upload, "0" * 64)
    client.uploads.list(client.door, 10, "")
    client.cancel(client.create(part_size=30))
    upload = client.create(part_size=30)
    client.send_all(upload, BODY)
    put_off(house, upload)
    client.complete(upload)
    client.ends(upload)


def damage(house: House, upload: multipart.Upload) -> None:
    next(path for path in house.temporary() if path.name == str(upload.id)).write_bytes(bytes(len(BODY)))


def put_off(house: House, upload: multipart.Upload) -> None:
    """Twice, once without a word."""
    multiparts = house.parts.completions._multiparts
    multiparts.close(upload, None, reference_of(ADMIN))
    for end in (lambda job: multiparts.put_off(job, Unavailable("full"), 0.0), lambda job: multiparts._unclaim(upload.id, job.holder)):
        job = multiparts.claim(upload.id)
        assert job is not None
        end(job)
    with house.parts.database.read() as connection:
        multipart.due(connection, 10)


def for_all(house: House) -> None:
    house.clean()
    with house.parts.database.write() as connection:
        doctor._counters(connection)
        doctor._uploads(connection, house.parts.settings)
    with contextlib.suppress(ArkvoryError), house.parts.database.write() as connection:
        connection.execute(text("delete from arkvory_upload_bytes"))
        backup._make_void(connection)
        raise Unavailable("all of it is taken back")


@pytest.fixture(scope="module")
def house(new_database: NewDatabase, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    made = House(new_database(template), tmp_path_factory.mktemp("plans"), **SMALL_PARTS)
    # What the planner knows is what each test has it know.
    made.rows("alter table arkvory_uploads set (autovacuum_enabled = false)")
    yield made
    made.close()


@pytest.fixture(scope="module")
def said(house: House) -> Said:
    with listening() as said:
        in_one_request(house, house.repository())
        in_several_requests(house)
        in_parts(house)
        for_all(house)
    return said


def word_of(statement: str) -> str | None:
    """By which it goes through an index other than the key."""
    return next((each for each in INDEXES if each in statement), None)


def test_everything_is_said_that_stands_in_the_source(said: Said) -> None:
    """A new statement about uploads is to be executed above."""
    missing = []
    for path in (ROOT / "app").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                pieces = re.findall(r"(?:from|into|update|join) arkvory_uploads\b.*", node.value)
                missing += [f"{path.name}: {each}" for each in pieces if not any(each in statement for statement in said)]
    assert missing == []


# -- what the planner makes of it


def plan(connection: Connection, statement: str, values: dict[str, Any]) -> str:
    return "\n".join(connection.execute(text(f"explain {statement}"), values).scalars())


def test_no_statement_can_go_through_an_index_that_it_does_not_name(house: House, said: Said) -> None:
    """Without the key and with sequential scans forbidden, the planner takes any index that it may."""
    with house.parts.database.request.connect() as connection:
        connection.execute(text("alter table arkvory_uploads drop constraint pk_arkvory_uploads"))
        connection.execute(text("set local enable_seqscan = off"))
        plans = {each: plan(connection, each, values) for each, values in said.items()}
        more = "select 1 from arkvory_uploads where status = 'open' and lease_until > now() and owner = 'user:1' and key = ''"
        plans[more] = plan(connection, more, {})
        connection.rollback()
    for statement, found in plans.items():
        taken, word = set(re.findall(r"ix_arkvory_uploads_\w+", found)), word_of(statement)
        assert taken == (set() if word is None else {INDEXES[word]}), f"{statement}\n{found}"


def fill(connection: Connection, status: str, count: int) -> None:
    connection.execute(
        text(
            "insert into arkvory_uploads (id, repository_id, status, bytes, key, owner, target, received, lease_until) "
            "select gen_random_uuid(), 1, :status, 1, 'key', owner, owner, case when owner is not null then 0 end, "
            "case when :status = 'open' then now() + interval '1 hour' end "
            "from (select n, case when :status = 'open' then 'user:' || n % 10 end as owner from generate_series(1, :count) n) each"
        ),
        {"status": status, "count": count},
    )


def never_looked(connection: Connection) -> None:
    for status, count in {"published": MANY, "open": FEW, "garbage": FEW, "released": FEW}.items():
        fill(connection, status, count)


def as_it_is(connection: Connection) -> None:
    never_looked(connection)
    connection.execute(text("analyze arkvory_uploads"))


def before_any_was_open(connection: Connection) -> None:
    fill(connection, "published", MANY)
    connection.execute(text("analyze arkvory_uploads"))
    for status in ("open", "garbage", "released"):
        fill(connection, status, FEW)


def while_all_were_open(connection: Connection) -> None:
    fill(connection, "open", FEW)
    connection.execute(text("analyze arkvory_uploads"))
    for status, count in {"published": MANY, "garbage": FEW, "released": FEW}.items():
        fill(connection, status, count)


def when_there_were_none(connection: Connection) -> None:
    connection.execute(text("delete from arkvory_uploads"))
    connection.execute(text("analyze arkvory_uploads"))
    never_looked(connection)


STATISTICS = (never_looked, as_it_is, before_any_was_open, while_all_were_open, when_there_were_none)


@pytest.mark.parametrize("statistics", STATISTICS, ids=lambda each: each.__name__)
def test_one_upload_is_found_by_its_key_and_what_is_due_by_its_index(
    house: House, said: Said, statistics: Callable[[Connection], None]
) -> None:
    with house.parts.database.request.connect() as connection:
        statistics(connection)
        plans = {each: plan(connection, each, values) for each, values in said.items()}
        connection.rollback()
    for statement, found in plans.items():
        word = word_of(statement)
        if word is not None:
            assert INDEXES[word] in found, f"{statement}\n{found}"
        elif re.search(r"\bid (=|in) ", statement) and not statement.startswith("insert") and " limit " not in statement:
            assert "pk_arkvory_uploads" in found, f"{statement}\n{found}"
            assert "Seq Scan on arkvory_uploads" not in found, f"{statement}\n{found}"
