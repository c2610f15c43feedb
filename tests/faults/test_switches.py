"""Whatever runs may be told to end wherever it waits: it ends, and leaves nothing that anybody has to wait for."""

from __future__ import annotations

import contextlib
import itertools
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import gevent
import pytest
from gevent import get_hub

from app.access.identity import Credential
from app.access.installation import SwitchChange
from app.access.roles import NewRoleRule
from app.cluster.pins import Pins
from app.cluster.schedule import Planned
from app.database.greenlets import end
from app.errors import ArkvoryError, PreconditionFailed, UploadUnknown
from app.jobs.job import Job
from app.jobs.running import JobRunner
from app.protocols.pypi.inspection import readers
from app.repository.completing import reference_of
from app.repository.fetching import Fetches
from app.repository.mirrors import run
from app.repository.mirrors.run import Run
from app.repository.mirrors.settings import MirrorSettings
from app.repository.promoting import Selection
from app.repository.publishing import Conditions
from app.repository.reading import Ask
from app.upload.multipart import Upload
from tests.mirrors.conftest import Nobody
from tests.mirrors.test_following import serve
from tests.protocols.npm.packages import document, tarball
from tests.protocols.oci.conftest import MANIFEST, digest_of, manifest_of
from tests.protocols.pypi.packages import CONTENT_TYPE, form_of, wheel
from tests.support.house import ADMIN, eventually, sha256
from tests.support.multipart import Client
from tests.support.switches import ENDS, Ender, House, Operation, end_of, ended, watch_switches
from tests.support.upstreams import FakeUpstream, noise

BODY = b"a small body"
LARGE, MIDDLING = noise(3_200_000), noise(300_000, 2)

upstream_of_all: list[FakeUpstream] = []


# -- raw


class Publish(Operation):
    path = "new/a"
    conditions: Conditions | None = None
    body = BODY
    told = True
    pieces = 1

    def begin(self) -> None:
        self.path = f"{self.path}{self.number}"

    def act(self) -> None:
        self.house.publish(self.path, self._body(), told=self.told, pieces=self.pieces, conditions=self.conditions)

    def _body(self) -> bytes:
        """Every time another, that its blob is new."""
        return self.body + b"%d" % self.number

    def check(self) -> None:
        self.house.assert_truth(self.path)

    def again(self) -> None:
        self.act()
        assert self.house.shown(self.path) == sha256(self._body())


class PublishLarge(Publish):
    """Of unknown length, in pieces: it grows."""

    body = LARGE
    told = False
    pieces = 5


class PublishWithBusyThreads(Publish):
    """Whoever wants a thread waits for one."""

    body = MIDDLING
    pieces = 4

    def begin(self) -> None:
        super().begin()
        keep_threads_busy()


class PublishCold(Publish):
    """Without a connection that is there already."""

    def begin(self) -> None:
        super().begin()
        self.house.parts.database.request.engine.dispose()


class Overwrite(Publish):
    def begin(self) -> None:
        super().begin()
        self.house.publish(self.path, b"before")
        assert self.house.shown(self.path) == sha256(b"before")


class PublishIfNew(Publish):
    conditions = Conditions(if_none_match=frozenset("*"))

    def again(self) -> None:
        try:
            self.act()
        except PreconditionFailed:
            assert self.house.shown(self.path) == sha256(self._body())


class Delete(Operation):
    def begin(self) -> None:
        self.path = f"gone/{self.number}"
        self.house.publish(self.path, BODY)
        self.house.shown(self.path)

    def act(self) -> None:
        self.house.delete(self.path)

    def again(self) -> None:
        if self.house.shown(self.path) != "not_found":
            self.act()
        assert self.house.shown(self.path) == "not_found"

    def check(self) -> None:
        self.house.assert_truth(self.path)


class Read(Operation):
    """Cold: snapshot, rights and gate are asked for."""

    @classmethod
    def furnish(cls, house: House) -> None:
        house.repository()
        house.publish("a", BODY)

    def begin(self) -> None:
        self.house.parts.cache.keep(False)
        self.house.parts.cache.keep(True)

    def act(self) -> None:
        assert self.house.read("a") == BODY

    def check(self) -> None:
        self.house.assert_truth("a")


