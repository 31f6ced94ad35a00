"""The `lifecycle` command: one module per group of commands, one boundary for errors."""

from message_lifecycle.app.cli.boundary import main

__all__ = ["main"]
