"""The command line: finds the command, and says in one sentence what is wrong."""

from __future__ import annotations

import os

# OpenMP's threads spin while they wait, which brings a busy machine to a halt: on two cores, training
# beside one other process took four times as long. Read when torch is loaded, so set before.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import argparse
import ctypes
import gc
import re
import signal
import sys
import threading
from contextlib import suppress
from importlib import import_module
from types import ModuleType

from jsonargparse import ArgumentParser, DefaultHelpFormatter

from graphslice._version import __version__
from graphslice.cli import HELP_ALL
from graphslice.errors import InputError, nearest

#: Each command, and what it is for. Its file here has the same name, and is read when it is called:
#: ``add_arguments(parser, arguments)``, ``run(options, arguments)``, which may return an exit code, and ``MODULE``.
COMMANDS = {
    "train": "Train a model into a run folder.",
    "compare": "Train several mixers on the same data, with the same budget and the same seeds.",
    "pretrain": "Train a model on what can be computed of many molecules, for others to start from.",
    "predict": "Predict a file of molecules, or some SMILES.",
    "fingerprint": "Turn molecules into the numbers that a model's last layer reads, for other models.",
    "report": "Write the report of a run, one page to read and to send, again.",
    "evaluate": "Judge a model on labelled molecules; on PCQM4M-LSC by OGB's evaluator.",
    "submit": "Write the files that OGB-LSC takes.",
    "featurize": "Turn the SMILES of a data set into a file that train and evaluate read at once.",
    "inspect": "Explain answers: what each atom adds to a prediction, drawn on the molecule.",
    "doctor": "Check what this machine has, that everything computes right on it, and how fast.",
    "import-checkpoint": "Make a run folder of a checkpoint of Graphormer or Sliceformer, a file or a published one.",
    "export-checkpoint": "Write a model as the original systems read it.",
}
# What the types of options are called.
_KINDS = {"int": "a whole number", "float": "a number", "bool": "true or false"}


