"""`python -m headwise.cli`."""

from headwise.cli import main

main()
