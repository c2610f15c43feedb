"""What must hold whatever the format, by a repository's own door and through a group: each case for each of them."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from werkzeug.test import TestResponse

from tests.protocols.oci.conftest import Registry
from tests.support.house import House
from tests.support.upstreams import FakeUpstream
from tests.support.wares import WARES, Ware

CLOSED = {401, 403, 404}


class Shop(Registry):
    """A whole application in this process: `ours` is hosted, `theirs` a proxy of the upstream, `all` a public group of both.

    Copies of `theirs` are always due. Names are merged, so that both members count.
    """

    ware: Ware
    upstream: FakeUpstream

    def open(self) -> Shop:
        settings = {"mutable_ttl": 0, "miss_ttl": 0}
        self.create("ours"), self.create("theirs", kind="proxy", upstream_url=self.upstream.url, settings=settings)
        merged = {} if self.ware.format == "raw" else {"name_policy": "merge"}
        self.create("all", kind="group", members=["ours", "theirs"], public=True, settings=merged)
        return self

    def create(self, name: str, **fields: Any) -> None:
        self.manage("POST", "repositories", json={"name": name, "format": self.ware.format, **fields})

    def change(self, name: str, **values: Any) -> None:
        self.manage("PATCH", f"repositories/{name}", json=values)

    def publish(self, name: str = "ours") -> None:
        self.ware.publish(self, name)

    def hold(self, name: str = "ours") -> None:
        self.manage("PUT", f"repositories/{name}/artifacts/{self.ware.path}/quarantine", json={"reason": "looked at"})

    def release(self, name: str = "ours") -> None:
        self.manage("DELETE", f"repositories/{name}/artifacts/{self.ware.path}/quarantine")

    def ask(self, address: str, name: str = "all", *, method: str = "GET", auth: str | None = None, **options: Any) -> TestResponse:
        """Once, as nobody unless `auth` says otherwise."""
        headers = dict(options.pop("headers", {})) | ({} if auth is None else {"Authorization": auth})
        answer = self.app.test_client().open(address.format(name), method=method, headers=headers, buffered=True, **options)
        assert answer.status_code < 600 and answer.status_code != 500, answer.text
        return answer

    def statuses(self, name: str = "all", *addresses: str, **options: Any) -> list[int]:
        return [self.ask(each, name, **options).status_code for each in addresses or self.ware.addresses]

    def kept(self) -> list[str]:
        """Paths of what the proxy has stored, but for indexes."""
        where = "repository_id = (select max(id) from arkvory_repositories where name = 'theirs') and path not like '.upstream/%'"
        return sorted(row.path for row in self.house.rows(f"select path from arkvory_artifacts where {where}"))

    def renew(self) -> None:
        """A proxy that has nothing, as `theirs`."""
        self.manage("DELETE", "repositories/theirs")
        settings = {"mutable_ttl": 0, "miss_ttl": 3600}
        self.create(
            "theirs", kind="proxy", public=True, upstream_url=self.upstream.url, upstream={"read_seconds": 0.3}, settings=settings
        )
        self.change("all", members=["ours", "theirs"])

    @contextlib.contextmanager
    def failing(self, failure: str) -> Iterator[None]:
        """The upstream fails, one request long."""
        if failure == "gone":
            self.upstream.stop()
        else:
            self.ware.put_file(self.upstream, **FAILURES[failure], times=1)
        yield
        if failure == "gone":
            self.upstream.start()
        else:
            # What lasts is not asked for again.
            self.upstream.rules[self.ware.at][0].times = 0


MakeShop = Callable[[Ware], Shop]


@pytest.fixture
def make_shop(house: House, database_url: str, tmp_path: Path, upstream: FakeUpstream) -> Iterator[MakeShop]:
    made: list[Shop] = []

    def make(ware: Ware) -> Shop:
        shop = Shop(house, database_url, tmp_path / "data")
        made.append(shop)
        # Answers of a proxy say how they came about, which is another one each time.
        shop.client = shop.app.test_client()  # type: ignore[assignment]
        shop.ware, shop.upstream = ware, upstream
        return shop.open()

    yield make
    for each in made:
        each.close()


# For what takes long: the others in long runs.
SOME_NOW = [each if each.format in {"raw", "npm"} else pytest.param(each, marks=pytest.mark.soak) for each in WARES]
each_format = pytest.mark.parametrize("ware", WARES, ids=lambda ware: ware.format)


# Who may read (HO-X-1, HO-X-2)


@each_format
def test_x_1_a_public_group_shows_a_private_member_whose_own_door_stays_closed(make_shop: MakeShop, ware: Ware) -> None:
    shop = make_shop(ware)
    shop.publish()
    for _ in ("cold", "warm"):
        for method in ("GET", "HEAD"):
            assert shop.statuses("all", method=method) == [200] * len(ware.addresses)
            assert shop.statuses("ours", method=method) == [401] * len(ware.addresses)
    assert ware.marker in shop.ask(ware.index).text
    assert shop.ask(ware.file).data == shop.ask(ware.file, "ours", auth="Bearer local").data
    shop.change("all", public=False)
    assert shop.statuses("all") == [401] * len(ware.addresses)
    # Whatever its members are, a private group stays closed.
    shop.change("ours", public=True)
    assert shop.statuses("all") == [401] * len(ware.addresses)
    assert shop.statuses("ours") == [200] * len(ware.addresses)


@each_format
def test_x_1_what_is_held_leaves_by_neither_door(make_shop: MakeShop, ware: Ware) -> None:
    shop = make_shop(ware)
    shop.change("ours", public=True)
    shop.publish()
    assert shop.statuses("all") == shop.statuses("ours") == [200] * len(ware.addresses)
    before = {name: shop.ask(ware.index, name).headers["ETag"] for name in ("all", "ours")}
    shop.hold()
    for name in ("all", "ours"):
        for auth in (None, "Bearer local"):
            for method in ("GET", "HEAD"):
                assert shop.ask(ware.file, name, method=method, auth=auth).status_code == 403
            for address in ware.of_bytes:
                assert shop.ask(address, name, auth=auth).status_code == 403
            answer = shop.ask(ware.index, name, auth=auth, headers={"If-None-Match": before[name]})
            # Of a version some files are left where not all are held.
            assert ware.of_bytes or (answer.status_code != 304 and ware.marker not in answer.text)
    shop.release()
    assert shop.statuses("all") == shop.statuses("ours") == [200] * len(ware.addresses)


@each_format
def test_x_2_what_is_taken_away_is_gone_through_a_group_on_the_next_request(make_shop: MakeShop, ware: Ware) -> None:
    shop = make_shop(ware)
    shop.change("all", public=False)
    shop.publish()
    shop.house.user("ann")
    auth, all_good = f"Bearer {shop.house.token('ann')}", [200] * len(ware.addresses)

    def closes(close: Callable[[], object], again: Callable[[], object]) -> None:
        assert shop.statuses(auth=auth) == shop.statuses(auth=auth) == all_good
        close()
        for address in ware.addresses:
            answer = shop.ask(address, auth=auth)
            assert answer.status_code in CLOSED or (ware.format == "raw" and ware.marker not in answer.text), address
        again()

    def rule() -> int:
        return int(shop.manage("POST", "repositories/all/rules", json={"subject": "user:ann", "permissions": ["read"]})["id"])

    rules = [rule()]
    closes(lambda: shop.manage("DELETE", f"repositories/all/rules/{rules.pop()}"), lambda: rules.append(rule()))
    for status in ("offline", "maintenance"):
        shop.change("all", status=status)
        assert shop.statuses(auth=auth) == [503] * len(ware.addresses)
        shop.change("all", status="online")
    closes(lambda: shop.change("all", members=["theirs"]), lambda: shop.change("all", members=["ours", "theirs"]))
    shop.manage("PATCH", "users/ann", json={"disabled": True})
    assert shop.statuses(auth=auth) == [401] * len(ware.addresses)


# What an upstream does (HO-X-3, HO-X-4, HO-X-9)


FAILURES: dict[str, dict[str, Any]] = {
    "429": {"status": 429, "headers": {"Retry-After": "1"}}, "500": {"status": 500}, "401": {"status": 401}, "silent": {"delay": 1.0},
    "gone": {},
}  # fmt: skip


@each_format
def test_x_3_only_absence_is_remembered(make_shop: MakeShop, ware: Ware) -> None:
    """Through the group and by the proxy's own door: cold never 404, warm the copy; well again it is there at once."""
    shop = make_shop(ware)
    ware.put(shop.upstream)
    for failure in FAILURES:
        for name in ("theirs", "all"):
            shop.renew()
            with shop.failing(failure):
                cold = shop.ask(ware.file, name)
            assert cold.status_code in {429, 502, 503, 504} and int(cold.headers["Retry-After"]) > 0, (failure, name, cold.text)
            assert ("member 'theirs' cannot answer: the upstream" in cold.text.replace("\\u0027", "'")) == (name == "all")
            assert shop.ask(ware.file, name).data == ware.body, (failure, name)
            with shop.failing(failure):
                assert shop.ask(ware.file, name).data == ware.body, (failure, name)


