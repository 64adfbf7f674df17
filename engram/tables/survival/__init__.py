"""Survival: proportional hazards, stratified by site."""
