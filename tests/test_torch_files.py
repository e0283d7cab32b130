"""Files of torch.save, read without torch: the same values, and only values."""

import io
import pickle
import zipfile
from collections import OrderedDict

import numpy as np
import pytest
import torch

from graphslice.errors import InputError
from graphslice.package_data import MODELS
from graphslice.torch_files import read_torch_file
from graphslice.torch_io import as_tensors, torch_bytes

DTYPES = ["float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"]


@pytest.fixture
def read_back(tmp_path):
    def read(contents):
        torch.save(contents, tmp_path / "a.ckpt")
        return read_torch_file(tmp_path / "a.ckpt")

    return read


def assert_same(found, expected) -> None:
    """Check arrays against tensors and plain values, nested in any containers."""
    if isinstance(expected, torch.Tensor):
        expected = expected.detach().float() if expected.dtype == torch.bfloat16 else expected.detach()
        assert isinstance(found, np.ndarray) and found.dtype == expected.numpy().dtype
        assert found.shape == tuple(expected.shape)
        assert np.ascontiguousarray(found).tobytes() == expected.contiguous().numpy().tobytes()
    elif isinstance(expected, dict):
        assert type(found) is dict and list(found) == list(expected)
        for name, value in expected.items():
            assert_same(found[name], value)
    elif isinstance(expected, list | tuple):
        assert type(found) is type(expected) and len(found) == len(expected)
        for pair in zip(found, expected, strict=True):
            assert_same(*pair)
    else:
        assert type(found) is type(expected) and found == expected


@pytest.mark.parametrize("model", MODELS)
def test_packaged_models(model):
    assert_same(read_torch_file(MODELS[model]), torch.load(MODELS[model], weights_only=True))


def test_checkpoints_of_a_training(run_directory):
    for name in ("best.ckpt", "last.ckpt"):
        assert_same(read_torch_file(run_directory / name), torch.load(run_directory / name, weights_only=True))


@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype(name, read_back):
    values = torch.tensor([[0, 1, 2], [3, 100, 127]]).to(getattr(torch, name))
    contents = {"values": values, "last": values[1:, 2], "none": values[:0], "number": values[1, 0], "turned": values.T}
    assert_same(read_back(contents), contents)


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16"])
def test_numbers_that_are_not_finite(name, read_back):
    values = torch.tensor([torch.nan, torch.inf, -torch.inf, -0.0, 1e-40, 3e38]).to(getattr(torch, name))
    assert_same(read_back({"x": values}), {"x": values})


def test_plain_values_and_containers(read_back):
    inner = OrderedDict(a=1, b=[True, None, -5, 2**40, 0.1, float("inf"), "é\n"])
    inner.of_the_writer = OrderedDict(version=2)  # as the attribute `_metadata` of a state dict
    contents = {"x": inner, "y": ([], {}, (), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)), 3: {"list": list(range(3000))}}
    assert_same(read_back(contents), contents)


def test_parameters_and_gradients(read_back):
    layer = torch.nn.Linear(3, 2)
    contents = {"parameter": layer.weight, "tensor": torch.ones(2, requires_grad=True)}
    assert_same(read_back(contents), contents)


def test_tensors_share_memory_as_they_did(read_back):
    whole = torch.arange(6.0)
    found = read_back({"whole": whole, "part": whole[2:4]})
    assert np.shares_memory(found["whole"], found["part"]) and found["part"].tolist() == [2, 3]
    found["part"][0] = 9
    assert torch.from_numpy(found["whole"])[2] == 9  # writable, and readable by torch without a copy


def test_files_of_a_machine_of_the_other_byte_order(tmp_path, monkeypatch):
    parts = archive_of({"x": torch.tensor([1.0, 2.0]), "n": torch.tensor([1, 2])})
    parts["archive/byteorder"] = b"big"
    for name, dtype in (("0", "f4"), ("1", "i8")):
        parts[f"archive/data/{name}"] = np.frombuffer(parts[f"archive/data/{name}"], dtype).byteswap().tobytes()
    found = read_torch_file(written(tmp_path, parts))
    assert found["x"].tolist() == [1, 2] and found["n"].tolist() == [1, 2] and found["n"].dtype.isnative


