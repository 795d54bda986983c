"""AutoQEC searches for neural predecoders of quantum error-correcting codes and verifies what it finds."""

import logging

__version__ = "0.1.0"

logging.getLogger(__name__).addHandler(logging.NullHandler())
