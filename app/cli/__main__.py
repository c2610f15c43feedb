"""`python -m app.cli`, where the entry point is not installed."""

from app.cli import main

main()
