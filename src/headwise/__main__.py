"""The command `headwise`, also `python -m headwise`: signals are watched for before anything large
is imported."""

import atexit
import gc
import sys

from headwise.core.interrupts import Interrupted, say, watching_signals
from headwise.core.streams import guarded_standard_streams


def main() -> None:
    """Run the command line; stopped while it is still being imported it says so like everywhere
    else."""
    # Before it ends Python looks for garbage once more among all that torch and transformers made:
    # nearly two seconds.
    atexit.register(gc.freeze)
    try:
        with guarded_standard_streams(), watching_signals():
            from headwise.cli import main as run

            run()
    except Interrupted as stopped:
        say(str(stopped))
        sys.exit(stopped.code)


if __name__ == "__main__":
    main()
