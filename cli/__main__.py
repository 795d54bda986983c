"""Entry point of `autoqec` and `python -m autoqec.cli`: Ctrl-C ends it without a traceback, also during imports."""

from __future__ import annotations

import gc
import os
import sys

# Reading a long run creates many objects and no cycles; a collection per 700 objects, the default, takes a tenth of the
# command's time.
_GC_THRESHOLD = 20_000


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
