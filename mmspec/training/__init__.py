"""Shared parts of all trainings: schedule, optimizer, checkpoints, run state and log."""
