"""Entry point of the command line: dispatches to a command and reports bad input in one sentence."""

from __future__ import annotations

import os

# OpenMP threads spin while they wait: on two cores, training next to one other process took four times as long.
# torch reads the variable when it is loaded, so it is set first.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from graphslice.system.machine import allowed_cores, cores

if cores() < allowed_cores():  # the quota of a container, which OpenMP does not know
    os.environ.setdefault("OMP_NUM_THREADS", str(cores()))

import argparse
import gc
import io
import json
import re
import signal
import sys
import textwrap
from collections.abc import Iterable
from contextlib import redirect_stdout
from importlib import import_module
from types import ModuleType
from typing import IO, TYPE_CHECKING, Any

from jsonargparse import ArgumentParser, DefaultHelpFormatter

from graphslice._version import __version__
from graphslice.cli import HELP_ALL
from graphslice.errors import InputError, nearest
from graphslice.system.console import interrupts_deferred, log_printed, signals_handled

if TYPE_CHECKING:
    import pyarrow as pa

#: Help line of each command, by group. The module of the same name, of which only the called one is imported, defines
#: ``add_arguments(parser, arguments)``, given the command line after the command's name, ``run(options, arguments)``,
#: which returns the document of ``--json``, ``MODULE``, the module that ``run`` imports, and ``EXAMPLES`` of its use.
GROUPS = {
    "start": {
        "train": "Train a model on a table, the demo set or PCQM4Mv2 of OGB-LSC.",
        "predict": "Predict properties of a file of molecules, or of SMILES.",
        "evaluate": "Evaluate a model on labelled molecules; on PCQM4Mv2 with OGB's evaluator.",
        "report": "Regenerate the HTML report of a run.",
    },
    "use": {
        "inspect": "Explain predictions: contributions of atoms (Shapley values), drawn on the molecule.",
        "fingerprint": "Compute learned embeddings (neural fingerprints) of molecules.",
        "serve": "Serve models over HTTP: a JSON API and a page for the browser.",
        "mcp": "Serve tools for language models: the Model Context Protocol over standard input and output.",
    },
    "share": {
        "push": "Upload a model to the Hugging Face Hub, with a model card.",
        "export": "Export a model to ONNX.",
        "submit": "Write the files of an entry to OGB-LSC (PCQM4Mv2), by one run or the average of several.",
    },
    "more": {
        "tune": "Search hyperparameters within a budget, by inner validation, and train with the best.",
        "compare": "Compare mixers (replacements of self-attention): same data, same budget, same seeds.",
        "pretrain": "Pretrain a model on computed properties of many molecules, for --init-from.",
        "featurize": "Preprocess a large dataset once, into a memory-mapped Arrow file.",
        "import-checkpoint": "Convert a Graphormer or Sliceformer checkpoint (file or published name).",
        "doctor": "Check the installation: hardware, correctness and speed of the compiled kernels.",
    },
}
COMMANDS = {name: text for group in GROUPS.values() for name, text in group.items()}
# Commands that print no results.
_SERVERS = ("serve", "mcp")
# Commands of which several processes may be parts of one run.
_DISTRIBUTED = ("train", "pretrain")
# Commands of a table, which may stand without --dataset; alone they print their help. Options of them without a value.
_OF_TABLE, _FLAGS = ("train", "tune", "compare"), ("--overwrite", "--json", "-v", "--verbose")
# Commands that go on where they were stopped.
_CONTINUED = (*_DISTRIBUTED, "tune", "compare")