class ReadPage(Operation):
    """What one makes for two who ask at once; the other one gets it all the same."""

    @classmethod
    def furnish(cls, house: House) -> None:
        house.repository("py", format="pypi")
        publish_wheel(house, "1.0")

    def begin(self) -> None:
        self.house.parts.cache.documents.clear()

    def act(self) -> None:
        assert "p-1.0-py3-none-any.whl" in self.house.done("GET", "/pypi/py/simple/p/").text

    def run(self, ender: Ender) -> None:
        other = gevent.spawn_later(0.001, self.act)
        try:
            super().run(ender)
        finally:
            other.get(timeout=5)


class Promote(Operation):
    @classmethod
    def furnish(cls, house: House) -> None:
        house.repository()
        house.repository("released")

    def begin(self) -> None:
        self.path = f"p/{self.number}"
        self.house.publish(self.path, BODY)

    def act(self) -> None:
        self.house.parts.promoter.promote(ADMIN, "files", "released", Selection((self.path,)))

    def check(self) -> None:
        self.house.assert_truth(self.path, "released")

    def again(self) -> None:
        self.act()
        assert self.house.shown(self.path, "released") == sha256(BODY)


class CleanUp(Operation):
    def begin(self) -> None:
        house = self.house
        house.publish(f"kept/{self.number}", BODY)
        for body in (b"first %d" % self.number, b"second %d" % self.number):
            house.publish("replaced", body)
        reservation = house.parts.admission.open(1, 10, "dead")
        house.parts.admission.forget(reservation.id)
        house.parts.store.create(reservation.id).close()
        house.rows("update arkvory_uploads set lease_until = now() - interval '1 s' where id = :id", id=reservation.id)
        house.repository(f"doomed{self.number}")
        house.publish("a", b"doomed %d" % self.number, f"doomed{self.number}")
        house.registry.delete(ADMIN, f"doomed{self.number}")
        gevent.sleep(0.002)

    def act(self) -> None:
        self.house.clean()

    def again(self) -> None:
        self.act()
        gevent.sleep(0.002)
        self.act()
        self.house.assert_no_strays()
        assert self.house.value("select count(*) from arkvory_repositories where deleted_at is not null") == 0

    def check(self) -> None:
        self.house.assert_truth("replaced")
        self.house.assert_truth(f"kept/{self.number}")


# -- formats


class PublishNpm(Operation):
    @classmethod
    def furnish(cls, house: House) -> None:
        house.repository("js", format="npm")

    def begin(self) -> None:
        self.version = f"1.{self.number}.0"
        self.body = json.dumps(document("p", self.version, data=tarball("p", self.version))).encode()

    def act(self) -> None:
        answer = self.house.ask("PUT", "/npm/js/p", self.body, Content_Type="application/json")
        assert answer.status_code < 300 or answer.status_code in (403, 409), answer.text

    def again(self) -> None:
        self.act()
        told = self.house.done("GET", "/npm/js/p").get_json()
        assert self.version in told["versions"] and told["dist-tags"]["latest"] == self.version

    def check(self) -> None:
        self.house.assert_truth(f"p/-/p-{self.version}.tgz", "js", "npm")


def publish_wheel(house: House, version: str) -> None:
    fields = {":action": "file_upload", "protocol_version": "1", "name": "p", "version": version}
    parts = [(key, None, value.encode()) for key, value in fields.items()]
    body = form_of([*parts, ("content", f"p-{version}-py3-none-any.whl", wheel("p", version))])
    answer = house.ask("POST", "/pypi/py/legacy/", body, Content_Type=CONTENT_TYPE)
    assert answer.status_code < 300 or answer.status_code in (400, 409), answer.text


