"""What finished benches and sweeps show: tables, Markdown pages, and plots that a paper would print."""
