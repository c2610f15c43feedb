"""`python -m arkvory`, where the entry point is not installed."""

from arkvory.ctl import main

main()
