"""Gaussian process regression, as in Rasmussen and Williams, *Gaussian Processes for Machine Learning* (2006).

The names are the book's. X are the observed inputs and y their noisy values; X_star are the inputs of a prediction;
K = k(X, X) and K_star = k(X_star, X) are covariance matrices; L is the Cholesky factor of K + noise * I.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]
Inputs = NDArray[Any]
"""Inputs along the first axis: points, or numbers of points; only `covariance` and `mean` look at them."""


@dataclass
class Posterior:
    """A joint normal distribution of the function's values at n inputs.

    Attributes:
        mean: Expected values, of shape (n,).
        covariance: Covariances of the values without observation noise, of shape (n, n).
        noise: Variance of the observation noise.
    """

    mean: Vector
    covariance: Matrix
    noise: float

    @property
    def deviation(self) -> Vector:
        """Return the standard deviation of each value, of shape (n,)."""
        deviation: Vector = np.sqrt(np.diag(self.covariance).clip(1e-12))
        return deviation

    def condition_on_pending(self, i: int) -> None:
        """Condition on an observation of value i that has been requested but has not arrived.

        The observation is assumed to equal its mean ("kriging believer", Ginsbourger et al. 2010): all means stay, and
        only the covariance shrinks.

        Args:
            i: Number of the input.
        """
        column = self.covariance[:, i].copy()
        self.covariance -= np.outer(column, column) / (column[i] + self.noise)


class GaussianProcess:
    """A Gaussian process with a known mean function and covariance function.

    Args:
        mean: Maps n inputs to their prior means, of shape (n,).
        covariance: k(A, B): maps n and m inputs to their prior covariances, of shape (n, m).
        noise: Variance of the observation noise.
    """

    def __init__(
        self, mean: Callable[[Inputs], Vector], covariance: Callable[[Inputs, Inputs], Matrix], noise: float
    ) -> None:
        self._mean, self._covariance, self._noise = mean, covariance, noise

    def fit(self, X: Inputs, y: Vector) -> None:
        """Condition on observations: lines 2 and 3 of algorithm 2.1, with y - mean(X) in place of y.

        Args:
            X: The n observed inputs.
            y: Their values, of shape (n,).
        """
        K = self._covariance(X, X)
        self._X = X
        self._L = cho_factor(K + self._noise * np.eye(len(y)), lower=True)
        self._alpha: Vector = cho_solve(self._L, y - self._mean(X))

    def predict_mean(self, X_star: Inputs) -> Vector:
        """Return the posterior means at some inputs: line 4 of algorithm 2.1."""
        K_star = self._covariance(X_star, self._X)
        return self._mean(X_star) + K_star @ self._alpha

    def predict(self, X_star: Inputs) -> Posterior:
        """Return the joint posterior distribution at some inputs: lines 4 to 6 of algorithm 2.1."""
        K_star = self._covariance(X_star, self._X)
        mean = self._mean(X_star) + K_star @ self._alpha
        covariance = self._covariance(X_star, X_star) - K_star @ cho_solve(self._L, K_star.T)
        return Posterior(mean, covariance, self._noise)
