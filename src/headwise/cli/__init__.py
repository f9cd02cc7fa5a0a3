"""The command line: thin commands, one way to open, refuse, run, save."""

from headwise.cli.main import app, main

__all__ = ["app", "main"]
