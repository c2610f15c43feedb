"""What a repository does, whatever its format: read, publish, delete, list, clean up."""
