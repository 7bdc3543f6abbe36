"""What drafting would gain on a machine that is not here: costs of models and rounds, acceptance, devices, schedules."""
