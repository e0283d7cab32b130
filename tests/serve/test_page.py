"""The page in a browser, served by a process: typing, files, the table, comparison, explanations, the CSV file."""

import csv
import io
import json
import re
import time
from pathlib import Path

import openpyxl
import pyarrow as pa
import pytest
from headless import Browser
from rdkit import Chem

import graphslice as gs
from graphslice.inference.predictions import SummaryTables, output_arrays, output_columns

pytest.importorskip("uvicorn")
pytest.importorskip("fastapi_offline")
pytest.importorskip("prometheus_client")

ROWS = "[...document.querySelectorAll('tbody tr[data-index]')]"
ASPIRIN = "CC(=O)Oc1ccccc1C(=O)O"


def wait(browser: Browser, condition: str) -> None:
    end = time.monotonic() + 90
    while not browser.value(f"Boolean({condition})"):
        assert time.monotonic() < end, browser.value("document.body.innerText")
        time.sleep(0.05)


def press(browser: Browser, key: str, **more) -> None:
    browser.call("Input.dispatchKeyEvent", type="keyDown", key=key, text="\r" if key == "Enter" else key, **more)
    browser.call("Input.dispatchKeyEvent", type="keyUp", key=key, **more)


def click(browser: Browser, selector: str) -> None:
    browser.value(f"document.querySelector({json.dumps(selector)}).click()")


def enter(browser: Browser, selector: str, text: str, event: str = "input") -> None:
    element = f"document.querySelector({json.dumps(selector)})"
    browser.value(f"{element}.value = {json.dumps(text)}; {element}.dispatchEvent(new Event('{event}'))")


def predict(browser: Browser, text: str | None, rows: int) -> None:
    if text is not None:
        enter(browser, "#text", text)
    click(browser, "#go")
    wait(browser, f"document.getElementById('go').textContent === 'Predict' && {ROWS}.length === {rows}")


def open_file(browser: Browser, file: Path, condition: str) -> None:
    root = browser.call("DOM.getDocument")["root"]["nodeId"]
    node = browser.call("DOM.querySelector", nodeId=root, selector="#file")["nodeId"]
    browser.call("DOM.setFileInputFiles", nodeId=node, files=[str(file)])
    wait(browser, condition)


def names(browser: Browser) -> list[str]:
    return browser.value(f"{ROWS}.map(row => row.querySelector('.name').textContent)")


def serve(browser: Browser, start, *arguments: object, width: int = 1200, scheme: str = "light") -> str:
    process = start("serve", *arguments, "--port", "0", "--device", "cpu")
    url = re.search(r"http://\S+?(?=,)", process.stdout.readline())[0]
    browser.open(url, width, scheme)
    wait(browser, "document.getElementById('model').value")
    return url


