"""AutoQEC searches for neural predecoders of quantum error-correcting codes and verifies what it finds."""

__version__ = "0.1.0"
