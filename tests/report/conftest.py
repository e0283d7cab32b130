"""Runs shared by the report tests."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture(scope="session")
def make_report(tiny_config, tmp_path_factory):
    """Return ``make_report(table, **sections)``, which trains a tiny run with a report and returns its directory."""
    from graphslice.report.write import write_report
    from graphslice.training import train

    def make(table: pd.DataFrame, **sections) -> Path:
        folder = tmp_path_factory.mktemp("report")
        table.to_csv(folder / "molecules.csv", index=False)
        result = train(tiny_config(folder / "molecules.csv", **sections), folder / "run")
        write_report(result.folder, result.data)
        return folder / "run"

    return make


@pytest.fixture(scope="session")
def hostile_table(demo_rows) -> pd.DataFrame:
    """Table with regression (one skewed), binary and multiclass targets, whose names and classes need HTML escaping."""
    table, draw = demo_rows.copy(), np.random.default_rng(0)
    table[HOSTILE] = table["gap_ev"]
    table['yes & "no"'] = np.where(draw.random(len(table)) < 0.4, "<b>in</b>", "out & about")
    table["several'"] = draw.choice(["</style>", "&amp;", "{{ 7 * 7 }}"], len(table))
    table["skewed"] = np.exp(3 * draw.standard_normal(len(table)))
    table.loc[5:9, "skewed"] = np.nan
    table.loc[2, "smiles"] = '"><img src=x onerror=alert(2)>'
    return table.drop(columns="gap_ev")


@pytest.fixture(scope="session")
def mixed(make_report, hostile_table) -> Path:
    names = [name for name in hostile_table.columns if name not in ("smiles", "split")]
    quoted = ",".join('"' + name.replace('"', '""') + '"' for name in names)
    return make_report(hostile_table, data={"targets": quoted, "transform": "skewed=log"})
