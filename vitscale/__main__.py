"""`python -m vitscale`."""

from vitscale.cli.parsers import main

if __name__ == "__main__":
    main()
