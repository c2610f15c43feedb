"""Which of our representations a client wants."""

from __future__ import annotations

from flask import Request


def prefers_json(request: Request) -> bool:
    """True when JSON is asked for by `?format=json`, or liked better than HTML; HTML when both are welcome alike."""
    asked = request.args.get("format")
    if asked in {"json", "html"}:
        return asked == "json"
    accepted = request.accept_mimetypes
    return accepted["application/json"] > accepted["text/html"]
