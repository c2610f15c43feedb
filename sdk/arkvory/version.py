"""Of this library: the server's own."""

__version__ = "0.1.0"
