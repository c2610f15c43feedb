"""npm, pnpm, both Yarns and bun against hosted repositories: what they publish, they install, lock, find offline and take back."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import subprocess
from pathlib import Path

import pytest
import requests

from tests.clients.conftest import Desk
from tests.support import clients
from tests.support.house import eventually

_numbers = itertools.count(1)
LIB = "module.exports = (word) => word.toUpperCase();\n"
APP = "console.log(require('@acme/lib')('it works'));\n"


class Registry:
    """A fresh, private npm repository, and clients that are logged in to it by a token."""

    def __init__(self, desk: Desk) -> None:
        clients.require_packages("npm")
        self.desk = desk
        self.server = desk.server
        self.name = f"node{next(_numbers)}"
        self.url = desk.server.repository(self.name, "npm")
        self.token = self.new_token()
        self.configure(f"//127.0.0.1:{self.server.port}/npm/{self.name}/:_authToken={self.token}\n")

    def new_token(self) -> str:
        made = self.server.post(
            "/api/v1/tokens", json={"name": "ci", "permissions": ["read", "write", "delete"], "repositories": [self.name]}
        )
        return str(made.json()["token"])

    def configure(self, more: str = "") -> None:
        self.desk.file(".npmrc", f"registry={self.url}/\nupdate-notifier=false\nfund=false\nfetch-retries=0\n{more}".encode())

    def package(self, folder: str, name: str, version: str, **fields: object) -> None:
        manifest = {"name": name, "version": version, "license": "MIT", **fields}
        self.desk.file(f"{folder}/package.json", json.dumps(manifest).encode())
        self.desk.file(f"{folder}/index.js", LIB.encode())

    def app(self, folder: str, wanted: str = "^1.0.0") -> None:
        manifest = {"name": "app", "version": "0.0.1", "private": True, "dependencies": {"@acme/lib": wanted}}
        self.desk.file(f"{folder}/package.json", json.dumps(manifest).encode())
        self.desk.file(f"{folder}/app.js", APP.encode())

    def in_(self, folder: str, *command: str | Path, check: bool = True, **environment: str) -> str:
        """A command in a folder of the desk, with the desk's home."""
        home = self.desk.home
        variables = {"npm_config_cache": str(home / "npm-cache"), "npm_config_userconfig": str(home / ".npmrc"), "CI": "true"}
        arguments = ("bash", "-c", 'cd "$0" && exec "$@"', home / folder, *command)
        return clients.run(*arguments, home=home, environment=variables | environment, check=check).stdout

    def npm(self, folder: str, *arguments: str | Path, check: bool = True) -> str:
        return self.in_(folder, "npm", *arguments, check=check)

    def publish(self, *versions: str, **fields: object) -> None:
        for version in versions:
            self.package("lib", "@acme/lib", version, **fields)
            self.npm("lib", "publish", *(("--tag", "next") if "-" in version else ()))

    def works(self, folder: str) -> bool:
        return "IT WORKS" in self.in_(folder, "node", "app.js")

    def packument(self, name: str = "@acme/lib") -> dict[str, object]:
        found: dict[str, object] = self.server.get(f"/npm/{self.name}/{name}").json()
        return found


@pytest.fixture
def registry(desk: Desk) -> Registry:
    return Registry(desk)


def test_npm_publishes_installs_by_the_lock_file_and_from_its_cache(registry: Registry) -> None:
    registry.publish("1.0.0", "1.1.0-rc.1")
    registry.app("app")
    registry.npm("app", "install")
    assert registry.works("app")
    lock = json.loads((registry.desk.home / "app/package-lock.json").read_text())["packages"]["node_modules/@acme/lib"]
    assert lock["resolved"] == f"{registry.url}/@acme/lib/-/lib-1.0.0.tgz"
    registry.publish("1.2.0")
    registry.npm("app", "ci")
    installed = registry.desk.home / "app/node_modules/@acme/lib/package.json"
    assert json.loads(installed.read_text())["version"] == "1.0.0"
    registry.npm("app", "update")
    assert json.loads(installed.read_text())["version"] == "1.2.0"
    registry.npm("app", "ci", "--offline")
    assert registry.works("app")
    again = registry.npm("lib", "publish", check=False)
    assert "cannot publish over the previously published versions" in again


def test_npm_changes_what_is_there(registry: Registry) -> None:
    registry.publish("1.0.0", "1.1.0", "1.2.0")
    registry.npm("lib", "dist-tag", "add", "@acme/lib@1.0.0", "stable")
    assert "stable: 1.0.0" in registry.npm("lib", "dist-tag", "ls", "@acme/lib")
    registry.npm("lib", "dist-tag", "rm", "@acme/lib", "stable")
    assert registry.npm("lib", "dist-tag", "ls", "@acme/lib").strip() == "latest: 1.2.0"
    registry.npm("lib", "deprecate", "@acme/lib@1.0.0", "it leaks")
    registry.app("app", "1.0.0")
    assert "it leaks" in registry.npm("app", "install")
    registry.npm("lib", "owner", "add", "admin", "@acme/lib")
    assert "admin" in registry.npm("lib", "owner", "ls", "@acme/lib")
    registry.npm("lib", "unpublish", "@acme/lib@1.2.0")
    assert registry.packument()["dist-tags"] == {"latest": "1.1.0"}
    registry.npm("lib", "unpublish", "--force", "@acme/lib")
    assert registry.server.get(f"/npm/{registry.name}/@acme/lib").status_code == 404


