"""Each refusal of the server is an error of its own class, with the server's code and words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from arkvory import Client, Retry, errors
from tests.sdk.conftest import NewClient
from tests.support.server import Server

# What is refused for a minute is told at once.
IMPATIENT = Retry(attempts=1)


@pytest.fixture
def impatient(new_client: NewClient) -> Client:
    return new_client(retry=IMPATIENT)


def refused(kind: type[errors.ArkvoryError], what: Any, *arguments: Any, **options: Any) -> Any:
    with pytest.raises(errors.ArkvoryError) as told:
        what(*arguments, **options)
    assert type(told.value) is kind, repr(told.value)
    return told.value


@pytest.mark.parametrize(("status", "kind"), [("offline", errors.RepositoryOffline), ("maintenance", errors.RepositoryMaintenance)])
def test_a_repository_that_is_away(impatient: Client, server: Server, repository: str, tmp_path: Path, status: str, kind: Any) -> None:
    """Of files too, whose refusals are plain text, and of HEAD, whose have no words at all."""
    server.put(f"/raw/{repository}/a", b"a")
    impatient.update_repository(repository, status=status)
    error = refused(kind, impatient.download, repository, "a", tmp_path / "a")
    assert (error.status, error.code, error.retry_after) == (503, f"repository_{status}", 60.0) and repository in error.detail
    assert refused(kind, impatient.upload, Path(__file__), repository).code == f"repository_{status}"


def test_what_is_held(impatient: Client, server: Server, repository: str, tmp_path: Path) -> None:
    server.put(f"/raw/{repository}/a", b"a")
    server.put(f"/api/v1/repositories/{repository}/artifacts/a/quarantine", json={"reason": "looked at", "trust": "suspicious"})
    error = refused(errors.Quarantined, impatient.download, repository, "a", tmp_path / "a")
    assert (error.status, error.code) == (403, "quarantined") and "looked at" in error.detail


def test_what_is_written_once(impatient: Client, server: Server, repository: str) -> None:
    impatient.update_repository(repository, settings={"write_policy": "once"})
    server.put(f"/raw/{repository}/test_errors.py", b"another")
    assert refused(errors.AlreadyExists, impatient.upload, Path(__file__), repository).status == 409
    impatient.update_repository(repository, settings={"write_policy": "read_only"})
    assert refused(errors.NotAllowedHere, impatient.upload, Path(__file__), repository).status == 405


def test_who_may_not(new_client: NewClient, server: Server, repository: str, tmp_path: Path) -> None:
    server.put(f"/raw/{repository}/a", b"a")
    token = new_client().create_token("reader", ["read"]).token
    reader = new_client(token=token, retry=IMPATIENT)
    assert reader.read(repository, "a") == b"a"
    assert refused(errors.Forbidden, reader.upload, Path(__file__), repository).code == "forbidden"
    assert refused(errors.Unauthenticated, new_client(token="arkv_wrong").download, repository, "a", tmp_path / "a").status == 401
    assert refused(errors.Unauthenticated, new_client(token="arkv_wrong").whoami).code == "unauthenticated"


def test_what_is_wrong_names_its_field(impatient: Client) -> None:
    error = refused(errors.Invalid, impatient.create_repository, "Not a name")
    assert error.status == 422 and list(error.fields) == ["name"] and error.request_id
    assert refused(errors.AlreadyExists, lambda: [impatient.create_repository("twice") for _ in range(2)]).status == 409


def test_something_else_at_the_address(upstream: Any, new_client: NewClient) -> None:
    upstream.put("/api/v1/whoami", b"<html>hello</html>")
    assert "is it an Arkvory?" in str(refused(errors.NotArkvory, new_client(upstream.url).whoami))
    upstream.put("/api/v1/whoami", status=301, headers={"Location": "https://elsewhere.example.org/"})
    assert "https://elsewhere.example.org/" in str(refused(errors.SentElsewhere, new_client(upstream.url).whoami))
