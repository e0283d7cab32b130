"""Random forest and gradient boosting on molecular descriptors, and their stacking with the network."""

from graphslice.stacking.fit_trees import fit_boosting as fit_boosting
from graphslice.stacking.fit_trees import fit_forest as fit_forest
from graphslice.stacking.stacking import Stacking as Stacking
from graphslice.stacking.trees import Trees as Trees
from graphslice.stacking.weights import ErrorDifference as ErrorDifference
from graphslice.stacking.weights import compare_errors as compare_errors
from graphslice.stacking.weights import fit_stacking_weights as fit_stacking_weights
from graphslice.stacking.weights import prediction_loss as prediction_loss
