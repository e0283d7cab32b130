from __future__ import annotations

import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from graphslice import smiles_to_graph
from graphslice.config import DataConfig, GraphConfig
from graphslice.data import featurize as module
from graphslice.data import store as store_module
from graphslice.data.featurize import (
    build_store,
    default_cache,
    featurize,
    featurize_dataset,
    featurize_stream,
    featurizers,
    store_of,
)
from graphslice.data.rows import Rows, rows_of
from graphslice.data.sources import load_source, pyg_source
from graphslice.data.store import GraphStore, StoreInfo
from graphslice.errors import InputError

SMILES = ["CCO", "oops", "c1ccccc1O", "", "C", "[Na+].[Cl-]", "C" * 30, "N", "O", "CC(=O)O"]
INFO = StoreInfo("some data", "", ("y",))


def rows(smiles: list[str], first: float = 0.0) -> Rows:
    return Rows(smiles, first + np.arange(float(len(smiles)))[:, None], np.zeros(len(smiles), np.int8), {})


def pieces(stop: int | None = None):
    """The rows in pieces of two; Ctrl-C before the piece of that number."""
    for begin in range(0, len(SMILES), 2):
        if begin // 2 == stop:
            raise KeyboardInterrupt
        yield rows(SMILES[begin : begin + 2], begin)


def names(folder: Path) -> list[str]:
    """What a folder shows of itself."""
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


@pytest.fixture
def shards_of_four(monkeypatch):
    monkeypatch.setattr(store_module, "ROWS", 4)
    monkeypatch.setattr(module, "rows_of", lambda pieces: rows_of(pieces, 4))


@pytest.fixture
def parsed(monkeypatch) -> list[str]:
    """Every SMILES that is parsed in this process."""
    found: list[str] = []
    read = module.read_smiles

    def listed(smiles, **settings):
        found.extend(smiles)
        return read(smiles, **settings)

    monkeypatch.setattr(module, "read_smiles", listed)
    return found


@pytest.fixture
def no_parsing(monkeypatch):
    def fails(*_, **__):
        raise AssertionError("parsed again")

    return lambda: monkeypatch.setattr(module, "read_smiles", fails)


# --- in memory ----------------------------------------------------------------------------------


def assert_rows(found: GraphStore, reasons: list[str | None], smiles: list[str], **settings) -> None:
    assert len(found) == len(reasons) == len(smiles)
    for row, text in enumerate(smiles):
        assert (reasons[row] is None) == (found.sizes[row] > 0)
        if reasons[row] is None:
            np.testing.assert_array_equal(found[row].atoms, smiles_to_graph(text, **settings).atoms)
    assert found.errors == {row: reason for row, reason in enumerate(reasons) if reason}


def test_rows_and_reasons_are_aligned():
    found, reasons = featurize(SMILES, GraphConfig(max_atoms=20))
    assert_rows(found, reasons, SMILES)
    assert [row for row, reason in enumerate(reasons) if reason] == [1, 3, 6]
    assert reasons[3] == "empty SMILES" and reasons[6].startswith("30 atoms")
    found, reasons = featurize(["OCC", "x"], GraphConfig(atom_order="input"))
    assert_rows(found, reasons, ["OCC", "x"], atom_order="input")


def test_nothing():
    found, reasons = featurize([], GraphConfig())
    assert len(found) == 0 and reasons == []


@pytest.fixture(scope="module")
def many(demo_smiles):
    smiles = demo_smiles[:1100]
    smiles[::50] = ["oops"] * len(smiles[::50])
    return smiles


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_do_not_matter(workers, many):
    """Chunks of 512 and a rest, from one process or several."""
    expected, expected_reasons = featurize(many, GraphConfig())
    with featurizers(workers=workers) as pool:
        assert (pool is None) == (workers == 1)
        found, reasons = featurize(many, GraphConfig(), pool=pool)
        streamed = list(featurize_stream([many[:3], [], many[3:700]], GraphConfig(), pool=pool))
    assert reasons == expected_reasons
    np.testing.assert_array_equal(found.data, expected.data)
    assert [len(part) for part, _ in streamed] == [3, 0, 697]
    assert [reason for _, reasons in streamed for reason in reasons] == expected_reasons[:700]
    np.testing.assert_array_equal(np.concatenate([part.sizes for part, _ in streamed]), expected.sizes[:700])


def test_progress_counts_every_row(many):
    done: list[int] = []
    featurize(many, GraphConfig(), progress=done.append)
    assert sum(done) == 1100 and len(done) == 3


def test_few_rows_need_no_processes():
    with featurizers(rows=100, workers=2) as pool:
        assert pool is None


