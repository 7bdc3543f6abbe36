"""Estimates of the gain from drafting on any machine: costs of models and rounds, acceptance, devices, schedules."""