@each_format
def test_x_4_a_body_that_breaks_off_is_nobodys_and_nothing_is_left_of_it(make_shop: MakeShop, ware: Ware) -> None:
    shop = make_shop(ware)
    ware.put(shop.upstream)
    for name, chunked in itertools.product(("theirs", "all"), (False, True)):
        shop.renew()
        ware.put_file(shop.upstream, truncate=len(ware.body) - 1, chunked=chunked, times=1)
        broken = shop.ask(ware.file, name)
        assert broken.status_code in {502, 503, 504}, broken.text
        assert shop.kept() == []
        assert shop.ask(ware.file, name).data == ware.body
    shop.house.assert_counted()


@each_format
def test_x_9_credentials_stay_at_home_when_a_file_lies_elsewhere(make_shop: MakeShop, ware: Ware) -> None:
    elsewhere = FakeUpstream().start()
    try:
        shop = make_shop(ware)
        shop.change("theirs", public=True, settings={"mutable_ttl": 3600}, upstream={"username": "u", "password": "p"})
        ware.listed(shop.upstream, shop.upstream.url)
        for rules in shop.upstream.rules.values():
            for rule in rules:
                rule.auth = "Basic dTpw"
        target = f"{elsewhere.url}/x?sig=1"
        ware.put_file(shop.upstream, body=b"", status=307, headers={"Location": target}, auth="Basic dTpw")
        elsewhere.put("/x?sig=1", ware.body, headers=ware.headers)
        for name in ("all", "theirs"):
            answer = shop.ask(ware.file, name)
            assert (answer.status_code, answer.data) == (200, ware.body), answer.text
            assert "sig=1" not in str(answer.headers)
        assert len(elsewhere.asked) == 1
        assert "authorization" not in elsewhere.asked[0].headers
        assert "dTpw" not in str(elsewhere.asked)
    finally:
        elsewhere.stop()


