"""What is done to one upload finds it by its key, however many others are open (DESIGN 1: limits cost milliseconds at millions of rows)."""

from __future__ import annotations

from uuid import uuid4

import pytest
from sqlalchemy import TextClause, text

from app.upload import multipart, sessions
from tests.support.house import House

OPEN_UPLOADS = 1_000
LEASE = "now() + interval '1 hour'"
_UPLOADS = "insert into arkvory_uploads (id, repository_id, status, bytes, lease_until) select gen_random_uuid(), 1,"
STATEMENTS = {"hold": sessions._HOLD, "note": sessions._NOTE, "claim": multipart._CLAIM, "touch": multipart._TOUCH}


@pytest.mark.parametrize("statement", STATEMENTS.values(), ids=STATEMENTS)
def test_one_of_many_open_uploads_is_found_by_its_key(house: House, statement: TextClause) -> None:
    house.repository()
    values = dict.fromkeys(statement._bindparams, 60) | {"id": str(uuid4()), "holder": str(uuid4()), "target": "t", "owner": "o"}
    with house.parts.database.request.connect() as connection:
        connection.execute(text(f"{_UPLOADS} 'published', 1, null from generate_series(1, :count)"), {"count": 200 * OPEN_UPLOADS})
        connection.execute(text(f"{_UPLOADS} 'open', 1, {LEASE} from generate_series(1, :count)"), {"count": OPEN_UPLOADS})
        connection.execute(text("analyze arkvory_uploads"))
        plan = "\n".join(connection.execute(text(f"explain {statement.text}"), values).scalars())
        connection.rollback()
    assert "pk_arkvory_uploads" in plan and "ix_arkvory_uploads_open" not in plan, plan
