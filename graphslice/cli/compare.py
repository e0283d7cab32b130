"""``graphslice compare``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser, Namespace

from graphslice.cli.options import SHORT_OPTIONS, add_config_options, build_config, hide_options
from graphslice.errors import InputError
from graphslice.system.console import remark, standard_error

MODULE = "graphslice.search.compare"
EXAMPLES = "my.csv --mixers slice-quantile,softmax --budget 5m", "demo --vary model.layers=4,6"


def add_arguments(parser: ArgumentParser, arguments: list[str]) -> None:
    parser.usage = "graphslice compare [--dataset] FILE [--mixers VALUE] [--vary NAME=A,B] [options]"
    parser.add_argument(
        "--mixers",
        help="mixers, separated by commas, with settings as in csp:groups=2 or softmax:model.dim=104 (default: all)",
    )
    parser.add_argument("--seeds", type=int, metavar="N", default=3, help="runs per mixer (default: 3)")
    parser.add_argument(
        "--budget", default="10m", help="length of each run: 90s, 10m, 2h, 5000steps or 20epochs (default: 10m)"
    )
    parser.add_argument(
        "--vary",
        action="append",
        metavar="NAME=A,B",
        help="train every mixer with each of these values, as model.distance_start=false,true; repeatable",
    )
    parser.add_argument(
        "--jobs",
        type=int | None,
        metavar="N",
        help="parallel runs, each with its share of the cores and one GPU (default: one per GPU, or 1)",
    )
    parser.add_argument(
        "-o", "--out", metavar="FOLDER", help="output directory (default: comparisons/ and the name of the dataset)"
    )
    add_config_options(parser, arguments)
    hide_options(parser, ("epochs", "baselines", "refit", "ensemble", "folds"))  # a comparison sets them


def run(options: Namespace, arguments: list[str]) -> dict[str, Any]:
    """Train every variant and print the table; raise InputError for unusable input."""
    from graphslice.config import read_yaml
    from graphslice.config.reading import flattened
    from graphslice.nn.mixers import MIXERS
    from graphslice.runs.run_files import default_run_directory
    from graphslice.search.compare import compare, table
    from graphslice.search.plan import FIXED_OPTIONS, parse_variants

    for word in (argument for argument in arguments if argument.startswith("--")):
        option = word.split("=")[0]
        name = option.removeprefix("--").replace("-", "_")
        if (why := FIXED_OPTIONS.get(SHORT_OPTIONS.get(name, name))) is not None:
            raise InputError(f"{why}: leave out {option}")
    config, console = build_config(options), standard_error()
    of_file = flattened(read_yaml(Path(options.config))) if options.config else {}
    if unused := [name for name in of_file if name in FIXED_OPTIONS or name == "init_from"]:
        remark(f"not used of {options.config}: {', '.join(unused)}", console)
    variants = parse_variants(options.mixers or ",".join(MIXERS), options.vary or [])
    out = Path(options.out) if options.out else Path("comparisons") / default_run_directory(config.data).name
    try:
        result = compare(config, variants, options.seeds, options.budget, out, jobs=options.jobs, console=console)
    except KeyboardInterrupt:
        console.print("stopped; run the same command to continue", highlight=False)
        raise
    print(table(result), end="")
    return {"folder": str(out), **result}