class PublishPython(Operation):
    @classmethod
    def furnish(cls, house: House) -> None:
        house.repository("py", format="pypi")

    def begin(self) -> None:
        self.version = f"1.{self.number}"
        self.name = f"p-{self.version}-py3-none-any.whl"

    def act(self) -> None:
        publish_wheel(self.house, self.version)

    def again(self) -> None:
        self.act()
        assert self.name in self.house.done("GET", "/pypi/py/simple/p/").text

    def check(self) -> None:
        rows = self.house.rows("select path from arkvory_artifacts where path like :like", like=f"%{self.name}%")
        for row in rows:
            self.house.assert_truth(row.path, "py", "pypi")


class PublishMaven(Operation):
    @classmethod
    def furnish(cls, house: House) -> None:
        house.repository("mvn", format="maven")

    def begin(self) -> None:
        self.path = f"org/a/1.{self.number}/a-1.{self.number}.jar"

    def act(self) -> None:
        self.house.done("PUT", f"/maven/mvn/{self.path}", b"jar %d" % self.number)

    def again(self) -> None:
        self.act()
        assert f"1.{self.number}" in self.house.done("GET", "/maven/mvn/org/a/maven-metadata.xml").text

    def check(self) -> None:
        self.house.assert_truth(self.path, "mvn", "maven")


class Image(Operation):
    @classmethod
    def furnish(cls, house: House) -> None:
        house.repository("oci", format="oci")
        house.done("POST", f"/v2/oci/base/blobs/uploads/?digest={digest_of(BODY)}", BODY)

    def begin_upload(self) -> str:
        return self.house.done("POST", "/v2/oci/app/blobs/uploads/").headers["Location"]

    def blob(self, body: bytes) -> None:
        self.house.done("POST", f"/v2/oci/app/blobs/uploads/?digest={digest_of(body)}", body)

    def received(self) -> int:
        answer = self.house.done("GET", self.place)
        return int(answer.headers["Range"].partition("-")[2]) + (answer.headers["Range"] != "0-0")

    place = ""


class BeginUpload(Image):
    def act(self) -> None:
        self.place = self.begin_upload()

    def again(self) -> None:
        self.act()
        self.house.done("DELETE", self.place)


class SendChunk(Image):
    def begin(self) -> None:
        self.body = MIDDLING + b"%d" % self.number
        self.place = self.begin_upload()

    def act(self) -> None:
        self.house.done("PATCH", self.place, self.body, Content_Range=f"0-{len(self.body) - 1}")

    def again(self) -> None:
        """As a client goes on: with what it is told that has arrived."""
        at = self.received()
        if at < len(self.body):
            self.house.done("PATCH", self.place, self.body[at:], Content_Range=f"{at}-{len(self.body) - 1}")
        self.house.done("PUT", f"{self.place}?digest={digest_of(self.body)}")


class SendChunkWithBusyThreads(SendChunk):
    def begin(self) -> None:
        super().begin()
        keep_threads_busy()


class FinishUpload(Image):
    def begin(self) -> None:
        self.body = b"finished %d" % self.number
        self.place = self.begin_upload()
        self.house.done("PATCH", self.place, self.body[:4])

    def act(self) -> None:
        self.house.done("PUT", f"{self.place}?digest={digest_of(self.body)}", self.body[4:])

    def again(self) -> None:
        """It goes on where it is, or is begun anew: unknown are those that were finished, or whose bytes were all there."""
        if self.house.ask("GET", self.place).status_code == 404:
            self.blob(self.body)
        else:
            self.house.done("PUT", f"{self.place}?digest={digest_of(self.body)}", self.body[self.received() :])
        assert self.house.ask("HEAD", f"/v2/oci/app/blobs/{digest_of(self.body)}").status_code == 200


class CancelUpload(Image):
    def begin(self) -> None:
        self.place = self.begin_upload()

    def act(self) -> None:
        assert self.house.ask("DELETE", self.place).status_code in (204, 404)

    def again(self) -> None:
        self.act()
        assert self.house.ask("GET", self.place).status_code == 404


