"""Scores of clients' models: tasks, metrics, served models, the best round."""

from typing import TYPE_CHECKING

from engram.lazy import attach

# Listing metrics, or mistyping one, loads no numpy.
if TYPE_CHECKING:
    from engram.scoring.survival_scores import brier_errors as brier_errors
    from engram.scoring.survival_scores import concordant_pairs as concordant_pairs

__getattr__, __dir__, __all__ = attach(__name__, __file__)
