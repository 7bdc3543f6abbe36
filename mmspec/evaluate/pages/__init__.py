"""What a finished bench shows: tables on the screen, Markdown pages and plots. It knows no domain."""
