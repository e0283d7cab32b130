"""Thread pools of compiled kernels in processes that were forked after they were used."""

import os
import sys

import pytest

SCRIPT = """
import multiprocessing, os, sys
from concurrent.futures import ProcessPoolExecutor
import torch
import graphslice

torch.set_num_threads(2)
model, smiles = graphslice.load(sys.argv[1], "cpu"), ["CCO", "c1ccccc1O", "CC(=O)O"] * 80
matrix = torch.ones(1500, 1500)

def predict(smiles):
    graphslice.load(sys.argv[1], "cpu")
    return model.predict(smiles).tolist(), float((matrix @ matrix).exp().isinf().sum())

def in_fork(smiles):
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.write(writer, repr(predict(smiles)).encode())
        os._exit(0)
    os.wait()
    os.close(writer)
    with open(reader) as file:
        return eval(file.read())

def in_pool(smiles):
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.apply(predict, [smiles])

def in_executor(smiles):
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
        return pool.submit(predict, smiles).result()

expected = predict(smiles)
for way in (in_fork, in_pool, in_executor):
    assert way(smiles) == expected, way
    assert way(smiles) == expected == predict(smiles), way
print("equal")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_process_forked_after_a_prediction_predicts_the_same(start_process, wait_for_exit):
    code, out, err = wait_for_exit(start_process(sys.executable, "-c", SCRIPT, "gap"))
    assert (code, out) == (0, "equal\n"), err
