"""What trainings of every domain share: schedule, optimizer, checkpoints, run state and log."""