def test_leaving_a_stream_early_ends_its_work(many):
    with featurizers(workers=2) as pool:
        stream = featurize_stream(([text] * 600 for text in many), GraphConfig(), pool=pool)
        assert len(next(stream)[0]) == 600
        stream.close()
        assert len(featurize(["C"], GraphConfig(), pool=pool)[0]) == 1


# --- files that survive an interruption ---------------------------------------------------------


@pytest.fixture
def whole(tmp_path, shards_of_four) -> bytes:
    build_store(tmp_path / "whole" / "s.arrow", pieces(), INFO, workers=1)
    return (tmp_path / "whole" / "s.arrow").read_bytes()


def test_nothing_is_left_beside_the_file(whole, tmp_path):
    assert names(tmp_path / "whole") == ["s.arrow"]
    assert not [path for path in (tmp_path / "whole").iterdir() if path.is_dir()]
    found = GraphStore.open(tmp_path / "whole" / "s.arrow")
    assert [batch.num_rows for batch in found.batches] == [4, 4, 2] and sorted(found.errors) == [1, 3]


def interrupted(path: Path, stop: int) -> Path:
    """A call that was stopped, and its folder of shards."""
    with pytest.raises(KeyboardInterrupt):
        build_store(path, pieces(stop), INFO, workers=1)
    assert not path.exists()
    return path.with_name(f".{path.name}.parts")


@pytest.mark.parametrize(("stop", "again"), [(0, 0), (1, 0), (2, 4), (3, 4), (4, 8)])
def test_an_interrupted_call_is_continued(stop, again, whole, tmp_path, parsed):
    interrupted(tmp_path / "s.arrow", stop)
    assert names(tmp_path) == ["whole"]
    parsed.clear()
    done: list[int] = []
    build_store(tmp_path / "s.arrow", pieces(), INFO, workers=1, progress=done.append)
    assert parsed == SMILES[again:] and sum(done) == len(SMILES)
    assert (tmp_path / "s.arrow").read_bytes() == whole
    assert names(tmp_path) == ["s.arrow", "whole"]


def test_an_old_file_stands_until_the_new_one_is_whole(tmp_path, shards_of_four):
    (tmp_path / "s.arrow").write_bytes(b"the old file")
    with pytest.raises(KeyboardInterrupt):
        build_store(tmp_path / "s.arrow", pieces(3), INFO, workers=1)
    assert (tmp_path / "s.arrow").read_bytes() == b"the old file"
    assert len(build_store(tmp_path / "s.arrow", pieces(), INFO, workers=1)) == len(SMILES)


@pytest.mark.parametrize("change", ["smiles", "label", "split", "rejected", "order", "limit", "target"])
def test_a_shard_of_something_else_is_made_again(change, tmp_path, shards_of_four, parsed):
    interrupted(tmp_path / "s.arrow", 2)
    changed, info = rows(SMILES), INFO
    if change == "smiles":
        changed.smiles = ["OCC", *SMILES[1:]]
    elif change == "label":
        changed.targets[2] = np.nan
    elif change == "split":
        changed.split[3] = 2
    elif change == "rejected":
        changed.rejected[0] = "no number"
    else:
        name, value = {
            "order": ("atom_order", "input"),
            "limit": ("max_atoms", 20),
            "target": ("targets", ("z",)),
            "source": ("source", "other data"),
        }[change]
        info = StoreInfo(**{**vars(INFO), name: value})
    parsed.clear()
    found = build_store(tmp_path / "s.arrow", [changed], info, workers=1)
    assert parsed == changed.smiles
    build_store(tmp_path / "fresh.arrow", [changed], info, workers=1)
    assert (tmp_path / "s.arrow").read_bytes() == (tmp_path / "fresh.arrow").read_bytes() and len(found) == len(SMILES)


