"""Random forest and gradient boosting on molecular descriptors, and their stacking with the network."""

from graphslice.trees.fitting import fit_boosting as fit_boosting
from graphslice.trees.fitting import fit_forest as fit_forest
from graphslice.trees.model import Trees as Trees
from graphslice.trees.stacking import Stacking as Stacking
from graphslice.trees.stacking_weights import ErrorDifference as ErrorDifference
from graphslice.trees.stacking_weights import compare_errors as compare_errors
from graphslice.trees.stacking_weights import fit_stacking_weights as fit_stacking_weights
from graphslice.trees.stacking_weights import prediction_loss as prediction_loss
