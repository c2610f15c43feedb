"""`python -m app.jobs [PARENT METRICS]`: a worker. All that is imported below sees gevent's versions."""

from gevent import monkey

monkey.patch_all(subprocess=False, os=False, signal=False)

import sys  # noqa: E402  # after the patches
from pathlib import Path  # noqa: E402

from app.jobs.worker import main  # noqa: E402

if len(sys.argv) > 2:
    main(int(sys.argv[1]), Path(sys.argv[2]))
else:
    main()
