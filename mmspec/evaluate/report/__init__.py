"""What a finished sweep shows: tables, and plots that a paper would print."""
