"""Robots: users who sign in by tokens alone, which administrators make for them."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from app.access.identity import Caller, Credential
from app.access.people import UserChange
from app.access.tokens import NewToken
from app.errors import Forbidden, Invalid, Unauthenticated
from tests.support.house import ADMIN, House
from tests.support.server import Server


@pytest.fixture
def robot(house: House) -> House:
    for name in ("files", "others", "third"):
        house.repository(name)
        house.publish("a", b"1", name)
    house.users.create(ADMIN, "builder", None, robot=True)
    for name in ("files", "others", "third"):
        house.rule(name, "user:builder", "read", "write")
    return house


@pytest.mark.parametrize("password", ["", "builder", "None"])
def test_no_password_signs_a_robot_in(robot: House, password: str) -> None:
    with pytest.raises(Unauthenticated):
        robot.parts.identities.identify(Credential("builder", password))


def test_a_robot_never_gets_a_password_or_all_rights(robot: House) -> None:
    for attempt, field in (
        (partial(robot.users.create, ADMIN, "other", "long-enough", robot=True), "password"),
        (partial(robot.users.create, ADMIN, "other", None, robot=True, administrator=True), "administrator"),
        (partial(robot.users.create, ADMIN, "other", None), "password"),
        (partial(robot.users.update, ADMIN, "builder", UserChange(password="long-enough")), "password"),
        (partial(robot.users.update, ADMIN, "builder", UserChange(administrator=True)), "administrator"),
    ):
        with pytest.raises(Invalid) as refused:
            attempt()
        assert refused.value.field == field
    assert robot.value("select password_hash is null and not administrator from arkvory_users where name = 'builder'")


def test_one_token_reaches_the_repositories_that_it_names(robot: House) -> None:
    token, secret = robot.tokens.create(ADMIN, NewToken("ci", ["read"], ["files", "others"], user="builder"))
    assert (token.user, token.repositories) == ("builder", ["files", "others"])
    assert [robot.outcome("a", name, secret=secret) for name in ("files", "others", "third")] == [b"1", b"1", "forbidden"]


def test_a_robot_that_is_disabled_is_nobody_on_the_next_request(robot: House) -> None:
    secret = robot.token("builder", "read")
    assert robot.outcome("a", secret=secret) == b"1"
    robot.disable("builder")
    assert robot.outcome("a", secret=secret) == "unauthenticated"
    robot.disable("builder", False)
    assert robot.outcome("a", secret=secret) == b"1"


def test_only_administrators_make_robots_and_their_tokens(robot: House) -> None:
    robot.users.create(ADMIN, "anna", "long-enough")
    anna = Caller(robot.parts.identities.identify(Credential("anna", "long-enough")), "127.0.0.1")
    for attempt in (
        partial(robot.users.create, anna, "other", None, robot=True),
        partial(robot.tokens.create, anna, NewToken("t", ["read"], user="builder")),
    ):
        with pytest.raises(Forbidden):
            attempt()


def test_a_robot_over_http(server: Server) -> None:
    made = server.post("/api/v1/users", json={"name": "ci", "robot": True})
    assert (made.status_code, made.json()["robot"]) == (201, True)
    token = server.post("/api/v1/tokens", json={"name": "t", "permissions": ["read"], "user": "ci"}).json()
    assert server.get("/api/v1/whoami", auth=("x", token["token"])).json()["user"] == "ci"
    assert server.post("/api/v1/users", json={"name": "person", "password": "x"}).json()["robot"] is False


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"name": "r", "robot": True, "password": "x"}, "password"),
        ({"name": "r", "robot": True, "administrator": True}, "administrator"),
        ({"name": "r", "robot": "yes"}, "robot"),
        ({"name": "r"}, "password"),
    ],
)
def test_bad_input_names_its_field(server: Server, body: dict[str, Any], field: str) -> None:
    answer = server.post("/api/v1/users", json=body)
    assert (answer.status_code, field in answer.json()["fields"]) == (422, True)
