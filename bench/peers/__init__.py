"""Arkvory beside other servers of artifacts: installed, started, filled and asked in the same run (`python -m bench --only peers`)."""
