"""`python -m cutaway`: the command line, where the command itself is on no path."""

if __name__ == "__main__":
    from cutaway.cli.main import main

    main()
