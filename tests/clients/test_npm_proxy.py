"""npm, pnpm, both Yarns and bun through a group with a proxy, of verdaccio or another Arkvory: cold, warm, with the upstream stopped."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests

from bench.peers.installing import Unavailable
from bench.peers.servers import Verdaccio
from tests.clients.conftest import Desk
from tests.conftest import MakeServer
from tests.protocols.npm.packages import dist_of, document, tarball
from tests.support import clients
from tests.support.upstreams import FakeUpstream

LIBS = 25
OURS = "ours"


@dataclass
class There:
    """An upstream, as it is to be described to a proxy, and how it is stopped."""

    fields: dict[str, Any]
    stop: Callable[[], object]
    # Who comes to the proxy, in this order.
    clients: Sequence[str]
    # What it says of its requests, a JSON object a line.
    log: Callable[[], str]

    def tarballs(self) -> int:
        """How often it was asked for one."""
        return len(re.findall(r'(?:"req":\{"method":"GET","url"|"method":"GET","path"):"[^"]+\.tgz"', self.log()))


def publish(address: str, **options: Any) -> None:
    """A framework and its tree: `web` needs libraries, each of which needs the next one and a scoped one that has many versions."""

    def put(name: str, version: str, **fields: Any) -> None:
        url = f"{address}/{name.replace('/', '%2f')}"
        answer = requests.put(url, json=document(name, version, **fields), timeout=30, **options)
        assert answer.status_code == 201, answer.text

    for number in range(20):
        put("@acme/base", f"1.{number}.0")
    for number in range(LIBS):
        below = {f"lib{number + 1}": "^1.0.0"} if number + 1 < LIBS else {}
        put(f"lib{number}", "1.0.0", dependencies={"@acme/base": "^1.0.0", **below})
    put("web", "4.0.0", dependencies={"lib0": "^1.0.0"})
    # Somebody took our name, and a higher version.
    put(OURS, "9.0.0")


@contextlib.contextmanager
def verdaccio(folder: Path) -> Iterator[There]:
    peer = Verdaccio(Path(sys.prefix) / "peers", folder)
    with contextlib.ExitStack() as running:
        try:
            running.enter_context(peer.running())
        except Unavailable as error:
            clients.go_without(f"verdaccio could not be had: {error}")
        publish(f"http://127.0.0.1:{peer.port}")
        told = peer.folder / "access.log"
        yield There({"upstream_url": f"http://127.0.0.1:{peer.port}"}, running.close, tuple(_CLIENTS), told.read_text)


@contextlib.contextmanager
def arkvory(make_server: MakeServer) -> Iterator[There]:
    """Private, below a path, with a token."""
    server = make_server()
    address = server.repository("lib", "npm")
    token = server.post("/api/v1/tokens", json={"name": "t", "permissions": ["read"], "repositories": ["lib"]}).json()["token"]
    publish(address, auth=server.admin)
    yield There({"upstream_url": address, "upstream": {"username": "any", "password": token}}, server.stop, ("npm",), server.log)


@pytest.fixture(params=["verdaccio", "arkvory"])
def there(request: pytest.FixtureRequest, make_server: MakeServer, tmp_path: Path) -> Iterator[There]:
    clients.require_packages("npm")
    with verdaccio(tmp_path / "peer") if request.param == "verdaccio" else arkvory(make_server) as made:
        yield made


class Client:
    """One of them, in a folder `app` of its own that needs `web`, and what else is given."""

    def __init__(self, desk: Desk, url: str, name: str, **wanted: str) -> None:
        self.desk = desk
        self.home = desk.home / name
        self.program, self.install, self.again = _CLIENTS[name]
        needs = {"web": "^4.0.0", **wanted}
        self.file("package.json", json.dumps({"name": "app", "version": "1.0.0", "private": True, "dependencies": needs}))
        self.file(".npmrc", f"registry={url}/\nupdate-notifier=false\nfund=false\nfetch-retries=0\n")
        self.file(".yarnrc", f'registry "{url}/"\n')
        self.file(
            ".yarnrc.yml",
            f'npmRegistryServer: "{url}"\nunsafeHttpWhitelist: ["127.0.0.1"]\nnodeLinker: node-modules\nenableTelemetry: false\n'
            "enableGlobalCache: false\nhttpRetry: 0\nnpmMinimalAgeGate: 0\n",
        )
        self.file("yarn.lock", "") if name == "berry" else None

    def file(self, name: str, text: str) -> None:
        (self.home / "app").mkdir(parents=True, exist_ok=True)
        (self.home / "app" / name).write_text(text)

    def run(self, *arguments: str, check: bool = True) -> str:
        command = ["bash", "-c", 'cd "$0" && exec "$@"', self.home / "app", *self.program(), *arguments]
        mine = {"HOME": str(self.home), "npm_config_cache": str(self.home / "cache"), "npm_config_store_dir": str(self.home / "store")}
        more = {"XDG_CACHE_HOME": str(self.home / "xdg"), "YARN_CACHE_FOLDER": str(self.home / "yarn"), "CI": ""}
        lock = {"BUN_INSTALL_CACHE_DIR": str(self.home / "bun"), "YARN_ENABLE_IMMUTABLE_INSTALLS": "false"}
        return clients.run(*command, home=self.desk.home, environment=mine | more | lock, check=check).stdout

    def forget(self) -> None:
        """All but the lock file."""
        for each in ("app/node_modules", "app/.yarn", "cache", "store", "xdg", "yarn", "bun"):
            shutil.rmtree(self.home / each, ignore_errors=True)

    def has_all(self) -> bool:
        manifests = [json.loads(each.read_text()) for each in (self.home / "app").rglob("node_modules/**/package.json")]
        installed = {each["name"]: each["version"] for each in manifests}
        works = "it works" in self.desk.run("node", "-e", f"require('{self.home}/app/node_modules/web'); console.log('it works')").stdout
        expected = {"web", "@acme/base", *(f"lib{number}" for number in range(LIBS))}
        return works and expected <= installed.keys() and installed[OURS] == "1.0.0"


def node(package: str, program: str) -> Callable[[], list[str | Path]]:
    return lambda: ["node", clients.node_client(package, program)]


_CLIENTS: dict[str, tuple[Callable[[], list[str | Path]], tuple[str, ...], tuple[str, ...]]] = {
    "npm": (lambda: ["npm"], ("install", "--no-audit"), ("ci", "--no-audit")),
    "pnpm": (node("pnpm", "bin/pnpm.cjs"), ("install", "--no-frozen-lockfile"), ("install", "--frozen-lockfile")),
    "yarn": (node("yarn", "bin/yarn.js"), ("install", "--non-interactive"), ("install", "--frozen-lockfile", "--non-interactive")),
    "berry": (node("@yarnpkg/cli-dist", "bin/yarn.js"), ("install",), ("install", "--immutable")),
    "bun": (lambda: [clients.node_client(clients.BUN, "bin/bun")], ("install",), ("install", "--frozen-lockfile")),
}


def test_a_tree_is_installed_cold_and_warm_and_with_the_upstream_stopped(desk: Desk, there: There) -> None:
    """The first client fetches all of it; those that come later ask the upstream for no tarball. A package of our own needs part of it."""
    url = desk.group("tree", "npm", public=True, settings={"mutable_ttl": 1}, **there.fields)
    try:
        publish_ours(desk, url)
        used = [Client(desk, url, name, **{OURS: "*"}) for name in there.clients]
        for each in used:
            each.run(*each.install)
            assert each.has_all()
        assert there.tarballs() == LIBS + 2, "each is fetched once"
        there.stop()
        for each in used:
            each.forget()
            each.run(*each.again)
            assert each.has_all()
        # Without a lock file every packument is asked for.
        used[0].forget()
        (used[0].home / "app/package-lock.json").unlink()
        used[0].run(*used[0].install)
        assert used[0].has_all()
        told = desk.server.get("/npm/tree-there/@acme%2fbase")
        assert len(told.json()["versions"]) == 20
        assert told.headers["X-Arkvory-Cache"] == "stale"
    finally:
        for each in ("tree", "tree-own", "tree-there"):
            desk.server.delete(f"/api/v1/repositories/{each}")


def publish_ours(desk: Desk, url: str) -> None:
    """By npm, through the group."""
    client = Client(desk, url, "npm")
    client.file("package.json", json.dumps({"name": OURS, "version": "1.0.0", "dependencies": {"web": "^4.0.0"}}))
    # Before the first version is here, npm sees the higher one of the upstream and wants to be told the tag.
    client.run("publish", "--tag", "latest", f"--{url.partition(':')[2]}/:_authToken={desk.token()}")


def test_npm_audits_through_a_proxy_and_publishes_to_none(desk: Desk, upstream: FakeUpstream) -> None:
    clients.require_packages("npm")
    data = tarball("web", "4.0.0")
    versions = {"4.0.0": {"name": "web", "version": "4.0.0", "dist": {**dist_of(data), "tarball": f"{upstream.url}/files/web.tgz"}}}
    packument = {"name": "web", "dist-tags": {"latest": "4.0.0"}, "versions": versions}
    leak = {"id": 7, "url": "https://example.org/7", "title": "It leaks", "severity": "high", "vulnerable_versions": "<5.0.0"}
    for path, value in (("web", packument), ("-/npm/v1/security/advisories/bulk", {"web": [leak]})):
        upstream.put(f"/{path}", json.dumps(value).encode(), headers={"Content-Type": "application/json"})
    upstream.put("/files/web.tgz", data)
    client = Client(desk, desk.server.repository("audited", "npm", kind="proxy", public=True, upstream_url=upstream.url), "npm")
    client.run("install", "--no-audit")
    assert "It leaks" in client.run("audit", check=False)
    client.file("package.json", json.dumps({"name": "mine", "version": "1.0.0"}))
    refused = client.run("publish", f"--//127.0.0.1:{desk.server.port}/npm/audited/:_authToken={desk.token()}", check=False)
    assert "405" in refused and "'audited' is a proxy; publish to a hosted one" in refused
