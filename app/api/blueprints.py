"""flask-smorest as this house wants it: our parser, our errors, the function's name as the operation's."""

from __future__ import annotations

import http
import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import flask_smorest
from flask import Flask, Response, request
from flask_smorest.utils import prepare_response
from gevent import get_hub
from gevent.lock import BoundedSemaphore
from marshmallow import Schema

from app.api.answers import known_caller
from app.api.parsing import Parser
from app.api.problems import CONTENT_TYPE
from app.api.schemas import ProblemOut
from app.http.identity import caller
from app.http.paths import ArtifactConverter, SegmentConverter

F = TypeVar("F", bound=Callable[..., Any])

PREFIX = "/api/v1"
CONFIGURATION = {
    "API_TITLE": "Arkvory",
    "API_VERSION": "v1",
    "OPENAPI_VERSION": "3.1.0",
    "OPENAPI_URL_PREFIX": PREFIX,
    "OPENAPI_JSON_PATH": "openapi.json",
}
SPECIFICATION = {
    "info": {"description": "Management of Arkvory. Lists are paged by cursor; errors are `application/problem+json` (RFC 9457)."},
    "security": [{"basic": []}, {"bearer": []}, {}],
}


class Blueprint(flask_smorest.Blueprint):  # type: ignore[misc]  # it has no types
    """A room of the API; whoever changes anything must first say who they are, before anything else is looked at."""

    ARGUMENTS_PARSER = Parser()

    def __init__(self, name: str, description: str) -> None:
        super().__init__(name, __name__, url_prefix=PREFIX, description=description)
        self.before_request(_authenticate)
        self.after_request(_without_type_of_nothing)

    def route(self, rule: str, *, methods: Sequence[str] = ("GET",), **options: Any) -> Callable[[F], F]:
        """Name the operation after its function, and say that any may end in a problem."""

        def add(function: F) -> F:
            documented = self.doc(operationId=function.__name__)(self.alt_response("default", response="DEFAULT_ERROR")(function))
            self.add_url_rule(rule, function.__name__, documented, methods=methods, **options)
            return function

        return add

    def arguments(self, schema: type[Schema], **options: Any) -> Callable[[F], F]:
        """As in flask-smorest; this and the next say for the type checker that a function stays what it is."""
        return cast(Callable[[F], F], super().arguments(schema, **options))

    def response(self, status_code: int, schema: type[Schema] | None = None, **options: Any) -> Callable[[F], F]:
        """As in flask-smorest."""
        return cast(Callable[[F], F], super().response(status_code, schema, **options))

    def noted(self, **notes: Any) -> Callable[[F], F]:
        """What OpenAPI is to say of a function that neither its arguments nor its answers tell."""
        return cast(Callable[[F], F], self.doc(**notes))

    def otherwise(self, status_code: int, schema: type[Schema]) -> Callable[[F], F]:
        """What a function may answer in place of its own response, as a whole `Response`."""
        return cast(Callable[[F], F], self.alt_response(status_code, schema=schema))


def _authenticate() -> None:
    if request.method in {"GET", "HEAD", "OPTIONS"}:
        caller()
    else:
        known_caller()


def _without_type_of_nothing(answer: Response) -> Response:
    if answer.status_code == 204:
        answer.headers.pop("Content-Type", None)
    return answer


class Api(flask_smorest.Api):  # type: ignore[misc]  # it has no types
    """Leaves the answering of errors to `problems`, and documents them as they are.

    The document is made when somebody asks for it: it takes most of the time that a process takes to start, and some memory.
    """

    ERROR_SCHEMA = ProblemOut

    def __init__(self, app: Flask) -> None:
        self._rooms: list[Blueprint] = []
        self._one_at_a_time = BoundedSemaphore()
        self._document: bytes | None = None
        app.config.from_mapping(CONFIGURATION)
        super().__init__(app)

    def register_blueprint(self, room: Blueprint) -> None:
        """Its routes now, its part of the document when that is made."""
        self._app.register_blueprint(room)
        self._rooms.append(room)

    def _init_spec(self, **_options: Any) -> None:
        pass

    def _register_error_handlers(self) -> None:
        pass

    def _openapi_json(self) -> Response:
        with self._one_at_a_time:
            if self._document is None:
                # Not on the loop: it takes longer than others may wait.
                self._document = get_hub().threadpool.apply(self._written)
        return Response(self._document, mimetype="application/json")

    def _written(self) -> bytes:
        super()._init_spec(**SPECIFICATION)
        schemes = self.spec.components
        schemes.security_scheme("basic", {"type": "http", "scheme": "basic", "description": "password, or a token under any name"})
        schemes.security_scheme("bearer", {"type": "http", "scheme": "bearer", "description": "a token"})
        for converter in (SegmentConverter, ArtifactConverter):
            self.register_converter(converter, lambda _: {"type": "string"})
        for room in self._rooms:
            room.register_views_in_doc(self, self._app, self.spec, name=room.name, parameters=None)
            self.spec.tag({"name": room.name, "description": room.description})
        return json.dumps(self.spec.to_dict(), indent=2).encode()

    def _register_responses(self) -> None:
        for status in http.HTTPStatus:
            self._register_response(status.name, status.phrase, carries_problem=status >= 400)
        self._register_response(self.DEFAULT_ERROR_RESPONSE_NAME, "An error", carries_problem=True)

    def _register_response(self, name: str, description: str, *, carries_problem: bool) -> None:
        response: dict[str, Any] = {"description": description}
        if carries_problem:
            response["schema"] = self.ERROR_SCHEMA
        prepare_response(response, self.spec, CONTENT_TYPE)
        self.spec.components.response(name, response, lazy=True)
