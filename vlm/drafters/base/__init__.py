"""What drafter families share: bases, their request states, and what they read of a prompt."""
