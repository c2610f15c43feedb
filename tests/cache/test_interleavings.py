"""Cache coherence at the worst moments: readers and writers stopped between their steps (C1 to C8)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gevent
import pytest
from sqlalchemy import text

from app.access import decision
from app.cache.regions import Region
from app.errors import IsFolder, NotFound, Unauthenticated
from app.repository.reading import Ask
from tests.conftest import MakePause
from tests.support.house import ADMIN, NOBODY, House


@pytest.fixture
def files(house: House) -> int:
    """A public repository with `a` in it."""
    made = house.repository(public=True)
    house.publish("a", b"old")
    return made


def statements_of(house: House, action: Callable[[], Any]) -> int:
    before = house.parts.database.statements()
    action()
    return house.parts.database.statements() - before


def test_c1_a_warm_read_sends_no_statement_for_nobody_a_token_and_a_path_that_is_not_there(house: House, files: int) -> None:
    house.user("ann")
    secret = house.token("ann")
    house.change("files", public=False)
    house.rule("files", "user:ann", "read")

    def read_all() -> None:
        assert house.outcome("a", secret=secret) == b"old"
        assert house.outcome("missing", secret=secret) == "not_found"

    read_all()
    assert statements_of(house, read_all) == 0
    house.change("files", public=True)
    house.outcome("a")
    assert statements_of(house, lambda: house.outcome("a")) == 0


@pytest.mark.parametrize("change", ["publish", "delete", "close", "revoke", "disable", "rename", "offline", "remove"])
def test_c1_the_next_read_after_a_commit_sees_it(house: House, files: int, change: str) -> None:
    house.user("ann")
    secret = house.token("ann")
    house.change("files", public=False)
    rule = house.rule("files", "user:ann", "read")
    assert house.outcome("a", secret=secret) == b"old"
    expected, act = {
        "publish": (b"new", lambda: house.publish("a", b"new")),
        "delete": ("not_found", lambda: house.delete("a")),
        "close": ("not_found", lambda: house.rules.delete(ADMIN, "files", rule)),
        "revoke": ("unauthenticated", lambda: house.tokens.revoke(house.identify(secret), 1)),
        "disable": ("unauthenticated", lambda: house.disable("ann")),
        "rename": ("not_found", lambda: house.change("files", name="other")),
        "offline": ("repository_offline", lambda: house.change("files", status="offline")),
        "remove": ("not_found", lambda: house.registry.delete(ADMIN, "files")),
    }[change]
    act()
    assert house.outcome("a", secret=secret) == expected


def test_c1_a_folder_asked_for_as_a_file_costs_no_statement_and_comes_and_goes_with_its_files(house: House, files: int) -> None:
    def kind(path: str) -> type[Exception]:
        with pytest.raises(NotFound) as raised:
            house.read(path)
        return raised.type

    house.publish("d/e/f", b"x")
    assert (kind("d"), kind("d/e"), kind("e")) == (IsFolder, IsFolder, NotFound)
    assert statements_of(house, lambda: (kind("d"), kind("e"))) == 0
    house.delete("d/e/f")
    assert kind("d") is NotFound


@pytest.mark.parametrize("look", [False, True])
def test_c8_who_lost_the_right_meanwhile_is_not_told_that_they_may_read(house: House, files: int, pause: MakePause, look: bool) -> None:
    ask = Ask("raw", "files", "a", NOBODY)
    stopped = pause(house.parts.access, "require")

    def read() -> str:
        try:
            if look:
                with house.parts.reader.look(ask) as (connection, snapshot):
                    return f"{snapshot.id} {connection.execute(text('select count(*) from arkvory_artifacts')).scalar_one()}"
            return str(house.parts.reader.may_read(ask).id)
        except Unauthenticated:
            return "unauthenticated"

    reader = gevent.spawn(read)
    stopped.reached()
    house.change("files", public=False)
    stopped.go()
    assert reader.get() == "unauthenticated"


def test_c3_a_gate_read_before_an_overwrite_and_kept_after_it_is_never_found(house: House, files: int, pause: MakePause) -> None:
    house.publish("b", b"something to move the content epoch")
    stopped = pause(house.parts.reader, "_keep_gate", before=True)
    reader = gevent.spawn(house.outcome, "a")
    stopped.reached()
    house.publish("a", b"new")
    assert house.read("a") == b"new"
    stopped.go()
    assert reader.get() in {b"old", b"new"}
    assert house.read("a") == b"new"


def test_c3_a_path_found_missing_before_it_was_stored_is_found_after_it(house: House, files: int, pause: MakePause) -> None:
    stopped = pause(house.parts.reader, "_keep_gate", before=True)
    reader = gevent.spawn(house.outcome, "b")
    stopped.reached()
    house.publish("b", b"stored")
    stopped.go()
    assert reader.get() == "not_found"
    assert house.read("b") == b"stored"


def test_c3_a_snapshot_read_before_the_repository_was_closed_is_not_kept(house: House, files: int, pause: MakePause) -> None:
    stopped = pause(house.parts.snapshots, "_from_repository")
    reader = gevent.spawn(house.outcome, "a")
    stopped.reached()
    house.change("files", public=False)
    stopped.go()
    reader.get()
    assert house.outcome("a") == "unauthenticated"


@pytest.mark.parametrize("warm", [True, False])
def test_c8_an_old_snapshot_does_not_open_what_was_published_after_the_repository_was_closed(
    house: House, files: int, pause: MakePause, warm: bool
) -> None:
    stopped = pause(house.parts.snapshots, "_from_repository")
    reader = gevent.spawn(house.outcome, "a")
    stopped.reached()
    house.change("files", public=False)
    house.publish("a", b"secret")
    if warm:
        assert house.read("a", caller=ADMIN) == b"secret"
    stopped.go()
    assert reader.get() == "unauthenticated"


@pytest.mark.parametrize("warm", [True, False])
@pytest.mark.parametrize("change", ["rule", "disable", "delete"])
def test_c8_an_old_grant_does_not_open_what_was_published_after_it_was_taken_away(
    house: House, files: int, pause: MakePause, warm: bool, change: str
) -> None:
    house.user("ann")
    secret = house.token("ann")
    house.change("files", public=False)
    rule = house.rule("files", "user:ann", "read")
    stopped = pause(decision, "_read_grants")
    reader = gevent.spawn(house.outcome, "a", secret=secret)
    stopped.reached()
    if change == "rule":
        house.rules.delete(ADMIN, "files", rule)
    elif change == "disable":
        house.disable("ann")
    else:
        house.users.delete(ADMIN, "ann")
    house.publish("a", b"secret")
    if warm:
        assert house.read("a", caller=ADMIN) == b"secret"
    stopped.go()
    assert reader.get() in {"unauthenticated", "not_found"}


@pytest.mark.parametrize("warm", [True, False])
@pytest.mark.parametrize("change", ["disable", "delete", "revoke"])
def test_c8_an_identity_found_before_it_ended_opens_nothing_published_after(
    house: House, files: int, warm: bool, change: str
) -> None:
    house.user("ann")
    secret = house.token("ann")
    house.change("files", public=False)
    house.rule("files", "signed-in", "read")
    caller = house.identify(secret)
    assert house.read("a", caller=caller) == b"old"
    if change == "disable":
        house.disable("ann")
    elif change == "delete":
        house.users.delete(ADMIN, "ann")
    else:
        house.tokens.revoke(caller, caller.identity.token.id)  # type: ignore[union-attr]
    house.publish("a", b"secret")
    if warm:
        assert house.read("a", caller=ADMIN) == b"secret"
    with pytest.raises((Unauthenticated, NotFound)):
        house.read("a", caller=caller)


def test_c8_a_repository_of_the_same_name_is_not_opened_by_the_old_one_s_permission(house: House, files: int, pause: MakePause) -> None:
    stopped = pause(house.parts.snapshots, "_from_repository")
    reader = gevent.spawn(house.outcome, "a")
    stopped.reached()
    house.registry.delete(ADMIN, "files")
    house.repository(public=False)
    house.publish("a", b"secret")
    assert house.read("a", caller=ADMIN) == b"secret"
    stopped.go()
    assert reader.get() == "unauthenticated"


@pytest.mark.parametrize("region", ["snapshots", "grants", "gates", "documents", "identities"])
def test_c5_when_local_deletion_fails_the_next_read_asks_the_database(
    house: House, files: int, monkeypatch: pytest.MonkeyPatch, region: str
) -> None:
    house.user("ann")
    secret = house.token("ann")
    house.change("files", public=False)
    rule = house.rule("files", "user:ann", "read")
    assert house.outcome("a", secret=secret) == b"old"

    def fail(*_: Any) -> None:
        raise MemoryError

    broken: Region[Any] = getattr(house.parts.cache, region)
    for name in ("drop", "drop_tag", "clear"):
        monkeypatch.setattr(broken, name, fail)
    house.rules.delete(ADMIN, "files", rule)
    assert house.outcome("a", secret=secret) == "not_found"
    if region in {"snapshots", "grants"}:
        assert house.parts.cache.deletion_errors > 0
    house.disable("ann")
    assert house.outcome("a", secret=secret) == "unauthenticated"
    house.change("files", public=True)
    assert house.outcome("a") == b"old"
    house.change("files", name="other")
    assert house.outcome("a") == "unauthenticated"
    assert house.outcome("a", secret=None) == "unauthenticated"
    assert house.read("a", "other", caller=NOBODY) == b"old"


def test_c2_a_rollback_changes_neither_data_nor_cache(house: House, files: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert house.outcome("a") == b"old"
    epochs, view = house.epochs(), house.parts.cache.view.repository(files)

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("after everything was written")

    with monkeypatch.context() as patched:
        patched.setattr("app.cache.changes.Transaction.before_commit", fail)
        with pytest.raises(RuntimeError):
            house.publish("a", b"new")
        with pytest.raises(RuntimeError):
            house.change("files", public=False)
    assert (house.epochs(), house.parts.cache.view.repository(files)) == (epochs, view)
    assert statements_of(house, lambda: house.outcome("a")) == 0
    assert house.outcome("a") == b"old"
    house.assert_counted()


def test_c2_nothing_is_invalidated_before_the_commit(house: House, files: int, pause: MakePause) -> None:
    assert house.outcome("a") == b"old"
    stopped = pause(house.parts.transactions, "_commit", before=True)
    writer = gevent.spawn(house.publish, "a", b"new")
    stopped.reached()
    assert statements_of(house, lambda: house.outcome("a")) == 0
    assert house.outcome("a") == b"old"
    stopped.go()
    writer.get()
    assert house.outcome("a") == b"new"


def test_c2_what_a_query_sees_between_a_commit_and_its_invalidation_is_not_forgotten_by_it(
    house: House, files: int, pause: MakePause
) -> None:
    stopped = pause(house.parts.cache, "apply", before=True)
    writer = gevent.spawn(house.change, "files", public=False)
    stopped.reached()
    house.parts.cache.snapshots.clear()
    assert house.outcome("a") == "unauthenticated"
    stopped.go()
    writer.get()
    assert house.outcome("a") == "unauthenticated"


class TestCacheRows:
    def cold(self, house: House) -> None:
        house.parts.cache.snapshots.clear()

    def test_c4_a_row_is_used_while_its_epochs_are_the_repository_s(self, house: House, files: int) -> None:
        house.outcome("a")
        house.rows("""update arkvory_cache_rows set value = replace(value, '"public": true', '"public": false')""")
        self.cold(house)
        assert house.outcome("a") == "unauthenticated"

    @pytest.mark.parametrize("epoch", ["metadata", "authorization", "members"])
    @pytest.mark.parametrize("side", ["row", "repository"])
    def test_c4_a_row_of_other_epochs_is_not_used(self, house: House, files: int, epoch: str, side: str) -> None:
        house.outcome("a")
        house.rows("""update arkvory_cache_rows set value = replace(value, '"public": true', '"public": false')""")
        table = "arkvory_cache_rows" if side == "row" else "arkvory_repositories"
        house.rows(f"update {table} set {epoch}_epoch = {epoch}_epoch + 1")
        self.cold(house)
        assert house.outcome("a") == b"old"

    def test_c4_the_content_epoch_is_always_the_repository_s(self, house: House, files: int) -> None:
        house.outcome("a")
        house.publish("a", b"new")
        self.cold(house)
        assert house.outcome("a") == b"new"
        assert house.parts.snapshots.get("default", "files").epochs == house.epochs()

    @pytest.mark.parametrize("value", ["", "[]", "{}", '{"id": 1}', '{"surprise": 1}', "null"])
    def test_c4_a_row_of_another_release_is_passed_over(self, house: House, files: int, value: str) -> None:
        house.outcome("a")
        house.rows("update arkvory_cache_rows set value = :value", value=value)
        self.cold(house)
        assert house.outcome("a") == b"old"

    def test_c4_a_change_deletes_the_row_within_its_transaction(self, house: House, files: int) -> None:
        house.outcome("a")
        assert house.value("select count(*) from arkvory_cache_rows") == 1
        house.change("files", public=False)
        assert house.value("select count(*) from arkvory_cache_rows") == 0

    def test_c6_without_the_table_everything_else_works(self, house: House, files: int) -> None:
        house.rows("alter table arkvory_cache_rows rename to elsewhere")
        self.cold(house)
        assert house.outcome("a") == b"old"
        assert statements_of(house, lambda: house.outcome("a")) == 0
        house.publish("a", b"new")
        house.change("files", public=False)
        assert house.outcome("a") == "unauthenticated"
        assert house.parts.cache.row_errors > 0
        house.rows("alter table elsewhere rename to arkvory_cache_rows")
        self.cold(house)
        assert house.outcome("a") == "unauthenticated"

    def test_c6_a_table_that_somebody_locks_costs_a_moment_and_no_change(self, house: House, files: int) -> None:
        with house.parts.database.session.connect() as other:
            other = other.execution_options(isolation_level="READ COMMITTED")
            other.execute(text("lock table arkvory_cache_rows in access exclusive mode"))
            self.cold(house)
            with gevent.Timeout(30):
                assert house.outcome("a") == b"old"
                house.change("files", public=False)
                assert house.outcome("a") == "unauthenticated"
            other.rollback()
        self.cold(house)
        assert house.outcome("a") == "unauthenticated"


def test_c7_nothing_clears_every_cache_row(house: House, files: int) -> None:
    house.repository("other", public=True)
    house.parts.snapshots.get("default", "other")
    house.parts.snapshots.get("default", "files")
    house.change("files", public=False)
    left = house.rows("select key from arkvory_cache_rows")
    assert [each.key for each in left] == ["default/other"]


def test_c10_a_write_is_decided_from_the_database_whatever_memory_says(house: House, files: int) -> None:
    house.user("ann")
    secret = house.token("ann")
    house.rule("files", "user:ann", "read", "write", "delete")
    caller = house.identify(secret)
    house.publish("b", b"mine", caller=caller)
    # Behind this process's back, so that its memory knows nothing of it.
    house.rows("delete from arkvory_access_rules")
    for write in (lambda: house.publish("b", b"more", caller=caller), lambda: house.delete("b", caller=caller)):
        with pytest.raises(Exception, match=r"no (write|delete) permission"):
            write()


def test_c10_a_right_taken_away_while_the_body_came_is_noticed_at_the_commit(house: House, files: int, pause: MakePause) -> None:
    house.user("ann")
    secret = house.token("ann")
    rule = house.rule("files", "user:ann", "write")
    stopped = pause(house.parts.publisher, "commit", before=True)
    writer = gevent.spawn(house.publish, "b", b"mine", caller=house.identify(secret))
    stopped.reached()
    house.rules.delete(ADMIN, "files", rule)
    stopped.go()
    with pytest.raises(Exception, match="no write permission"):
        writer.get()
    assert house.outcome("b") == "not_found"
    house.assert_counted()
    assert house.counters() == {(files, "published"): 3}
