"""The room of Python packages: names, the upload form, a look into the archives, the indexes, the routes."""
