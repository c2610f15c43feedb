"""`gunicorn -c config/gunicorn.py wsgi:app`."""

from app import create_app

app = create_app()
