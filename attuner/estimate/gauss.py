"""Small dense linear algebra of the learner: positive definite systems of a few dozen unknowns."""

from __future__ import annotations

import math

Vector = list[float]
Matrix = list[Vector]


def cholesky(a: Matrix) -> Matrix:
    """Return the lower factor L of a positive definite matrix, L·Lᵀ = a."""
    n = len(a)
    low = [[0.0] * n for _ in range(n)]
    for i in range(n):
        row = low[i]
        for j in range(i + 1):
            other = low[j]
            rest = a[i][j] - sum(row[k] * other[k] for k in range(j))
            row[j] = math.sqrt(max(rest, 1e-18)) if i == j else rest / other[j]
    return low


def solve(low: Matrix, b: Vector) -> Vector:
    """Return x of L·Lᵀ·x = b."""
    n = len(b)
    y = [0.0] * n
    for i in range(n):
        y[i] = (b[i] - sum(low[i][k] * y[k] for k in range(i))) / low[i][i]
    for i in reversed(range(n)):
        y[i] = (y[i] - sum(low[k][i] * y[k] for k in range(i + 1, n))) / low[i][i]
    return y


def inverse(a: Matrix) -> Matrix:
    """Return the inverse of a positive definite matrix."""
    low, n = cholesky(a), len(a)
    return [solve(low, [float(i == j) for i in range(n)]) for j in range(n)]


def quadratic(a: Matrix, x: Vector, y: Vector) -> float:
    """Return xᵀ·a·y."""
    return sum(xi * sum(aij * yj for aij, yj in zip(row, y, strict=True)) for xi, row in zip(x, a, strict=True) if xi)


def posterior(prior: Matrix, rows: list[tuple[Vector, float, float]]) -> tuple[Vector, Matrix]:
    """Return mean and covariance of x ~ N(0, prior) after equations (slope, value, σ): slope·x = value ± σ."""
    n = len(prior)
    precision = inverse(prior)
    right = [0.0] * n
    for slope, value, sigma in rows:
        weight = 1.0 / (sigma * sigma)
        for i, s in enumerate(slope):
            if s:
                right[i] += weight * s * value
                row = precision[i]
                for j, t in enumerate(slope):
                    row[j] += weight * s * t
    low = cholesky(precision)
    return solve(low, right), inverse(precision)
