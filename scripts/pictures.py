"""Draw the pictures of the documentation from the files of results: ``python scripts/pictures.py``.

Every picture is in two variants, for light and dark pages. ``--data DIR`` first trains a default model on TDC's Caco-2
table, keeps its test predictions (docs/results/caco2-test.csv) for the picture of the README, and takes the screenshots
of its report. ``--page`` takes those of the page of ``graphslice serve adme``. Screenshots need Chromium.
"""

import argparse
import base64
import io
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pandas as pd
from PIL import Image

from docs_figures import architecture, benchmarks, hero, themes
from graphslice.report.figures import report_style

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))
from headless import BROWSER, Browser  # noqa: E402

FIGURES = ROOT / "docs" / "figures"
# Endings of the files of both variants.
SCHEMES = {"": "light", "-dark": "dark"}
_TABLE = Path("tdc_admet") / "caco2_wang.csv"
TARGET = "log_permeability"
# Width, height and scale of the screenshot of the page, and what is done before, each with what is true afterwards.
_PAGE = (935, 640, 2)
_ROW = "[...document.querySelectorAll('tbody tr')].find(row => row.innerText.includes('warfarin'))"
_CELL = f"{_ROW}?.querySelector('[data-target=solubility]')"
_STEPS = (
    ("", "document.getElementById('model').value"),
    ("document.getElementById('example').click()", "true"),
    ("document.getElementById('go').click()", f"{_ROW}?.querySelector('img')"),
    ("window.last = -1", "scrollY === last || (last = scrollY, false)"),  # the page has scrolled to the results
    ("scrollTo(0, results.offsetTop - 8)", "scrollY > last"),
    (f"{_CELL}.click()", "!document.getElementById('card').hidden"),
)
# Width and height of a screenshot in pixels, and the styles that select the two parts of the report that it shows.
_SCREEN, _PARTS = (1000, 1120), ("", "main > :not(#predictions):not(#worst) { display: none }")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help=f"folder with {_TABLE}")
    parser.add_argument("--page", action="store_true", help="take the screenshots of the page of serve")
    options = parser.parse_args()
    if options.data:
        record(options.data / _TABLE)
    if options.page:
        photograph_page(FIGURES / "page.png")
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
    """Take screenshots of two parts of a report, side by side."""
    width, height = _SCREEN
    for ending, scheme in SCHEMES.items():
        both = Image.new("RGB", (2 * width, height))
        for number, part in enumerate(_PARTS):
            with _open(page, scheme, *_SCREEN, 1) as browser:
                style = f"Object.assign(document.createElement('style'), {{textContent: '{part}'}})"
                browser.value(f"document.head.append({style})")
                both.paste(_screenshot(browser), (number * width, 0))
        _save(both, picture, ending)


def photograph_page(picture: Path) -> None:
    """Take screenshots of the page of serve, with its example and the card of a cell."""
    command = [sys.executable, "-m", "graphslice", "serve", "adme", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        url = server.stdout.readline().split(" at ")[1].partition(",")[0]
        for ending, scheme in SCHEMES.items():
            with _open(url, scheme, *_PAGE) as browser:
                for step, done in _STEPS:
                    browser.value(step)
                    while not browser.value(f"Boolean({done})"):
                        time.sleep(0.1)
                _save(_screenshot(browser), picture, ending)
        server.terminate()


@contextmanager
def _open(page: Path | str, scheme: str, width: int, height: int, scale: float) -> Iterator[Browser]:
    if BROWSER is None:
        raise SystemExit("no Chromium is installed, which the screenshots need")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, closing(Browser(Path(folder))) as browser:
        browser.open(page, width, scheme)
        size = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": False}
        browser.call("Emulation.setDeviceMetricsOverride", **size)
        browser.call("Emulation.setScrollbarsHidden", hidden=True)
        yield browser


def _screenshot(browser: Browser) -> Image.Image:
    time.sleep(1)  # until everything is drawn
    return Image.open(io.BytesIO(base64.b64decode(browser.call("Page.captureScreenshot")["data"])))


def _save(image: Image.Image, picture: Path, ending: str) -> None:
    image.convert("RGB").quantize(128).save(picture.with_name(f"{picture.stem}{ending}.png"), optimize=True)


def _graphslice(*words: str, folder: Path) -> None:
    subprocess.run([sys.executable, "-m", "graphslice", *" ".join(words).split()], check=True, cwd=folder)


if __name__ == "__main__":
    main()