class Mount(Image):
    def begin(self) -> None:
        self.image = f"mounted{self.number}"

    def act(self) -> None:
        self.house.done("POST", f"/v2/oci/{self.image}/blobs/uploads/?mount={digest_of(BODY)}&from=oci/base")

    def again(self) -> None:
        self.act()
        assert self.house.ask("HEAD", f"/v2/oci/{self.image}/blobs/{digest_of(BODY)}").status_code == 200


class PushManifest(Image):
    def begin(self) -> None:
        layer = b"layer %d" % self.number
        self.blob(layer), self.blob(b"{}")
        self.body = manifest_of(layer)

    def act(self) -> None:
        tags = f"/v2/oci/app/manifests/{digest_of(self.body)}?tag=latest&tag=t{self.number}"
        self.house.done("PUT", tags, self.body, Content_Type=MANIFEST)

    def again(self) -> None:
        self.act()
        for tag in ("latest", f"t{self.number}"):
            assert self.house.done("GET", f"/v2/oci/app/manifests/{tag}").data == self.body

    def check(self) -> None:
        self.house.assert_truth("app/manifests/latest", "oci", "oci")


# -- uploads in parts


class Parts(Operation):
    environment: ClassVar[dict[str, str]] = {"ARKVORY_LEAST_PART_BYTES": "4"}
    upload: Upload

    @property
    def path(self) -> str:
        return f"parts/{self.number}"

    @property
    def body(self) -> bytes:
        return b"%010d" % self.number

    @property
    def client(self) -> Client:
        return Client(self.house)

    def check(self) -> None:
        self.house.assert_truth(self.path)


class CreateUpload(Parts):
    def act(self) -> None:
        self.upload = self.client.create(self.path, size=10, part_size=4, key=f"key {self.number}")

    def again(self) -> None:
        self.act()
        self.client.send_all(self.upload, self.body)
        assert self.client.complete(self.upload).state == "published"


class SendPart(Parts):
    size: int | None = 10

    def begin(self) -> None:
        self.upload = self.client.create(self.path, size=self.size, part_size=4)

    def act(self) -> None:
        self.client.send(self.upload, 1, self.body[:4])

    def again(self) -> None:
        self.act()
        self.client.send_all(self.upload, self.body, [2, 3])
        assert self.client.complete(self.upload).state == "published"
        assert self.house.shown(self.path) == sha256(self.body)


class SendPartOfUnknownSize(SendPart):
    size = None


class CompleteUpload(Parts):
    def begin(self) -> None:
        self.upload = self.client.create(self.path, size=10, part_size=4)
        self.client.send_all(self.upload, self.body)

    def act(self) -> None:
        self.client.complete(self.upload)

    def again(self) -> None:
        self.act()
        assert self.client.show(self.upload).state == "published"
        assert self.house.shown(self.path) == sha256(self.body)


class CompleteAsJob(CompleteUpload):
    def begin(self) -> None:
        super().begin()
        self.house.parts.uploads._multiparts.close(self.upload, None, reference_of(ADMIN))

    def act(self) -> None:
        self.house.parts.completions.attempt(self.upload.id)


class CompleteWithCopy(CompleteAsJob):
    """Somebody who sent a part never told its end."""

    def begin(self) -> None:
        super().begin()
        self.house.rows("update arkvory_parts set strays = '{elsewhere}' where upload_id = :id", id=self.upload.id)


class CancelParts(Parts):
    def begin(self) -> None:
        self.upload = self.client.create(self.path, size=10, part_size=4)
        self.client.send(self.upload, 1, self.body[:4])

    def act(self) -> None:
        self.client.cancel(self.upload)

    def again(self) -> None:
        with contextlib.suppress(UploadUnknown):
            self.act()
        assert self.house.value("select count(*) from arkvory_uploads where id = :id and status = 'open'", id=self.upload.id) == 0


# -- proxies and mirrors


