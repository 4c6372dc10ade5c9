"""`python -m cupola` is the command line."""

from cupola.cli import main

if __name__ == "__main__":
    main()
