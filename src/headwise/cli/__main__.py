"""`python -m headwise.cli`."""

from headwise.__main__ import main

if __name__ == "__main__":
    main()