class Fetch(Operation):
    """By whoever asks first."""

    @classmethod
    def furnish(cls, house: House) -> None:
        settings = {"mutable_ttl": 0, "miss_ttl": 60}
        house.repository(kind="proxy", upstream_url=upstream_of_all[0].url, settings=settings)

    def begin(self) -> None:
        self.path = f"far/{self.number}"
        self.body = MIDDLING + b"%d" % self.number
        upstream_of_all[0].put(f"/{self.path}", self.body)

    def act(self) -> None:
        assert self.house.got(self.path) == sha256(self.body)

    def check(self) -> None:
        eventually(lambda: not self.house.parts.fetches.running)
        rows = self.house.rows("select 1 from arkvory_artifacts where path = :path", path=self.path)
        assert len(rows) <= 1
        if rows:
            assert self.house.shown(self.path) == sha256(self.body)


class FetchItself(Fetch):
    """Whoever fetches for all."""

    by_another = True

    def run(self, ender: Ender) -> None:
        fetches = self.house.parts.fetches

        def watched(key: Any, fetch: Any) -> None:
            with ender:
                Fetches._run(fetches, key, fetch)

        fetches._run = watched  # type: ignore[method-assign]
        try:
            self.act()
        finally:
            del fetches._run


class FetchAgain(FetchItself):
    """What has changed."""

    def begin(self) -> None:
        super().begin()
        self.act()
        self.body = b"changed" + self.body
        upstream_of_all[0].put(f"/{self.path}", self.body)

    def act(self) -> None:
        # Where the fetch breaks off, the copy is good enough.
        assert self.house.shown(self.path) in (sha256(self.body), sha256(self.body.removeprefix(b"changed")))

    def again(self) -> None:
        assert self.house.shown(self.path) == sha256(self.body)

    def check(self) -> None:
        eventually(lambda: not self.house.parts.fetches.running)


class FetchHandedOn(FetchItself):
    """A large one, that goes to the client as it comes."""

    def begin(self) -> None:
        super().begin()
        self.body = LARGE + b"%d" % self.number
        upstream_of_all[0].put(f"/{self.path}", self.body)

    def act(self) -> None:
        reader = self.house.parts.reader
        found = reader.find(Ask("raw", "files", self.path, ADMIN), whole=False)
        if found.coming is None:
            assert self.house.got(self.path) == sha256(self.body)
            return
        try:
            assert sha256(b"".join(found.coming.pieces(0, None))) == sha256(self.body)
        finally:
            found.coming.close()


class Follow(FetchHandedOn):
    """The client of a large one."""

    by_another = False

    def run(self, ender: Ender) -> None:
        with ender:
            self.act()


class FetchMissing(FetchItself):
    """The upstream has it no more."""

    def begin(self) -> None:
        super().begin()
        self.act()
        upstream_of_all[0].put(f"/{self.path}", b"", status=404)

    def act(self) -> None:
        assert self.house.shown(self.path) in ("not_found", sha256(self.body))

    def again(self) -> None:
        assert self.house.shown(self.path) == "not_found"

    def check(self) -> None:
        eventually(lambda: not self.house.parts.fetches.running)


class FetchOfTired(FetchItself):
    """An upstream that was left alone for a moment, and is tried again."""

    def begin(self) -> None:
        super().begin()
        for line in self.house.parts.fetches.lines:
            line.breaker._failures, line.breaker._until = 5, time.monotonic() - 1


class MirrorRound(Operation):
    """A proxy is filled."""

    @classmethod
    def furnish(cls, house: House) -> None:
        house.repository(kind="proxy", upstream_url=upstream_of_all[0].url, settings={"mutable_ttl": 0})
        cls.follow(house)

    @classmethod
    def follow(cls, house: House, **settings: Any) -> None:
        house.parts.mirrors.put(ADMIN, "files", MirrorSettings(concurrency=2, **settings))

    def begin(self) -> None:
        self.tree = {f"{self.number}/a": b"a %d" % self.number, f"{self.number}/b/c": b"c %d" % self.number}
        serve(upstream_of_all[0], self.tree)
        with self.house.parts.database.read() as connection:
            (self.mirror,) = self.house.parts.mirroring.look(connection)

    def act(self) -> None:
        self.house.parts.mirroring.follow(self.mirror.id, self.mirror.repository_id, Nobody())

    def again(self) -> None:
        self.house.rows("update arkvory_mirrors set not_before = null")
        self.act()
        for path, body in self.tree.items():
            assert self.house.shown(path) == sha256(body)

    def check(self) -> None:
        for path in self.tree:
            rows = self.house.rows("select 1 from arkvory_artifacts where path = :path", path=path)
            assert len(rows) <= 1


