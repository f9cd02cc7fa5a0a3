"""The command line: thin commands, one way to open, refuse, run, save."""

from headwise.cli.command import app
from headwise.cli.main import main

__all__ = ["app", "main"]
