"""Attacks on a federation and on its privacy, to measure harm, and how much a defence keeps out.

Attackers forge updates (``forgeries``), spoil rows, or lie about rows and scores; ``attacks`` puts
them into a simulation. ``inversion`` and ``membership`` are attacks on privacy,
with which ``audit`` examines a run.
"""
