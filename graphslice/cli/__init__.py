"""The command line: one file a command, each of which joins functions that a notebook could call too."""
