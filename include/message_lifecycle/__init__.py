"""Deletion you can prove, for message logs on the lakehouse."""

__version__ = "0.1.0"
