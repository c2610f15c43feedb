"""Promotions of formats whose files have companions and packages: all of a version goes, and the counters and indexes know it."""

from __future__ import annotations

import pytest

from app.errors import AlreadyExists, ArkvoryError, Forbidden, NotFound
from app.repository.promoting import Promotion, Selection
from app.repository.publishing import NewFile, Package, Target
from tests.support.house import ADMIN, House

WHEEL = "sample/sample-1.0-py3-none-any.whl"


@pytest.fixture
def pair(house: House) -> House:
    for name in ("staging", "released"):
        house.repository(name, format="pypi")
    return house


def release(house: House, version: str, repository: str = "staging", body: bytes = b"wheel") -> None:
    path = WHEEL.replace("1.0", version)
    with house.parts.publisher.begin(Target("pypi", repository, ADMIN), None) as session:
        wheel, beside = session.store(body + version.encode()), session.store(b"metadata")
        files = [
            NewFile(path, wheel, "application/octet-stream", {"requires_python": ">=3.11"}, version),
            NewFile(f"{path}.metadata", beside, "text/plain", {"details": {"comment": "x"}}),
        ]
        session.publish(files, package=Package("sample", "Sample"))


def promote(house: House, **selected: object) -> Promotion:
    return house.parts.promoter.promote(ADMIN, "staging", "released", Selection(**selected))  # type: ignore[arg-type]


def test_a_release_goes_with_what_stands_beside_its_files(pair: House) -> None:
    release(pair, "1.0")
    release(pair, "2.0")
    assert promote(pair, package="sample", version="1.0") == Promotion(2, 2)
    copied = pair.rows(
        "select a.path, a.version, a.metadata, p.name, p.display_name, p.artifacts from arkvory_artifacts a "
        "join arkvory_packages p on p.id = a.package_id join arkvory_repositories r on r.id = a.repository_id where r.name = 'released' "
        "order by 1"
    )
    assert [tuple(row) for row in copied] == [
        (WHEEL, "1.0", {"requires_python": ">=3.11"}, "sample", "Sample", 2),
        (f"{WHEEL}.metadata", None, {"details": {"comment": "x"}}, "sample", "Sample", 2),
    ]
    pair.assert_counted()
    pair.assert_published_is_there()


def test_the_policy_of_the_target_decides(pair: House) -> None:
    release(pair, "1.0")
    release(pair, "1.0", "released", b"another wheel")
    before = pair.epochs("released")
    with pytest.raises(AlreadyExists):
        promote(pair, package="sample", version="1.0")
    assert pair.epochs("released") == before
    pair.assert_counted()


def test_who_promotes_reads_here_and_writes_there(pair: House) -> None:
    release(pair, "1.0")
    pair.user("ada")
    ada = pair.identify(pair.token("ada"))
    pair.rule("released", "user:ada", "write")
    with pytest.raises(NotFound):
        pair.parts.promoter.promote(ada, "staging", "released", Selection(package="sample"))
    pair.rule("staging", "user:ada", "read", prefix="other")
    with pytest.raises(Forbidden):
        pair.parts.promoter.promote(ada, "staging", "released", Selection(package="sample"))
    pair.rule("staging", "user:ada", "read", prefix="sample")
    assert pair.parts.promoter.promote(ada, "staging", "released", Selection(package="sample")) == Promotion(2, 2)


def test_from_and_into_what_is_not_hosted_it_is_said_what_to_do(pair: House) -> None:
    release(pair, "1.0")
    pair.repository("all", format="pypi", kind="group", members=["released", "staging"], settings={"write_member": "staging"})
    pair.repository("index", format="pypi", kind="proxy", upstream_url="http://localhost:9")
    pair.repository("central", format="maven", kind="proxy", upstream_url="http://localhost:9")
    pair.repository("ours", format="maven")
    selection = Selection(package="sample", version="1.0")
    for source, target, words in (
        ("staging", "all", "'all' is a group that publishes to 'staging', where this is already"),
        ("staging", "staging", "source and target are the same repository"),
        ("all", "released", "is a group and has nothing of its own; name the member that has it"),
        ("index", "released", "is a proxy: its copies are files .*; download the package and publish it"),
        ("central", "ours", "no version '1.0' of 'sample' in repository 'central', a proxy: .* name them by their paths"),
        ("released", "staging", "there is no version '1.0' of 'sample' in repository 'released'$"),
        ("staging", "index", "'index' is a proxy; publish to a hosted one"),
    ):
        with pytest.raises(ArkvoryError, match=words):
            pair.parts.promoter.promote(ADMIN, source, target, selection)
