"""Client library of Arkvory.

    from arkvory import Client

    client.py        Client: files, lists, repositories, tokens
    uploads.py       one file up, whole or in parts         downloads.py    one file down, in ranges
    folders.py       many files                             progress.py     events, bars, lines
    transport.py     requests, login, time-outs             retry.py        when to come back
    errors.py        the tree of errors                     documents.py    what the server tells, as values
    state.py         what outlives a killed client          ctl/            the command `arkvoryctl`
"""

from arkvory.client import Client
from arkvory.documents import Artifact, Downloaded, Found, Repository, Token, Uploaded
from arkvory.errors import ArkvoryError
from arkvory.progress import Bars, Event, Lines
from arkvory.retry import NEVER, Retry
from arkvory.transport import Timeouts
from arkvory.version import __version__

__all__ = [
    "Client", "Artifact", "Downloaded", "Found", "Repository", "Token", "Uploaded", "ArkvoryError", "Bars", "Event", "Lines", "NEVER",
    "Retry", "Timeouts", "__version__",
]  # fmt: skip
