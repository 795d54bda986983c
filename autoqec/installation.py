"""Version and location of the installed package; imported instead of `autoqec` itself, whose API imports the rest."""

from pathlib import Path

__version__ = "0.1.0"

PACKAGE_DIR = Path(__file__).parent  # not resolved: a virtual environment may link to the package
IMPORT_DIR = PACKAGE_DIR.resolve().parent  # the entry of sys.path for child processes that must import this package
