"""``python -m graphslice``, as torchrun wants it."""

from graphslice.cli.main import console

if __name__ == "__main__":
    console()
