"""npm packages."""