@each_format
def test_of_what_its_rules_leave_out_an_upstream_hears_nothing(make_shop: MakeShop, ware: Ware) -> None:
    """Names may be private, and an upstream that is away cannot have it either: the group says that it is absent."""
    shop = make_shop(ware)
    shop.change("theirs", public=True, settings={"block": ["*"]})
    ware.put(shop.upstream)
    shop.upstream.asked.clear()
    for name in ("all", "theirs"):
        for address in ware.addresses:
            assert shop.ask(address, name).status_code == 404 or ware.format == "raw", (name, address)
    assert not shop.upstream.asked
    shop.upstream.stop()
    assert shop.ask(ware.file).status_code == 404
    assert shop.ask(ware.index).status_code == (200 if ware.format == "raw" else 404)
    shop.upstream.start()


# Documents of a group (C9, DESIGN 6)


@pytest.mark.parametrize("ware", SOME_NOW, ids=lambda ware: ware.format)
def test_c9_no_validator_of_a_group_outlives_what_it_described(make_shop: MakeShop, ware: Ware) -> None:
    """Equal ETags are equal bytes, whatever happened between; the next answer is what one without any memory would be; 304 means it."""
    shop = make_shop(ware)
    ware.put(shop.upstream)
    known: dict[str, dict[str, bytes]] = {address: {} for address in (ware.index, *ware.more)}

    def looks() -> None:
        for address, former in known.items():
            warm = shop.ask(address)
            shop.parts.cache.documents.clear()
            fresh = shop.ask(address)
            assert warm.status_code == fresh.status_code, address
            if warm.status_code == 200:
                tag = warm.headers["ETag"]
                assert fresh.data == warm.data == former.setdefault(tag, warm.data), address
                before = next((each for each in reversed(former) if each != tag), tag)
                told = shop.ask(address, headers={"If-None-Match": f"{before}, {tag}"})
                assert (told.status_code, shop.ask(address, headers={"If-None-Match": before}).status_code == 304) == (304, before == tag)

    changes: list[Callable[[], object]] = [
        lambda: None,
        shop.publish,
        lambda: shop.change("all", members=["theirs", "ours"]),
        shop.hold,
        lambda: shop.change("all", members=["ours", "theirs"]),
        shop.release,
        lambda: shop.change("ours", status="offline"),
        lambda: shop.change("ours", status="online"),
        lambda: shop.change("all", members=["ours"]),
        lambda: shop.change("all", members=["ours", "theirs"]),
        lambda: shop.change("theirs", settings={"block": ["*"]}),
        lambda: shop.change("theirs", settings={"block": None}),
        lambda: shop.manage("DELETE", f"repositories/ours/artifacts/{ware.path}"),
        lambda: shop.upstream.rules.clear(),
        lambda: ware.put(shop.upstream),
        lambda: shop.change("theirs", status="maintenance"),
    ]
    for change in changes:
        change()
        looks()
