"""Experiment trackers: TensorBoard, MLflow and Weights & Biases."""
