"""The command line: one file a command, each of which joins functions that a notebook could call too."""

#: What shows every option of a command, those of the sections of a configuration too.
HELP_ALL = "--help-all"
