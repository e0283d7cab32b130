"""What notebooks use, exported by ``graphslice``: models fitted, asked and kept; estimators of scikit-learn."""
