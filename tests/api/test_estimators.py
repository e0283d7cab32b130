"""Scikit-learn estimators on molecules."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import pytest
from rdkit import Chem
from sklearn.exceptions import NotFittedError
from sklearn.metrics import r2_score
from tiny import TINY

import graphslice as gs
from graphslice.errors import InputError

CONFIG = {"model": dict(TINY), "trainer": {"batch_size": 16, "accelerator": "cpu", "baselines": "off"}}
CHAINS = ["C" * n + "O" * (n % 2) for n in range(1, 61)]
ATOMS = np.array([Chem.MolFromSmiles(one).GetNumAtoms() for one in CHAINS], dtype=float)
THIRDS = np.arange(60) % 3
ALCOHOLS = np.array(["hydrocarbon", "alcohol"])[np.arange(1, 61) % 2]


def regressor(**settings) -> gs.GraphSliceRegressor:
    return gs.GraphSliceRegressor(**{"config": CONFIG, "epochs": 2, **settings})


def classifier(**settings) -> gs.GraphSliceClassifier:
    return gs.GraphSliceClassifier(**{"config": CONFIG, "epochs": 2, **settings})


@pytest.fixture(scope="module")
def fitted():
    return regressor().fit(CHAINS, ATOMS)


@pytest.fixture(scope="module")
def classes():
    return classifier().fit(CHAINS, ALCOHOLS)


def test_features_may_be_columns_of_a_data_frame():
    X = pd.DataFrame({"smiles": CHAINS, "ph": ATOMS, "split": ATOMS % 7})
    model = regressor(features=["ph", "morgan"]).fit(X, ATOMS)
    assert model.model_.config.data.descriptors == ("ph", "morgan")
    found = model.predict(X)
    np.testing.assert_array_equal(found, model.model_.predict(CHAINS, columns={"ph": ATOMS})[:, 0])
    assert not np.array_equal(found, model.predict(X.assign(ph=0.0)))
    for part in (X[["smiles"]], CHAINS):
        with pytest.raises(InputError, match="needs the feature column 'ph'"):
            model.predict(part)
    with pytest.raises(InputError, match="features has 'logd': X must be a data frame"):
        regressor(features="morgan,logd").fit(X, ATOMS)


def test_threads_train_one_after_another(monkeypatch):
    """They draw from one generator of random numbers."""
    training = threading.Lock()

    def alone(*_, **__):
        assert training.acquire(blocking=False)
        time.sleep(0.2)
        training.release()
        raise InputError("trained")

    monkeypatch.setattr("graphslice.training.train_run.train", alone)
    with ThreadPoolExecutor(4) as threads:
        fits = [threads.submit(regressor().fit, CHAINS, ATOMS) for _ in range(4)]
    assert [str(fit.exception()) for fit in fits] == ["trained"] * 4


@pytest.mark.slow
def test_estimators_fit_simple_properties():
    """The number of atoms and the presence of an oxygen can be learned."""
    model = regressor(epochs=30, config={**CONFIG, "optimizer": {"peak_lr": 0.01}}).fit(CHAINS, ATOMS)
    assert pytest.approx(r2_score(ATOMS, model.predict(CHAINS))) == model.score(CHAINS, ATOMS) > 0.5
    classes = classifier(epochs=40, config={**CONFIG, "optimizer": {"peak_lr": 0.01}}).fit(CHAINS, ALCOHOLS)
    assert classes.score(CHAINS, ALCOHOLS) > 0.83


def test_no_test_set_is_held_out(fitted):
    """Only a validation set is held out; users of an estimator hold out a test set themselves."""
    assert fitted.model_.config.data.split == "the split" and fitted.model_.folder is None


def test_regressor_with_several_targets():
    y = pd.DataFrame({"n": ATOMS, "m": -ATOMS})
    y.loc[3, "m"] = np.nan  # unknown
    model = regressor().fit(CHAINS, y)
    assert model.predict(["CCO", "oops"]).shape == (2, 2) and model.model_.targets == ["n", "m"]
    masked = np.ma.masked_array(y.fillna(-999.0), y.isna())
    np.testing.assert_array_equal(regressor().fit(CHAINS, masked).predict(CHAINS), model.predict(CHAINS))
    assert regressor().fit(CHAINS, ATOMS[:, None]).predict("CCO").shape == (1, 1)


def test_classifier_predicts_classes_and_probabilities(classes):
    assert classes.classes_.tolist() == ["alcohol", "hydrocarbon"]
    probabilities = classes.predict_proba([*CHAINS, "oops"])
    assert probabilities.shape == (61, 2) and np.isnan(probabilities[60]).all()
    np.testing.assert_array_equal(classes.predict(CHAINS), classes.classes_[probabilities[:60].argmax(axis=1)])
    assert 0 <= classes.score(CHAINS, ALCOHOLS) <= 1
    with pytest.raises(ValueError, match="row 1 of X has no class: not a valid SMILES"):
        classes.predict(["CCO", "C[N"])


def test_classes_of_rows_without_a_smiles_alone_are_left_out():
    model = classifier().fit([*CHAINS, ""], [*ALCOHOLS, "another"])
    assert model.classes_.tolist() == ["alcohol", "hydrocarbon"] and model.predict_proba(["CCO"]).shape == (1, 2)


@pytest.mark.parametrize("y", [THIRDS - 1, THIRDS == 0, (THIRDS == 0).astype(object), np.array(list("xYy"))[THIRDS]])
def test_predicted_classes_keep_the_label_type(y):
    model = classifier().fit(CHAINS, y)
    np.testing.assert_array_equal(model.classes_, np.unique(y))
    probabilities = model.predict_proba(CHAINS)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-12)
    assert model.predict(CHAINS).dtype == np.array(y.tolist()).dtype and probabilities.shape[1] == len(np.unique(y))


def test_invalid_molecules_are_predicted_as_nan(fitted):
    assert np.isnan(fitted.predict(["CCO", "oops", None])).tolist() == [False, True, True]
    model = regressor().fit([*CHAINS[:-1], "oops"], ATOMS)
    assert np.isfinite(model.predict("CCO")).all()


def test_fit_rejects_invalid_input():
    for call, message in [
        (lambda: regressor().fit(CHAINS, ALCOHOLS), "could not convert string to float"),
        (lambda: regressor().fit(CHAINS, ATOMS[1:]), r"shape \[59\], but there are 60 SMILES"),
        (lambda: regressor().fit(CHAINS, np.where(ATOMS > 50, np.inf, ATOMS)), "infinity"),
        (lambda: regressor().fit([], []), "no molecules"),
        (lambda: classifier().fit(CHAINS, ATOMS * 0), "only one class"),
        (lambda: classifier().fit(CHAINS[:4], ["a", "b", float("nan"), "a"]), "1 molecules have no class"),
        (lambda: classifier().fit(CHAINS, ATOMS + 0.5), "Unknown label type"),
    ]:
        with pytest.raises(ValueError, match=message):
            call()
    with pytest.raises(ValueError, match=r"sets trainer\.seed itself"):
        regressor(config={"trainer": {"seed": 7}}).fit(CHAINS, ATOMS)
    for weights, message in [(ATOMS[1:], "for each of 60 rows"), (-ATOMS, "finite number from 0 up")]:
        with pytest.raises(ValueError, match=message):
            regressor().fit(CHAINS, ATOMS, sample_weight=weights)
    with pytest.raises(NotFittedError):
        regressor().predict("CCO")


def test_random_state_determines_the_result():
    first, again, other = (regressor(random_state=seed).fit(CHAINS, ATOMS).predict("CCO") for seed in (3, 3, 4))
    assert first == again != other


def test_molecules_of_weight_zero_do_not_train():
    """Every molecule has a second row with the opposite label, which counts or has no weight."""
    smiles, labels = CHAINS * 2, np.concatenate([ATOMS, -ATOMS])
    models = [regressor(baselines=True, epochs=3).fit(smiles, labels, np.repeat([1.0, w], 60)) for w in (0, 1)]
    assert len(models[0].model_.calibration.domain.rows) == 60
    without, with_wrong = (np.abs(model.predict(CHAINS) - ATOMS).mean() / ATOMS.mean() for model in models)
    assert without < 0.2 and with_wrong > 0.8
