"""Counters: `arkvory_upload_bytes` equals the sums at every quiescent point, strictly and without deadlocks (W1, DESIGN 5)."""

from __future__ import annotations

import random
import subprocess
import sys
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import gevent
import pytest
from gevent.event import Event
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import text

from app.cache.changes import Transactions, UploadState
from app.errors import ArkvoryError, CapacitySpent
from app.upload.receiving import Expected
from tests.conftest import MakeHouse
from tests.support.house import ADMIN, House, eventually, sha256
from tests.support.mixer import REPOSITORIES, assert_all_is_well, run_greenlets

ROOT = Path(__file__).parents[2]
MIB = 1024 * 1024


def deadlocks(house: House) -> int:
    house.rows("select pg_stat_force_next_flush()")
    return int(house.value("select deadlocks from pg_stat_database where datname = current_database()"))


def waits_for_a_lock(house: House) -> bool:
    here = "database = (select oid from pg_database where datname = current_database())"
    return bool(house.rows(f"select 1 from pg_locks where locktype = 'advisory' and not granted and {here}"))


def test_w1_counters_equal_sums_after_every_mix_of_greenlets_and_processes(house: House) -> None:
    for name in REPOSITORIES:
        house.repository(name)
    program = [sys.executable, "-m", "tests.support.mixer", house.url, str(house.folder)]
    others = [subprocess.Popen([*program, str(seed), "40", "4"], cwd=ROOT, stderr=subprocess.PIPE) for seed in (1, 2)]
    done = run_greenlets(house, 3, 40, 6)
    for other in others:
        _, complaints = gevent.get_hub().threadpool.apply(other.communicate)
        assert other.returncode == 0, complaints.decode()[-3000:]
    assert done["publish"] > 20
    assert deadlocks(house) == 0
    assert_all_is_well(house)


step = st.one_of(
    st.tuples(st.just("create"), st.integers(0, 2), st.sampled_from(["open", "published", "garbage", "released"]), st.integers(0, 100)),
    st.tuples(st.just("move"), st.lists(st.integers(0, 30), min_size=1, max_size=5, unique=True),
              st.sampled_from(["open", "published", "garbage", "released"]), st.one_of(st.none(), st.integers(0, 100))),
    st.tuples(st.just("delete"), st.lists(st.integers(0, 30), min_size=1, max_size=3), st.none(), st.none()),
    st.tuples(st.just("truncate"), st.none(), st.none(), st.none()),
)  # fmt: skip


