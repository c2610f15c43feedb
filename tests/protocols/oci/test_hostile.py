"""What nobody's client sends: never 500, nothing stored that another client reads otherwise, and no way around a right."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from app.repository import listing
from tests.protocols.oci.conftest import MANIFEST, Registry, digest_of, manifest_of, refused

LAYER = b"layer" * 1000
SOME = digest_of(b"some")
HALF = "\ud800"


@pytest.mark.parametrize(
    "path",
    [
        "oci/app/tags/list?last=%00",
        f"oci/app/referrers/{SOME}?artifactType=%00",
        f"oci/app/referrers/{SOME}?last=%00",
        "_catalog?last=%00",
        "_catalog?last=oci/%00",
    ],
)
def test_a_nul_in_a_query_is_400(registry: Registry, path: str) -> None:
    registry.image("latest", LAYER)
    assert registry.get(path).status_code == 400


def test_a_mount_from_nowhere_begins_an_upload(registry: Registry) -> None:
    for source in ("oci", "oci/../x", "%ed%a0%80/x", "oci/app", ""):
        assert registry.post(f"oci/app/blobs/uploads/?mount={SOME}&from={source}").status_code == 202, source
    assert registry.post(f"oci/app/blobs/uploads/?mount={SOME}&from=oci/%00").status_code in (202, 400)


def test_a_source_that_went_meanwhile_is_as_if_it_had_never_been(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = registry.blob(LAYER, "oci/from")
    promoter = registry.parts.promoter
    readable = type(promoter).readable

    def then_gone(self: Any, *given: Any) -> Any:
        found = readable(self, *given)
        registry.house.rows("update arkvory_blobs set status = 'deleting'")
        return found

    monkeypatch.setattr(type(promoter), "readable", then_gone)
    assert registry.post(f"oci/app/blobs/uploads/?mount={digest}&from=oci/from").status_code == 202
    registry.house.assert_counted()


@pytest.mark.parametrize("change", [{"annotations": {"a": HALF}}, {"annotations": {HALF: "\x00"}}, {"artifactType": f"a{HALF}"}])
def test_half_a_character_is_told_as_clients_read_it(registry: Registry, change: dict[str, Any]) -> None:
    registry.blob(b"{}")
    body = manifest_of(subject={"mediaType": MANIFEST, "digest": SOME, "size": 2}, **change)
    assert registry.manifest(body, "latest").status_code == 201
    assert registry.get("oci/app/manifests/latest").data == body
    (told,) = registry.get(f"oci/app/referrers/{SOME}").get_json()["manifests"]
    assert "\ufffd" in json.dumps([told.get("annotations"), told["artifactType"]], ensure_ascii=False)


def with_more(text: bytes) -> bytes:
    return manifest_of().rstrip()[:-1] + b"," + text + b"}"


@pytest.mark.parametrize(
    "body",
    [
        manifest_of().decode().encode("utf-16"),
        b"\xef\xbb\xbf" + manifest_of(),
        with_more(b'"annotations": {"a": "\xed\xa0\x80"}'),
        with_more(b'"x": NaN'),
        with_more(b'"x": 1e400'),
        with_more(b'"layers": []'),
        with_more(b'"Layers": [{"digest": "' + SOME.encode() + b'", "size": 4}]'),
        with_more('"layer\u017f": []'.encode()),
        with_more(b'"x": ' + b"[" * 100_000 + b"]" * 100_000),
        with_more(b'"x": ' + b"9" * 5000),
        manifest_of() + b" {}",
        json.dumps({"schemaVersion": 2, "config": {"Digest": SOME, "digest": digest_of(b"{}")}, "layers": []}).encode(),
    ],
)
def test_what_clients_would_read_in_different_ways_is_no_manifest(registry: Registry, body: bytes) -> None:
    registry.blob(b"{}")
    assert refused(registry.manifest(body, "latest")) == (400, "MANIFEST_INVALID")
    assert refused(registry.get("oci/app/manifests/latest")) == (404, "MANIFEST_UNKNOWN")


def test_annotations_may_differ_in_case_alone(registry: Registry) -> None:
    registry.blob(b"{}")
    assert registry.manifest(manifest_of(annotations={"Size": "1", "size": "2", "SIZE": "3"}), "latest").status_code == 201


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PUT", "oci/other/manifests/new"),
        ("PUT", "oci/other/manifests/new/"),
        ("PUT", "oci/app/manifests/new"),
        ("DELETE", "oci/other/manifests/latest"),
        ("DELETE", "oci/other/manifests/latest/"),
        ("DELETE", "oci/app/manifests/latest"),
        ("GET", "oci/other/manifests/latest"),
        ("GET", "oci/other/manifests/latest/"),
        ("GET", "oci/oth%65r/manifests/latest"),
        ("GET", "oci/other%2Fmanifests/latest"),
        ("GET", "oci%2Fother/manifests/latest"),
        ("GET", f"oci/other/blobs/{digest_of(LAYER)}"),
        ("GET", "oci/other/tags/list/"),
        ("POST", "oci/other/blobs/uploads"),
        ("POST", "oci/other/blobs/uploads//"),
        ("POST", f"oci/app/blobs/uploads/?digest={digest_of(b'')}"),
    ],
)
def test_a_pass_to_pull_one_image_is_good_for_that_alone(registry: Registry, method: str, path: str) -> None:
    house = registry.house
    house.user("ada")
    house.rule("oci", "user:ada", "read", "write", "delete")
    for image in ("oci/app", "oci/other"):
        body = registry.image("latest", LAYER, image=image)
    login = "Basic " + base64.b64encode(f"ada:{house.token('ada')}".encode()).decode()
    told = registry.get("/v2/token?scope=repository:oci/app:pull", auth=login).get_json()
    answer = registry.request(method, path, data=body if method == "PUT" else b"", headers={"Content-Type": MANIFEST},
                              auth=f"Bearer {told['token']}")  # fmt: skip
    assert answer.status_code in (400, 401, 403, 404), answer.text
    assert registry.tags("oci/app") == registry.tags("oci/other") == ["latest"]


def test_a_catalogue_goes_on_behind_any_number_of_repositories_without_images(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "REPOSITORIES_LOOKED_AT", 3)
    for number in range(8):
        registry.house.repository(f"p{number}", format="oci")
    registry.house.repository("zoo", format="oci")
    for name in ("oci/app", "oci/second", "p1/app", "zoo/app"):
        registry.blob(b"{}", name)
        registry.manifest(manifest_of(), "latest", name)
    found, path = [], "_catalog?n=1"
    while path:
        answer = registry.get(path)
        found += answer.get_json()["repositories"]
        path = answer.headers.get("Link", "").partition(">")[0].removeprefix("<")
    assert found == ["oci/app", "oci/second", "p1/app", "zoo/app"]
    assert registry.get("_catalog?n=4").headers.get("Link") is None


def test_a_host_name_means_its_repository_however_the_path_is_written(registry: Registry) -> None:
    registry.house.change("oci", host="mirror.example")
    registry.image("latest", LAYER, image="oci/library/app")
    for target in ("/v2/library/app/manifests/latest", "/%76%32/library/app/manifests/latest"):
        answer = registry.app.test_client().get(
            "/", headers={"Host": "mirror.example", "Authorization": "Bearer local"},
            environ_overrides={"RAW_URI": target, "PATH_INFO": target},
        )  # fmt: skip
        assert answer.status_code == 200, target
    whole = "http://mirror.example/v2/library/app/manifests/latest"
    answer = registry.app.test_client().get(
        "/", headers={"Host": "mirror.example", "Authorization": "Bearer local"}, environ_overrides={"RAW_URI": whole}
    )
    assert answer.status_code == 200
