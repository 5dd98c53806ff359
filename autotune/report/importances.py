"""How much each parameter matters for the times of a study, by Optuna."""

from __future__ import annotations

import warnings

import optuna
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.trial import TrialState

from autotune.report.records import Importances
from autotune.tuner.optuna_export import RecordedStudy

FEWEST_TRIALS = 20
"""PED-ANOVA compares the fastest tenth of the trials with all of them; of fewer trials that is less than two."""


def importances(recorded: RecordedStudy) -> Importances:
    """Return the importances of a study's parameters by PED-ANOVA."""
    timed = sum(row.status == "ok" for row in recorded.measured)
    if timed < FEWEST_TRIALS:
        return Importances(recorded.family, reason=f"{timed} timed trials are too few: {FEWEST_TRIALS} are needed")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study()
    trials = [trial for trial in recorded.trials() if trial.value is not None]
    for trial in trials:
        trial.state = TrialState.COMPLETE  # pruned ones are slow, and Optuna would leave them out
    study.add_trials(trials)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the evaluator is experimental, and warns of values that few trials have
        try:
            found = get_param_importances(study, evaluator=PedAnovaImportanceEvaluator())
        except (RuntimeError, ValueError) as error:  # such as parameters that all trials have the same value of
            return Importances(recorded.family, reason=f"Optuna cannot tell: {error}")
    if not any(found.values()):
        return Importances(recorded.family, reason="no parameter tells the fastest trials from the others")
    return Importances(recorded.family, found)
