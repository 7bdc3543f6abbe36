"""Estimates of the gain from drafting on another machine: costs, acceptance, devices and schedules."""
