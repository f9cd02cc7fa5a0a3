"""The command line: thin commands, one way to open, refuse, run, save."""

from headwise.core.stopping import Stopped, say

try:
    from headwise.cli.main import app, main
except KeyboardInterrupt:  # before anything has begun
    early = Stopped("SIGINT")
    say(str(early))
    raise SystemExit(early.code) from None

__all__ = ["app", "main"]
