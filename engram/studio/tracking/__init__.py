"""Experiment trackers: TensorBoard, MLflow and Weights & Biases are told what a run records."""
