"""Where the bytes are: the interface of a blob store, and the one on a file system."""

from app.storage.interface import BlobStore, Incoming, OpenBlob

__all__ = ["BlobStore", "Incoming", "OpenBlob"]