def main(arguments: list[str] | None = None) -> int:
    """Run a command; returns its exit code: 0 or the command's own, 2 for input that cannot be used, 130 for Ctrl-C."""
    arguments = sys.argv[1:] if arguments is None else arguments
    configure_malloc()
    try:
        parser, command = _parser(arguments)
        options = parser.parse_args(["--help" if argument == HELP_ALL else argument for argument in arguments])
        assert command is not None  # the parser has refused everything else
        _load(command.MODULE)
        code = command.run(options[options.command], arguments)
        sys.stdout.flush()
        return code or 0
    except InputError as error:
        return _fail(str(error))
    except argparse.ArgumentError as error:
        return _fail(_usage_error(str(error), parser, arguments))
    except KeyboardInterrupt:
        print("graphslice: stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except RuntimeError as error:
        if type(error).__name__ != "OutOfMemoryError":  # torch's, which may not be loaded yet
            raise
        return _fail("the GPU is short of memory: train with a smaller --trainer.batch_size, predict with --device cpu")
    except MemoryError:
        return _fail("there is not enough memory: give fewer molecules at a time, or fewer --workers")
    except OSError as error:  # a full disk, say
        name = error.filename2 or error.filename  # where a temporary file was to go, rather than that file
        return _fail(f"{error.strerror or error}{f': {name}' if name else ''}")


class PlainHelp(DefaultHelpFormatter):
    """Help that says of an option what its text says, and names it once."""

    def _get_help_string(self, action: argparse.Action) -> str:
        return action.help or ""

    def _format_action_invocation(self, action: argparse.Action) -> str:
        spellings = [option for option in action.option_strings if "_" not in option]
        if not spellings or action.nargs == 0:
            return ", ".join(spellings) or super()._format_action_invocation(action)
        value = self._format_args(action, str(action.metavar or action.dest.upper()))
        return f"{', '.join(spellings)} {value}"


def configure_malloc() -> None:
    """Let glibc keep what was freed: every batch asks for the same again, and new pages cost time."""
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        for option, size in ((-1, 1 << 30), (-2, 1 << 26), (-3, 1 << 25)):  # trim threshold, top pad, mmap threshold
            mallopt(option, size)


def _load(module: str) -> None:
    """Import a module and all that it needs, without Python's garbage collector: it would look at a million objects
    again and again, and free none. Ctrl-C waits until then: libraries that are half loaded answer it with errors of
    their own.

    Raises:
        KeyboardInterrupt: if it came.
    """
    stopped: list[int] = []
    before = signal.getsignal(signal.SIGINT)
    held = before is signal.default_int_handler and threading.current_thread() is threading.main_thread()
    if held:
        signal.signal(signal.SIGINT, lambda number, frame: stopped.append(number))
    gc.disable()
    try:
        import_module(module)
    finally:
        gc.enable()
        if held:
            signal.signal(signal.SIGINT, before)
    if stopped:
        raise KeyboardInterrupt


def _fail(message: str) -> int:
    print(f"graphslice: {' '.join(message.split())}", file=sys.stderr)
    return 2


def _parser(arguments: list[str]) -> tuple[ArgumentParser, ModuleType | None]:
    """The parser, and the module of the command that is called: the others are listed, and not read."""
    formatter = DefaultHelpFormatter if HELP_ALL in arguments else PlainHelp
    parser = ArgumentParser(
        prog="graphslice",
        formatter_class=formatter,
        description="Predict properties of molecules with a graph transformer whose attention can be a sort.",
        exit_on_error=False,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"graphslice {__version__}")
    subcommands = parser.add_subcommands(dest="command", required=True)
    called = None
    for name, description in COMMANDS.items():
        subparser = ArgumentParser(
            description=description, exit_on_error=False, allow_abbrev=False, formatter_class=formatter
        )
        if arguments[:1] == [name]:
            called = import_module(f"graphslice.cli.{name.replace('-', '_')}")
            called.add_arguments(subparser, arguments[1:])
        subcommands.add_subcommand(name, subparser, help=description)
    return parser, called


def _usage_error(message: str, parser: ArgumentParser, arguments: list[str]) -> str:
    """The parser's complaint, in one sentence with the nearest right name."""
    known = [option for action in _actions(parser, arguments) for option in action.option_strings]
    if match := re.search(r"[Uu]nrecognized arguments: (\S+)", message):
        option = match.group(1).split("=")[0]
        return f"unknown option {option!r}{nearest(option, known)}"
    if match := re.search(r"arguments are required: (.*)", message):
        names = [name.strip().split(".")[-1] for name in match.group(1).split(",")]
        names = [f"--{name}" if f"--{name}" in known else name for name in names]
        return f"{arguments[0]} needs {' and '.join(names)}: see graphslice {arguments[0]} --help"
    if match := re.search(r'Parser key "([\w.]+)":\s*(.*)', message, re.DOTALL):
        return f"--{match.group(1)}: {_type_error_message(match.group(2)) or match.group(2)}"
    if arguments and not arguments[0].startswith("-") and "command" in message.lower():
        commands = [name for action in _subcommands(parser) for name in action.choices]
        if arguments[0] not in commands:
            return (
                f"unknown command {arguments[0]!r}{nearest(arguments[0], commands)}: choose from {', '.join(commands)}"
            )
    return message


def _type_error_message(message: str) -> str | None:
    """The parser's words on a value of another type than an option has, in short; None of other complaints."""
    value = re.search(r"(?:Given|Got) value: (.*)", message, re.DOTALL)
    wanted = re.findall(r"[Ee]xpected an? <class '(\w+)'>", message)
    kinds = list(dict.fromkeys(_KINDS[name] for name in wanted if name in _KINDS))
    return f"{value.group(1).strip()!r} is not {' or '.join(kinds)}" if value and kinds else None


def _actions(parser: ArgumentParser, arguments: list[str]) -> list[argparse.Action]:
    actions = list(parser._actions)
    for action in _subcommands(parser):
        if arguments and arguments[0] in action.choices:
            actions += action.choices[arguments[0]]._actions
    return actions


def _subcommands(parser: ArgumentParser) -> list[argparse._SubParsersAction]:
    return [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]


def console() -> None:
    """Entry point of the command ``graphslice``."""
    code = main()
    if "triton" not in sys.modules:  # it prints what was not freed at the end
        gc.freeze()  # the process ends here: looking for what could be freed takes half a second
    sys.exit(code)
