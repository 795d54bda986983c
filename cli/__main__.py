"""Entry point of `autoqec` and `python -m autoqec.cli`: Ctrl-C ends it without a traceback, also during imports."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run the command line."""
    try:
        from autoqec.cli.autoqec import main as run
    except KeyboardInterrupt:
        sys.stderr.write("error: interrupted\n")
        sys.stderr.flush()
        os._exit(130)  # modules are half imported: nothing may run any more
    run()


if __name__ == "__main__":
    main()
