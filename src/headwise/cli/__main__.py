"""`python -m headwise.cli`."""

from headwise.cli import main

if __name__ == "__main__":
    main()
