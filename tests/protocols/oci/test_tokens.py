"""The Docker token flow and Basic, challenge by challenge (HO-OCI-5); what a token may do is what its credential may do now."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any

import pytest
from werkzeug.test import TestResponse

from tests.protocols.oci.conftest import Registry, digest_of, manifest_of, refused
from tests.support.house import ADMIN, House

PASSWORD = "correct-horse-battery"


def basic(name: str, password: str = PASSWORD) -> str:
    return f"Basic {base64.b64encode(f'{name}:{password}'.encode()).decode()}"


def challenge(answer: TestResponse) -> dict[str, str]:
    """The one challenge of a 401, as a client reads it."""
    assert answer.status_code == 401
    (given,) = answer.headers.getlist("WWW-Authenticate")
    scheme, _, fields = given.partition(" ")
    assert scheme == "Bearer"
    return dict(re.findall(r'(\w+)="([^"]*)"', fields))


def token(registry: Registry, *scopes: str, auth: str | None = None, query: str = "") -> str:
    answer = registry.get("token?" + "&".join([*(f"scope={each}" for each in scopes), query]), auth=auth)
    assert answer.status_code == 200, answer.text
    document = answer.get_json()
    assert document["token"] == document["access_token"]
    assert document["expires_in"] >= 60
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", document["issued_at"])
    return f"Bearer {document['token']}"


def user(house: House, name: str, *permissions: str, prefix: str | None = None) -> None:
    house.users.create(ADMIN, name, PASSWORD)
    if permissions:
        house.rule("oci", f"user:{name}", *permissions, prefix=prefix)


def test_ho_oci_5_the_base_address_says_where_to_log_in(registry: Registry) -> None:
    answer = registry.get("", auth=None)
    assert refused(answer) == (401, "UNAUTHORIZED")
    assert challenge(answer) == {"realm": "http://localhost/v2/token", "service": "localhost"}
    assert answer.headers["Docker-Distribution-Api-Version"] == "registry/2.0"
    user(registry.house, "ada")
    for auth in (basic("ada"), token(registry, auth=basic("ada")), token(registry), f"Bearer {registry.house.token('ada')}"):
        assert registry.get("", auth=auth).status_code == 200
    assert refused(registry.get("", auth=basic("ada", "wrong"))) == (401, "UNAUTHORIZED")


@pytest.mark.parametrize(
    ("method", "path", "scope"),
    [
        ("GET", "oci/team/app/manifests/latest", "repository:oci/team/app:pull"),
        ("HEAD", f"oci/app/blobs/{digest_of(b'x')}", "repository:oci/app:pull"),
        ("GET", "oci/app/tags/list", "repository:oci/app:pull"),
        ("GET", f"oci/app/referrers/{digest_of(b'x')}", "repository:oci/app:pull"),
        ("POST", "oci/app/blobs/uploads/", "repository:oci/app:pull,push"),
        ("PATCH", "oci/app/blobs/uploads/7c9f2d6e-2c9d-4c5f-9d6e-000000000000", "repository:oci/app:pull,push"),
        ("PUT", "oci/app/manifests/latest", "repository:oci/app:pull,push"),
        ("DELETE", "oci/app/manifests/latest", "repository:oci/app:delete"),
        ("GET", "absent/app/manifests/latest", "repository:absent/app:pull"),
        ("GET", "_catalog", "registry:catalog:*"),
    ],
)
def test_the_challenge_names_the_scope_that_the_request_needs(registry: Registry, method: str, path: str, scope: str) -> None:
    assert challenge(registry.request(method, path, auth=None))["scope"] == scope


def test_a_token_for_a_user_who_may_push_pushes_and_pulls(registry: Registry) -> None:
    user(registry.house, "ada", "read", "write")
    auth = token(registry, "repository:oci/app:pull,push", auth=basic("ada"))
    registry.blob(b"{}", auth=auth)
    assert registry.manifest(manifest_of(), "latest", auth=auth).status_code == 201
    assert registry.get("oci/app/manifests/latest", auth=auth).status_code == 200


def test_several_scopes_in_one_token_repeated_or_in_one_argument(registry: Registry) -> None:
    user(registry.house, "ada", "read", "write")
    one = token(registry, "repository:oci/a:pull", "repository:oci/b:pull,push", auth=basic("ada"))
    other = token(registry, "repository:oci/a:pull%20repository:oci/b:push,pull", auth=basic("ada"))
    for auth in (one, other):
        registry.blob(b"{}", "oci/b", auth=auth)
        assert registry.get("oci/a/tags/list", auth=auth).status_code == 404
        answer = registry.post("oci/a/blobs/uploads/", auth=auth)
        assert challenge(answer)["error"] == "insufficient_scope"
        assert challenge(answer)["scope"] == "repository:oci/a:pull,push"


def test_a_weak_credential_gets_fewer_actions_and_is_told_403(registry: Registry) -> None:
    user(registry.house, "ada", "read")
    answer = registry.get("token?scope=repository:oci/app:pull,push,delete", auth=basic("ada")).get_json()
    assert answer["scope"] == "repository:oci/app:pull"
    auth = f"Bearer {answer['token']}"
    assert refused(registry.post("oci/app/blobs/uploads/", auth=auth)) == (403, "DENIED")
    assert refused(registry.delete("oci/app/manifests/latest", auth=auth)) == (403, "DENIED")
    registry.house.user("bob")
    weak = registry.house.token("bob", "read")
    registry.house.rule("oci", "user:bob", "read", "write")
    answer = registry.get("token?scope=repository:oci/app:pull,push", auth=basic("anything", weak)).get_json()
    assert answer["scope"] == "repository:oci/app:pull"


def test_whoever_forgets_the_repository_is_told_how_an_images_name_begins(registry: Registry) -> None:
    """Only administrators, who may know all names, learn that there is none of it."""
    user(registry.house, "ada")
    registry.house.user("root", administrator=True)
    root = basic("root", registry.house.token("root"))
    begins = "an image's name begins with the repository"

    def told(image: str, who: str) -> tuple[int, str, str]:
        auth = token(registry, f"repository:{image}:pull,push", auth=who)
        answer = registry.post(f"{image}/blobs/uploads/", auth=auth)
        return (*refused(answer), answer.get_json()["errors"][0]["message"])

    for image in ("absent/app", "oci/app"):
        status, code, message = told(image, basic("ada"))
        assert (status, code) == (403, "DENIED") and begins in message
    for image in ("absent/app", "absent"):
        status, code, message = told(image, root)
        assert (status, code) == (404, "NAME_UNKNOWN") and message.startswith("there is no OCI repository 'absent'") and begins in message
    status, code, message = told("oci", root)
    assert (status, code) == (404, "NAME_UNKNOWN") and message.startswith("'oci' alone is no image")


def test_rules_by_path_prefix_are_rules_by_image(registry: Registry) -> None:
    user(registry.house, "ada", "read", "write", prefix="team")
    answer = registry.get("token?scope=repository:oci/team/app:pull,push&scope=repository:oci/teams:push", auth=basic("ada")).get_json()
    assert answer["scope"] == "repository:oci/team/app:pull,push"
    registry.blob(b"{}", "oci/team/app", auth=basic("ada"))
    assert refused(registry.post("oci/teams/blobs/uploads/", auth=basic("ada"))) == (403, "DENIED")


def test_nobody_gets_a_token_and_pulls_what_is_public_with_it_and_without(registry: Registry) -> None:
    body = registry.image("latest", b"layer")
    digest = digest_of(body)
    assert registry.get("token?scope=repository:oci/app:pull", auth=None).get_json()["scope"] == ""
    assert challenge(registry.get("oci/app/manifests/latest", auth=token(registry, "repository:oci/app:pull")))
    registry.manage("PATCH", "repositories/oci", json={"public": True})
    auth = token(registry, "repository:oci/app:pull,push")
    for shown in (None, auth):
        assert registry.head(f"oci/app/manifests/{digest}", auth=shown).status_code == 200
        assert registry.get("oci/app/manifests/latest", auth=shown).data == body
        assert registry.get("oci/app/tags/list", auth=shown).status_code == 200
        assert registry.post("oci/app/blobs/uploads/", auth=shown).status_code == 401


def test_wrong_credentials_are_401_at_the_token_service(registry: Registry) -> None:
    user(registry.house, "ada", "read")
    for auth in (basic("ada", "wrong"), basic("nobody"), basic("x", "arkv_wrong"), "Bearer arkp_e30.AAAA", "Bearer arkp_", "Bearer arkp_é"):
        assert refused(registry.get("token?scope=repository:oci/app:pull", auth=auth)) == (401, "UNAUTHORIZED")
    form = {"grant_type": "password", "username": "ada", "password": "wrong", "service": "x", "client_id": "y"}
    assert refused(registry.post("token", data=form, auth=None)) == (401, "UNAUTHORIZED")


def test_oauth2_by_password_and_by_refresh_token(registry: Registry) -> None:
    user(registry.house, "ada", "read", "write")
    form: dict[str, Any] = {"grant_type": "password", "username": "ada", "password": PASSWORD, "service": "localhost", "client_id": "test"}
    answer = registry.post("token", data=form | {"scope": "repository:oci/app:push,pull", "access_type": "offline"}, auth=None).get_json()
    assert answer["scope"] == "repository:oci/app:pull,push"
    registry.blob(b"{}", auth=f"Bearer {answer['access_token']}")
    assert "refresh_token" not in registry.post("token", data=form, auth=None).get_json()
    renewed = {"grant_type": "refresh_token", "refresh_token": answer["refresh_token"], "service": "localhost", "client_id": "test"}
    second = registry.post("token", data=renewed | {"scope": "repository:oci/app:pull"}, auth=None).get_json()
    assert registry.get("oci/app/tags/list", auth=f"Bearer {second['token']}").status_code == 404
    # A refresh token gets others and is good for nothing else; an access token gets none.
    assert refused(registry.get("", auth=f"Bearer {answer['refresh_token']}")) == (401, "UNAUTHORIZED")
    renewed["refresh_token"] = second["token"]
    assert refused(registry.post("token", data=renewed, auth=None)) == (401, "UNAUTHORIZED")
    assert registry.get("token?offline_token=true", auth=basic("ada")).get_json()["refresh_token"]
    for wrong in ({"grant_type": "strange"}, {}):
        assert registry.post("token", data=wrong, auth=None).status_code == 400
    assert registry.post("token", data=b"{}", headers={"Content-Type": "application/json"}, auth=None).status_code == 400


@pytest.mark.parametrize("scope", ["repository", "repository:oci/app", "%00", "a:b:c:d:" + "x" * 700])
def test_scopes_that_are_none_are_400(registry: Registry, scope: str) -> None:
    assert registry.get(f"token?scope={scope}").status_code in (400, 401)


def test_a_token_dies_with_what_it_stands_for_at_the_next_request(registry: Registry) -> None:
    house = registry.house
    registry.image("latest", b"layer")
    user(house, "ada", "read")
    house.user("bob")
    secret = house.token("bob")
    house.rule("oci", "user:bob", "read")
    by_password = token(registry, "repository:oci/app:pull", auth=basic("ada"))
    by_token = token(registry, "repository:oci/app:pull", auth=basic("x", secret))
    for auth in (by_password, by_token):
        assert registry.get("oci/app/manifests/latest", auth=auth).status_code == 200
    registry.manage("PATCH", "users/ada", json={"password": "another-password"})
    assert registry.get("oci/app/manifests/latest", auth=by_password).status_code == 401
    listed = registry.manage("GET", "tokens?user=bob")["items"]
    registry.manage("DELETE", f"tokens/{listed[0]['id']}")
    assert registry.get("oci/app/manifests/latest", auth=by_token).status_code == 401


def test_a_right_that_is_taken_away_or_given_counts_at_the_next_request(registry: Registry) -> None:
    registry.image("latest", b"layer")
    user(registry.house, "ada")
    rule = {"subject": "user:ada", "permissions": ["read"]}
    made = registry.manage("POST", "repositories/oci/rules", json=rule)
    auth = token(registry, "repository:oci/app:pull", auth=basic("ada"))
    assert registry.get("oci/app/manifests/latest", auth=auth).status_code == 200
    registry.manage("DELETE", f"repositories/oci/rules/{made['id']}")
    assert registry.get("oci/app/manifests/latest", auth=auth).status_code == 404
    registry.manage("POST", "repositories/oci/rules", json=rule)
    assert registry.get("oci/app/manifests/latest", auth=auth).status_code == 200


def test_a_deploy_token_is_a_credential_like_any_other(registry: Registry) -> None:
    wanted = {"name": "ci", "permissions": ["read", "write"], "path_prefix": "team"}
    made = registry.manage("POST", "repositories/oci/deploy-tokens", json=wanted)
    auth = token(registry, "repository:oci/team/app:pull,push", auth=basic("ci", made["token"]))
    registry.blob(b"{}", "oci/team/app", auth=auth)
    registry.manage("DELETE", f"repositories/oci/deploy-tokens/{made['id']}")
    assert registry.post("oci/team/app/blobs/uploads/", auth=auth).status_code == 401


def test_a_token_that_was_changed_or_is_over_is_worth_nothing(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    user(registry.house, "ada", "read")
    auth = token(registry, "repository:oci/app:pull", auth=basic("ada"))
    for wrong in (auth[:-1] + ("A" if auth[-1] != "A" else "B"), auth.replace("arkp_", "arkp_AA"), "Bearer arkp_x.y"):
        assert refused(registry.get("", auth=wrong)) == (401, "UNAUTHORIZED")
    monkeypatch.setattr("app.access.passes.time.time", lambda: 4_000_000_000.0)
    assert refused(registry.get("", auth=auth)) == (401, "UNAUTHORIZED")


def test_tokens_are_for_the_registry_alone(registry: Registry) -> None:
    user(registry.house, "ada", "read")
    auth = token(registry, "repository:oci/app:pull", auth=basic("ada"))
    assert registry.request("GET", "/api/v1/whoami", auth=auth).status_code == 401


def test_the_key_of_tokens_is_made_once_and_outlives_the_process(registry: Registry, database_url: str, tmp_path: Path) -> None:
    user(registry.house, "ada", "read")
    auth = token(registry, "repository:oci/app:pull", auth=basic("ada"))
    assert (tmp_path / "data" / "blobs" / "secret.key").stat().st_mode & 0o777 == 0o600
    second = Registry(registry.house, database_url, tmp_path / "data")
    try:
        assert second.get("", auth=auth).status_code == 200
    finally:
        second.close()


def test_anonymous_access_that_is_switched_off_ends_tokens_for_nobody(registry: Registry) -> None:
    auth = token(registry)
    registry.manage("PATCH", "installation", json={"anonymous": False})
    assert refused(registry.get("token", auth=None)) == (401, "UNAUTHORIZED")
    assert registry.get("oci/app/manifests/latest", auth=auth).status_code == 401


@pytest.mark.parametrize(("trusted", "base"), [("127.0.0.1", "https://reg.example"), ("10.9.9.9", "http://localhost")])
def test_ho_oci_6_addresses_follow_trusted_proxies_alone(
    house: House, database_url: str, tmp_path: Path, trusted: str, base: str
) -> None:
    house.repository("oci", format="oci")
    registry = Registry(house, database_url, tmp_path / "data", ARKVORY_TRUSTED_PROXIES=trusted)
    try:
        told = {"X-Forwarded-Proto": "https", "X-Forwarded-Host": "reg.example"}
        answer = registry.post("oci/a/blobs/uploads/", headers=told)
        assert answer.headers["Location"].startswith(f"{base}/v2/oci/a/blobs/uploads/")
        realm = challenge(registry.get("", auth=None, headers=told))
        assert realm == {"realm": f"{base}/v2/token", "service": base.partition("://")[2]}
    finally:
        registry.close()
