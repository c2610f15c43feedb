"""A publish document as it comes: attached files are taken out of the JSON while it is read.

npm sends a tarball as base64 in the midst of a JSON document. `Splitter` reads the body in pieces of 1 MiB. A long text of base64
under a key `data` is decoded piece by piece and handed on; everything else is the document's rest, in which a short marker stands for
each such text. A long rest is handed on too. So memory is bounded by some pieces, whatever the size of tarball and document. (A
streaming JSON parser would not do: it hands a text over when it has the whole of it.)

The only thing that must be known of JSON for this is where texts begin and end.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable

from app.errors import BodyCutShort, Invalid, TooLarge
from app.upload.receiving import PIECE, Read

MIB = 1024 * 1024
# One as long as this is taken out; shorter ones stay in the document.
LONG_TEXT = 64 * 1024
# Of the rest: what stays in memory, what is accepted, and any text in it.
KEPT = 256 * 1024
MOST_REST = 64 * MIB
LONGEST_TEXT = 8 * MIB
# A tarball and its provenance: each takes a file and room of its own.
MOST_FILES = 2

# Whole texts and what is between them, from a place outside of any; possessive, so it never looks back.
_WHOLE = re.compile(rb'[^"]*+(?:"(?:[^"\\]++|\\.)*+"[^"]*+)*+', re.DOTALL)
_DATA_KEY = re.compile(rb'"data"[ \t\r\n]*:[ \t\r\n]*\Z')
# `\/` is how some write a slash.
_LONG_TEXT = rb'"(?P<text>[A-Za-z0-9+/=\\]{%d,}+)"' % LONG_TEXT
_LONG_DATA = re.compile(rb'"data"[ \t\r\n]*:[ \t\r\n]*' + _LONG_TEXT)
_LONG_DATA_BEGUN = re.compile(_LONG_TEXT)
_BASE64_START = re.compile(rb"[A-Za-z0-9+/]{4}")
_KEY_BYTES = 64
_MARKER = "\x01attached "

Take = Callable[[bytes], None]


def marker(number: int) -> str:
    """The text that stands where an attached one was, counted from 0."""
    return f"{_MARKER}{number}"


class Rest:
    """What is left of a document: in memory while it is short, else given to what `spill` gives."""

    def __init__(self, spill: Callable[[], Take]) -> None:
        self._spill = spill
        self._take: Take | None = None
        self.kept = bytearray()
        self.size = 0
        self.tail = b""

    def add(self, data: bytes) -> None:
        """Raises TooLarge."""
        self.size += len(data)
        check_rest(self.size)
        self.tail = (self.tail + data[-_KEY_BYTES:])[-_KEY_BYTES:]
        if self._take is None and self.size > KEPT:
            self._take = self._spill()
            self._take(bytes(self.kept))
            self.kept.clear()
        if self._take is None:
            self.kept += data
        else:
            self._take(data)


def check_rest(size: int) -> None:
    """Raises TooLarge."""
    if size > MOST_REST:
        raise TooLarge(f"a document may have at most {MOST_REST} bytes beside the files in it")


class Splitter:
    """Reads one body. `attach` is called at the beginning of each long text under `data` and gives what takes its bytes, decoded."""

    def __init__(self, rest: Rest, attach: Callable[[], Take]) -> None:
        self._rest = rest
        self._attach = attach
        self._open = bytearray()
        self._decoder: _Base64 | None = None
        self.attached = 0

    def read(self, read: Read) -> None:
        """Raises Invalid for broken base64 and too many files, BodyCutShort, TooLarge, and what the takers raise."""
        while piece := read(PIECE):
            while piece:
                piece = self._outside(piece) if self._decoder is None else self._inside(piece)
        if self._decoder is not None or self._open:
            raise BodyCutShort("the document ends in the midst of a text; send it again")

    def _outside(self, piece: bytes) -> bytes:
        """Keep whole texts; what is left over begins one. Nothing of the piece is left but of a text that is taken out."""
        self._open += piece
        match = _WHOLE.match(self._open)
        assert match is not None
        if match.end():
            self._keep(bytes(self._open[: match.end()]))
            del self._open[: match.end()]
        if len(self._open) < LONG_TEXT:
            return b""
        if not _DATA_KEY.search(self._rest.tail) or not _BASE64_START.match(self._open, 1):
            if len(self._open) > LONGEST_TEXT:
                raise TooLarge(f"a text in a document may have at most {LONGEST_TEXT} bytes")
            return b""
        text = bytes(self._open[1:])
        self._open.clear()
        self._begin()
        return text

    def _keep(self, data: bytes) -> None:
        """Whole texts, but for long files that begin and end among them."""
        begun = _LONG_DATA_BEGUN.match(data) if _DATA_KEY.search(self._rest.tail) else None
        position = 0
        for match in filter(None, (begun, *_LONG_DATA.finditer(data))):
            self._rest.add(data[position : match.start("text") - 1])
            self._begin()
            self._inside(match["text"] + b'"')
            position = match.end()
        self._rest.add(data[position:])

    def _begin(self) -> None:
        if self.attached >= MOST_FILES:
            raise Invalid(f"a document brings at most {MOST_FILES} files", "_attachments")
        self._decoder = _Base64(self._attach())
        # U+0001 as JSON writes it.
        self._rest.add(f'"{marker(self.attached)}"'.replace("\x01", "\\u0001").encode())
        self.attached += 1

    def _inside(self, piece: bytes) -> bytes:
        """Decode up to the quotation mark that ends the text; what follows it."""
        assert self._decoder is not None
        end = piece.find(b'"')
        if end < 0:
            self._decoder.feed(piece)
            return b""
        self._decoder.feed(piece[:end])
        self._decoder.finish()
        self._decoder = None
        return piece[end + 1 :]


class _Base64:
    """Decodes a text in pieces, strictly."""

    def __init__(self, take: Take) -> None:
        self._take = take
        self._left = b""
        self._ended = False

    def feed(self, text: bytes) -> None:
        data = self._left + text
        held = b""
        if b"\\" in data:
            # Some write `/` as `\/`, as JSON lets them; base64 itself has no backslash.
            data, held = (data[:-1], b"\\") if data.endswith(b"\\") else (data, b"")
            data = data.replace(b"\\/", b"/")
        whole = len(data) - len(data) % 4
        self._left = data[whole:] + held
        if whole:
            self._decode(data[:whole])

    def finish(self) -> None:
        """Raises Invalid when something is missing."""
        if self._left:
            raise _broken()

    def _decode(self, text: bytes) -> None:
        if self._ended:
            raise _broken()
        self._ended = text.endswith(b"=")
        self._take(decode(text))


def decode(text: bytes | str) -> bytes:
    """Base64, strictly (RFC 4648, 4). Raises Invalid."""
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except (binascii.Error, ValueError):
        raise _broken() from None


def _broken() -> Invalid:
    return Invalid("the attached file is no base64", "_attachments")
