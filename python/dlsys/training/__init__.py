"""Training: epochs of compiled steps (`fit.py`), a run that is saved and goes on (`run.py`), the steps (`steps.py`)."""

from __future__ import annotations

from .fit import evaluate_on, fit
from .run import COLUMNS, VALIDATION
from .steps import History, accuracy
