"""Raw files: any path, any bytes, by HTTP alone."""
