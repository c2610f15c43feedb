"""Listing a folder: the same as sorting all paths, whatever their names, page by page."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sqlalchemy import text

from app.repository import folders
from app.repository.folders import list_folder
from tests.conftest import NewDatabase
from tests.support.house import House

segment = st.text(st.sampled_from("ab0/.-~é\U0010ffff !"), min_size=1, max_size=3).filter(lambda name: name not in {".", ".."})
path = (
    st.lists(segment, min_size=1, max_size=3)
    .map("/".join)
    .filter(lambda made: all(part not in {"", ".", ".."} for part in made.split("/")))
)


@pytest.fixture(scope="module")
def shared(template: str, new_database: NewDatabase, tmp_path_factory: pytest.TempPathFactory) -> Any:
    house = House(new_database(template), tmp_path_factory.mktemp("folders"))
    house.repository()
    house.rows(f"insert into arkvory_blobs (digest, size, status) values ('{'0' * 64}', 1, 'live')")
    yield house
    house.close()


def expected(paths: set[str], folder: str) -> list[str]:
    below = {each[len(folder):] for each in paths if each.startswith(folder)}
    names = {name.partition("/")[0] + ("/" if "/" in name else "") for name in below}
    return sorted(names, key=lambda name: name.encode())


@settings(max_examples=60)
@given(paths=st.sets(path, max_size=14), page=st.integers(1, 4), batch=st.integers(1, 3))
@example(paths={"a/\U0010ffff", "a/b", "b"}, page=2, batch=1)
@example(paths={"\U0010ffff\U0010ffffx", "a"}, page=1, batch=1)
@example(paths={"a", "a/b", "a0", "a-"}, page=1, batch=1)
def test_a_folder_shows_what_is_directly_in_it_once_in_the_order_of_bytes(shared: House, paths: set[str], page: int, batch: int) -> None:
    with pytest.MonkeyPatch.context() as patched, shared.parts.database.request.connect() as connection:
        patched.setattr(folders, "PAGE", page)
        patched.setattr(folders, "_BATCH", batch)
        connection.execute(
            text(
                "insert into arkvory_artifacts (repository_id, path, blob_id, upload_id, content_type) "
                "select 1, path, 1, gen_random_uuid(), 'x' from unnest(cast(:paths as text[])) as path"
            ),
            {"paths": list(paths)},
        )
        inner = {each.rpartition("/")[0] + "/" for each in paths if "/" in each}
        for folder in {"", *inner}:
            shown, after = [], ""
            for _ in range(40):
                listed = list_folder(connection, 1, folder, after)
                shown += [each.name for each in listed.entries]
                assert len(listed.entries) <= page
                if listed.next is None:
                    break
                after = listed.next
            assert shown == expected(paths, folder)
        connection.rollback()


def test_a_page_may_be_asked_for_from_any_text(shared: House) -> None:
    with shared.parts.database.request.connect() as connection:
        for after in ("\0", "a\0/", "/", "\U0010ffff", "x" * 5000):
            assert list_folder(connection, 1, "", after).entries == []
