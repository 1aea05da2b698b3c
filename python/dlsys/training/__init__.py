"""Training: the loop over epochs (`fit.py`), a run and its checkpoints (`run.py`), compiled steps (`steps.py`)."""

from __future__ import annotations

from .fit import evaluate_on as evaluate_on
from .fit import fit as fit
from .run import COLUMNS as COLUMNS
from .run import VALIDATION as VALIDATION
from .steps import History as History
from .steps import accuracy as accuracy
