"""Entry point of ``python -m graphslice``, which torchrun needs."""

from graphslice.cli.main import console

if __name__ == "__main__":
    console()
