"""Compare predictions, scores and exit codes of this checkout with recorded ones, or record them anew.

    python tests/golden/golden.py                  compare everything, and print every difference; exit code 1 if any
    python tests/golden/golden.py --only packaged  one part: see PARTS
    python tests/golden/golden.py --texts          compare the texts of reasons too, not only that there is one
    python tests/golden/golden.py --record         record the present state

It uses the command line and the public names of the package, and no name of a file in a run directory. Everything runs
on one thread of the CPU. Numbers may differ slightly between machines (vector width, BLAS), so they are compared within
a tolerance, and the last line of each part says whether all are identical to the last bit.
"""

import argparse
import csv
import io
import json
import math
import os
import signal
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
ORDINARY, UGLY, DEMO = HERE / "ordinary.csv", HERE / "ugly.csv", ROOT / "data" / "demo.csv"

TINY = {"layers": 1, "dim": 16, "heads": 2, "ffn_dim": 16, "mixer": "slice-max"}
MIXERS = (
    *("softmax", "slice-ascend", "slice-interleave", "slice-max", "slice-released", "slice-quantile", "csp"),
    *("galerkin", "fourier", "map-only"),
)
#: Options of a tiny network, trained from scratch without base models; later options take precedence.
FLAGS = (
    *(f"--model.{name}={value}" for name, value in TINY.items()),
    *("--init-from=none", "--baselines=off", "--epochs=2", "--batch-size=16", "--trainer.accelerator=cpu"),
)
#: Keys whose texts are compared only as "there is one" or "there is none".
REASONS = {"error"}

# --- molecules and tables -------------------------------------------------------------------------


def prepare_environment(cache_folder: str) -> None:
    """Use this checkout, one thread and no GPU, here and in child processes; to be called before other imports."""
    one_thread = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
    os.environ |= {"CUDA_VISIBLE_DEVICES": "", "GRAPHSLICE_CACHE": cache_folder, **dict.fromkeys(one_thread, "1")}
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
    os.environ.pop("GRAPHSLICE_MIXERS", None)
    sys.path.insert(0, str(ROOT))
    import torch

    torch.set_num_threads(1)


def file_rows(path: Path) -> list[list[str]]:
    """Read the fields of all rows of a CSV file, without the header and without empty lines."""
    with open(path, newline="", encoding="utf-8") as file:
        return [row for row in csv.reader(file) if row][1:]


@cache
def demo_rows(step: int, start: int = 0) -> list[tuple[str, float]]:
    """Return SMILES and gap of every ``step``-th molecule of the demo dataset."""
    with open(DEMO, newline="") as file:
        return [(row["smiles"], float(row["gap_ev"])) for row in csv.DictReader(file)][start::step]


def write_table(path: Path, columns: dict[str, list]) -> Path:
    """Write columns to a CSV file, with the column ``name`` before them."""
    rows = zip(*columns.values(), strict=True)
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["name", *columns])
        writer.writerows([f"m{number}", *row] for number, row in enumerate(rows))
    return path


# --- the command line and its results -------------------------------------------------------------


def command(*arguments: object) -> tuple[int, str, str]:
    """Run a command in this process, and return its exit code, standard output and standard error."""
    from graphslice.cli.main import main

    out, err = io.StringIO(), io.StringIO()
    handler = signal.getsignal(signal.SIGTERM)
    try:
        with redirect_stdout(out), redirect_stderr(err):
            code = main([str(argument) for argument in arguments])
    except SystemExit as error:
        code = error.code or 0
    finally:
        signal.signal(signal.SIGTERM, handler)
    return code, out.getvalue(), err.getvalue()


def run(*arguments: object) -> str:
    """Run a command that has to succeed, and return its standard output."""
    code, out, err = command(*arguments)
    if code:
        raise SystemExit(f"golden: graphslice {' '.join(map(str, arguments))} failed with exit code {code}: {err}")
    return out


def cell_value(cell: str) -> Any:
    """Return a cell of a table of predictions as number, boolean, None if empty, or text."""
    if cell in ("True", "False"):
        return cell == "True"
    try:
        return float(cell) if cell else None
    except ValueError:
        return cell


