"""Draw the pictures of the documentation from the files of results: ``python scripts/pictures.py``.

Every picture is an SVG file in two variants, for light and dark pages. ``--data DIR`` first trains a default model on
TDC's Caco-2 table, keeps its test predictions (docs/results/caco2-test.csv) for the picture of the README, and takes
the screenshots of its report, which needs Chromium.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pandas as pd
from PIL import Image

from docs_figures import architecture, benchmarks, hero, themes
from graphslice.evaluation.plots import report_style

DOCS = Path(__file__).parents[1] / "docs"
FIGURES = DOCS / "figures"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
_TABLE = Path("tdc_admet") / "caco2_wang.csv"
TARGET = "log_permeability"
# Width and height of a screenshot in pixels, and the styles that select the two parts of the report that it shows.
_SCREEN, _PARTS = (1000, 1120), ("", "main > :not(#predictions):not(#worst) { display: none }")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help=f"folder with {_TABLE}")
    options = parser.parse_args()
    if options.data:
        record(options.data / _TABLE)
    with report_style(), themes.style():
        for name in benchmarks.PICTURES:
            themes.save(themes.to_svg(benchmarks.draw(name), name), FIGURES / name)
        themes.save(themes.to_svg(architecture.draw(), "architecture"), FIGURES / "architecture")
        themes.save(hero.hero(), FIGURES / "hero")


def record(table: Path) -> None:
    """Train a default model, and keep its test predictions and the screenshots of its report."""
    rows = pd.read_csv(table).rename(columns={"y": TARGET})
    test = rows[rows["split"] == "test"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows.to_csv(folder / "caco2.csv", index=False)
        test[["smiles"]].to_csv(folder / "test.csv", index=False)
        _graphslice("train --dataset caco2.csv --targets", TARGET, "--out runs/caco2", folder=folder)
        _graphslice("predict runs/caco2 test.csv -o predictions.csv --interval 90", folder=folder)
        found = pd.read_csv(folder / "predictions.csv")[[f"{TARGET}_{name}" for name in ("pred", "low", "high")]]
        lines = pd.concat([test[[TARGET]].reset_index(drop=True), found], axis=1).set_axis(hero.COLUMNS, axis=1)
        lines.to_csv(hero.PREDICTIONS, index=False, float_format="%.4f")
        photograph(folder / "runs" / "caco2" / "report.html", FIGURES / "report.png")


def photograph(page: Path, picture: Path) -> None:
    """Take screenshots of two parts of a report, side by side, in its light and its dark colours."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        raise SystemExit(f"none of {', '.join(BROWSERS)} is installed, which the screenshots need")
    text = page.read_text(encoding="utf-8")
    pages = {"": text, "-dark": text.replace("screen and (prefers-color-scheme: dark)", "screen")}
    width, height = _SCREEN
    for ending, variant in pages.items():
        both = Image.new("RGB", (2 * width, height))
        for number, part in enumerate(_PARTS):
            page.write_text(f"{variant}<style>{part}</style>", encoding="utf-8")
            file = page.with_name("screen.png")
            flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
            flags += [f"--window-size={width},{height}", f"--screenshot={file}", page.as_uri()]
            subprocess.run([browser, *flags], check=True, capture_output=True)
            both.paste(Image.open(file), (number * width, 0))
        both.quantize(128).save(picture.with_name(f"{picture.stem}{ending}.png"), optimize=True)


def _graphslice(*words: str, folder: Path) -> None:
    subprocess.run([sys.executable, "-m", "graphslice", *" ".join(words).split()], check=True, cwd=folder)


if __name__ == "__main__":
    main()
