"""Number formats, legends and target names of atom contributions."""

import numpy as np
import pytest

from graphslice.errors import InputError
from graphslice.explain.attribution import Attribution, Digits, explain_target, match_target, short_number
from graphslice.tasks import Task

LOGP, LOG = Task("logp"), Task("clearance", transform="log")
ACTIVE = Task("active", "binary", ("no", "yes"))
GRADE = Task("grade", "multiclass", ("low", "middle", "high"))


def explanation_of(task: Task, values, predictions, error=0.0, weight=1.0, models=1, baseline=1.0):
    """Explain a single target with contributions ``[N, W]``."""
    values = np.array(values, float).reshape(-1, len(predictions))
    baselines = np.full(len(predictions), baseline)
    errors, weights = np.full(values.shape, error), np.full(len(predictions), weight)
    attribution = Attribution(values, errors, baselines + values.sum(0), baselines, task.output_names, weights)
    return explain_target(attribution, np.array(predictions, np.float32), [task], 0, models)


@pytest.mark.parametrize(
    "largest, error, written",
    [
        (0.734, 0, "+0.73"), (1.234, 0, "+1.23"), (12.34, 0, "+12.3"), (1234.5, 0, "+1234"), (0.0123, 0, "+0.0123"),
        (0.734, 0.03, "+0.73"), (0.734, 0.3, "+0.7"), (0.734, 0.0997, "+0.7"), (0.734, 0.00003, "+0.73"),
        (0.734, 7.0, "+1"), (0.734, np.nan, "+0.73"), (3.2e-6, 0, "+3.2"), (1.5e7, 0, "+1.50"),
    ],
)  # fmt: skip
def test_digits_depend_on_magnitude_and_standard_error(largest, error, written):
    digits = Digits.of(np.array([largest / 10, -largest / 3, largest]), error)
    assert digits.text(largest, sign=True) == written
    assert digits.text(-largest, sign=True) == written.replace("+", "\N{MINUS SIGN}")
    assert digits.text(largest) == written[1:]
    assert float(digits.plain(largest)) == pytest.approx(digits.rounded(largest))
    assert digits.plain(-largest).startswith("-") and digits.times == (" x 10^" in digits.times) * digits.times


def test_zero_has_no_sign():
    digits = Digits(2)
    assert {digits.text(value, sign=True) for value in (0.0, -0.0, 0.001, -0.001)} == {"0.00"}
    assert digits.plain(-0.001) == "0.00" and Digits.of(np.zeros(3), 0.0) == Digits(2)


@pytest.mark.parametrize("seed", range(5))
def test_displayed_sum_is_exact(seed):
    random = np.random.default_rng(seed)
    explanation = explanation_of(LOGP, random.normal(size=6), [0.0], baseline=random.normal())
    total, rest = explanation.sum.replace("\N{MINUS SIGN}", "-").split(" = ")
    base, sign, added = rest.replace(" (baseline)", "").replace(" (atoms)", "").split(" ")
    assert float(total) == pytest.approx(float(base) + float(sign + added), abs=1e-9)
    assert float(total) == pytest.approx(explanation.prediction, abs=0.5 * 10**-explanation.digits.decimals)


def test_regression_explanation():
    explanation = explanation_of(LOGP, [0.5, -0.25], [1.25], error=0.034)
    assert (explanation.quantity, explanation.down, explanation.up) == ("logp", "lowers logp", "raises logp")
    assert explanation.legend == "contribution to logp, in its unit"
    assert explanation.model_prediction == "" and explanation.notes == ()
    assert explanation.sum == "1.25 = 1.00 (baseline) + 0.25 (atoms)" and explanation.warning == ""
    assert explanation.error_text == "standard errors up to 0.03"
    assert not any(explanation_of(LOGP, [0.5], [1.5], error=error).error_text for error in (0.0, np.nan))


def test_explanation_of_a_logarithm_and_of_the_more_probable_class():
    explanation = explanation_of(LOG, [0.5, -0.25], [3.49])
    assert explanation.quantity == "ln(clearance)" and "natural logarithm of clearance" in explanation.legend
    assert explanation.model_prediction == "clearance 3.49" and explanation.up == "raises clearance"
    explanation = explanation_of(ACTIVE, [0.5, -0.25], [0.777])
    assert explanation.legend == "contribution to the logit of active = yes"
    assert (explanation.down, explanation.up) == ("towards no", "towards yes")
    assert explanation.model_prediction == "active yes, P(yes) 0.78"


def test_multiclass_explains_the_most_probable_class():
    values = [[0.1, 0.9, 0.2], [0.3, 0.1, -0.5]]
    explanation = explanation_of(GRADE, values, [0.1, 0.7, 0.2])
    assert explanation.values.tolist() == [0.9, 0.1] and explanation.quantity == "logit of grade = middle"
    assert (explanation.down, explanation.up) == ("away from middle", "towards middle")
    assert explanation.model_prediction == "grade middle, P(middle) 0.70"


def test_notes_mention_network_weight_and_ensemble_size():
    explanation = explanation_of(LOGP, [0.5], [2.25], weight=0.4, models=5)
    assert explanation.notes[0] == "mean of 5 networks" and "weight 0.40 in the prediction" in explanation.notes[1]
    assert explanation.model_prediction == "logp 2.25" and explanation.warning == ""
    small = explanation_of(LOGP, [0.5], [2.25], weight=0.1).warning
    assert "explain little" in small and "0.10" in small and "\n" not in small


def test_short_number():
    numbers = {
        2.345: "2.35",
        -0.5: "\N{MINUS SIGN}0.500",
        12345.6: "12346",
        1e-9: "1.00e\N{MINUS SIGN}09",
        123.4: "123",
    }
    assert [short_number(value) for value in numbers] == list(numbers.values())


def test_target_is_matched_by_part_of_its_name():
    names = ["gap_ev", "HOMO_ev", "lumo_ev", "Gap", "logP, 25 C"]
    found = {None: 0, "gap_ev": 0, "gap": 3, "homo": 1, "LUMO": 2, "Gap_EV": 0, "logp": 4, " 25 ": 4}
    assert [match_target(text, names) for text in found] == list(found.values())
    for text, message in (
        ("ev", "no target 'ev'.*'gap_ev', 'HOMO_ev', 'lumo_ev' match: give more of its name"),
        ("lummo", r"no target 'lummo' \(did you mean 'lumo_ev'\?\): it has 'gap_ev', "),
        ("", "no target ''"),
    ):
        with pytest.raises(InputError, match=message):
            match_target(text, names)
