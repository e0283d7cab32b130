"""What a model's answers are worth: intervals and sets of classes, temperatures, nearness to the training molecules."""

from graphslice.calibration.calibration import Calibration as Calibration
from graphslice.calibration.calibration import TargetCalibration as TargetCalibration
from graphslice.calibration.calibration import fit_calibration as fit_calibration
from graphslice.calibration.conformal import DISTANCE as DISTANCE
from graphslice.calibration.conformal import Scores as Scores
from graphslice.calibration.conformal import check_level as check_level
from graphslice.calibration.conformal import molecules_needed as molecules_needed
from graphslice.calibration.conformal import over_molecules as over_molecules
from graphslice.calibration.domain import Domain as Domain
from graphslice.calibration.temperature import fit_temperature as fit_temperature
from graphslice.calibration.temperature import tempered as tempered