@pytest.mark.slow
def test_the_page(browser, start, run_directory, predictor, tmp_path):
    url = serve(browser, start, run_directory, width=360, scheme="dark")
    browser.value("document.getElementById('text').focus()")
    for key in ["C", "C", "O", " ", *"<img src=x onerror=alert(1)>", "Enter", *"oops"]:
        press(browser, key)
    press(browser, "Enter", modifiers=2, windowsVirtualKeyCode=13)  # Ctrl+Enter
    wait(browser, f"{ROWS}.length === 2 && document.querySelector('img.molecule')")
    value = predictor.predict("CCO")[0, 0]
    first, second = (browser.value(f"{ROWS}[{i}].innerText") for i in range(2))
    assert "<img src=x onerror=alert(1)>" in first and f"{float(f'{value:.2g}'):g}" in first and "unbounded" in first
    assert "not a valid molecule" in second
    browser.value(f"{ROWS}[0].querySelector('.target').click()")
    assert "unbounded" in browser.value("document.getElementById('card').innerText")
    assert browser.value("document.querySelectorAll('img:not(.molecule)').length") == 0
    click(browser, "tbody .name")
    click(browser, "dialog tbody button")
    wait(browser, "document.querySelector('.explained img')?.naturalWidth > 0")
    assert browser.value("document.documentElement.scrollWidth <= innerWidth")
    browser.value("document.getElementById('dialog').close()")

    text = 'sep=,\r\nnumber,Compound ID,SMILES\r\n1,"a ""b"", c",CCN\r\n2,ä,CCCl\r\n'
    (tmp_path / "table.csv").write_bytes(text.encode("cp1252"))
    open_file(browser, tmp_path / "table.csv", "document.getElementById('smiles-column').value === '2'")
    browser.value("URL.createObjectURL = blob => (window.saved = blob, '#')")
    predict(browser, None, 2)
    click(browser, "#download")
    text = "saved.arrayBuffer().then(bytes => new TextDecoder('utf-8', {ignoreBOM: true}).decode(bytes))"
    saved = list(csv.DictReader(io.StringIO(browser.value(text))))  # with the mark, without which Excel reads no ä
    assert [(row["\ufeffname"], row["smiles"]) for row in saved] == [('a "b", c', "CCN"), ("ä", "CCCl")]
    assert [float(row["gap_ev_pred"]) for row in saved] == pytest.approx(predictor.predict(["CCN", "CCCl"])[:, 0], 1e-5)

    for pasted, expected in (
        ("CO, methanol\nCCO, ethanol", {" methanol": "CO", " ethanol": "CCO"}),
        ("CCO;1,5\nCCN;2,5\nC;1,0", {"1,5": "CCO", "2,5": "CCN", "1,0": "C"}),  # without a line of names
        ("B\tCCO\nC\tCCN", {"B": "CCO", "C": "CCN"}),
        ("Acid;SMILES;Product ID\nx;CCO;7\nx;CCN;8", {"7": "CCO", "8": "CCN"}),
        ("Drug_ID\tDrug\tY\nA\tCCO\t1\nB\tCCN\t2", {"A": "CCO", "B": "CCN"}),
        ("OCCO 1,2-ethanediol\nCCO ethanol, pure", {"1,2-ethanediol": "OCCO", "ethanol, pure": "CCO"}),
        ("SMILES Name\nCCO a\nCCN b", {"a": "CCO", "b": "CCN"}),
        ("CCO a SMILES\nCCN b", {"a SMILES": "CCO", "b": "CCN"}),
        ("ID\tSMILES\na\tC[C@H](O)F |o1:1|", {"a": "C[C@H](O)F |o1:1|"}),
        ('SMILES\n"C[C@H](O)F |o1:1,r|"', {"1": "C[C@H](O)F |o1:1,r|"}),
        ("SMILES,ID,dose,pH\nCCO,a,1,5,7\nCCN,b,1.5,7", {"1": "", "b": "CCN"}),
    ):
        predict(browser, pasted, len(expected))
        smiles = browser.value(f"{ROWS}.map(row => row.querySelector('.smiles').textContent)")
        assert dict(zip(names(browser), smiles, strict=True)) == expected
    assert "5 fields where the header has 4: CCO,a,1,5,7" in browser.value(f"{ROWS}[0].innerText")

    cells = json.dumps([{"header": ["x"], "row": [cell]} for cell in ("TRUE", "false", "1.5", "1,5", "")])
    read = f"import('./input.js').then(m => m.featureColumns({{columns: ['x']}}, {cells}))"
    assert browser.value(read) == {"columns": {"x": [1, 0, 1.5, None, None]}, "unread": 1}
    browser.value("document.getElementById('draw').open = true")
    wait(browser, "document.getElementById('editor').childElementCount")
    assert browser.console_errors() == []
    assert all(one.startswith((url, "data:", "blob:")) for one in browser.requests())


@pytest.mark.slow
def test_workbooks_and_sdf_files_are_read_by_the_server(browser, start, run_directory, tmp_path):
    serve(browser, start, run_directory)
    book = openpyxl.Workbook()
    for row in (["Name", "SMILES"], ["<b>a</b>, b", "CCO"], [None, "CCN"]):
        book.active.append(row)
    book.save(tmp_path / "my book.xlsx")
    block = Chem.MolToMolBlock(Chem.MolFromSmiles("CCO"))
    (tmp_path / "my.sdf").write_text(f"<i>c</i>{block}$$$$\n\nbad\n\n 99\n$$$$\n")
    open_file(browser, tmp_path / "my book.xlsx", "document.getElementById('text').value.includes('CCN')")
    predict(browser, None, 2)
    assert names(browser) == ["<b>a</b>, b", "2"]
    open_file(browser, tmp_path / "my.sdf", "document.getElementById('status').textContent.includes('record 2')")
    predict(browser, None, 2)
    assert names(browser)[0] == "<i>c</i>" and "empty SMILES" in browser.value(f"{ROWS}[1].innerText")
    (tmp_path / "no.xlsx").write_text("no workbook")
    message = "document.querySelector('#status.error')?.textContent.includes('cannot read file.xlsx')"
    open_file(browser, tmp_path / "no.xlsx", message)
    assert browser.value("document.querySelectorAll('b:not(.bar b), i:not(.bar i):not(.swatch)').length") == 0