def test_written_arrays_are_read_back(tmp_path):
    contents = {"a": np.arange(4.0)[::2], "b": [{"c": np.array(3)}], "text": "x"}
    (tmp_path / "a.ckpt").write_bytes(torch_bytes(as_tensors(contents)))
    found = read_torch_file(tmp_path / "a.ckpt")
    assert found["a"].tolist() == [0, 2] and found["b"][0]["c"] == 3 and found["text"] == "x"


def archive_of(contents) -> dict[str, bytes]:
    file = io.BytesIO()
    torch.save(contents, file)
    with zipfile.ZipFile(file) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def written(folder, parts: dict[str, bytes]):
    with zipfile.ZipFile(folder / "a.ckpt", "w") as archive:
        for name, data in parts.items():
            archive.writestr(name, data)
    return folder / "a.ckpt"


def pickled(tmp_path, operations: bytes):
    """Write an archive with a pickle of the given operations, and the memory of four floats."""
    return written(tmp_path, {"archive/data.pkl": b"\x80\x02" + operations + b".", "archive/data/0": bytes(16)})


MEMORY = b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x04tQ"


def tensor(memory=MEMORY, offset=b"K\x00", shape=b"K\x04\x85", strides=b"K\x01\x85", rest=b"\x89}") -> bytes:
    made = b"ctorch._utils\n_rebuild_tensor_v2\n(" + memory + offset + shape + strides + rest + b"tR"
    return b"}X\x01\x00\x00\x00x" + made + b"s"


def test_the_pickle_of_a_tensor(tmp_path):
    assert read_torch_file(pickled(tmp_path, tensor()))["x"].tolist() == [0] * 4
    square = tensor(shape=b"K\x02K\x02\x86", strides=b"K\x02K\x01\x86")
    assert read_torch_file(pickled(tmp_path, square))["x"].shape == (2, 2)


