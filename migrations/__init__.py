"""Alembic migrations; `alembic -c setup.cfg` and `arkvory db upgrade` run them."""
