"""`python -m cutaway`: the command line, where the command itself is on no path."""

from cutaway.cli.main import main

if __name__ == "__main__":
    main()
