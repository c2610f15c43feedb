"""`gunicorn -c config/gunicorn.py wsgi:app`."""

import gc

from app import create_app

# What is made here lasts: looking through it again and again takes a sixth of the start, and longer pauses later.
gc.disable()
app = create_app()
gc.freeze()
gc.enable()