@pytest.mark.slow
def test_the_table_is_grouped_coloured_sorted_filtered_and_compared(browser, start):
    serve(browser, start, "adme")
    click(browser, "#example")
    predict(browser, None, 9)
    model = gs.load("adme", "cpu")
    groups = browser.value("[...document.querySelectorAll('thead .group')].map(th => [th.innerText, th.colSpan])")
    assert [name.lower() for name, _ in groups] == ["absorption", "distribution", "metabolism", "excretion", "toxicity"]
    assert sum(count for _, count in groups) == len(model.tasks)

    lines = browser.value("document.getElementById('text').value").splitlines()
    smiles, drugs = zip(*(line.split(" ", 1) for line in lines), strict=True)
    herg = model.predict([*smiles])[:, model.targets.index("herg")]
    ascending = [name for _, name in sorted(zip(herg, drugs, strict=True))]
    click(browser, "[data-column=herg] button")
    assert names(browser) == ascending
    click(browser, "[data-column=herg] button")
    assert names(browser) == ascending[::-1]
    enter(browser, "[data-column=herg] input", "<0.5", "change")
    assert names(browser) == [name for name in ascending[::-1] if dict(zip(drugs, herg, strict=True))[name] < 0.5]
    click(browser, "#groups input")  # hides a group
    assert browser.value("document.querySelectorAll('[data-target=caco2], [data-column=caco2]').length") == 0
    assert browser.value("document.querySelector('[data-column=herg]').ariaSort") == "descending"
    assert browser.value("document.querySelector('[data-column=herg] input').value") == "<0.5"
    enter(browser, "[data-column=herg] input", "bad", "change")
    assert "astemizole" in names(browser) and "caffeine" not in names(browser)
    enter(browser, "[data-column=herg] input", "", "change")
    enter(browser, "#find", "ASPI")
    assert names(browser) == ["aspirin"]
    enter(browser, "#find", "")

    # Astemizole was withdrawn for its block of hERG; the interval of a half-life holds nearly all of drugs.
    cell = f"{ROWS}.find(row => row.innerText.includes('astemizole')).querySelector('[data-target=%s]')"
    assert browser.value(f"{cell % 'herg'}.className") == "target bad"
    assert "unsure" in browser.value(f"{cell % 'half_life'}.className")
    assert browser.value("document.querySelectorAll('[data-target=logd]:is(.good, .bad, .between)').length") == 0

    browser.value(f"{ROWS}.slice(0, 4).forEach(row => row.querySelector('input').click())")
    click(browser, "#compare")
    heads = "[...document.querySelectorAll('dialog thead th')].map(th => th.innerText).join()"
    assert [name in browser.value(heads) for name in ascending[::-1][:4]] == [True, True, True, False]
    assert browser.console_errors() == []


@pytest.mark.slow
def test_a_table_of_thousands_has_few_elements(browser, start, run_directory):
    serve(browser, start, run_directory)
    enter(browser, "#text", "\n".join(f"{'C' * (1 + i % 20)}O number {i}" for i in range(3000)))
    click(browser, "#go")
    wait(browser, "document.getElementById('status').textContent.startsWith('3,000 molecules predicted')")
    assert 5 < browser.value(f"{ROWS}.length") < 60
    browser.value("scroller = document.getElementById('scroller'); scroller.scrollTop = scroller.scrollHeight")
    wait(browser, f"{ROWS}.at(-1).innerText.includes('number 2999')")
    low, high = browser.value(f"[{ROWS}.at(-1), scroller].map(one => one.getBoundingClientRect().bottom)")
    assert abs(low - high) < 20
    # Rows that left the page before they were drawn are drawn when they are back.
    for tops in ([30_000, 60_000], [30_000]):
        browser.value(f"for (scroller.scrollTop of {tops}) scroller.dispatchEvent(new Event('scroll'))")
        wait(browser, "!document.querySelector('#table .picture:empty')")


@pytest.mark.slow
def test_the_page_describes_classes_and_numbers_as_the_command_line_does(browser, start):
    serve(browser, start, "adme")
    predict(browser, ASPIRIN, 1)
    model, out = gs.load("adme", "cpu"), io.StringIO()
    # Parts of names of columns are in one line, a fade shows that columns follow, and heads describe their columns.
    parts = "[...document.querySelectorAll('thead [data-column] button')].flatMap(head => [...head.childNodes])"
    parts = f"{parts}.filter(part => part.nodeType === Node.TEXT_NODE)"
    lines = "(range = document.createRange(), range.selectNodeContents(part), range.getClientRects().length)"
    assert set(browser.value(f"{parts}.map(part => {lines})")) == {1}
    assert browser.value("document.getElementById('scroller').classList.contains('more')")
    browser.value("scroller.scrollLeft = scroller.scrollWidth")
    wait(browser, "!scroller.classList.contains('more')")
    for column, text in {"hia": model.tasks[1].description, "in_domain": "10,000 random training molecules"}.items():
        head = f"document.querySelector('[data-column={column}]')"
        browser.value(f"{head}.dispatchEvent(new Event('pointerover', {{bubbles: true}}))")
        assert text in browser.value("document.querySelector('#card p').textContent")
    table = pa.table({"smiles": [ASPIRIN]} | output_arrays(model.predict(ASPIRIN, interval=90)))
    SummaryTables(model.tasks, output_columns(model.tasks, interval=90), out).write(table)
    lines = [re.split(r"  +", line) for line in out.getvalue().splitlines()[2:-1]]
    for name, predicted, interval, percentile, description in lines:
        browser.value(f"document.querySelector('[data-target={name}]').click()")
        card = "document.getElementById('card')"
        texts = browser.value(f"[...{card}.querySelectorAll('dd')].map(dd => dd.textContent)")
        assert texts[:3] == [predicted, interval, f"{percentile} among approved drugs"]
        assert browser.value(f"{card}.querySelector('p').textContent") == description
