"""Online convex optimization: learners that play against a stream of losses.

One learner for losses of unknown curvature (``universal``), the learners that it is made of, and
those it is compared with.
"""
