"""HTML report of a run: one self-contained page."""

from graphslice.report.write import report_after_training as report_after_training
from graphslice.report.write import write_report as write_report