def main(arguments: list[str] | None = None) -> int:
    """Run a command and return its exit code: 0, 1 if a check failed, 2 for unusable input, 130 after Ctrl-C. SIGTERM
    ends it with exit code 143, but stops what can be continued as Ctrl-C does. With ``--json`` one document goes to
    standard output, and everything else to standard error."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if isinstance(sys.stdout, io.TextIOWrapper):  # encodings other than UTF-8 lack characters of names
        sys.stdout.reconfigure(errors="backslashreplace")
    unhandled = [signal.SIGTERM] if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL else []
    # The exception lets temporary files be removed.
    can_continue = arguments[:1] and arguments[0] in _CONTINUED
    handler = signal.default_int_handler if can_continue else lambda number, frame: sys.exit(128 + number)
    with signals_handled(handler, unhandled):
        return _run_with_output(with_dataset(arguments))


def with_dataset(arguments: list[str]) -> list[str]:
    """Name the option of a table that stands first or last without it, which argparse takes for another value."""
    if not arguments or (arguments[0] in _OF_TABLE and len(arguments) == 1):
        return [*arguments, "--help"]
    command, *words = arguments
    if command not in _OF_TABLE or any(word.partition("=")[0] in ("--dataset", "--data.dataset") for word in words):
        return arguments
    for place, before in ((0, ""), (-1, words[-2] if len(words) > 1 else "")):
        if not words[place].startswith("-") and (not before.startswith("-") or "=" in before or before in _FLAGS):
            words[place] = f"--dataset={words[place]}"
            break
    return [command, *words]


def _run_with_output(arguments: list[str]) -> int:
    if "--json" not in arguments:
        return _run(arguments, None)
    from graphslice.system.processes import is_first_process

    with open(os.devnull, "w") as nowhere:
        is_quiet = arguments[0] in _DISTRIBUTED and not is_first_process()
        output = JsonOutput(nowhere if is_quiet else sys.stdout)
        with redirect_stdout(sys.stderr):
            return _run(arguments, output)


def _run(arguments: list[str], output: JsonOutput | None) -> int:
    def fail(message: str) -> int:
        message = " ".join(message.split())
        print(f"graphslice: {message}", file=sys.stderr)
        if output is not None:
            try:
                output.finish({"error": message})
            except OSError:  # its disk is full
                _discard(output.file)
        return 2

    try:
        parser, command, known = _parser(arguments)
        options = parser.parse_args(["--help" if argument == HELP_ALL else argument for argument in arguments])
        assert command is not None  # anything else ended in the parser
        _load(command.MODULE)
        if "numba" in sys.modules:  # not of report, for example
            from graphslice.system import compile_note

            compile_note.announce_compilation()
        called = options[options.command]
        called.json = output
        with log_printed(details=called.get("verbose", False)):
            document = command.run(called, arguments) or {}
        if output is not None:
            output.finish(document)
        sys.stdout.flush()
        return 1 if document.get("problems") else 0
    except InputError as error:
        return fail(str(error))
    except argparse.ArgumentError as error:
        return fail(_usage_error(str(error), known))
    except KeyboardInterrupt:
        print("graphslice: stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader, such as head, closed the pipe
        _discard(sys.stdout if output is None else output.file)
        return 0
    except RuntimeError as error:
        if not any(text in str(error) for text in ("out of memory", "ALLOC_FAILED")):  # of several types
            raise
        return fail("out of GPU memory: train with a smaller --batch-size, predict with --device cpu")
    except MemoryError:
        return fail("out of memory: give fewer molecules at a time, or fewer --workers")
    except OSError as error:  # such as a full disk
        name = error.filename2 or error.filename  # the output file rather than its temporary file
        return fail(f"{error.strerror or error}{f': {name}' if name else ''}")


def _discard(file: IO[str]) -> None:
    """Write what is left in the buffer of a file, and what follows, nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), file.fileno())


class JsonOutput:
    """Writes the document of a command, or ``{"error": ...}``, in ASCII, which every terminal can encode. Rows of a
    table are written as they come, one in a line, into the array ``rows``; the other keys follow."""

    def __init__(self, file: IO[str]) -> None:
        self.file = file
        self._has_rows = False

    def write(self, chunk: pa.Table) -> None:
        """Write rows of a table."""
        from graphslice.data.tables import plain_rows  # imports pyarrow

        for row in plain_rows(chunk):
            self.file.write((",\n" if self._has_rows else '{"rows": [\n') + json.dumps(row, allow_nan=False))
            self._has_rows = True

    def finish(self, document: dict[str, Any]) -> None:
        """Write the document, after the rows if there are any."""
        from graphslice.runs.run_files import without_nan  # imports numpy

        text = json.dumps(without_nan(document), indent=None if self._has_rows else 2, allow_nan=False)
        self.file.write((f"\n], {text[1:]}" if self._has_rows else text) + "\n")
        self.file.flush()


class FullHelp(DefaultHelpFormatter):
    """Help formatter that adds the default of an option, unless there is none or the help states it."""

    def _get_help_string(self, action: argparse.Action) -> str:
        text = action.help or ""
        is_complete = action.default is None or f"(default: {action.default})" in text
        return text if is_complete else super()._get_help_string(action)


