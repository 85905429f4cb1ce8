"""hip: ask questions of documents far longer than a model's window, losing nothing."""

__version__ = "0.1.0"
