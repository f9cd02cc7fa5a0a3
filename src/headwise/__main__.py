"""`python -m headwise` is the command `headwise`."""

from headwise.cli import main

if __name__ == "__main__":
    main()