class MirrorItem(MirrorRound):
    """What copies one file of a round, or reads one list."""

    by_another = True

    def run(self, ender: Ender) -> None:
        do = Run._do

        def watched(run: Run, work: Any) -> None:
            if ender.at and not ender.count:
                with ender:
                    do(run, work)
            else:
                do(run, work)

        Run._do = watched  # type: ignore[method-assign]
        try:
            self.act()
        finally:
            Run._do = do  # type: ignore[method-assign]


class MirrorToHosted(MirrorRound):
    @classmethod
    def furnish(cls, house: House) -> None:
        house.repository()
        cls.follow(house, upstream_url=upstream_of_all[0].url)


# -- people


class CreateToken(Operation):
    @classmethod
    def furnish(cls, house: House) -> None:
        house.user("ann")

    def act(self) -> None:
        self.secret = self.house.token("ann")

    def again(self) -> None:
        self.act()
        assert self.house.identify(self.secret).identity is not None


class ChangeUser(Operation):
    @classmethod
    def furnish(cls, house: House) -> None:
        house.user("ann")
        cls.secret = house.token("ann")

    secret = ""

    def begin(self) -> None:
        self.house.disable("ann", False)
        self.house.identify(self.secret)

    def act(self) -> None:
        self.house.disable("ann")

    def again(self) -> None:
        self.act()

    def check(self) -> None:
        disabled = self.house.value("select disabled from arkvory_users where name = 'ann'")
        try:
            known = self.house.parts.identities.identify(Credential("", self.secret)) is not None
        except ArkvoryError:
            known = False
        assert known != disabled


class ChangeRole(Operation):
    @classmethod
    def furnish(cls, house: House) -> None:
        house.repository()
        house.publish("a", BODY)
        house.user("ann")
        house.roles.create(ADMIN, "readers")
        house.roles.add_rule(ADMIN, "readers", NewRoleRule(("read",)))
        cls.secret = house.token("ann")

    secret = ""

    def begin(self) -> None:
        self.house.roles.unassign(ADMIN, "readers", "user:ann")
        assert self.house.outcome("a", secret=self.secret) == "not_found"

    def act(self) -> None:
        self.house.roles.assign(ADMIN, "readers", "user:ann")

    def check(self) -> None:
        holds = self.house.value("select count(*) from arkvory_role_holders")
        assert self.house.outcome("a", secret=self.secret) == (BODY if holds else "not_found")


class ChangeRepository(Operation):
    """Its snapshot's rows go too, under a savepoint."""

    @classmethod
    def furnish(cls, house: House) -> None:
        house.repository()
        house.publish("a", BODY)

    def begin(self) -> None:
        self.house.change("files", public=False)
        assert self.house.outcome("a") == "unauthenticated"

    def act(self) -> None:
        self.house.change("files", public=True)

    def check(self) -> None:
        public = self.house.value("select public from arkvory_repositories where name = 'files'")
        assert self.house.outcome("a") == (BODY if public else "unauthenticated")


class TurnSwitch(Operation):
    def act(self) -> None:
        self.house.switchboard.change(ADMIN, SwitchChange(read_only=bool(self.number % 2)))

    def check(self) -> None:
        switches = self.house.parts.access.installation.switches()
        assert switches.read_only == self.house.value("select read_only from arkvory_installation")


class LogIn(Operation):
    """With a password: another one each time."""

    def begin(self) -> None:
        self.password = f"password {self.number}"
        self.house.users.create(ADMIN, f"ann{self.number}", self.password)

    def act(self) -> None:
        self.house.parts.identities.identify(Credential(f"ann{self.number}", self.password), "127.0.0.1")


# -- in a cluster, and in the background