def test_npm_asks_for_what_is_known(registry: Registry) -> None:
    registry.publish("1.0.0", description="Makes words loud", keywords=["caps"])
    assert registry.npm("lib", "whoami").strip() == "admin"
    assert "PONG" in registry.npm("lib", "ping")
    assert "Makes words loud" in registry.npm("lib", "search", "loud")
    assert registry.npm("lib", "view", "@acme/lib", "version").strip() == "1.0.0"
    registry.app("app")
    registry.npm("app", "install", "--no-audit")
    assert "found 0 vulnerabilities" in registry.npm("app", "audit")
    assert "admin" in registry.npm("lib", "profile", "get")
    made = json.loads(registry.npm("lib", "token", "create", "--json", "--password", registry.server.password))
    listed = json.loads(registry.npm("lib", "token", "list", "--json"))
    key = next(each["key"] for each in listed if each["name"] == made["name"])
    assert registry.server.get(f"/npm/{registry.name}/-/whoami", auth=("x", made["token"])).json() == {"username": "admin"}
    assert "Removed 1 token" in registry.npm("lib", "token", "revoke", key)
    assert registry.server.get(f"/npm/{registry.name}/-/whoami", auth=("x", made["token"])).status_code == 401


def login(registry: Registry, kind: str) -> subprocess.Popen[str]:
    home = registry.desk.home
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "npm_config_userconfig": str(home / ".npmrc")}
    return subprocess.Popen(
        [clients.require("npm"), "login", f"--auth-type={kind}", "--registry", f"{registry.url}/"], cwd=home, env=environment,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def answer(process: subprocess.Popen[str], asked: str, word: str) -> None:
    """Once it asks: what it is told before that is lost."""
    assert process.stdin is not None and process.stdout is not None
    printed, told = process.stdout.fileno(), b""
    os.set_blocking(printed, False)

    def has_asked() -> bool:
        nonlocal told
        with contextlib.suppress(BlockingIOError):
            told += os.read(printed, 65536)
        return asked.encode() in told

    eventually(has_asked, 60)
    os.set_blocking(printed, True)
    process.stdin.write(f"{word}\n")
    process.stdin.flush()


def test_npm_logs_in_by_password_and_out_again(registry: Registry) -> None:
    registry.configure()
    assert "ENEEDAUTH" in registry.npm(".", "whoami", check=False)
    with login(registry, "legacy") as process:
        for asked, word in (("Username", "admin"), ("Password", registry.server.password)):
            answer(process, asked, word)
        printed = process.communicate(timeout=60)[0]
    assert process.returncode == 0, printed
    assert registry.npm(".", "whoami").strip() == "admin"
    token = (registry.desk.home / ".npmrc").read_text().partition("_authToken=")[2].strip()
    registry.npm(".", "logout", "--registry", f"{registry.url}/")
    assert registry.server.get(f"/npm/{registry.name}/-/whoami", auth=("x", token)).status_code == 401
    assert token not in registry.server.log()


def test_npm_logs_in_by_a_browser(registry: Registry) -> None:
    registry.configure()
    with login(registry, "web") as process:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        address = next(found.group() for line in lines if (found := re.search(r"http\S+/-/v1/login/\S+", line)))
        page = requests.get(address, timeout=20)
        assert page.status_code == 200 and 'type="password"' in page.text
        wrong = requests.post(address, data={"name": "admin", "password": "wrong"}, timeout=20)
        assert wrong.status_code == 401 and "WWW-Authenticate" not in wrong.headers
        right = requests.post(address, data={"name": "admin", "password": registry.server.password}, timeout=20)
        assert "You are logged in" in right.text
        printed = process.communicate(timeout=30)[0]
    assert process.returncode == 0, printed
    assert registry.npm(".", "whoami").strip() == "admin"
    assert requests.get(address, timeout=20).status_code == 404


def test_pnpm_publishes_and_installs_by_the_lock_file_and_offline(registry: Registry) -> None:
    program = clients.node_client("pnpm", "bin/pnpm.cjs")
    registry.package("lib", "@acme/lib", "1.0.0")

    def pnpm(folder: str, *arguments: str, check: bool = True) -> str:
        store = {"npm_config_store_dir": str(registry.desk.home / "store"), "XDG_CACHE_HOME": str(registry.desk.home / "cache")}
        return registry.in_(folder, "node", program, *arguments, check=check, **store)

    pnpm("lib", "publish", "--no-git-checks")
    registry.app("app")
    pnpm("app", "install", "--no-frozen-lockfile")
    assert registry.works("app")
    registry.publish("1.1.0")
    pnpm("app", "install", "--frozen-lockfile", "--offline", "--force")
    assert registry.works("app")
    pnpm("app", "update")
    assert "1.1.0" in pnpm("app", "list")
    assert "No known vulnerabilities" in pnpm("app", "audit")


def test_yarn_classic_publishes_and_installs_by_the_lock_file_and_offline(registry: Registry) -> None:
    program = clients.node_client("yarn", "bin/yarn.js")
    registry.package("lib", "@acme/lib", "1.0.0")
    registry.desk.file(".yarnrc", f'registry "{registry.url}/"\nyarn-offline-mirror "./mirror"\n'.encode())

    def yarn(folder: str, *arguments: str, check: bool = True) -> str:
        cache = {"YARN_CACHE_FOLDER": str(registry.desk.home / "yarn-cache")}
        return registry.in_(folder, "node", program, "--no-progress", "--non-interactive", *arguments, check=check, **cache)

    yarn("lib", "publish", "--new-version", "1.0.0")
    registry.app("app")
    yarn("app", "install")
    assert registry.works("app")
    registry.publish("1.1.0")
    yarn("app", "install", "--frozen-lockfile", "--force", "--offline")
    assert registry.works("app")
    yarn("app", "upgrade")
    assert "lib-1.1.0.tgz" in (registry.desk.home / "app/yarn.lock").read_text()
    yarn("lib", "tag", "add", "@acme/lib@1.0.0", "stable")
    assert registry.packument()["dist-tags"] == {"latest": "1.1.0", "stable": "1.0.0"}


def test_yarn_berry_publishes_and_installs_immutably_and_offline(registry: Registry) -> None:
    program = clients.node_client("@yarnpkg/cli-dist", "bin/yarn.js")
    registry.package("lib", "@acme/lib", "1.0.0")
    settings = (
        f'npmRegistryServer: "{registry.url}"\nnpmAuthToken: "{registry.token}"\nnpmAlwaysAuth: true\nunsafeHttpWhitelist: ["127.0.0.1"]\n'
        "nodeLinker: node-modules\nenableTelemetry: false\nenableGlobalCache: false\nhttpRetry: 0\nnpmMinimalAgeGate: 0\n"
    )
    for folder in ("lib", "app"):
        registry.desk.file(f"{folder}/.yarnrc.yml", settings.encode())
        registry.desk.file(f"{folder}/yarn.lock", b"")

    def yarn(folder: str, *arguments: str, check: bool = True, **environment: str) -> str:
        return registry.in_(folder, "node", program, *arguments, check=check, **environment)

    yarn("lib", "install", CI="", YARN_ENABLE_IMMUTABLE_INSTALLS="false")
    yarn("lib", "npm", "publish")
    yarn("lib", "npm", "publish", "--tolerate-republish")
    registry.app("app")
    yarn("app", "install", YARN_ENABLE_IMMUTABLE_INSTALLS="false")
    assert registry.works("app")
    registry.publish("1.1.0")
    yarn("app", "install", "--immutable", YARN_ENABLE_NETWORK="false")
    assert registry.works("app")
    yarn("app", "up", "@acme/lib", YARN_ENABLE_IMMUTABLE_INSTALLS="false")
    assert "1.1.0" in (registry.desk.home / "app/yarn.lock").read_text()
    assert "admin" in yarn("lib", "npm", "whoami")
    assert "No audit suggestions" in yarn("app", "npm", "audit")
    yarn("lib", "npm", "tag", "add", "@acme/lib@1.0.0", "stable")
    assert "stable" in yarn("lib", "npm", "tag", "list", "@acme/lib")


def test_bun_publishes_and_installs_by_the_lock_file_and_from_its_cache(registry: Registry) -> None:
    program = clients.node_client(clients.BUN, "bin/bun")
    registry.package("lib", "@acme/lib", "1.0.0")

    def bun(folder: str, *arguments: str, check: bool = True) -> str:
        login = {"NPM_CONFIG_REGISTRY": f"{registry.url}/", "NPM_CONFIG_TOKEN": registry.token}
        return registry.in_(folder, program, *arguments, check=check, BUN_INSTALL_CACHE_DIR=str(registry.desk.home / "bun-cache"), **login)

    bun("lib", "publish")
    registry.app("app")
    bun("app", "install")
    assert registry.works("app")
    registry.publish("1.1.0")
    bun("app", "install", "--frozen-lockfile", "--force")
    assert "@acme/lib@1.0.0" in bun("app", "pm", "ls")
    bun("app", "update")
    assert "@acme/lib@1.1.0" in bun("app", "pm", "ls")
    assert "No vulnerabilities found" in bun("app", "audit")
    assert "previously published versions: 1.1.0" in bun("lib", "publish", check=False)
