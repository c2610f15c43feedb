"""Background jobs. On a single node they run inside the web process, off its loop of requests."""
