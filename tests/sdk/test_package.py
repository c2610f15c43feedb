"""The package by itself: what it needs, and what it is called."""

from __future__ import annotations

import ast
import configparser
import stat
import sys
from pathlib import Path

import arkvory
from tests.support.server import ROOT

SDK = ROOT / "sdk" / "arkvory"


def imported() -> set[str]:
    """First names of all that any of its modules imports."""
    found: set[str] = set()
    for file in SDK.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                found.add(node.module.partition(".")[0])
    return found


def settings(file: str) -> configparser.ConfigParser:
    found = configparser.ConfigParser()
    found.read(ROOT / file)
    return found


def test_it_needs_requests_and_rich_and_nothing_else() -> None:
    assert imported() - sys.stdlib_module_names == {"arkvory", "requests", "rich"}
    needed = settings("sdk/setup.cfg")["options"]["install_requires"].split()
    assert {each.partition(">")[0] for each in needed} == {"requests", "rich"}


def test_its_version_is_the_servers_and_its_name_another() -> None:
    server, sdk = settings("setup.cfg")["metadata"], settings("sdk/setup.cfg")["metadata"]
    assert sdk["version"] == "attr: arkvory.version.__version__" and arkvory.__version__ == server["version"]
    assert sdk["name"] != server["name"]


def test_the_tree_of_errors_names_every_class() -> None:
    from arkvory import errors

    classes = {name for name, each in vars(errors).items() if isinstance(each, type) and issubclass(each, Exception)}
    assert {name for name in classes if name not in str(errors.__doc__)} == set()


def test_what_is_remembered_is_whole_and_its_owners_alone(tmp_path: Path) -> None:
    from arkvory import state

    file = tmp_path / "state.json"
    (tmp_path / "state.json.new").write_text('{"half": ')
    state.write(file, {"whole": 1})
    assert state.read(file) == {"whole": 1} and stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [each.name for each in tmp_path.iterdir()] == ["state.json"]
    state.remove(file)
    assert state.read(file) == {} and list(tmp_path.iterdir()) == []
