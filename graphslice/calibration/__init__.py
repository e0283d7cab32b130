"""Calibration: conformal prediction intervals and sets, temperature scaling, applicability domain."""

from graphslice.calibration.calibration import CONSTANT as CONSTANT
from graphslice.calibration.calibration import DOMAIN_DISTANCE as DOMAIN_DISTANCE
from graphslice.calibration.calibration import ENSEMBLE_STD as ENSEMBLE_STD
from graphslice.calibration.calibration import NETWORK_STD as NETWORK_STD
from graphslice.calibration.calibration import PARTS_STD as PARTS_STD
from graphslice.calibration.calibration import Calibration as Calibration
from graphslice.calibration.calibration import NonconformityScores as NonconformityScores
from graphslice.calibration.calibration import TargetCalibration as TargetCalibration
from graphslice.calibration.calibration import coverage_of_level as coverage_of_level
from graphslice.calibration.calibration import fit_calibration as fit_calibration
from graphslice.calibration.calibration import fit_temperature as fit_temperature
from graphslice.calibration.calibration import mean_per_molecule as mean_per_molecule
from graphslice.calibration.calibration import min_calibration_molecules as min_calibration_molecules
from graphslice.calibration.calibration import temperature_scaled as temperature_scaled
from graphslice.calibration.domain import ApplicabilityDomain as ApplicabilityDomain
