"""Online convex optimization: learners that play against a stream of losses.

Contains one learner for losses of unknown curvature (``universal``), its components, and baselines.
"""
