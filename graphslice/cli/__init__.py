"""The command line: one module per command."""

#: What shows every option of a command, those of the sections of a configuration too.
HELP_ALL = "--help-all"
