"""Entry point of `autoqec` and `python -m autoqec.cli`: Ctrl-C ends it without a traceback, also during imports."""

from __future__ import annotations

import gc
import os
import sys

# Reading a run of thousands of rounds keeps about 100,000 objects and creates hardly any cycles; each collection on the
# way visits them in vain. With Python's threshold of 700 collections take a tenth of the command's time.
_GC_THRESHOLD = 200_000


def main() -> None:
    """Run the command line."""
    gc.set_threshold(_GC_THRESHOLD)
    try:
        from autoqec.cli.autoqec import main as run
    except KeyboardInterrupt:
        sys.stderr.write("error: interrupted\n")
        sys.stderr.flush()
        os._exit(130)  # modules are half imported: nothing may run any more
    run()


if __name__ == "__main__":
    main()