@pytest.mark.parametrize("damage", ["flipped", "truncated", "empty", "text"])
def test_a_damaged_shard_is_made_again(damage, whole, tmp_path, parsed):
    shards = sorted(interrupted(tmp_path / "s.arrow", 4).glob("*.arrow"))
    assert len(shards) == 2
    content = bytearray(shards[0].read_bytes())
    if damage == "flipped":
        content[len(content) // 2] ^= 1
    damaged = {"truncated": content[:-100], "empty": b"", "text": b"no shard"}.get(damage, content)
    shards[0].write_bytes(damaged)
    parsed.clear()
    build_store(tmp_path / "s.arrow", pieces(), INFO, workers=1)
    assert parsed == SMILES[:4] + SMILES[8:] and (tmp_path / "s.arrow").read_bytes() == whole


def test_shards_of_a_longer_call_are_no_part_of_it(whole, tmp_path):
    interrupted(tmp_path / "s.arrow", 4)
    found = build_store(tmp_path / "s.arrow", [rows(SMILES[:4])], INFO, workers=1)
    assert len(found) == 4 and names(tmp_path) == ["s.arrow", "whole"]


def test_how_rows_come_does_not_matter(whole, tmp_path):
    build_store(tmp_path / "s.arrow", [rows(SMILES)], INFO, workers=2)
    assert (tmp_path / "s.arrow").read_bytes() == whole


def test_the_fingerprint_sees_everything(tmp_path):
    def fingerprint(change=None, info=INFO) -> str:
        made = rows(SMILES)
        if change:
            change(made)
        return build_store(tmp_path / "s.arrow", [made], info, workers=1).info.fingerprint

    def molecule(made):
        made.smiles = ["CCN", *SMILES[1:]]

    def label(made):
        made.targets[0] = 7

    def part(made):
        made.split[0] = 1

    found = [fingerprint(), *(fingerprint(change) for change in (molecule, label, part))]
    assert len(set(found)) == 4 and all(found) and fingerprint() == found[0]
    assert fingerprint(info=StoreInfo("some data", "given", ("y",))) == "given"


@pytest.mark.parametrize("name", ["file/s.arrow", "file/deep/s.arrow", "folder.arrow"])
def test_where_nothing_can_be_written(name, tmp_path):
    (tmp_path / "file").write_text("a file")
    (tmp_path / "folder.arrow").mkdir()
    with pytest.raises(InputError, match=r"cannot write .*\.arrow"):
        build_store(tmp_path / name, pieces(), INFO, workers=1)
    assert (tmp_path / "file").read_text() == "a file" and names(tmp_path / "folder.arrow") == []


def _slowly():
    for begin in range(0, 24, 2):
        time.sleep(0.02)
        yield rows(["C" * (begin + 1), "oops"], begin)


def _sizes(path: Path) -> list[int]:
    return build_store(path, _slowly(), INFO, workers=1).sizes.tolist()


def test_two_processes_make_the_same_file(tmp_path, shards_of_four):
    method = "fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn"
    with ProcessPoolExecutor(2, multiprocessing.get_context(method)) as pool:
        sizes = [size for begin in range(0, 24, 2) for size in (begin + 1, 0)]
        assert list(pool.map(_sizes, [tmp_path / "s.arrow"] * 2)) == [sizes] * 2
    assert names(tmp_path) == ["s.arrow"] and not [path for path in tmp_path.iterdir() if path.is_dir()]
    build_store(tmp_path / "alone.arrow", _slowly(), INFO, workers=1)
    assert (tmp_path / "s.arrow").read_bytes() == (tmp_path / "alone.arrow").read_bytes()


# --- data sets ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["s.csv", "s", "s.ARROW", "s.arrow.gz"])
def test_the_name_of_a_store(name, tmp_path):
    with pytest.raises(InputError, match=r"the name of a store must end in \.arrow"):
        featurize_dataset(DataConfig(), GraphConfig(), tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_store_is_featurized_already(tmp_path):
    build_store(tmp_path / "s.arrow", pieces(), INFO, workers=1)
    with pytest.raises(InputError, match=r"s\.arrow is featurized already"):
        featurize_dataset(DataConfig(str(tmp_path / "s.arrow")), GraphConfig(), tmp_path / "t.arrow")


def test_the_report(tmp_path, demo_csv, demo_rows):
    config = DataConfig(str(demo_csv), targets="gap_ev")
    report = featurize_dataset(config, GraphConfig(max_atoms=20), tmp_path / "s.arrow", workers=1)
    large = [row for row, smiles in enumerate(demo_rows["smiles"]) if smiles_to_graph(smiles).num_atoms > 20]
    assert report.failed == len(large) > 0 and report.first_reason == report.store.errors[large[0]]
    assert report.store.info.max_atoms == 20 and report.store.info.targets == ("gap_ev",)
    np.testing.assert_array_equal(report.store.targets[:, 0], demo_rows["gap_ev"])
    assert (report.store.split == demo_rows["split"].map({"train": 0, "valid": 1, "test": 2})).all()


# --- the cache ----------------------------------------------------------------------------------


@pytest.fixture
def source(demo_csv):
    return load_source(DataConfig(dataset=str(demo_csv)))


def test_the_second_time_nothing_is_parsed(source, tmp_path, no_parsing):
    first = store_of(source, GraphConfig(), tmp_path)
    no_parsing()
    again = store_of(source, GraphConfig(), tmp_path)
    np.testing.assert_array_equal(again.data, first.data)
    assert len(names(tmp_path)) == 1 and names(tmp_path)[0].startswith("demo60.csv-")
    assert first.name == str(tmp_path / names(tmp_path)[0]) and len(first) == 60
    assert first.sizes.tolist() == [smiles_to_graph(smiles).num_atoms for smiles in source.smiles]


def test_path_ties_share_a_file_and_other_settings_do_not(source, tmp_path):
    for settings, files in [({}, 1), ({"path_ties": "floyd-warshall"}, 1), ({"atom_order": "input"}, 2)]:
        store_of(source, GraphConfig(**settings), tmp_path)
        assert len(names(tmp_path)) == files
    assert store_of(source, GraphConfig(max_atoms=10), tmp_path).sizes.max() <= 10 and len(names(tmp_path)) == 3


@pytest.mark.parametrize("what", ["smiles", "targets", "split"])
def test_other_data_get_another_file(what, source, tmp_path):
    store_of(source, GraphConfig(), tmp_path)
    if what == "smiles":
        source.smiles = [*source.smiles[:-1], "C"]
    elif what == "targets":
        source.targets = source.targets + 1
    else:
        source.split = None
    store_of(source, GraphConfig(), tmp_path)
    assert len(names(tmp_path)) == 2


@pytest.mark.parametrize("damage", ["flipped", "truncated", "empty", "other"])
def test_a_damaged_file_is_made_again(damage, source, tmp_path, capsys, no_parsing):
    content = store_of(source, GraphConfig(), tmp_path).data.tobytes()
    (path,) = (tmp_path / name for name in names(tmp_path))
    damaged = bytearray(content)
    damaged[len(damaged) // 2] ^= 1
    path.write_bytes({"flipped": damaged, "truncated": content[:-9], "empty": b"", "other": b"text"}[damage])
    capsys.readouterr()
    assert len(store_of(source, GraphConfig(), tmp_path)) == 60
    out, err = capsys.readouterr()
    assert out == "" and err.startswith(str(path)) and "making it again" in err and len(err.splitlines()) <= 2
    assert path.read_bytes() == content
    no_parsing()
    store_of(source, GraphConfig(), tmp_path)


def test_another_version_makes_another_file(source, tmp_path, monkeypatch):
    """Features that changed are never read from the cache of before."""
    store_of(source, GraphConfig(), tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(store_module, "FEATURES", "newer")
        patch.setattr(module, "StoreInfo", lambda *values: StoreInfo(*values, features="newer"))
        store_of(source, GraphConfig(), tmp_path)
    assert len(names(tmp_path)) == 2


def test_an_interrupted_cache_is_continued(source, tmp_path, shards_of_four, parsed):
    def stop(_):
        if len(parsed) > 30:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store_of(source, GraphConfig(), tmp_path, stop)
    assert names(tmp_path) == []
    assert len(store_of(source, GraphConfig(), tmp_path)) == 60
    assert 60 < len(parsed) < 70 and len(names(tmp_path)) == 1


def test_where_the_cache_is(source, tmp_path, monkeypatch):
    monkeypatch.setenv("GRAPHSLICE_CACHE", str(tmp_path / "named"))
    store_of(source, GraphConfig())
    assert default_cache() == tmp_path / "named" and len(names(tmp_path / "named")) == 1
    store_of(source, GraphConfig(), tmp_path / "given")
    assert len(names(tmp_path / "given")) == 1
    monkeypatch.delenv("GRAPHSLICE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert default_cache() == tmp_path / "xdg" / "graphslice" and default_cache().is_dir()
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert default_cache() == tmp_path / "home" / ".cache" / "graphslice"


def test_a_home_that_cannot_be_written(tmp_path, monkeypatch):
    """Such as in a container: a folder for temporary files takes its place."""
    (tmp_path / "file").touch()
    monkeypatch.delenv("GRAPHSLICE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert default_cache().parent == tmp_path and default_cache().name.startswith("graphslice-cache-")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("os.access", lambda *_: False)
    assert default_cache().name.startswith("graphslice-cache-")


def test_a_cache_that_cannot_be_written(source, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("GRAPHSLICE_CACHE", str(tmp_path / "file"))
    for cache in (None, tmp_path / "file" / "deeper"):
        with pytest.raises(InputError, match="cannot write"):
            store_of(source, GraphConfig(), cache)


def test_graphs_and_stores_need_no_cache(tmp_path):
    import torch

    data = smiles_to_graph("CCO").to_pyg()
    data.y = torch.tensor([1.0])
    assert store_of(pyg_source([data]), GraphConfig(), tmp_path / "no").sizes.tolist() == [3]
    made = build_store(tmp_path / "s.arrow", pieces(), INFO, workers=1)
    found = load_source(DataConfig(str(tmp_path / "s.arrow")))
    assert store_of(found, GraphConfig(), tmp_path / "no").sizes.tolist() == made.sizes.tolist()
    for settings in ({"atom_order": "input"}, {"max_atoms": 20}):
        with pytest.raises(InputError, match=r"canonical order .* 512 atoms; .* featurize with --graph"):
            store_of(found, GraphConfig(**settings), tmp_path / "no")
    assert not (tmp_path / "no").exists()
