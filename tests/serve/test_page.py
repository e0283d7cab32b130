"""The page in a browser, served by a process: typing, predictions, explanations, a file, the CSV file."""

import csv
import io
import re
import time

import pyarrow as pa
import pytest
from headless import Browser

import graphslice as gs
from graphslice.inference.predictions import SummaryTables, output_arrays, output_columns

pytest.importorskip("uvicorn")
pytest.importorskip("fastapi_offline")
pytest.importorskip("prometheus_client")

ROWS = "document.querySelectorAll('tbody tr')"


def wait(browser: Browser, condition: str) -> None:
    end = time.monotonic() + 90
    while not browser.value(f"Boolean({condition})"):
        assert time.monotonic() < end, browser.value("document.body.innerText")
        time.sleep(0.05)


def press(browser: Browser, key: str, **more) -> None:
    text = "\r" if key == "Enter" else key
    browser.call("Input.dispatchKeyEvent", type="keyDown", key=key, text=text, **more)
    browser.call("Input.dispatchKeyEvent", type="keyUp", key=key, **more)


@pytest.mark.slow
def test_the_page(browser, start, run_directory, predictor, tmp_path):
    process = start("serve", run_directory, "--port", "0", "--device", "cpu")
    url = re.search(r"http://\S+?(?=,)", process.stdout.readline())[0]
    browser.open(url, 360, "dark")
    wait(browser, "document.getElementById('model').value === 'tiny'")

    browser.value("document.getElementById('text').focus()")
    for key in ["C", "C", "O", " ", *"<img src=x onerror=alert(1)>", "Enter", *"oops"]:
        press(browser, key)
    press(browser, "Enter", modifiers=2, windowsVirtualKeyCode=13)  # Ctrl+Enter
    wait(browser, f"{ROWS}.length === 2 && document.querySelector('img.molecule')")
    value = predictor.predict("CCO")[0, 0]
    first, second = (browser.value(f"{ROWS}[{i}].innerText") for i in range(2))
    assert "<img src=x onerror=alert(1)>" in first and f"{float(f'{value:.2g}'):g}" in first and "unbounded" in first
    assert "not a valid molecule" in second
    assert browser.value("document.querySelectorAll('img:not(.molecule)').length") == 0
    browser.value("document.querySelector('tbody button').click()")
    wait(browser, "document.querySelector('.detail img')?.naturalWidth > 0")
    assert browser.value("document.documentElement.scrollWidth <= innerWidth")

    table = tmp_path / "table.csv"
    table.write_text('number,Compound ID,SMILES\n1,"a ""b"", c",CCN\n2,d,CCCl\n')
    root = browser.call("DOM.getDocument")["root"]["nodeId"]
    node = browser.call("DOM.querySelector", nodeId=root, selector="#file")["nodeId"]
    browser.call("DOM.setFileInputFiles", nodeId=node, files=[str(table)])
    wait(browser, "document.getElementById('smiles-column').value === '2'")
    browser.value("URL.createObjectURL = blob => (blob.text().then(text => window.saved = text), '#')")
    browser.value("document.getElementById('go').click()")
    wait(browser, f"{ROWS}.length === 2 && document.getElementById('go').textContent === 'Predict'")
    browser.value("document.getElementById('download').click()")
    wait(browser, "window.saved")
    saved = list(csv.DictReader(io.StringIO(browser.value("window.saved"))))
    assert [(row["name"], row["smiles"]) for row in saved] == [('a "b", c', "CCN"), ("d", "CCCl")]
    assert [float(row["gap_ev_pred"]) for row in saved] == pytest.approx(predictor.predict(["CCN", "CCCl"])[:, 0], 1e-5)

    for pasted, column, first, rows in (
        ("CCO,x\\nCCN,y", 0, "CCO", 2),  # without a line of names
        ("CO, methanol\\nCCO, ethanol", 0, "CO", 2),
        ("CCO;1,5\\nCCN;2,5\\nC;1,0", 0, "CCO", 3),
        ("Drug_ID\\tDrug\\tY\\nA\\tCCO\\t1\\nB\\tCCN\\t2", 1, "CCO", 2),
    ):
        change = f"text.value = '{pasted}'; text.dispatchEvent(new Event('input'))"
        browser.value(f"text = document.getElementById('text'); {change}")
        assert browser.value("document.getElementById('smiles-column').value") == str(column)
        browser.value("document.getElementById('go').click()")
        wait(browser, f"{ROWS}.length === {rows} && document.getElementById('go').textContent === 'Predict'")
        assert browser.value(f"{ROWS}[0].querySelector('.smiles').textContent") == first

    # Names with commas do not make a list a table.
    browser.value("text.value = 'OCCO 1,2-ethanediol\\nCCO ethanol, pure'; text.dispatchEvent(new Event('input'))")
    assert browser.value("document.getElementById('columns').hidden") is True

    browser.value("document.getElementById('draw').open = true")
    wait(browser, "document.getElementById('editor').childElementCount")
    assert browser.console_errors() == []
    assert all(one.startswith((url, "data:", "blob:")) for one in browser.requests())


@pytest.mark.slow
def test_the_page_describes_classes_and_numbers_as_the_command_line_does(browser, start):
    process = start("serve", "adme", "--port", "0", "--device", "cpu")
    browser.open(re.search(r"http://\S+?(?=,)", process.stdout.readline())[0], 1200, "light")
    wait(browser, "document.getElementById('model').value === 'adme'")
    smiles = "CC(=O)Oc1ccccc1C(=O)O"
    change = f"text.value = '{smiles}'; text.dispatchEvent(new Event('input'))"
    browser.value(f"text = document.getElementById('text'); {change}; document.getElementById('go').click()")
    wait(browser, f"{ROWS}.length === 1")
    model, out = gs.load("adme", "cpu"), io.StringIO()
    predictions = model.predict(smiles, interval=90)
    table = pa.table({"smiles": [smiles]} | output_arrays(predictions))
    SummaryTables(model.tasks, output_columns(model.tasks, interval=90), out).write(table)
    lines = [re.split(r"  +", line)[1:3] for line in out.getvalue().splitlines()[2:-1]]
    for t, (task, (predicted, interval)) in enumerate(zip(model.tasks, lines, strict=True)):
        cell = f"document.querySelectorAll('td.target')[{t}]"
        text = browser.value(f"{cell}.innerText").split("\n")[-2:]
        if task.classes:
            named, share = predicted.split(", ")
            assert text == [named, f"{share}, {interval}"]
            place = re.search(r"[\d.e-]+", browser.value(f"{cell}.querySelector('b').style.left"))
            assert float(place[0]) == pytest.approx(float(predictions.values[0, t]))
        else:
            assert text == [predicted.removesuffix(task.unit).strip(), interval]
