"""Membership inference: does a model tell who was among the rows that it learned from?

Several models are trained alike, each on a random half of the rows. One of them is the target, and
the others tell an attacker how a row's loss is distributed among models that have, and that have
not learned from it: the likelihood-ratio attack with a fixed variance, for few such models
(Carlini et al. Membership Inference Attacks From First Principles. IEEE S&P 2022, Algorithm 1 and
Sec. VI-B). Power is told at few false positives, since an attack that is right about a few rows
and knows about which is worse for these than one that is right about every second one.
"""

from typing import Final, NamedTuple

import numpy as np
from scipy.stats import mannwhitneyu

from engram.core.arrays import Array, Bools
from engram.core.checks import require
from engram.scoring.intervals import student

RATE: Final = 0.01
"""Share of non-members that are taken for members."""

_LEAST: Final = 1e-6  # loss, so that logits are finite


def halves(rows: int, models: int, rng: np.random.Generator) -> Bools:
    """Draws each model's half of the rows, (models, rows); each row is in half of the models."""
    require(models % 2 == 0 and models >= 4, "models", models, "an even number, at least 4")
    order = rng.permuted(np.tile(np.arange(models), (rows, 1)), axis=1)
    return np.ascontiguousarray((order < models // 2).T)


def confidence(losses: Array, *, likelihood: bool) -> Array:
    """Transforms losses into signals that are nearly normal over models.

    Args:
        losses: Losses of rows, any shape.
        likelihood: Whether they are negative log-likelihoods -log p of classes: the result is then
            the logit log(p / (1 - p)) (Carlini et al., Sec. VI-A); else the logarithm of the loss,
            negated.
    """
    bounded = np.maximum(losses, _LEAST)
    return np.asarray(-np.log(np.expm1(bounded)) if likelihood else -np.log(bounded))


def likelihood_ratios(signals: Array, members: Bools) -> Array:
    """Returns log-likelihood ratios of membership, (models, rows), with each model as the target.

    For row i and target t, of means over the n other models with and without the row, and of the
    variances within these groups, pooled over all rows::

        (f_ti - mu_out,i)^2 / (2 v_out) - (f_ti - mu_in,i)^2 / (2 v_in) + log(s_out / s_in),
        v = s^2 (1 + 1 / n)

    The variance is that of the target around a mean of so few models. Without its second term,
    members would seem less likely, since fewer of the others have their rows.

    Args:
        signals: ``confidence`` of each model in each row, (models, rows).
        members: Whether the model learned from the row, (models, rows); at least one of any others
            did, and one did not.
    """
    found = np.empty_like(signals)
    for target in range(len(signals)):
        f, rest = signals[target], np.delete(signals, target, axis=0)
        some = np.delete(members, target, axis=0)
        (far_in, s_in), (far_out, s_out) = (_distance(f, rest, group) for group in (some, ~some))
        found[target] = far_out - far_in + np.log(s_out / s_in)
    return found


def _distance(f: Array, signals: Array, some: Bools) -> tuple[Array, float]:
    """Returns half the squared distance of f to a group, in its variance, and its deviation."""
    counts = some.sum(0)
    mean = np.where(some, signals, 0.0).sum(0) / counts
    squares = np.where(some, (signals - mean) ** 2, 0.0).sum()
    s = max(float(np.sqrt(squares / (counts - 1).sum())), _LEAST)
    return (f - mean) ** 2 / (2 * s**2 * (1 + 1 / counts)), s


class Power(NamedTuple):
    """The share of members that an attack recognizes."""

    share: float  # mean over targets of the share recognized, at the rate of false positives
    low: float  # lower end of its interval
    high: float  # upper end
    area: float  # mean area under the curve of true against false positives; 0.5 by guessing


def power(scores: Array, members: Bools) -> Power:
    """Estimates the share of members recognized at a false-positive rate of ``RATE``.

    The 95 % interval is Student's over targets. These share their references, so it is of these
    rows and of runs that are drawn anew.
    Both have the shape (models, rows); scores are higher for members.

    Raises:
        ValueError: There are too few non-members for the rate.
    """
    few = int((~members).sum(1).min())
    require(RATE * few >= 1, "rows", few, f"at least {round(1 / RATE)} that a model has not seen")
    shares, areas = [], []
    for own, inside in zip(scores, members, strict=True):
        outside = np.sort(own[~inside])[::-1]
        shares.append(float((own[inside] > outside[int(RATE * len(outside))]).mean()))
        wins = mannwhitneyu(own[inside], own[~inside]).statistic
        areas.append(float(wins / (inside.sum() * (~inside).sum())))
    mean, low, high = student(np.array(shares))
    return Power(mean, max(low, 0.0), min(high, 1.0), float(np.mean(areas)))
