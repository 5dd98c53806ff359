"""The Gaussian process, against the conditional normal distribution written out with an explicit inverse."""

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from autotune.search.gaussian_process import GaussianProcess
from autotune.search.transfer_sampler import expected_improvement

NOISE = 0.01


def squared_exponential(a, b):
    return np.exp(-((a[:, None] - b[None]) ** 2).sum(-1))


def line(x):
    return 2 * x[:, 0] - 1


def conditional(points, observed, y):
    """Mean and covariance of the values at `points`, given noisy values at `observed`."""
    joint = squared_exponential(np.vstack([points, observed]), np.vstack([points, observed]))
    n = len(points)
    inverse = np.linalg.inv(joint[n:, n:] + NOISE * np.eye(len(observed)))
    mean = line(points) + joint[:n, n:] @ inverse @ (y - line(observed))
    return mean, joint[:n, :n] - joint[:n, n:] @ inverse @ joint[n:, :n]


@pytest.fixture
def fitted():
    """The points and values that a process knows, other points, the process, and its posterior at these."""
    rng = np.random.default_rng(0)
    X, y, X_star = rng.normal(size=(12, 3)), rng.normal(size=12), rng.normal(size=(5, 3))
    process = GaussianProcess(line, squared_exponential, NOISE)
    process.fit(X, y)
    return X, y, X_star, process, process.predict(X_star)


def test_a_prediction_is_the_conditional_distribution(fitted):
    X, y, X_star, process, posterior = fitted
    mean, covariance = conditional(X_star, X, y)
    np.testing.assert_allclose(posterior.mean, mean, rtol=1e-9)
    np.testing.assert_allclose(process.predict_mean(X_star), mean, rtol=1e-9)
    np.testing.assert_allclose(posterior.covariance, covariance, atol=1e-12)
    np.testing.assert_allclose(posterior.deviation, np.sqrt(np.diag(covariance)), rtol=1e-9)


def test_a_pending_observation_counts_as_one_of_its_mean(fitted):
    X, y, X_star, _, posterior = fitted
    posterior.condition_on_pending(1)
    posterior.condition_on_pending(3)
    pending = X_star[[1, 3]]
    mean, covariance = conditional(X_star, np.vstack([X, pending]), np.concatenate([y, conditional(pending, X, y)[0]]))
    np.testing.assert_allclose(posterior.mean, mean, rtol=1e-9)
    np.testing.assert_allclose(posterior.covariance, covariance, atol=1e-12)


@pytest.mark.parametrize(("gap", "deviation"), [(0.0, 1.0), (0.5, 0.2), (-1.0, 0.7)])
def test_expected_improvement_is_the_mean_of_what_is_positive(gap, deviation):
    [found] = expected_improvement(np.array([gap]), np.array([deviation]))
    expected, _ = quad(lambda x: x * norm.pdf(x, gap, deviation), 0, gap + 12 * deviation)
    assert found == pytest.approx(expected, rel=1e-6)