NUMBER = {-1: b"J\xff\xff\xff\xff", 2**62: b"\x8a\x08" + (2**62).to_bytes(8, "little")}
# Three strides of so many elements of four bytes are 2**64 + 8 bytes: 8 in arithmetic of 64 bits.
WRAPPED = b"\x8a\x08" + ((2**64 + 8) // 12).to_bytes(8, "little")


DAMAGED = {
    "offset": [b"K\x01", NUMBER[-1], NUMBER[2**62], b"N", b"\x88", b"X\x01\x00\x00\x00a"],
    "shape": [NUMBER[-1] + b"\x85", b"K\x02K\x02\x86", b"G\x40" + bytes(7) + b"\x85", b"K\x04"],
    "strides": [b"K\x02\x85", NUMBER[-1] + b"\x85", NUMBER[2**62] + b"\x85", WRAPPED + b"\x85"],
    "memory": [MEMORY.replace(b"K\x04tQ", other) for other in (b"K\x03tQ", b"K\x05tQ", b"NtQ", b"tQ")],
}
MALFORMED = [
    *(({name: value}, "damaged") for name, values in DAMAGED.items() for value in values),
    ({"offset": b"K\x05", "shape": b"K\x00\x85"}, "damaged"),
    ({"shape": b"K\x05\x85"}, "repeated elements"),
    ({"shape": NUMBER[2**62] + b"\x85", "strides": b"K\x00\x85"}, "damaged"),
    (dict.fromkeys(("shape", "strides"), b"(" + 40 * b"K\x01" + b"t"), "damaged"),
    ({"rest": b"\x89}}X\x04\x00\x00\x00conj\x88s"}, "other than weights"),  # a lazily conjugated tensor
    ({"memory": b"N"}, "other than weights"),
    ({"memory": MEMORY.replace(b"Float", b"Double")}, "damaged"),
    ({"memory": MEMORY.replace(b"Float", b"ComplexFloat")}, "other than weights"),
    ({"memory": MEMORY.replace(b"storagec", b"storagXc")}, "other than weights|damaged"),
    ({"memory": MEMORY.replace(b"\x01\x00\x00\x000X", b"\x01\x00\x00\x001X")}, "damaged"),
    ({"memory": MEMORY.replace(b"X\x01\x00\x00\x000X", b"K\x00X")}, "other than weights"),
]


@pytest.mark.parametrize(("change", "reason"), MALFORMED)
def test_malformed_tensors_are_rejected(change, reason, tmp_path):
    with pytest.raises(InputError, match=rf"a.ckpt: it .*({reason})"):
        read_torch_file(pickled(tmp_path, tensor(**change)))


@pytest.mark.parametrize(
    "operations",
    [
        b"cposix\nsystem\n(X\x04\x00\x00\x00trueltR",
        b"cposix\nsystem\n",
        b"cbuiltins\neval\n",
        b"ctorch\nload\n",
        b"ctorch._utils\n_rebuild_tensor\n",
        b"ccollections\nOrderedDict\n(]tR",  # with arguments
        b"ccollections\nOrderedDict\n}b",  # attributes of the class
        b"ccollections\nOrderedDict\n)\x81",  # cls.__new__
        b"(ccollections\nOrderedDict\no",
        b"(icollections\nOrderedDict\n",
        b"\x8c\x05posix\x8c\x06system\x93",
        b"\x82\x01",  # of the registry of extensions
        b"(}tQ",
        b"Pstorage\n",
        b"}]}b",  # attributes of a list
        b"K\x01}b",
        b"X\x01\x00\x00\x00a)R",  # a call of a text
        b"ctorch\nFloatStorage\n)R",
        b"X\x01\x00\x00\x00aK\x01a",  # append to a text
        b"]K\x00K\x01s",  # setitem of a list
        b"}" + b"]\x85\x85" + b"K\x01s",  # a key that is no text or number
        b"\x8f(K\x01\x90",  # a set
        b"C\x01a",  # bytes
        b"I1\n",
        b"L" + b"9" * 5000 + b"L\n",
    ],
)
def test_other_operations_are_rejected(operations, tmp_path):
    with pytest.raises(InputError, match=r"a.ckpt: it (holds objects other than weights|is truncated, damaged)"):
        read_torch_file(pickled(tmp_path, b"}X\x01\x00\x00\x00x" + operations + b"s"))


@pytest.mark.parametrize(
    "operations",
    [
        b"", b"0", b"t", b"h\x05", b"K\x01s", b"a", b"R", b"Q", b"b", b"\x85\x87", b"(", b"}(K\x01u",
        b"X\xff\xff\xff\x7f",
    ],
)  # fmt: skip
def test_incomplete_pickles_are_rejected(operations, tmp_path):
    with pytest.raises(InputError, match=r"cannot read .*a.ckpt: it "):
        read_torch_file(pickled(tmp_path, operations))


def test_numbers_of_the_memo_take_no_memory(tmp_path):
    """The unpickler of Python allocates as many places as the number says."""
    found = read_torch_file(pickled(tmp_path, b"}r\xff\xff\xff\x7fj\xff\xff\xff\x7f"))
    assert found == {}


def test_deep_nesting_is_rejected(tmp_path):
    for operations in (b"]" * 10**5 + b"a" * (10**5 - 1), b"K\x01" + b"\x85" * 10**5):
        with pytest.raises(InputError, match="damaged"):
            read_torch_file(pickled(tmp_path, b"}X\x01\x00\x00\x00x" + operations + b"s"))


def test_archives_without_a_part_are_rejected(tmp_path):
    whole = archive_of({"x": torch.ones(3)})
    for name in ("archive/data.pkl", "archive/data/0"):
        with pytest.raises(InputError, match=r"a.ckpt: it is truncated, damaged"):
            read_torch_file(written(tmp_path, {key: part for key, part in whole.items() if key != name}))
    with pytest.raises(InputError, match=r"a.ckpt: it is truncated, damaged"):
        read_torch_file(written(tmp_path, {}))


def test_changed_bytes_are_noticed(tmp_path):
    (tmp_path / "a.ckpt").write_bytes(torch_bytes({"x": torch.full((100,), 1.5)}))
    data = bytearray((tmp_path / "a.ckpt").read_bytes())
    data[data.index(np.float32(1.5).tobytes()) + 2] ^= 1
    (tmp_path / "a.ckpt").write_bytes(data)
    with pytest.raises(InputError, match=r"a.ckpt: it is truncated, damaged"):
        read_torch_file(tmp_path / "a.ckpt")


@pytest.mark.parametrize("make", [pickle.dumps, lambda contents: old_format(contents)], ids=["pickle", "old torch"])
def test_pickles_are_not_read(make, tmp_path):
    (tmp_path / "a.ckpt").write_bytes(make({"state_dict": {}}))
    with pytest.raises(InputError, match="is a pickle and not a GraphSlice checkpoint; 'graphslice import-checkpoint'"):
        read_torch_file(tmp_path / "a.ckpt")


def old_format(contents) -> bytes:
    file = io.BytesIO()
    torch.save(contents, file, _use_new_zipfile_serialization=False)
    return file.getvalue()
