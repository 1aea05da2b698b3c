"""Training: epochs of compiled steps (`fit.py`), a run that is saved and goes on (`run.py`), the steps (`steps.py`)."""

from __future__ import annotations

from .fit import evaluate_on as evaluate_on
from .fit import fit as fit
from .run import COLUMNS as COLUMNS
from .run import VALIDATION as VALIDATION
from .steps import History as History
from .steps import accuracy as accuracy
