"""`python -m heddle` is the command line."""

from heddle.cli.main import run

if __name__ == "__main__":
    run()