class Clustered(Operation):
    environment: ClassVar[dict[str, str]] = {"ARKVORY_DEPLOYMENT": "cluster", "ARKVORY_INSTANCE_ID": "vm"}


class PublishInCluster(Publish):
    environment: ClassVar[dict[str, str]] = Clustered.environment


class FetchInCluster(FetchItself):
    environment: ClassVar[dict[str, str]] = Clustered.environment


class CatchUp(Clustered):
    @classmethod
    def furnish(cls, house: House) -> None:
        house.repository()
        house.shown("a")

    def act(self) -> None:
        self.house.loop.catch_up()


class TurnOfTheLoop(Clustered):
    def begin(self) -> None:
        loop = self.house.loop
        if loop._greenlet is not None:
            end(loop._greenlet)
        loop._close()

    def act(self) -> None:
        loop = self.house.loop
        for job in (loop._poll, loop._probe, loop._beat):
            assert loop._turn_of(job)

    def again(self) -> None:
        """As another process does it."""
        self.house.loop.stop()
        self.house.join()
        self.house.loop.catch_up()


class RunJob(Operation):
    def begin(self) -> None:
        self.job = Job("job", 60.0, self._work, "works")
        self.runner = JobRunner(self.house.parts, "worker", [self.job], [])
        self.house.parts.schedule.plan([Planned("job", 60.0, "works")])
        self.house.rows("update arkvory_jobs set asked_at = now() where name = 'job'")
        self.ran = 0

    def _work(self, run: Any) -> str:
        run.check()
        run.tell("at work")
        gevent.sleep(0)
        self.ran += 1
        return "done"

    def act(self) -> None:
        self.runner._run_alone(self.job)

    def again(self) -> None:
        before = self.ran
        self.house.rows("update arkvory_jobs set asked_at = now() where name = 'job'")
        self.act()
        assert self.ran == before + 1
        assert not self.house.value("select running from arkvory_jobs where name = 'job'")


class RunByLease(Clustered):
    def act(self) -> None:
        assert self.house.parts.leases is not None
        assert self.house.parts.leases.run("job", lambda: gevent.sleep(0.01), 0.0)


class RunByLeaseItself(RunByLease):
    """The job, not its keeper."""

    def run(self, ender: Ender) -> None:
        def job() -> None:
            with ender:
                for _ in range(3):
                    gevent.sleep(0)

        assert self.house.parts.leases is not None
        assert self.house.parts.leases.run("job", job, 0.0)

    by_another = True


class HoldLease(Clustered):
    def act(self) -> None:
        assert self.house.parts.leases is not None
        with self.house.parts.leases.hold(f"thing/{self.number}", 30.0, 1.0) as held:
            assert held
            gevent.sleep(0)


class LockForWriting(Operation):
    def act(self) -> None:
        with self.house.parts.database.write_lock.hold(f"thing/{self.number}") as held:
            assert held is not None
            gevent.sleep(0)
            held.require()


class Pin(Operation):
    environment: ClassVar[dict[str, str]] = {"ARKVORY_PINS": "on", "ARKVORY_PIN_SECONDS": "0.001"}

    @classmethod
    def furnish(cls, house: House) -> None:
        house.repository()
        house.publish("a", BODY)

    @property
    def pins(self) -> Pins:
        assert self.house.parts.pins is not None
        return self.house.parts.pins

    def act(self) -> None:
        ask = Ask("raw", "files", "a", ADMIN)
        blob = self.house.parts.reader.open_blob(ask, self.house.parts.reader.find(ask))[1]
        try:
            gevent.sleep(0.002)
            self.pins.pin()
            assert self.pins.count
        finally:
            blob.close()
        self.pins.pin()
        assert not self.pins.count

    def again(self) -> None:
        # As the next round does.
        self.pins.pin()
        self.act()


class Renew(Operation):
    """What is called regularly, while something is under way."""

    def begin(self) -> None:
        self.house.publish("a", BODY)

    def act(self) -> None:
        parts = self.house.parts
        parts.downloads.note(1, "a")
        reservation = parts.admission.open(1, 10, "me")
        try:
            parts.admission.renew_leases()
            parts.downloads.flush()
            parts.uses._noted.add((1, "a"))
            parts.uses.flush()
            parts.quotas.refresh()
            parts.transactions.settle_doubts()
        finally:
            gevent.spawn(parts.admission.release, [reservation.id]).join()