class PlainHelp(DefaultHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Help formatter that prints the help text as it is and each option once."""

    def _get_help_string(self, action: argparse.Action) -> str:
        return action.help or ""

    def _format_action_invocation(self, action: argparse.Action) -> str:
        options = [option for option in action.option_strings if not option.startswith("--data.")]
        if not options or action.nargs == 0:
            return ", ".join(options) or super()._format_action_invocation(action)
        value = self._format_args(action, str(action.metavar or "VALUE"))
        return f"{', '.join(options)} {value}"


def _load(module: str) -> None:
    """Import a module without garbage collection, which would scan a million objects and free none: a third of the time
    of a short command. Ctrl-C waits until the end: half-loaded libraries turn it into errors of their own."""
    gc.disable()
    try:
        if module not in sys.modules:
            with interrupts_deferred():
                import_module(module)
            gc.freeze()
    finally:
        gc.enable()


def _parser(arguments: list[str]) -> tuple[ArgumentParser, ModuleType | None, list[str]]:
    """Build the parser; return it with the module of the called command, the only one imported, and the names of all
    commands and options."""
    formatter = FullHelp if HELP_ALL in arguments else PlainHelp
    parser = ArgumentParser(
        prog="graphslice",
        usage="graphslice COMMAND [options]; graphslice COMMAND --help shows its options",
        formatter_class=formatter,
        description="Predict properties of molecules with graph transformers.",
        exit_on_error=False,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"graphslice {__version__}")
    # The groups describe the commands, which argparse would list as one.
    hidden: dict[str, Any] = {"help": argparse.SUPPRESS, "description": None}
    subcommands = parser.add_subcommands(dest="command", required=True, **hidden)
    for title, group in GROUPS.items():
        parser.add_argument_group(title, "\n".join(map(_command_line, group)))
    called = None
    actions = list(parser._actions)
    for name, description in COMMANDS.items():
        subparser = ArgumentParser(
            description=description, exit_on_error=False, allow_abbrev=False, formatter_class=formatter
        )
        if arguments[:1] == [name]:
            called = import_module(f"graphslice.cli.{name.replace('-', '_')}")
            called.add_arguments(subparser, arguments[1:])
            if name not in _SERVERS:
                subparser.add_argument(
                    "--json", action="store_true", help="print one JSON document: see docs/programs.md"
                )
                subparser.add_argument("-v", "--verbose", action="store_true", help="print more about the work")
            actions += subparser._actions
            required = [action for action in subparser._actions if not action.option_strings]
            positionals = [f"{a.metavar}" + " ..." * (a.nargs == "+") for a in required]
            if HELP_ALL not in arguments:
                subparser.add_argument_group(
                    "examples", "\n".join(f"graphslice {name} {one}" for one in called.EXAMPLES)
                )
            subparser.usage = subparser.usage or " ".join(["graphslice", name, *positionals, "[options]"])
        subcommands.add_subcommand(name, subparser, help=description)
    return parser, called, [*COMMANDS, *(option for action in actions for option in action.option_strings)]


def _command_line(name: str) -> str:
    return textwrap.fill(f"{name:<18}{COMMANDS[name]}", 78, subsequent_indent=" " * 18, break_on_hyphens=False)


def _usage_error(message: str, known: Iterable[str]) -> str:
    """Return an error of the parser with the nearest of the known options and commands."""
    if match := re.search(r'Parser key "([\w.]+)":.*(?:Got|Given) value: (.*)', message, re.DOTALL):
        kinds = " or ".join(dict.fromkeys(re.findall(r"[Ee]xpected an? <class '(?!NoneType)(\w+)'>", message)))
        return f"--{match[1]} must be {kinds or 'another value'}, not {match[2].strip()!r}"
    unknown = re.search(r"(?:unrecognized arguments: |invalid choice: ')([^\s=']+)", message)
    return message + (nearest(unknown[1], known) if unknown else "")


def console() -> None:
    """Entry point of the command ``graphslice``."""
    code = main()
    if "triton" not in sys.modules:  # it reports unfreed objects at exit
        gc.freeze()  # a last collection would take half a second
    sys.exit(code)
