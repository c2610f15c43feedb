"""What several processes agree on: for now, who owns the storage."""
