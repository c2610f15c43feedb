"""Pushing and pulling: end-1 to end-7, end-11, end-13 and end-14 of the distribution specification; each MUST of it (HO-OCI-1)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.protocols.oci.conftest import INDEX, MANIFEST, Registry, descriptor, digest_of, index_of, manifest_of, place, refused

LAYER = b"layer" * 1000


def test_a_blob_comes_back_as_it_was_pushed_whole_and_in_parts(registry: Registry) -> None:
    digest = registry.blob(LAYER)
    answer = registry.get(f"oci/app/blobs/{digest}")
    assert (answer.status_code, answer.data) == (200, LAYER)
    assert answer.headers["Docker-Content-Digest"] == digest
    head = registry.head(f"oci/app/blobs/{digest}")
    assert (head.status_code, head.headers["Content-Length"], head.headers["Docker-Content-Digest"]) == (200, str(len(LAYER)), digest)
    part = registry.get(f"oci/app/blobs/{digest}", headers={"Range": "bytes=5-9"})
    assert (part.status_code, part.data, part.headers["Content-Range"]) == (206, b"layer", f"bytes 5-9/{len(LAYER)}")
    assert registry.get(f"oci/app/blobs/{digest}", headers={"Range": "bytes=9999-"}).status_code == 416


def test_a_blob_is_in_the_image_that_it_was_pushed_to_and_in_no_other(registry: Registry) -> None:
    digest = registry.blob(LAYER)
    assert refused(registry.get(f"oci/other/blobs/{digest}")) == (404, "BLOB_UNKNOWN")
    assert registry.head(f"oci/other/blobs/{digest}").status_code == 404


def test_post_then_put_in_one_piece(registry: Registry) -> None:
    upload = registry.begin()
    answer = registry.put(f"{upload}?digest={digest_of(LAYER)}", LAYER)
    assert (answer.status_code, answer.headers["Docker-Content-Digest"]) == (201, digest_of(LAYER))
    assert registry.get(place(answer)).data == LAYER
    assert refused(registry.get(upload)) == (404, "BLOB_UPLOAD_UNKNOWN")
    registry.house.assert_counted()
    registry.house.assert_published_is_there()


def test_ho_oci_1_chunks_are_counted_and_a_gap_leaves_the_upload_usable(registry: Registry) -> None:
    body = bytes(range(256)) * 1024 * 12  # 3 MiB
    first, second, third = body[:1048576], body[1048576:2097152], body[2097152:]
    upload = registry.begin()
    answer = registry.patch(upload, first, headers={"Content-Range": "0-1048575"})
    assert (answer.status_code, answer.headers["Range"]) == (202, "0-1048575")
    answer = registry.patch(place(answer), second, headers={"Content-Range": "1048576-2097151"})
    assert (answer.status_code, answer.headers["Range"]) == (202, "0-2097151")
    state = registry.get(place(answer))
    assert (state.status_code, state.headers["Range"], place(state)) == (204, "0-2097151", upload)
    gap = registry.patch(upload, third, headers={"Content-Range": f"3145728-{3145728 + len(third) - 1}"})
    assert refused(gap) == (416, "BLOB_UPLOAD_INVALID")
    assert (gap.headers["Range"], place(gap)) == ("0-2097151", upload)
    late = registry.put(f"{upload}?digest={digest_of(body)}", third, headers={"Content-Range": f"9-{9 + len(third) - 1}"})
    assert late.status_code == 416
    done = registry.put(f"{upload}?digest={digest_of(body)}", third, headers={"Content-Range": f"2097152-{len(body) - 1}"})
    assert (done.status_code, done.headers["Docker-Content-Digest"]) == (201, digest_of(body))
    assert registry.get(place(done)).data == body
    registry.house.assert_counted()


def test_a_first_chunk_that_begins_elsewhere_is_416(registry: Registry) -> None:
    upload = registry.begin()
    assert registry.patch(upload, b"xyz", headers={"Content-Range": "3-5"}).status_code == 416
    assert registry.patch(upload, b"abc", headers={"Content-Range": "0-2"}).status_code == 202


def test_chunks_without_ranges_follow_each_other(registry: Registry) -> None:
    upload = registry.begin()
    for piece in (b"one ", b"two ", b"three"):
        assert registry.patch(upload, piece).status_code == 202
    assert registry.put(f"{upload}?digest={digest_of(b'one two three')}").status_code == 201


@pytest.mark.parametrize("content_range", ["bytes", "0", "5-2", "0-9", "a-b", "-1"])
def test_a_range_that_does_not_fit_the_body_is_400_and_the_upload_lives(registry: Registry, content_range: str) -> None:
    upload = registry.begin()
    assert refused(registry.patch(upload, b"abc", headers={"Content-Range": content_range})) == (400, "BLOB_UPLOAD_INVALID")
    assert registry.get(upload).status_code == 204


def test_an_upload_that_is_cancelled_is_gone_and_holds_nothing(registry: Registry) -> None:
    upload = registry.begin()
    registry.patch(upload, LAYER)
    assert registry.delete(upload).status_code == 204
    assert refused(registry.get(upload)) == (404, "BLOB_UPLOAD_UNKNOWN")
    assert refused(registry.patch(upload, b"more")) == (404, "BLOB_UPLOAD_UNKNOWN")
    assert registry.delete(upload).status_code == 404
    assert registry.house.counters() == {}
    assert registry.house.temporary() == []


@pytest.mark.parametrize(
    ("digest", "code"),
    [
        (digest_of(b"other"), "DIGEST_INVALID"),
        ("sha256:abc", "DIGEST_INVALID"),
        ("md5:d41d8cd98f00b204e9800998ecf8427e", "DIGEST_INVALID"),
        ("sha256:" + "A" * 64, "DIGEST_INVALID"),
    ],
)
def test_a_wrong_digest_is_400_and_leaves_nothing(registry: Registry, digest: str, code: str) -> None:
    upload = registry.begin()
    assert refused(registry.put(f"{upload}?digest={digest}", LAYER)) == (400, code)
    assert refused(registry.post(f"oci/app/blobs/uploads/?digest={digest}", data=LAYER)) == (400, code)
    registry.delete(upload)
    assert registry.house.counters() == {}
    assert registry.house.temporary() == []


def test_put_without_a_digest_is_400(registry: Registry) -> None:
    upload = registry.begin()
    assert refused(registry.put(upload, LAYER)) == (400, "BLOB_UPLOAD_INVALID")


def test_foreign_and_hostile_upload_ids_are_unknown(registry: Registry) -> None:
    registry.house.repository("second", format="oci")
    registry.house.user("ada")
    registry.house.rule("oci", "user:ada", "read", "write")
    token = f"Bearer {registry.house.token('ada')}"
    upload = registry.begin()
    id = upload.rpartition("/")[2]
    for path in (f"oci/elsewhere/blobs/uploads/{id}", f"second/app/blobs/uploads/{id}", "oci/app/blobs/uploads/no-uuid"):
        assert refused(registry.patch(path, b"x")) == (404, "BLOB_UPLOAD_UNKNOWN")
    assert refused(registry.patch(upload, b"x", auth=token)) == (404, "BLOB_UPLOAD_UNKNOWN")
    assert registry.get(upload).headers["Range"] == "0-0"


def test_an_upload_that_expired_is_unknown_and_its_bytes_are_given_back(registry: Registry) -> None:
    upload = registry.begin()
    registry.patch(upload, LAYER)
    registry.house.rows("update arkvory_uploads set lease_until = now() - interval '1 second'")
    assert refused(registry.patch(upload, b"x")) == (404, "BLOB_UPLOAD_UNKNOWN")
    registry.house.clean()
    assert registry.house.counters() == {}
    assert registry.house.temporary() == []


def test_a_manifest_comes_back_byte_for_byte_by_tag_and_by_digest(registry: Registry) -> None:
    body = registry.image("latest", LAYER)
    digest = digest_of(body)
    for reference in ("latest", digest):
        answer = registry.get(f"oci/app/manifests/{reference}")
        assert (answer.status_code, answer.data, answer.headers["Content-Type"]) == (200, body, MANIFEST)
        assert answer.headers["Docker-Content-Digest"] == digest
        head = registry.head(f"oci/app/manifests/{reference}")
        assert (head.status_code, head.headers["Content-Length"]) == (200, str(len(body)))
        again = registry.get(f"oci/app/manifests/{reference}", headers={"If-None-Match": answer.headers["ETag"]})
        assert again.status_code == 304
    answer = registry.manifest(body, digest)
    assert (answer.status_code, place(answer)) == (201, f"/v2/oci/app/manifests/{digest}")


def test_a_tag_moves_and_the_former_manifest_stays_by_its_digest(registry: Registry) -> None:
    old, new = registry.image("latest", b"old"), registry.image("latest", b"new")
    assert registry.get("oci/app/manifests/latest").data == new
    assert registry.get(f"oci/app/manifests/{digest_of(old)}").data == old
    assert registry.tags() == ["latest"]


def test_several_tags_at_once(registry: Registry) -> None:
    registry.blob(b"{}")
    body = manifest_of()
    tags = ["1.2.3", "1.2", "1", "latest", *(f"more-{number}" for number in range(8))]
    query = "&".join(f"tag={each}" for each in [*tags, "latest"])
    answer = registry.manifest(body, f"{digest_of(body)}?{query}")
    assert (answer.status_code, answer.headers["OCI-Tag"].split(", ")) == (201, tags)
    assert registry.tags() == sorted(tags)
    assert all(registry.get(f"oci/app/manifests/{each}").data == body for each in tags)
    registry.house.assert_counted()
    registry.house.assert_published_is_there()
    assert refused(registry.manifest(body, f"{digest_of(body)}?tag=..%2F")) == (400, "NAME_INVALID")


def test_indexes_docker_lists_and_unknown_artifact_types(registry: Registry) -> None:
    image = registry.image("image", LAYER)
    assert registry.manifest(index_of(image), "index", media_type=INDEX).status_code == 201
    assert registry.get("oci/app/manifests/index").headers["Content-Type"] == INDEX
    kinds = "application/vnd.docker.distribution.manifest"
    docker = manifest_of(LAYER, media_type=f"{kinds}.v2+json")
    assert registry.manifest(docker, "docker", media_type=f"{kinds}.v2+json").status_code == 201
    listed = index_of(docker, mediaType=f"{kinds}.list.v2+json")
    assert registry.manifest(listed, "list", media_type=f"{kinds}.list.v2+json").status_code == 201
    assert registry.get("oci/app/manifests/list").headers["Content-Type"] == f"{kinds}.list.v2+json"
    assert registry.manifest(manifest_of(artifactType="application/vnd.nobody.knows"), "strange").status_code == 201


def test_a_layer_that_is_foreign_need_not_be_here(registry: Registry) -> None:
    registry.blob(b"{}")
    foreign = descriptor(b"elsewhere", "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip", urls=["https://example.org/layer"])
    assert registry.manifest(manifest_of(layers=[foreign]), "windows").status_code == 201


def test_a_manifest_that_names_absent_blobs_is_refused_and_stores_nothing(registry: Registry) -> None:
    registry.blob(b"{}")
    before = registry.house.epochs("oci")
    answer = registry.manifest(manifest_of(b"absent"), "latest")
    assert refused(answer) == (404, "MANIFEST_BLOB_UNKNOWN")
    assert answer.get_json()["errors"][0]["detail"] == [f"app/blobs/{digest_of(b'absent')}"]
    assert refused(registry.manifest(index_of(b"absent"), "latest", media_type=INDEX)) == (404, "MANIFEST_BLOB_UNKNOWN")
    assert refused(registry.get("oci/app/manifests/latest")) == (404, "MANIFEST_UNKNOWN")
    assert registry.house.epochs("oci") == before
    registry.house.assert_counted()


@pytest.mark.parametrize(
    ("body", "media_type"),
    [
        (b"no json", MANIFEST),
        (b"[]", MANIFEST),
        (b"{}", MANIFEST),
        (b'{"schemaVersion": 1}', "application/vnd.docker.distribution.manifest.v1+prettyjws"),
        (manifest_of(), INDEX),
        (manifest_of(config=b"{}"), "text/plain"),
        (b'{"schemaVersion": 2, "config": {"digest": "sha256:short"}}', MANIFEST),
        (b'{"schemaVersion": 2, "config": {"digest": "sha256:' + b"0" * 64 + b'", "size": -1}}', MANIFEST),
        (b'{"schemaVersion": 2, "layers": {}}', MANIFEST),
        (b'{"schemaVersion": 2, "mediaType": 3}', MANIFEST),
        (b"[" * 100_000, MANIFEST),
    ],
)
def test_what_is_no_manifest_is_400(registry: Registry, body: bytes, media_type: str) -> None:
    registry.blob(b"{}")
    status, code = refused(registry.manifest(body, "latest", media_type=media_type))
    assert status == 400
    assert code in {"MANIFEST_INVALID", "DIGEST_INVALID"}


def test_a_manifest_has_at_most_4_mib(registry: Registry) -> None:
    registry.blob(b"{}")
    most = 4 * 1024 * 1024
    body = manifest_of(annotations={"padding": ""})
    whole = body.replace(b'"padding": ""', b'"padding": "' + b"x" * (most - len(body)) + b'"')
    assert len(whole) == most
    assert registry.manifest(whole, "large").status_code == 201
    assert registry.get("oci/app/manifests/large").data == whole
    assert refused(registry.manifest(whole + b" ", "larger")) == (413, "MANIFEST_INVALID")


def test_a_manifest_under_another_digest_is_refused(registry: Registry) -> None:
    registry.blob(b"{}")
    assert refused(registry.manifest(manifest_of(), digest_of(b"other"))) == (400, "DIGEST_INVALID")


def test_sha512_is_a_digest_as_good_as_sha256(registry: Registry) -> None:
    digest = digest_of(LAYER, "sha512")
    assert registry.put(f"{registry.begin()}?digest={digest}", LAYER).status_code == 201
    upload = registry.begin(query="?digest-algorithm=sha512")
    assert registry.patch(upload, LAYER[:100]).status_code == 202
    assert registry.put(f"{upload}?digest={digest}", LAYER[100:]).status_code == 201
    answer = registry.get(f"oci/app/blobs/{digest}")
    assert (answer.data, answer.headers["Docker-Content-Digest"]) == (LAYER, digest)
    registry.blob(b"{}")
    body = manifest_of(layers=[{"mediaType": "application/octet-stream", "digest": digest, "size": len(LAYER)}])
    name = digest_of(body, "sha512")
    answer = registry.manifest(body, f"{name}?tag=long")
    assert (answer.status_code, answer.headers["Docker-Content-Digest"]) == (201, name)
    for reference in (name, "long"):
        assert registry.get(f"oci/app/manifests/{reference}").headers["Docker-Content-Digest"] == name
    assert refused(registry.post("oci/app/blobs/uploads/?digest-algorithm=md5")) == (400, "DIGEST_INVALID")
    assert len(list(registry.house.files())) == 3, "the same bytes are stored once"


def test_a_body_in_many_pieces_is_hashed_as_it_comes_and_read_once_more_after_a_hop(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    from app.upload import receiving

    read: list[object] = []
    hash_file = receiving._hash_file
    monkeypatch.setattr(receiving, "_hash_file", lambda path, names: (read.append(path), hash_file(path, names))[1])
    upload = registry.begin()
    registry.patch(upload, LAYER)
    assert registry.put(f"{upload}?digest={digest_of(LAYER + b'end')}", b"end").status_code == 201
    assert read == []
    upload = registry.begin()
    registry.patch(upload, LAYER)
    registry.parts.sessions._progress.clear()  # as in another process
    assert registry.put(f"{upload}?digest={digest_of(LAYER + b'end!')}", b"end!").status_code == 201
    assert len(read) == 1


@pytest.mark.parametrize("name", ["oci/App", "oci/-app", "oci/app--", "oci/a..b", "oci/" + "a" * 513, "oci/%C3%A9", "oci/a%20b"])
def test_hostile_names_are_400_for_reads_and_writes(registry: Registry, name: str) -> None:
    digest = digest_of(LAYER)
    assert refused(registry.get(f"{name}/manifests/latest")) == (400, "NAME_INVALID")
    assert refused(registry.get(f"{name}/blobs/{digest}")) == (400, "NAME_INVALID")
    assert refused(registry.post(f"{name}/blobs/uploads/")) == (400, "NAME_INVALID")
    assert refused(registry.manifest(manifest_of(), "latest", image=name)) == (400, "NAME_INVALID")


@pytest.mark.parametrize("tag", [".hidden", "-x", "a" * 129, "a%20b", "a+b"])
def test_hostile_tags_are_400_for_writes_and_unknown_for_reads(registry: Registry, tag: str) -> None:
    registry.blob(b"{}")
    assert refused(registry.manifest(manifest_of(), tag)) == (400, "NAME_INVALID")
    assert refused(registry.get(f"oci/app/manifests/{tag}")) == (404, "MANIFEST_UNKNOWN")


def test_paths_that_leave_their_folder_are_400(registry: Registry) -> None:
    for path in ("/v2/oci/../app/manifests/latest", "/v2/oci/app/%2e%2e/manifests/x", "/v2/oci/app%00/manifests/x"):
        assert refused(registry.get(path, environ_overrides={"RAW_URI": path}))[0] == 400


def test_what_is_not_there_is_404_and_what_is_not_taken_405(registry: Registry) -> None:
    assert refused(registry.get("oci/absent/tags/list")) == (404, "NAME_UNKNOWN")
    assert refused(registry.get("nowhere/app/manifests/latest")) == (404, "MANIFEST_UNKNOWN")
    assert refused(registry.get("oci/app/strange/thing")) == (404, "NAME_UNKNOWN")
    answer = registry.post("oci/app/manifests/latest")
    assert refused(answer) == (405, "UNSUPPORTED")
    assert "GET" in answer.headers["Allow"]


def test_an_upload_that_another_request_keeps_is_429(registry: Registry) -> None:
    upload = registry.begin()
    registry.house.rows("update arkvory_uploads set holder = gen_random_uuid(), held_until = now() + interval '1 minute'")
    answer = registry.patch(upload, b"more")
    assert refused(answer) == (429, "TOOMANYREQUESTS")
    assert answer.headers["Retry-After"] == "1"


def test_who_has_too_many_uploads_open_is_told_when_to_come_again(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    admission = registry.parts.admission
    monkeypatch.setattr(admission, "_settings", replace(admission._settings, max_open_uploads_per_user=1))
    upload = registry.begin()
    answer = registry.post("oci/app/blobs/uploads/")
    assert refused(answer) == (429, "TOOMANYREQUESTS")
    assert answer.headers["Retry-After"] == "30"
    assert registry.delete(upload).status_code == 204
    registry.begin()