def predicted_table(path: Path, inputs: int) -> dict[str, Any]:
    """Read the columns that predictions added to the first ``inputs`` columns of a table."""
    with open(path, newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    return {"columns": header[inputs:], "rows": [[cell_value(cell) for cell in row[inputs:]] for row in rows]}


def predict_file(model: object, table: Path, *options: object, inputs: int = 3) -> dict[str, Any]:
    """Predict a file by the command line."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "predictions.csv"
        run("predict", model, table, "-o", out, "--workers", 1, "--device", "cpu", *options)
        return predicted_table(out, inputs)


# --- parts ----------------------------------------------------------------------------------------


def differing_rows(model: Any, table: Path, recorded: dict[str, Any], texts: bool, nearest: bool) -> list[int]:
    """Predict the complete rows of a file by the Python interface, together and every third alone.

    Return the rows whose prediction is not that of the command line. The script ends if a row has another one alone.
    """
    numbers = [number for number, row in enumerate(file_rows(table)) if len(row) == 3]
    smiles = [row[1] for row in file_rows(table) if len(row) == 3]
    predictions = model.predict(smiles, details=True, interval=90, nearest=nearest)
    frame = predictions.to_frame().astype(object)
    rows = frame.where(frame.notna(), None).to_dict("records")
    differ, close = [], WAYS_TOLERANCE
    for number, row in zip(numbers, rows, strict=True):
        of_file = dict(zip(recorded["columns"], recorded["rows"][number], strict=True))
        row = {name: None if value == "" else value for name, value in row.items()}  # an empty prediction set
        if any(differences(of_file, row, table.name, close, texts)):
            differ.append(number)
    together = list(zip(numbers, smiles, predictions.values, predictions.errors, strict=True))
    for number, text, values, error in together[::3]:
        alone = model.predict(text, details=True)
        in_batch = {"values": values.tolist(), "error": error}
        if lines := list(
            differences(in_batch, {"values": alone.values[0].tolist(), "error": alone.errors[0]}, "", close)
        ):
            raise SystemExit(f"golden: row {number} of {table.name}, in a batch and alone: {'; '.join(lines)}")
    return differ


def predict_both(model_name: object, loaded: Any, texts: bool, nearest: bool, every: int = 1) -> dict[str, Any]:
    """Predict the ordinary and the ugly rows, of which every first, second, ... is recorded."""
    result: dict[str, Any] = {}
    for table in (ORDINARY, UGLY):
        predicted = predict_file(model_name, table, "--interval", 90, *(["--nearest"] if nearest else []))
        differ = differing_rows(loaded, table, predicted, texts, nearest)
        result[table.stem] = {**predicted, "rows": predicted["rows"][::every]}
        result[f"{table.stem}: rows that the Python interface predicts otherwise"] = differ
    return result


def packaged(texts: bool) -> dict[str, Any]:
    """Predict with the packaged models; of the many numbers of adme half are recorded."""
    import graphslice as gs

    return {
        "gap": predict_both("gap", gs.load("gap", "cpu"), texts, nearest=True),
        "adme": predict_both("adme", gs.load("adme", "cpu"), texts, nearest=False, every=2),
    }


def trained(texts: bool) -> dict[str, Any]:
    """Train a small model with base models, and predict with it."""
    import graphslice as gs

    rows = demo_rows(23)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        smiles, gaps = zip(*rows, strict=True)
        table = write_table(folder / "table.csv", {"smiles": smiles, "gap": gaps})
        run(
            "train", "--dataset", table, "--targets=gap", "--id-column=name", "-o", folder / "run", *FLAGS, "--epochs=8"
        )
        model = gs.load(folder / "run", "cpu")
        return {**predict_both(folder / "run", model, texts, nearest=True), "metrics": model.metrics}


def formats(texts: bool) -> dict[str, Any]:
    """Read and write tables of every format."""
    import pandas as pd
    from rdkit import Chem

    smiles = [row[1] for row in file_rows(ORDINARY)[:90] if not {*row[1]} & {*"@/\\+"}][::4]
    smiles[3:3] = ["not a molecule"]
    frame = pd.DataFrame({"name": [f"m{n}" for n in range(len(smiles))], "smiles": smiles, "value": range(len(smiles))})
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        frame.to_csv(folder / "plain.csv", index=False)
        frame.to_csv(folder / "packed.csv.gz", index=False)
        frame.to_csv(folder / "bom.csv", index=False, encoding="utf-8-sig")
        frame.to_csv(folder / "crlf.csv", index=False, lineterminator="\r\n")
        frame.to_csv(folder / "semicolons.csv", index=False, sep=";")
        frame.to_csv(folder / "tabs.tsv", index=False, sep="\t")
        frame.to_excel(folder / "sheet.xlsx", index=False)
        frame.to_parquet(folder / "table.parquet", index=False)
        lines = [f"{text}\tm{number}\n" for number, text in enumerate(smiles)]
        (folder / "lines.smi").write_text("".join(lines))
        with Chem.SDWriter(str(folder / "records.sdf")) as writer:
            for row in frame.itertuples(index=False):
                molecule = Chem.Mol() if " " in row.smiles else Chem.MolFromSmiles(row.smiles)
                molecule.SetProp("value", str(row.value))
                writer.write(molecule)
        (folder / "tables").mkdir()
        frame[:9].to_csv(folder / "tables" / "a.csv", index=False)
        frame[9:].to_csv(folder / "tables" / "b.csv", index=False)
        for table in sorted(folder.iterdir()):
            result[f"read {table.name}"] = format_result(table, folder / "out.csv")
            (folder / "out.csv").unlink(missing_ok=True)
        for ending in ("tsv", "xlsx", "parquet"):
            out = folder / f"out.{ending}"
            run("predict", "gap", folder / "plain.csv", "-o", out, "--workers", 1)
            read = {"tsv": lambda path: pd.read_csv(path, sep="\t"), "xlsx": pd.read_excel, "parquet": pd.read_parquet}
            written = read[ending](out)
            gaps = written["gap_pred"].astype(object).where(written["gap_pred"].notna(), None)
            result[f"write {ending}"] = {"columns": list(written.columns), "gap_pred": gaps.tolist()}
    return result


def format_result(table: Path, out: Path) -> dict[str, Any]:
    """Predict a file of some format, and return the exit code, the columns, gaps and reasons."""
    code, _, err = command("predict", "gap", table, "-o", out, "--workers", 1)
    if code:
        return {"exit code": code, "error": err}
    read = predicted_table(out, 0)
    rows = [dict(zip(read["columns"], row, strict=True)) for row in read["rows"]]
    predictions = [{name: row[name] for name in ("gap_pred", "error")} for row in rows]
    return {"exit code": code, "columns": read["columns"], "rows": predictions}


def training_tables(folder: Path) -> dict[str, tuple[Path, tuple[str, ...]]]:
    """Write the tables of the tiny trainings; return each table with the options of its training."""
    from rdkit import Chem

    smiles, gaps = map(list, zip(*demo_rows(70), strict=True))
    middle = statistics.median(gaps)
    lengths = [float(len(text)) for text in smiles]
    missing = [None if n % 3 == 1 else gap for n, gap in enumerate(gaps)]
    also_missing = [None if n % 4 == 0 else length for n, length in enumerate(lengths)]
    low, high = statistics.quantiles(gaps, n=3)
    words = ["small" if gap < low else "large" if gap > high else "middling" for gap in gaps]
    bounded = [f">{gap:.1f}" if n % 5 == 0 else f"<{gap:.1f}" if n % 7 == 0 else f"{gap}" for n, gap in enumerate(gaps)]
    molecules = [Chem.MolFromSmiles(text) for text in smiles]
    atoms = [json.dumps([a.GetMass() / 10 + a.GetTotalNumHs() for a in m.GetAtoms()]) for m in molecules]
    bonds = [json.dumps([b.GetBondTypeAsDouble() + b.GetIdx() % 3 / 10 for b in m.GetBonds()]) for m in molecules]
    split = ["test" if n % 6 == 0 else "valid" if n % 6 == 3 else "train" for n in range(len(gaps))]
    gap = {"smiles": smiles, "gap": gaps}
    cases: dict[str, tuple[dict[str, list], tuple[str, ...]]] = {
        "regression": (gap, ()),
        "several targets with missing labels": (
            {"smiles": smiles, "gap": missing, "length": also_missing},
            ("--targets=gap,length",),
        ),
        "binary, with base models": (
            {"smiles": smiles, "wide": [int(value > middle) for value in gaps]},
            ("--targets=wide", "--baselines=on", "--refit=off"),
        ),
        "multiclass": ({"smiles": smiles, "size": words}, ("--targets=size", "--trainer.class_weights=balanced")),
        "bounds": ({"smiles": smiles, "gap": bounded}, ()),
        "atoms": ({"smiles": smiles, "mass": atoms}, ("--targets=mass", "--level=atom")),
        "bonds": ({"smiles": smiles, "order": bonds}, ("--targets=order", "--level=bond")),
        "scaffold split": (gap, ("--split=scaffold", "--split-sizes=0.6,0.2,0.2")),
        "cluster split, features and base models": (
            {**gap, "length": lengths},
            ("--split=cluster", "--features=length,rdkit2d", "--baselines=on"),
        ),
        "ensemble": ({**gap, "part": split}, ("--split=part", "--ensemble=2", "--transform=log")),
        "folds": (gap, ("--folds=3", "--epochs=1")),
        "weights": ({**gap, "weight": [n % 4 / 2 for n in range(len(gaps))]}, ("--weight-column=weight",)),
        "fine-tuned": (gap, ("--epochs=1",)),
    }
    return {
        name: (write_table(folder / f"{number}.csv", columns), options)
        for number, (name, (columns, options)) in enumerate(cases.items())
    }


def trainings(texts: bool) -> dict[str, Any]:
    """Train tiny models of every kind, and return their scores and some predictions."""
    import graphslice as gs

    del texts
    molecules = [row[1] for row in file_rows(ORDINARY)[::20]]
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        for number, (case, (table, options)) in enumerate(training_tables(Path(name)).items()):
            began, folder = time.perf_counter(), Path(name) / f"run{number}"
            targets = () if any(option.startswith("--targets") for option in options) else ("--targets=gap",)
            flags = FLAGS if case != "fine-tuned" else ("--init-from=small", *FLAGS[len(TINY) + 1 :])
            run("train", "--dataset", table, "--id-column=name", "-o", folder, *flags, *targets, *options)
            model = gs.load(folder, "cpu")
            columns = {"length": [float(len(text)) for text in molecules]} if "features" in case else None
            predictions = model.predict(molecules, details=True, columns=columns)
            described = model.describe()
            summary = {key: described[key] for key in ("level", "targets", "classes", "models", "parameters")}
            result[case] = {"model": summary, "metrics": model.metrics}
            if "folds" not in case:
                scores = json.loads(run("evaluate", folder, "--split", "test", "--json"))
                result[case]["evaluate"] = {key: value for key, value in scores.items() if key != "dataset"}
            result[case]["predictions"] = [values.ravel().tolist() for values in predictions.by_row]
            print(f"  {time.perf_counter() - began:5.1f} s  {case}", file=sys.stderr)
    return result


def mixers(texts: bool) -> dict[str, Any]:
    """Take one training step with each mixer, and return predictions and norms of the weights."""
    import graphslice as gs

    del texts
    smiles, gaps = map(list, zip(*demo_rows(380), strict=True))
    split = ["train"] * 8 + ["valid"] * 2 + ["test"] * (len(gaps) - 10)
    data = {"smiles": smiles, "gap": gaps, "split": split}
    result = {}
    for mixer in MIXERS:
        config = {
            "model": {**TINY, "layers": 2, "dim": 32, "heads": 4, "mixer": mixer},
            "optimizer": {"peak_lr": 0.01, "warmup_steps": 0},
            "trainer": {"batch_size": 8, "max_steps": 1, "accelerator": "cpu"},
        }
        options = {"smiles": "smiles", "split": "split", "init_from": "none", "baselines": False, "quiet": True}
        model = gs.fit(data, "gap", config=config, seed=0, **options)
        result[mixer] = {
            "predictions": model.predict(smiles)[:, 0].tolist(),
            "embeddings": [float((row.astype(float) ** 2).sum() ** 0.5) for row in model.embed(smiles)],
            "parameters": sum(p.numel() for p in model.model.parameters()),
            "norms of weights": sorted(float(p.detach().double().norm()) for p in model.model.parameters()),
        }
    return result


def mistakes(texts: bool) -> dict[str, Any]:
    """Make common mistakes, and return exit code and message."""
    del texts
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        smiles, gaps = map(list, zip(*demo_rows(300), strict=True))
        table = write_table(folder / "table.csv", {"smiles": smiles, "gap": gaps})
        (folder / "empty.csv").write_text("")
        (folder / "header.csv").write_text("smiles,gap\n")
        (folder / "other.csv").write_text("a,b\nx,1\ny,2\n")
        (folder / "open.csv").write_text('smiles,gap\nCCO,1\n"CCC,2\nCCN,3\n')
        (folder / "bytes.csv").write_bytes(b"smiles,gap\nCCO,1\nC\xff\xfeC,2\n")
        (folder / "truncated.xlsx").write_bytes(b"PK\x03\x04 not a workbook")
        (folder / "text.parquet").write_text("smiles\nCCO\n")
        unusual = sorted(path for path in folder.iterdir() if path != table)
        train = ("train", "--out", folder / "run", *FLAGS, "--dataset")
        calls: dict[str, tuple] = {
            "no command": (),
            "unknown command": ("fit",),
            "unknown model": ("predict", "no-such-model", "CCO"),
            "missing file": ("predict", "gap", folder / "none.csv"),
            "unknown option": ("predict", "gap", "CCO", "--intervall=90"),
            "interval above 100": ("predict", "gap", "CCO", "--interval=101"),
            "missing output folder": ("predict", "gap", table, "-o", folder / "none" / "out.csv"),
            "unknown SMILES column": ("predict", "gap", table, "--smiles-column=smile"),
            "one bad SMILES": ("predict", "gap", "xyz"),
            **{f"predict {path.name}": ("predict", "gap", path, "--workers=1") for path in unusual},
            "train on a missing file": (*train, folder / "none.csv"),
            "train on an empty file": (*train, folder / "empty.csv"),
            "train on a header": (*train, folder / "header.csv", "--targets=gap"),
            "train without SMILES": (*train, folder / "other.csv", "--targets=b"),
            "unknown target": (*train, table, "--targets=gab"),
            "target of names": (*train, table, "--targets=name"),
            "unknown mixer": (*train, table, "--targets=gap", "--model.mixer=softmacks"),
            "unknown setting": (*train, table, "--targets=gap", "--model.layer=2"),
            "value of another type": (*train, table, "--targets=gap", "--epochs=two"),
            "unknown split": (*train, table, "--targets=gap", "--split=scafold"),
            "evaluate without labels": ("evaluate", "gap", "--dataset", folder / "other.csv"),
        }
        result = {}
        for case, arguments in calls.items():
            code, out, err = command(*arguments)
            message = (err or out).replace(str(folder), "FOLDER").strip()
            result[case] = {"exit code": code, "error": message if code else None}
        result["files that were left"] = sorted(path.name for path in folder.iterdir() if path.is_dir())
        return result


#: The parts, and the tolerances (relative, absolute) with which their numbers are compared.
PARTS = {"packaged": packaged, "trained": trained, "formats": formats, "trainings": trainings, "mixers": mixers}
PARTS["mistakes"] = mistakes
TOLERANCE = {"packaged": (1e-5, 1e-5), "formats": (1e-5, 1e-5)}
#: Those for the command line, the Python interface, and molecules alone, which differ in the last bits.
WAYS_TOLERANCE = (1e-4, 1e-5)
TRAINED_TOLERANCE = (1e-3, 1e-4)

# --- comparison and record ------------------------------------------------------------------------


class Agreement:
    """Number of compared numbers, the largest relative difference, and whether all were identical."""

    def __init__(self) -> None:
        self.numbers, self.largest, self.identical = 0, 0.0, True

    def add(self, old: float, new: float) -> None:
        self.numbers += 1
        if old != new and not (math.isnan(old) and math.isnan(new)):
            self.identical = False
            self.largest = max(self.largest, abs(new - old) / max(abs(old), abs(new)))


def differences(
    old: Any,
    new: Any,
    path: str,
    tolerance: tuple[float, float],
    texts: bool = False,
    agreement: Agreement | None = None,
) -> Iterator[str]:
    """Compare two nested values, and yield a line for every difference beyond the relative and absolute tolerance."""
    further = (tolerance, texts, agreement)
    if isinstance(old, dict) and isinstance(new, dict) and {"columns", "rows"} <= old.keys() & new.keys():
        old, new = as_records(old), as_records(new)
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            where = f"{path} / {key}"
            if key not in new:
                yield f"{where}: is missing, was {shown(old[key])}"
            elif key not in old:
                yield f"{where}: is new, {shown(new[key])}"
            elif key in REASONS and not texts:
                if bool(old[key]) != bool(new[key]):
                    yield f"{where}: was {shown(old[key])}, is {shown(new[key])}"
            else:
                yield from differences(old[key], new[key], where, *further)
    elif isinstance(old, list) and isinstance(new, list):
        if len(old) != len(new):
            yield f"{path}: had {len(old)} items, has {len(new)}"
        for number, pair in enumerate(zip(old, new, strict=False)):
            yield from differences(*pair, f"{path} / {number}", *further)
    elif is_number(old) and is_number(new):
        if agreement is not None:
            agreement.add(old, new)
        relative, absolute = tolerance
        close = math.isclose(old, new, rel_tol=relative, abs_tol=absolute)
        if not close and not (math.isnan(old) and math.isnan(new)):
            yield f"{path}: was {old}, is {new}"
    elif old != new or type(old) is not type(new):
        yield f"{path}: was {shown(old)}, is {shown(new)}"


def as_records(table: dict[str, Any]) -> dict[str, Any]:
    """Return a table with one dict per row."""
    names = table["columns"]
    rows = [row if isinstance(row, dict) else dict(zip(names, row, strict=True)) for row in table["rows"]]
    rest = {key: value for key, value in table.items() if key not in ("columns", "rows")}
    return {**rest, "names": names, "row": rows}


def is_number(value: Any) -> bool:
    """True for numbers, False for booleans."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def shown(value: Any) -> str:
    """Return a value in at most 200 characters."""
    text = repr(value)
    return text if len(text) <= 200 else text[:200] + " ..."


def record_text(value: Any, indent: str = "") -> str:
    """Return nested values as JSON, with one line for every value that fits into one, and for every row of a table."""
    one_line = json.dumps(value, ensure_ascii=False)
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    if not any(isinstance(part, dict | list) for part in parts) or (len(one_line) < 120 and indent):
        return one_line
    inner = indent + " "
    if isinstance(value, dict):
        items = [f"{inner}{json.dumps(key)}: {record_text(part, inner)}" for key, part in value.items()]
        return "{\n" + ",\n".join(items) + f"\n{indent}}}"
    return "[\n" + ",\n".join(f"{inner}{json.dumps(part, ensure_ascii=False)}" for part in value) + f"\n{indent}]"


def compare_part(name: str, present: Any, texts: bool) -> int:
    """Compare a part with its record, print the differences, and return their number."""
    path = HERE / f"{name}.json"
    if not path.is_file():
        print(f"{name}: nothing is recorded: run with --record")
        return 1
    agreement = Agreement()
    tolerance = TOLERANCE.get(name, TRAINED_TOLERANCE)
    found = list(differences(json.loads(path.read_text()), present, name, tolerance, texts, agreement))
    for line in found:
        print(line)
    identical = "yes" if agreement.identical and not found else "no"
    largest = f"; largest relative difference of two numbers: {agreement.largest:.1g}" if agreement.largest else ""
    print(f"{name}: {agreement.numbers} numbers, differences: {len(found)}, identical: {identical}{largest}")
    return len(found)


def main(arguments: list[str] | None = None) -> int:
    """Compare or record; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true", help="record the present state")
    parser.add_argument("--only", choices=PARTS, action="append", metavar="PART", help=f"one of {', '.join(PARTS)}")
    parser.add_argument("--texts", action="store_true", help="compare the texts of reasons and errors too")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    found = 0
    with tempfile.TemporaryDirectory() as cache_folder:
        prepare_environment(cache_folder)
        for name in options.only or PARTS:
            began = time.perf_counter()
            present = json.loads(json.dumps(PARTS[name](options.texts)))  # numpy scalars and tuples as JSON has them
            if options.record:
                (HERE / f"{name}.json").write_text(record_text(present) + "\n")
                print(f"{name}: recorded")
            else:
                found += compare_part(name, present, options.texts)
            print(f"{name}: {time.perf_counter() - began:.1f} s", file=sys.stderr)
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main())
