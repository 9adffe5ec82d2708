"""A gateway that keeps the context of AI agents small without losing anything."""

__version__ = "0.1.0"