# Each of their switches in every run of the tests.
MAIN = [Publish, SendChunk]
# Some switches of each.
OTHERS = [
    PublishLarge, Overwrite, Delete, Read, ReadPage, Promote, PublishNpm, PublishPython, PublishMaven, BeginUpload, FinishUpload,
    CancelUpload, Mount, PushManifest, CreateUpload, SendPart, CompleteUpload, CompleteAsJob, CancelParts, FetchItself, FetchHandedOn,
    FetchOfTired, MirrorRound, CreateToken, ChangeUser, ChangeRole, ChangeRepository, LogIn, FetchInCluster, CatchUp, TurnOfTheLoop,
    HoldLease, RunByLease, LockForWriting, Pin, Renew, RunJob,
]  # fmt: skip
# These in long runs alone, where each switch of all comes.
MORE = [
    PublishCold, PublishWithBusyThreads, PublishIfNew, PublishInCluster, CleanUp, SendChunkWithBusyThreads, SendPartOfUnknownSize,
    CompleteWithCopy, Fetch, FetchAgain, Follow, FetchMissing, MirrorItem, MirrorToHosted, TurnSwitch, RunByLeaseItself,
]  # fmt: skip
SOME = 4


def keep_threads_busy() -> None:
    """For some milliseconds."""
    pool = get_hub().threadpool
    for _ in range(2 * pool.maxsize):
        gevent.spawn(pool.spawn, time.sleep, 0.004)
    gevent.sleep(0)


@pytest.fixture
def make(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[type[Operation]], House]]:
    watch_switches(monkeypatch)
    monkeypatch.setattr(run, "FIRST_WAIT_SECONDS", 0.02)
    upstream_of_all.append(FakeUpstream().start())
    made: list[House] = []

    def make(operation: type[Operation]) -> House:
        made.append(House(database_url, tmp_path / "data", **operation.environment))
        if made[-1].parts.loop is not None:
            made[-1].join()
        operation.furnish(made[-1])
        return made[-1]

    yield make
    for each in made:
        each.close()
    upstream_of_all.pop().stop()
    readers.close()


Make = Callable[[type[Operation]], House]


def switches_of(operation: type[Operation], house: House) -> int:
    """How many there are. Whatever is made at the first time is there from then on."""
    ended(operation(house, 0), Ender())
    whole = Ender()
    ended(operation(house, 1), whole)
    return whole.count


@pytest.mark.parametrize("operation", [*MAIN, *OTHERS], ids=lambda each: each.__name__)
def test_whoever_is_told_to_end_where_it_waits_ends_and_leaves_nothing(operation: type[Operation], make: Make) -> None:
    house = make(operation)
    count = switches_of(operation, house)
    step = 1 if operation in MAIN else max(1, count / SOME)
    for number, at in enumerate(itertools.takewhile(lambda at: at <= count, itertools.count(1, step)), 2):
        error, late = end_of(number)
        ended(operation(house, number), Ender(round(at), error, late=late))
    house.assert_clean_in_the_end()


@pytest.mark.soak
@pytest.mark.parametrize("twice", [False, True], ids=["once", "twice"])
@pytest.mark.parametrize("operation", [*MAIN, *OTHERS, *MORE], ids=lambda each: each.__name__)
def test_at_each_switch_with_each_kind_of_end(operation: type[Operation], make: Make, twice: bool) -> None:
    house = make(operation)
    switches_of(operation, house)
    numbers = itertools.count(2)
    for at in itertools.count(1):
        ends = [end_of(each) for each in (range(1) if twice else range(len(ENDS)))]
        came = [ended(operation(house, next(numbers)), Ender(at, error, late=late, twice=twice)) for error, late in ends]
        if not any(came):
            break
    house.assert_clean_in_the_end()
