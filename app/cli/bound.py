"""https to the server of this machine: known by its certificate's digest, which it left beside its secret.

No authority need have signed it, it may have expired, and its name need not be this machine's: whoever can read the file in the data
directory knows which certificate to expect, and nothing is sent before it was seen. Loads TLS: import it only where that is wanted.
"""

from __future__ import annotations

import http.client
import urllib.request
from collections.abc import Callable, Sequence
from typing import Any

from app.cluster import localserver


class BoundHandler(urllib.request.HTTPSHandler):
    """Opens https addresses at servers with one of these certificates (SHA-256, in hexadecimal), asked for at each connection."""

    def __init__(self, certificates: Callable[[], Sequence[str]]) -> None:
        self._bound_context = localserver.context()
        super().__init__(context=self._bound_context)
        self._certificates = certificates

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(self._connection, req)

    def _connection(self, host: str, **options: Any) -> http.client.HTTPSConnection:
        return _Connection(self._certificates(), host, context=self._bound_context, **options)


class _Connection(http.client.HTTPSConnection):
    def __init__(self, certificates: Sequence[str], host: str, **options: Any) -> None:
        super().__init__(host, **options)
        self._certificates = certificates

    def connect(self) -> None:
        super().connect()
        localserver.check_certificate(self.sock, self._certificates)
