"""Where the bytes are: the interface of a blob store, and the one on a file system."""

from app.storage.interface import BlobStore, Gathered, Incoming, OpenBlob, Whole

__all__ = ["BlobStore", "Gathered", "Incoming", "OpenBlob", "Whole"]