@pytest.fixture(scope="module")
def shared(template: str, new_database: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    made = House(new_database(template), tmp_path_factory.mktemp("counters"))
    yield made
    made.close()


@settings(max_examples=40)
@given(steps=st.lists(step, max_size=12), batches=st.integers(1, 4), fail=st.booleans())
def test_w1_the_trigger_keeps_the_sums_through_any_statements_however_they_are_batched(
    shared: House, steps: list[Any], batches: int, fail: bool
) -> None:
    with shared.parts.database.write() as connection:
        connection.execute(text("truncate arkvory_uploads"))
    ids: list[str] = []
    for number in range(0, len(steps), batches):
        with shared.parts.database.request.connect() as connection:
            for kind, first, status, size in steps[number : number + batches]:
                _do(connection, ids, kind, first, status, size)
            connection.rollback() if fail and number == 0 else connection.commit()
        shared.assert_counted()
    assert all(size >= 0 for size in shared.counters().values())


def _do(connection: Any, ids: list[str], kind: str, first: Any, status: Any, size: Any) -> None:
    if kind == "create":
        ids.append(str(uuid.uuid4()))
        connection.execute(
            text("insert into arkvory_uploads (id, repository_id, status, bytes) values (cast(:id as uuid), :repository, :status, :bytes)"),
            {"id": ids[-1], "repository": first, "status": status, "bytes": size},
        )
    elif kind == "truncate":
        connection.execute(text("truncate arkvory_uploads"))
    else:
        chosen = [ids[index % len(ids)] for index in first] if ids else []
        change = "delete from arkvory_uploads" if kind == "delete" else (
            "update arkvory_uploads set status = :status, bytes = coalesce(:bytes, bytes)")  # fmt: skip
        values = {"ids": chosen} | ({} if kind == "delete" else {"status": status, "bytes": size})
        connection.execute(text(f"{change} where id = any(cast(:ids as uuid[]))"), values)


def test_w1_batches_that_move_the_same_uploads_in_opposite_orders_never_wait_in_a_circle(house: House) -> None:
    ids = [uuid.uuid4() for _ in range(40)]
    house.rows(
        "insert into arkvory_uploads (id, repository_id, status, bytes) "
        "select id, row_number() over () % 5, 'open', 7 from unnest(cast(:ids as uuid[])) as id",
        ids=[str(each) for each in ids],
    )
    transactions: Transactions = house.parts.transactions

    def move(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(25):
            chosen = chance.sample(ids, 20)
            with transactions.begin() as transaction:
                transaction.settle_uploads({each: UploadState(chance.choice(["open", "released", "garbage"])) for each in chosen})

    def renew() -> None:
        house.parts.admission.open_uploads.update(dict.fromkeys(ids))  # type: ignore[dict-item]  # only the keys are used
        for _ in range(100):
            house.parts.admission.renew_leases()
        house.parts.admission.open_uploads.clear()

    gevent.joinall([gevent.spawn(renew), *(gevent.spawn(move, seed) for seed in range(5))], raise_error=True)
    assert deadlocks(house) == 0
    house.assert_counted()


class TestIsolationTraps:
    def test_admission_reads_what_was_committed_while_it_waited_for_the_lock(self, house: House) -> None:
        """A lock and a sum in one statement, or in a repeatable-read transaction, would read the sum from before the wait."""
        repository = house.repository(quota_bytes=10)
        go = Event()

        def first() -> None:
            with house.parts.transactions.begin(admission=True) as transaction:
                go.wait(60)
                transaction.connection.execute(
                    text("insert into arkvory_uploads (id, repository_id, status, bytes) values (gen_random_uuid(), :id, 'open', 6)"),
                    {"id": repository},
                )

        holder = gevent.spawn(first)
        eventually(lambda: house.rows("select 1 from pg_locks where locktype = 'advisory' and classid = 18471 and objid = 2 and granted"))
        waiting = gevent.spawn(house.parts.admission.open, repository, 6, "k")
        eventually(lambda: waits_for_a_lock(house))
        go.set()
        holder.get()
        with pytest.raises(CapacitySpent):
            waiting.get(timeout=10)
        house.assert_counted()

    @pytest.mark.parametrize("trap", ["one statement", "repeatable read", "ours"])
    def test_the_trap_is_real_and_ours_is_not_in_it(self, house: House, trap: str) -> None:
        lock, total = "pg_advisory_xact_lock(18471, 2)", "(select coalesce(sum(bytes), 0)::bigint from arkvory_upload_bytes)"

        def read() -> int:
            with house.parts.database.request.connect() as connection:
                if trap == "one statement":
                    return int(connection.execute(text(f"select {total} from (select {lock}) as l")).scalar_one())
                if trap == "repeatable read":
                    connection.execution_options(isolation_level="REPEATABLE READ")
                connection.execute(text(f"select {lock}"))
                return int(connection.execute(text(f"select {total}")).scalar_one())

        with house.parts.database.request.connect() as holder:
            holder.execute(text(f"select {lock}"))
            holder.execute(text("insert into arkvory_uploads (id, repository_id, status, bytes) values (gen_random_uuid(), 1, 'open', 6)"))
            waiting = gevent.spawn(read)
            eventually(lambda: waits_for_a_lock(house))
            holder.commit()
        assert waiting.get(timeout=10) == (6 if trap == "ours" else 0)

    def test_deleting_a_repository_waits_for_no_admission_nor_admission_for_it(self, house: House) -> None:
        """Neither uploads nor counters have a foreign key to repositories."""
        repository = house.repository()
        with house.parts.transactions.begin(admission=True) as transaction:
            transaction.connection.execute(
                text("insert into arkvory_uploads (id, repository_id, status, bytes) values (gen_random_uuid(), :id, 'open', 6)"),
                {"id": repository},
            )
            with gevent.Timeout(20):
                house.registry.delete(ADMIN, "files")
        house.rows("update arkvory_uploads set lease_until = now() - interval '1 s'")
        house.clean()
        assert house.value("select count(*) from arkvory_repositories") == 0
        house.assert_counted()
        assert not house.rows(
            "select 1 from pg_constraint where contype = 'f' "
            "and conrelid in ('arkvory_uploads'::regclass, 'arkvory_upload_bytes'::regclass)"
        )


class TestStrictness:
    """HO-X-5: committed and reserved never exceed the limit, at any moment."""

    @pytest.mark.parametrize("limit", ["quota", "capacity"])
    def test_thirty_parallel_uploads_never_exceed_the_limit(self, make_house: MakeHouse, limit: str) -> None:
        most = 10 * MIB
        environment = {"ARKVORY_CAPACITY_BYTES": str(most)} if limit == "capacity" else {}
        house = make_house(ARKVORY_MAX_UPLOADS="32", ARKVORY_MAX_UPLOADS_PER_KEY="32", **environment)
        repository = house.repository(quota_bytes=most if limit == "quota" else None)
        results: Counter[str] = Counter()
        body = bytes(MIB)

        def upload(number: int) -> None:
            try:
                house.publish(f"f{number}", number.to_bytes(4, "big") + body[4:], told=number % 3 != 0, pieces=4)
                results["stored"] += 1
            except CapacitySpent:
                results["refused"] += 1

        def watch() -> None:
            while True:
                assert sum(house.counters().values()) <= most
                gevent.sleep(0.002)

        watching = gevent.spawn(watch)
        uploads = [gevent.spawn(upload, number) for number in range(30)]
        gevent.sleep(0.05)
        gevent.killall(uploads[:5])
        gevent.joinall(uploads, raise_error=True)
        assert not watching.dead, watching.exception
        watching.kill()
        assert results["stored"] >= 3
        assert results["refused"] >= 1
        house.assert_counted()
        assert sum(house.counters().values()) == results["stored"] * MIB == house.counters()[repository, "published"]
        while results["stored"] * MIB < most:
            upload(100 + results["stored"])
        with pytest.raises(CapacitySpent):
            house.publish("one-too-many", b"x")
        first, *more = house.rows("select path from arkvory_artifacts")
        for path in more[:2]:
            house.delete(path.path)
        gevent.sleep(0.01)
        house.clean()
        house.publish(first.path, b"smaller")
        gevent.sleep(0.01)
        house.clean()
        house.assert_counted()
        assert house.counters() == {(repository, "published"): 7 * MIB + 7}
        for path in house.rows("select path from arkvory_artifacts"):
            house.delete(path.path)
        gevent.sleep(0.01)
        house.clean()
        assert house.counters() == {}
        house.assert_no_strays()

    def test_quota_null_means_none_and_zero_that_nothing_fits(self, house: House) -> None:
        house.repository("none")
        house.repository("zero", quota_bytes=0)
        house.publish("a", b"fits", "none")
        for told in (True, False):
            for body in (b"", b"x"):
                with pytest.raises(CapacitySpent):
                    house.publish("a", body, "zero", told=told)
        house.assert_counted()

    def test_a_body_of_unknown_length_that_outgrows_the_capacity_is_stopped_and_leaves_nothing(self, make_house: MakeHouse) -> None:
        house = make_house(ARKVORY_CAPACITY_BYTES=str(20 * MIB))
        repository = house.repository()
        house.publish("there", bytes(MIB))
        epochs = house.epochs()
        with pytest.raises(CapacitySpent):
            house.publish("big", bytes(30 * MIB), told=False, pieces=30)
        assert house.counters() == {(repository, "published"): MIB}
        assert house.epochs() == epochs
        house.assert_counted()
        assert not house.temporary()

    def test_a_small_body_of_unknown_length_fits_into_what_is_left(self, house: House) -> None:
        repository = house.repository(quota_bytes=MIB)
        house.publish("a", bytes(MIB - 100), told=False)
        house.publish("b", bytes(100), told=False)
        assert house.counters() == {(repository, "published"): MIB}
        with pytest.raises(CapacitySpent):
            house.publish("c", b"x", told=False)

    def test_two_paths_to_one_blob_count_twice_and_lie_on_the_disk_once(self, house: House) -> None:
        repository = house.repository()
        house.publish("a", b"same")
        house.publish("b", b"same")
        assert house.counters() == {(repository, "published"): 8}
        assert len(list(house.files())) == 1
        house.delete("a")
        gevent.sleep(0.01)
        house.clean()
        assert house.read("b") == b"same"
        assert house.counters() == {(repository, "published"): 4}

    def test_a_wrong_digest_a_short_and_a_long_body_leave_nothing(self, house: House) -> None:
        house.repository()
        epochs = house.epochs()

        def send(expected: Expected, body: bytes) -> None:
            with house.parts.publisher.begin(_target(), "a") as session:
                receiver = session.receiver(expected)
                receiver.feed(body)
                receiver.finish()

        wrong = Expected({"sha256": sha256(b"other")})
        for expected, body in ((wrong, b"body"), (Expected(size=9), b"short"), (Expected(size=2), b"longer")):
            with pytest.raises(ArkvoryError):
                send(expected, body)
        assert house.counters() == {}
        assert house.epochs() == epochs
        house.assert_counted()
        house.assert_no_strays()


def _target() -> Any:
    from app.repository.publishing import Target

    return Target("raw", "files", ADMIN)
