"""MOLAR: multitask linear models by weighted medians and shrinkage, and baselines.

Huang, Xu, Lee, Hassani, Bastani, Dobriban. Optimal Multitask Linear Regression and Contextual
Bandits under Sparse Heterogeneity. 2024. Equations and algorithms in this folder are numbered as in
that paper.
"""
