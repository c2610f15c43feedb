"""Looking into what was uploaded, in a process of its own: `readers` starts and asks `server`, `tars` reads gzipped tar files."""
