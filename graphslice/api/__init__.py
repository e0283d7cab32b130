"""The Python API that ``graphslice`` exports: fit, load and Model, and scikit-learn estimators."""
