"""`python -m pelton` is the command `pelton`. It holds no code of its own."""

from pelton.cli.main import main

if __name__ == "__main__":
    main()
