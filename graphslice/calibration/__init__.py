"""Calibration: conformal prediction intervals and sets, temperature scaling, applicability domain."""

from graphslice.calibration.applicability_domain import ApplicabilityDomain as ApplicabilityDomain
from graphslice.calibration.calibration import Calibration as Calibration
from graphslice.calibration.calibration import TargetCalibration as TargetCalibration
from graphslice.calibration.calibration import fit_calibration as fit_calibration
from graphslice.calibration.conformal import CONSTANT as CONSTANT
from graphslice.calibration.conformal import DOMAIN_DISTANCE as DOMAIN_DISTANCE
from graphslice.calibration.conformal import ENSEMBLE_STD as ENSEMBLE_STD
from graphslice.calibration.conformal import NETWORK_STD as NETWORK_STD
from graphslice.calibration.conformal import PARTS_STD as PARTS_STD
from graphslice.calibration.conformal import NonconformityScores as NonconformityScores
from graphslice.calibration.conformal import coverage_of_level as coverage_of_level
from graphslice.calibration.conformal import mean_per_molecule as mean_per_molecule
from graphslice.calibration.conformal import min_calibration_molecules as min_calibration_molecules
from graphslice.calibration.temperature import fit_temperature as fit_temperature
from graphslice.calibration.temperature import temperature_scaled as temperature_scaled
